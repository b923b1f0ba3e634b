"""A queue file whose lock another process holds, and may hold for ever: every call ends."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import Unavailable, Zkmq
from airflow_provider_zkmq.filequeue import FileQueue
from airflow_provider_zkmq.filequeue import folder as waiting

MORE = 2.0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Inside the block somebody holds the file's lock."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(
    "call",
    [
        lambda q: q.claim(timeout=1),
        lambda q: q.wait(["a"], timeout=1),
        lambda q: q.follow("a", print, timeout=1),
    ],
)
def test_a_call_with_a_time_of_its_own_ends_in_it(q: FileQueue, call: Callable[[FileQueue], object]) -> None:
    """The error names the file and the limit; once the lock is free the same call does its work."""
    q.enqueue("x", task_id="a")
    began = time.monotonic()
    with locked(q.path), pytest.raises(Unavailable, match="is locked by another process.*timeout"):
        call(q)
    assert time.monotonic() - began < 1 + MORE
    claim = q.claim(timeout=1)
    assert claim is not None
    claim.complete()


@pytest.mark.parametrize("call", [lambda q: q.enqueue("x"), lambda q: q.claim(), lambda q: q.counts()])
def test_other_calls_end_too(
    q: FileQueue, monkeypatch: pytest.MonkeyPatch, call: Callable[[FileQueue], object]
) -> None:
    """After a limit that the error names; nothing was written."""
    monkeypatch.setattr(waiting, "LOCK_SECONDS", 0.5)
    before = q.path.read_bytes()
    with locked(q.path), pytest.raises(Unavailable, match=r"lock wait \(0.5 s\)"):
        call(q)
    assert q.path.read_bytes() == before
    q.enqueue("x", task_id="later")


def test_closing_ends_too(q: FileQueue, folder: Path) -> None:
    """However much is in hand; what could not be given back is so when its time is over."""
    client = Zkmq.connect(f"textqueue://{folder}")
    for name in ("a", "b", "c"):
        client.queue("census").enqueue("x", task_id=name)
        assert client.queue("census").claim() is not None
    began = time.monotonic()
    with locked(q.path):
        client.close()
    assert time.monotonic() - began < 2 + MORE
    assert q.counts()["claimed"] == 3
