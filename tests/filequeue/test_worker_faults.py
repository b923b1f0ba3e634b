"""The worker over a file: what a handler does settles its task, whatever it is, and the worker goes on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ConsumeOnce, Retry, RetryPolicy, Snooze, Success
from airflow_provider_zkmq.filequeue import claims
from airflow_provider_zkmq.filequeue.queue import FileQueue
from tests.support import eventually

REFUSED: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "a snooze into the past": (lambda _: Snooze(-1), "queued-with-backoff", "delay -1"),
    "a backoff of no time": (lambda _: Retry("busy", backoff="soon"), "queued-with-backoff", "'soon'"),
    "a window": (lambda _: Success(dedupe=60), "dead", "refused"),
    "an exit": (lambda _: sys.exit(3), "queued-with-backoff", "SystemExit: 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_a_failed_delivery(q: FileQueue, name: str) -> None:
    """The task is settled with the reason, and the worker has handled the next one."""
    handler, status, reason = REFUSED[name]
    q.configure(policy=RetryPolicy(min_backoff=60))
    q.enqueue("x", task_id="bad")
    q.enqueue("x", task_id="good")
    it = q.worker(lambda task: handler(task) if task.id == "bad" else "done")
    it.run(until_empty=True)
    bad = q.task("bad")
    assert (str(bad.status), bad.attempt, q.task("good").result) == (status, 1, b"done")
    assert reason in (bad.error or "")
    assert (it.finished, it.failed) == (1, 1)


def test_a_handler_that_outlasts_the_grace_has_been_delivered(q: FileQueue) -> None:
    """Its lock was extended during the grace; then, under `ConsumeOnce`, its task is dead and not handed out again."""
    q.configure(policy=ConsumeOnce(), lock=1.5)
    q.enqueue("x", task_id="a")
    begun, go = threading.Event(), threading.Event()
    it = q.worker(lambda _task: begun.set() or go.wait(60), grace=3)
    it.start()
    assert begun.wait(20)
    it.stop()
    joined = threading.Thread(target=it.join)
    joined.start()
    assert q.claim(timeout=2.5) is None
    joined.join(20)
    assert not joined.is_alive()
    assert (str(q.task("a").state), q.task("a").attempt, q.claim()) == ("dead", 1, None)
    assert "stopped" in (q.task("a").error or "")
    go.set()


def test_what_cannot_be_settled_is_tried_again(q: FileQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up no other task meanwhile."""
    settle_by, failed = claims.settle_by, []

    def stumble(ends: Any, outcome: Any, progress: Any) -> Any:
        if ends.claim.task.id == "bad" and not failed:
            failed.append(1)
            raise RuntimeError("not now")
        return settle_by(ends, outcome, progress)

    monkeypatch.setattr(claims, "settle_by", stumble)
    q.enqueue("x", task_id="bad")
    q.enqueue("x", task_id="good")
    it = q.worker(lambda _task: "done")
    it.start()
    eventually(lambda: q.task("good").state == "finished")
    eventually(lambda: q.task("bad").state == "finished")
    it.stop()
    it.join()
    assert (failed, q.task("bad").attempt) == ([1], 1)
