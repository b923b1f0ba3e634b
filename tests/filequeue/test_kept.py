"""A queue's file is read once, and again only where others have written to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import Message
from airflow_provider_zkmq.filequeue import FileClient
from airflow_provider_zkmq.filequeue.queue_file import Book
from airflow_provider_zkmq.textqueue import TextQueue
from tests.filequeue.conftest import taken


def test_a_call_costs_by_what_changed(files: FileClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims, settlements and enqueues of one connection read little; what others write is seen by the next call."""
    q, reads, read = files.queue("q"), [0], TextQueue.read
    ids = q.enqueue_many([Message(str(number)) for number in range(500)])
    assert q.counts()["inserted"] == 500

    def counted(queue: TextQueue, size: int, offset: int) -> bytes:
        data = read(queue, size, offset)
        reads[0] += len(data)
        return data

    monkeypatch.setattr(TextQueue, "read", counted)
    for number in range(20):
        claim = taken(q)
        assert claim.task.id == ids[number]
        claim.complete(b"r")
        q.enqueue("more")
    assert (q.counts()["finished"], q.counts()["inserted"]) == (20, 500)
    assert reads[0] < q.path.stat().st_size / 2
    theirs = taken(FileClient.connect(f"textqueue://{folder}").queue("q"))
    assert (theirs.task.id, q.task(ids[20]).state) == (ids[20], "claimed")
    at = q.path.read_bytes().index(b"\n-21\n") + 1
    with q.path.open("r+b") as file:  # an editor that writes in place
        os.pwrite(file.fileno(), b"=", at)
    assert (q.counts()["finished"], taken(q).task.id) == (21, ids[22])


@pytest.mark.parametrize("writes", [False, True])
def test_an_edit_while_a_call_is_at_the_file_is_seen_by_the_next_one(files: FileClient, writes: bool) -> None:
    """Also where the call writes after it: what was read before is not kept as what stands there."""
    q = files.queue("q")
    q.enqueue_many([Message(f"to {name}", task_id=name) for name in ("ann", "bob")])

    def edit(book: Book) -> None:
        with q.path.open("r+b") as editor:
            os.pwrite(editor.fileno(), b"tom", q.path.read_bytes().index(b"to bob") + 3)
        if writes:
            book.append(b"to eve", {"id": "eve"})

    q.folder.carry_out("q", edit)
    assert [task.data for task in q.tasks()][:2] == [b"to ann", b"to tom"]
    taken(q).complete()
    assert taken(q).task.data == b"to tom"
