"""The engine's calls, as its users make them: by one thread or many, by coroutines, on short queues and long ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from threading import Event, Thread
from typing import Any, Final

from airflow_provider_zkmq.engine import AnyQueue, AsyncQueue, Message, String
from tests.benchmarks.compare.jobs import (
    AT_ONCE,
    PAYLOAD,
    TIMEOUT_S,
    Asked,
    BenchError,
    Done,
    Run,
    Verb,
    drained,
    groups,
    simple,
    times,
)

_MINE, _FOREIGN = {"kind": "mine"}, {"kind": "foreign"}


def fill(requested: Asked) -> None:
    """So many tasks are pending."""
    fill_queue(requested.queue, requested.tasks)


def fill_queue(queue: AnyQueue, tasks: int, payload: bytes = PAYLOAD, **fields: Any) -> int:
    """Enqueue so many tasks, a group at a time."""
    for payloads in groups(tasks, payload):
        queue.enqueue_many([Message(data, **fields) for data in payloads])
    return tasks


def _fill_strict(requested: Asked) -> None:
    requested.queue.configure(order="fifo")
    fill(requested)


def _step(queue: AnyQueue, **options: Any) -> bool | None:
    """Claim and complete a task; None: there is none."""
    claim = queue.claim(**options)
    if claim is None:
        return None
    claim.complete()
    return True


def _claims(requested: Asked) -> int:
    return sum(1 for _ in requested.queue.claims(timeout=0, prefetch=requested.number or 1))


def _claim_many(requested: Asked) -> int:
    done = 0
    while claims := requested.queue.claim_many(requested.number):
        for claim in claims:
            claim.complete()
        done += len(claims)
    return done


def _consuming(consume: Callable[[Asked], int], filling: Callable[[Asked], None] = fill) -> Verb:
    """A consumer that is warm: what a client reads at its first call is not measured."""

    @contextmanager
    def opened(requested: Asked) -> Iterator[Run]:
        requested.queue.counts()
        yield lambda: Done(consume(requested))

    return Verb(opened, filling)


@contextmanager
def _working(requested: Asked, threads: int, pause: float = 0.0, **options: Any) -> Iterator[Run]:
    """A worker, from the end of its first task to that of its last."""
    ends: list[float] = []
    all_handled = Event()

    def handler(_task: object) -> None:
        if pause:
            time.sleep(pause)
        ends.append(time.perf_counter())
        if len(ends) == requested.tasks:
            all_handled.set()

    worker: Any = requested.queue.worker(handler, threads=threads, **options)

    def run() -> Done:
        worker.start()
        if not all_handled.wait(TIMEOUT_S):
            raise BenchError(f"a worker handled {len(ends)} of {requested.tasks} tasks in {TIMEOUT_S:g} s")
        return Done(requested.tasks - 1, ends[-1] - ends[0])

    try:
        yield run
    finally:
        worker.stop()
        worker.join()


def _mixed(requested: Asked) -> int:
    """One thread enqueues what another, with a client of its own, claims and completes meanwhile."""
    producer = Thread(target=times, args=(requested.tasks, partial(requested.queue.enqueue, PAYLOAD)))
    producer.start()
    with requested.clients.new() as other:
        queue = other.queue(requested.name)
        for _ in range(requested.tasks):
            _claim(queue, timeout=TIMEOUT_S)
    producer.join()
    return requested.tasks


def _payloads(requested: Asked) -> int:
    fill_queue(requested.queue, requested.tasks, b"x" * requested.number)
    return sum(1 for _ in islice(iter(partial(_step, requested.queue), None), requested.tasks))


# --- many coroutines of one client


async def _enqueue_awaited(queue: AsyncQueue, left: Any) -> None:
    for _ in left:
        await queue.enqueue(PAYLOAD)


async def _claim_awaited(queue: AsyncQueue, _left: Any) -> None:
    while (claim := await queue.claim()) is not None:
        await claim.complete()


def _at_once(each: Callable[[AsyncQueue, Any], Awaitable[object]]) -> Callable[[Asked], Done]:
    """64 coroutines at once; connecting is not measured."""

    async def main(requested: Asked) -> Done:
        async with requested.clients.awaited() as client:
            queue, left = client.queue(requested.name), iter(range(requested.tasks))
            await queue.counts()
            begun = time.perf_counter()
            await asyncio.gather(*(each(queue, left) for _ in range(AT_ONCE)))
            return Done(requested.tasks, time.perf_counter() - begun)

    return lambda requested: asyncio.run(main(requested))


# --- queues that hold much already; they stay for the whole benchmark, one for each depth


def _deep(requested: Asked) -> AnyQueue:
    return requested.clients.zk.queue(f"deep-{requested.number}")


def _fill_deep(requested: Asked) -> None:
    """`number` tasks are pending, and those that will be claimed."""
    queue = _deep(requested)
    there = queue.counts()["inserted"] if queue.exists() else 0
    fill_queue(queue, requested.number + requested.tasks - there)


def _claim(queue: AnyQueue, **options: Any) -> None:
    if _step(queue, **options) is None:
        raise BenchError(f"{queue.name}: there was nothing to claim")


def _after_one(count: int, step: Callable[[], object]) -> Done:
    """Steps after one that warms the client up."""
    step()
    begun = time.perf_counter()
    return Done(times(max(1, count - 1), step), time.perf_counter() - begun)


def _cold(requested: Asked) -> Done:
    """The first claim of so many clients; that they connect is not measured."""
    seconds = 0.0
    for _ in range(requested.tasks):
        with requested.clients.new() as client:
            queue, begun = client.queue(f"deep-{requested.number}"), time.perf_counter()
            _claim(queue)
            seconds += time.perf_counter() - begun
    return Done(requested.tasks, seconds)


def _fill_start(requested: Asked) -> None:
    """The queue has had a task, and holds `number` pending ones."""
    queue = _deep(requested)
    if not queue.exists():
        queue.enqueue(b"")
        _claim(queue)
    fill_queue(queue, max(0, requested.number - queue.counts()["inserted"]))


def _start(requested: Asked) -> int:
    """So many clients connect, enqueue a task, and claim and complete one: the queue stays as long."""
    for _ in range(requested.tasks):
        with requested.clients.new() as client:
            queue = client.queue(f"deep-{requested.number}")
            queue.enqueue(PAYLOAD)
            _claim(queue)
    return requested.tasks


def _foreign(requested: Asked) -> AnyQueue:
    return requested.clients.zk.queue(f"foreign-{requested.number}")


def _fill_foreign(requested: Asked) -> None:
    """`number` tasks that the consumer may not take, and those that it may."""
    queue = _foreign(requested)
    if not queue.exists():
        queue.configure(filters={"kind": String()})
        fill_queue(queue, requested.number, filters=_FOREIGN)
    fill_queue(queue, requested.tasks, filters=_MINE)


def _finish(requested: Asked) -> None:
    """So many tasks have ended, and are to be deleted."""
    fill(requested)
    for _ in range(requested.tasks):
        _claim(requested.queue)


def _enqueue_one(requested: Asked) -> None:
    requested.queue.enqueue(PAYLOAD)


VERBS: Final[dict[str, Verb]] = {
    "enqueue": simple(lambda requested: times(requested.tasks, lambda: requested.queue.enqueue(PAYLOAD)), _enqueue_one),
    "enqueue-many": simple(lambda requested: fill_queue(requested.queue, requested.tasks), _enqueue_one),
    "claim": _consuming(lambda requested: drained(partial(_step, requested.queue))),
    "claims": _consuming(_claims),
    "claim-many": _consuming(_claim_many),
    "claim-strict": _consuming(lambda requested: drained(partial(_step, requested.queue)), _fill_strict),
    "claims-strict": _consuming(_claims, _fill_strict),
    "worker": Verb(lambda requested: _working(requested, requested.number), fill),
    "worker-singly": Verb(lambda requested: _working(requested, requested.number, prefetch=1), fill),
    "worker-handlers": Verb(lambda requested: _working(requested, 8, requested.number / 1000), fill),
    "mixed": simple(_mixed, lambda requested: requested.queue.configure()),
    "payloads": simple(_payloads),
    "asyncio-enqueue": simple(_at_once(_enqueue_awaited), _enqueue_one),
    "asyncio-claim": simple(_at_once(_claim_awaited), fill),
    "claim-deep": simple(lambda requested: _after_one(requested.tasks, lambda: _claim(_deep(requested))), _fill_deep),
    "claim-cold": simple(_cold, _fill_deep),
    "start": simple(_start, _fill_start),
    "claim-filtered": simple(
        lambda requested: _after_one(requested.tasks, lambda: _claim(_foreign(requested), node=_MINE)), _fill_foreign
    ),
    "gc": simple(lambda requested: requested.queue.collect_garbage(lifetime=0).collected, _finish),
}
