"""The engine on queues that hold much already: a backlog that fits, one that does not, and what has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.bench.jobs import PAYLOAD, Asked, BenchError, Done, Verb, simple
from airflow_provider_zkmq.bench.ours import fill_queue
from airflow_provider_zkmq.engine import String

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue

_MINE, _FOREIGN = {"kind": "mine"}, {"kind": "foreign"}


def _deep(asked: Asked) -> AnyQueue:
    """A queue that stays for the whole benchmark, for each depth one."""
    return asked.clients.zk.queue(f"deep-{asked.number}")


def _top_up(asked: Asked) -> None:
    """The queue holds `number` pending tasks, and those that will be claimed."""
    queue = _deep(asked)
    there = queue.counts()["inserted"] if queue.exists() else 0
    fill_queue(queue, asked.number + asked.tasks - there)


def _claim(queue: AnyQueue, **options: Any) -> None:
    claim = queue.claim(**options)
    if claim is None:
        raise BenchError(f"{queue.name}: there was nothing to claim")
    claim.complete()


def _warm(asked: Asked) -> Done:
    return _timed(asked.tasks, lambda: _claim(_deep(asked)))


def _timed(count: int, step: Any) -> Done:
    """Steps after one that warms the client up."""
    step()
    begun = time.perf_counter()
    for _ in range(count - 1):
        step()
    return Done(max(1, count - 1), time.perf_counter() - begun)


def _cold(asked: Asked) -> Done:
    """The first claim of so many clients; that they connect is not measured."""
    seconds = 0.0
    for _ in range(asked.tasks):
        with asked.clients.new() as client:
            queue, begun = client.queue(f"deep-{asked.number}"), time.perf_counter()
            _claim(queue)
            seconds += time.perf_counter() - begun
    return Done(asked.tasks, seconds)


def _fill_start(asked: Asked) -> None:
    """The queue has had a task, and holds `number` pending ones."""
    queue = _deep(asked)
    if not queue.exists():
        queue.enqueue(b"")
        _claim(queue)
    there = queue.counts()["inserted"]
    if there < asked.number:
        fill_queue(queue, asked.number - there)


def _start(asked: Asked) -> Done:
    """So many clients connect, enqueue a task, and claim and complete one: the queue stays as long."""
    begun = time.perf_counter()
    for _ in range(asked.tasks):
        with asked.clients.new() as client:
            queue = client.queue(f"deep-{asked.number}")
            queue.enqueue(PAYLOAD)
            _claim(queue)
    return Done(asked.tasks, time.perf_counter() - begun)


def _foreign(asked: Asked) -> AnyQueue:
    return asked.clients.zk.queue(f"foreign-{asked.number}")


def _fill_foreign(asked: Asked) -> None:
    """`number` tasks that the consumer may not take, and those that it may."""
    queue = _foreign(asked)
    if not queue.exists():
        queue.configure(filters={"kind": String()})
        fill_queue(queue, asked.number, filters=_FOREIGN)
    fill_queue(queue, asked.tasks, filters=_MINE)


def _filtered(asked: Asked) -> Done:
    return _timed(asked.tasks, lambda: _claim(_foreign(asked), node=_MINE))


def _finish(asked: Asked) -> None:
    """So many tasks have ended, and are to be deleted."""
    fill_queue(asked.queue, asked.tasks)
    for _ in range(asked.tasks):
        _claim(asked.queue)


def _collect(asked: Asked) -> int:
    return asked.queue.collect_garbage(lifetime=0).collected


VERBS: Final[dict[str, Verb]] = {
    "claim-deep": simple(_warm, _top_up),
    "claim-cold": simple(_cold, _top_up),
    "start": simple(_start, _fill_start),
    "claim-filtered": simple(_filtered, _fill_foreign),
    "gc": simple(_collect, _finish),
}
