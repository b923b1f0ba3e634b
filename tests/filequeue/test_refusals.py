"""What a file cannot promise is refused by its name, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zkmq.bridge import export_queue, import_file
from airflow_provider_zkmq.engine import AsyncZkmq, ConfigError, Message, SessionLost, Zkmq
from airflow_provider_zkmq.filequeue import FileClient, FileQueue

REFUSED: dict[str, Callable[[FileQueue], object]] = {
    "priorities": lambda q: q.enqueue("x", priority=1),
    "updates": lambda q: q.enqueue("x", task_id="a", update=True),
    "run in escrow": lambda q: q.enqueue("x", task_id="a", requeue=True),
    "batches": lambda q: q.enqueue_many([Message("x")], batch="b"),
    "batches.*then": lambda q: q.enqueue_many([Message("x")], then=Message("y")),
    "batches.*wait_batch": lambda q: q.wait_batch("b"),
    "batches ": lambda q: q.batch("b"),
    "dedupe windows": lambda q: q.complete("a", 1, dedupe=5),
    "progress reports": lambda q: q.progress("a", 1, 0.5),
    "progress.*on_progress": lambda q: q.wait(["a"], on_progress=print),
    "transactions": lambda q: q.worker(print, transactional=True),
    "clean-up.*task_gc": lambda q: q.configure(task_gc_lifetime=1),
    "clean-up.*collect_garbage": lambda q: q.collect_garbage(),
    "clean-up.*clear": lambda q: q.clear(),
    "pauses": lambda q: q.pause(),
    "pauses.*resume": lambda q: q.resume(),
    "cancellation": lambda q: q.cancel("a"),
    "redrives": lambda q: q.redrive("a"),
    "claims that end with a session": lambda q: q.configure(lock=0),
    "explanations": lambda q: q.explain("a"),
    "znodes": lambda q: q.tree("a"),
    "updates.*replace": lambda q: q.replace("a", b"y"),
    "clean-up.*drop": lambda q: q.drop("a"),
    "register of consumers": lambda q: q.consumers(),
    "archive .*configure": lambda q: q.configure(archive=True),
    "stream .configure": lambda q: q.configure(follow=True),
    "log.*latest_end": lambda q: q.latest_end(),
    "log.*read_ended": lambda q: q.read_ended([]),
    "log.*trimmed": lambda q: q.trimmed(),
    "archive.*zxid": lambda q: q.zxid(),
    "archive.*departed_between": lambda q: q.departed_between(0, 1),
    "archive.*read_departed": lambda q: q.read_departed([]),
    "archive.*ended_between": lambda q: q.ended_between(0, 1),
    "archive.* archive,": lambda q: q.archive(),
    "archive.*publish_archive": lambda q: q.publish_archive(None),
    "tasks that match": lambda q: q.find("performance_class==low"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_queue_refuses(q: FileQueue, what: str) -> None:
    """One `ConfigError` names what is refused, and that ZooKeeper has it; the file stays as it was."""
    before = q.path.read_bytes()
    with pytest.raises(ConfigError, match=f"refused.*{what}.*ZooKeeper has it"):
        REFUSED[what](q)
    assert q.path.read_bytes() == before


def test_a_client_refuses(files: FileClient, folder: Path) -> None:
    """Transactions, what is said of servers, asynchronous use, other machines' folders and relative ones."""
    url = f"textqueue://{folder}"
    with pytest.raises(ConfigError, match="transactions over several queues.*ZooKeeper has it"):
        files.transaction()
    for options in ({"auth": "a:b"}, {"tls": True}, {"session_timeout": 5}, {"root": "/elsewhere"}):
        with pytest.raises(ConfigError, match="servers to speak to .*ZooKeeper has it"):
            Zkmq.connect(url, **options)
    with pytest.raises(ConfigError, match="asynchronous.*ZooKeeper has it"):
        AsyncZkmq.connect(url)
    for bad in ("textqueue://host/dir", "textqueue://dir", "textqueue://"):
        with pytest.raises(ConfigError, match="textqueue:///path/dir"):
            Zkmq.connect(bad)


def test_a_claim_refuses_progress(q: FileQueue) -> None:
    """A handler that reports progress learns that a file keeps none."""
    q.enqueue("x")
    claim = q.claim()
    assert claim is not None
    with pytest.raises(ConfigError, match="progress reports"):
        claim.progress(0.5)


def test_a_closed_connection_does_nothing(folder: Path) -> None:
    """After `close`, which may be repeated, calls raise `SessionLost`."""
    client = Zkmq.connect(f"textqueue://{folder}")
    queue = client.queue("a")
    client.close()
    client.close()
    with pytest.raises(SessionLost):
        queue.enqueue("x")
    assert list(folder.iterdir()) == []


def test_an_edited_export_of_a_file_is_refused(q: FileQueue, tmp_path: Path) -> None:
    """Whoever wants to redrive edits the queue's file itself; an import changes nothing."""
    q.enqueue("x", task_id="a")
    claim = q.claim()
    assert claim is not None
    claim.fail("no", retry=False)
    edited = tmp_path / "dead.txt"
    assert export_queue(q, edited) == 1
    edited.write_text(edited.read_text().replace("\n!x", "\n-x"))
    before = q.path.read_bytes()
    with pytest.raises(ConfigError, match="refused.*redrives"):
        import_file(q, edited)
    assert q.path.read_bytes() == before
