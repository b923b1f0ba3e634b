"""A queue's file is read once, and again only where others have written to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import Message, RetryPolicy
from airflow_provider_zkmq.filequeue import FileClient
from airflow_provider_zkmq.filequeue.task_store import QueueFile
from airflow_provider_zkmq.textqueue import TextQueue
from tests.filequeue.conftest import taken


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of queue files each read has returned."""
    sizes, read = list[int](), TextQueue.read

    def counted(queue: TextQueue, size: int, offset: int) -> bytes:
        data = read(queue, size, offset)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(TextQueue, "read", counted)
    return sizes


def test_a_call_costs_by_what_changed(files: FileClient, folder: Path, reads: list[int]) -> None:
    """Claims, settlements and enqueues of one connection read little; what others write is seen by the next call."""
    q = files.queue("q")
    ids = q.enqueue_many([Message(str(number)) for number in range(500)])
    assert q.counts()["inserted"] == 500
    reads.clear()
    for number in range(20):
        claim = taken(q)
        assert claim.task.id == ids[number]
        claim.complete(b"r")
        q.enqueue("more")
    assert (q.counts()["finished"], q.counts()["inserted"]) == (20, 500)
    assert sum(reads) < q.path.stat().st_size / 2
    theirs = taken(FileClient.connect(f"textqueue://{folder}").queue("q"))
    assert (theirs.task.id, q.task(ids[20]).state) == (ids[20], "claimed")
    at = q.path.read_bytes().index(b"\n-21\n") + 1
    with q.path.open("r+b") as file:  # an editor that writes in place
        os.pwrite(file.fileno(), b"=", at)
    assert (q.counts()["finished"], taken(q).task.id) == (21, ids[22])


def test_a_claim_of_a_line_that_a_person_wrote_costs_by_that_line(files: FileClient, reads: list[int]) -> None:
    """Its lines are moved to the end of the file, where there is room for its variables; the others are not read."""
    q = files.queue("q")
    q.configure()
    q.path.write_text("".join(f"-number {number}\n" for number in range(20_000)))
    assert taken(q).task.data == b"number 0"
    reads.clear()
    claims = [taken(q) for _ in range(10)]
    assert [claim.task.data for claim in claims] == [b"number %d" % number for number in range(1, 11)]
    for claim in claims:
        claim.complete(b"r")
    assert sum(reads) < q.path.stat().st_size / 2
    anew = FileClient.connect(f"textqueue://{q.path.parent}").queue("q")
    assert [(t.id, t.state) for t in anew.tasks()] == [(t.id, t.state) for t in q.tasks()]
    assert (anew.counts()["finished"], anew.counts()["inserted"], taken(anew).task.data) == (10, 19_989, b"number 11")


def test_two_lines_of_one_call_are_moved_without_reading_the_others(files: FileClient, reads: list[int]) -> None:
    """A claim that was the last one, held by a line whose room was trimmed, is buried; the next line is claimed."""
    q = files.queue("q")
    q.configure(policy=RetryPolicy(attempts=1))
    lapsed = "".join(f"-late {n}\n\\id=late-{n}\n\\attempts=1\n\\mutex=someone 1.0\n" for n in range(3))
    q.path.write_text(lapsed + "".join(f"-number {number}\n" for number in range(20_000)))
    assert q.counts()["inserted"] == 20_000
    reads.clear()
    assert taken(q).task.data == b"number 0"
    assert sum(reads) < q.path.stat().st_size / 2
    anew = FileClient.connect(f"textqueue://{q.path.parent}").queue("q")
    for each in (q, anew):
        assert [task.id for task in each.tasks(state="dead")] == ["late-0", "late-1", "late-2"]
        assert each.counts()["inserted"] == 19_999


@pytest.mark.parametrize("writes", [False, True])
def test_an_edit_while_a_call_is_at_the_file_is_seen_by_the_next_one(files: FileClient, writes: bool) -> None:
    """Also where the call writes after it: what was read before is not kept as what stands there."""
    q = files.queue("q")
    q.enqueue_many([Message(f"to {name}", task_id=name) for name in ("ann", "bob")])

    def edit(book: QueueFile) -> None:
        with q.path.open("r+b") as editor:
            os.pwrite(editor.fileno(), b"tom", q.path.read_bytes().index(b"to bob") + 3)
        if writes:
            book.append(b"to eve", {"id": "eve"})

    q.directory.carry_out("q", edit)
    assert [task.data for task in q.tasks()][:2] == [b"to ann", b"to tom"]
    taken(q).complete()
    assert taken(q).task.data == b"to tom"
