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


def fill(asked: Asked) -> None:
    """So many tasks are pending."""
    fill_queue(asked.queue, asked.tasks)


def fill_queue(queue: AnyQueue, tasks: int, payload: bytes = PAYLOAD, **fields: Any) -> int:
    """Enqueue so many tasks, a group at a time."""
    for payloads in groups(tasks, payload):
        queue.enqueue_many([Message(data, **fields) for data in payloads])
    return tasks


def _fill_strict(asked: Asked) -> None:
    asked.queue.configure(order="fifo")
    fill(asked)


def _step(queue: AnyQueue, **options: Any) -> bool | None:
    """Claim and complete a task; None: there is none."""
    claim = queue.claim(**options)
    if claim is None:
        return None
    claim.complete()
    return True


def _claims(asked: Asked) -> int:
    return sum(1 for _ in asked.queue.claims(timeout=0, prefetch=asked.number or 1))


def _claim_many(asked: Asked) -> int:
    done = 0
    while claims := asked.queue.claim_many(asked.number):
        for claim in claims:
            claim.complete()
        done += len(claims)
    return done


def _consuming(consume: Callable[[Asked], int], filling: Callable[[Asked], None] = fill) -> Verb:
    """A consumer that is warm: what a client reads at its first call is not measured."""

    @contextmanager
    def opened(asked: Asked) -> Iterator[Run]:
        asked.queue.counts()
        yield lambda: Done(consume(asked))

    return Verb(opened, filling)


@contextmanager
def _working(asked: Asked, threads: int, pause: float = 0.0, **options: Any) -> Iterator[Run]:
    """A worker, from the end of its first task to that of its last."""
    ends: list[float] = []
    all_handled = Event()

    def handler(_task: object) -> None:
        if pause:
            time.sleep(pause)
        ends.append(time.perf_counter())
        if len(ends) == asked.tasks:
            all_handled.set()

    worker: Any = asked.queue.worker(handler, threads=threads, **options)

    def run() -> Done:
        worker.start()
        if not all_handled.wait(TIMEOUT_S):
            raise BenchError(f"a worker handled {len(ends)} of {asked.tasks} tasks in {TIMEOUT_S:g} s")
        return Done(asked.tasks - 1, ends[-1] - ends[0])

    try:
        yield run
    finally:
        worker.stop()
        worker.join()


def _mixed(asked: Asked) -> int:
    """One thread enqueues what another, with a client of its own, claims and completes meanwhile."""
    producer = Thread(target=times, args=(asked.tasks, partial(asked.queue.enqueue, PAYLOAD)))
    producer.start()
    with asked.clients.new() as other:
        queue = other.queue(asked.name)
        for _ in range(asked.tasks):
            _claim(queue, timeout=TIMEOUT_S)
    producer.join()
    return asked.tasks


def _payloads(asked: Asked) -> int:
    fill_queue(asked.queue, asked.tasks, b"x" * asked.number)
    return sum(1 for _ in islice(iter(partial(_step, asked.queue), None), asked.tasks))


# --- many coroutines of one client


async def _enqueue_awaited(queue: AsyncQueue, left: Any) -> None:
    for _ in left:
        await queue.enqueue(PAYLOAD)


async def _claim_awaited(queue: AsyncQueue, _left: Any) -> None:
    while (claim := await queue.claim()) is not None:
        await claim.complete()


def _at_once(each: Callable[[AsyncQueue, Any], Awaitable[object]]) -> Callable[[Asked], Done]:
    """64 coroutines at once; connecting is not measured."""

    async def main(asked: Asked) -> Done:
        async with asked.clients.awaited() as client:
            queue, left = client.queue(asked.name), iter(range(asked.tasks))
            await queue.counts()
            begun = time.perf_counter()
            await asyncio.gather(*(each(queue, left) for _ in range(AT_ONCE)))
            return Done(asked.tasks, time.perf_counter() - begun)

    return lambda asked: asyncio.run(main(asked))


# --- queues that hold much already; they stay for the whole benchmark, one for each depth


def _deep(asked: Asked) -> AnyQueue:
    return asked.clients.zk.queue(f"deep-{asked.number}")


def _fill_deep(asked: Asked) -> None:
    """`number` tasks are pending, and those that will be claimed."""
    queue = _deep(asked)
    there = queue.counts()["inserted"] if queue.exists() else 0
    fill_queue(queue, asked.number + asked.tasks - there)


def _claim(queue: AnyQueue, **options: Any) -> None:
    if _step(queue, **options) is None:
        raise BenchError(f"{queue.name}: there was nothing to claim")


def _after_one(count: int, step: Callable[[], object]) -> Done:
    """Steps after one that warms the client up."""
    step()
    begun = time.perf_counter()
    return Done(times(max(1, count - 1), step), time.perf_counter() - begun)


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
    fill_queue(queue, max(0, asked.number - queue.counts()["inserted"]))


def _start(asked: Asked) -> int:
    """So many clients connect, enqueue a task, and claim and complete one: the queue stays as long."""
    for _ in range(asked.tasks):
        with asked.clients.new() as client:
            queue = client.queue(f"deep-{asked.number}")
            queue.enqueue(PAYLOAD)
            _claim(queue)
    return asked.tasks


def _foreign(asked: Asked) -> AnyQueue:
    return asked.clients.zk.queue(f"foreign-{asked.number}")


def _fill_foreign(asked: Asked) -> None:
    """`number` tasks that the consumer may not take, and those that it may."""
    queue = _foreign(asked)
    if not queue.exists():
        queue.configure(filters={"kind": String()})
        fill_queue(queue, asked.number, filters=_FOREIGN)
    fill_queue(queue, asked.tasks, filters=_MINE)


def _finish(asked: Asked) -> None:
    """So many tasks have ended, and are to be deleted."""
    fill(asked)
    for _ in range(asked.tasks):
        _claim(asked.queue)


def _enqueue_one(asked: Asked) -> None:
    asked.queue.enqueue(PAYLOAD)


VERBS: Final[dict[str, Verb]] = {
    "enqueue": simple(lambda asked: times(asked.tasks, lambda: asked.queue.enqueue(PAYLOAD)), _enqueue_one),
    "enqueue-many": simple(lambda asked: fill_queue(asked.queue, asked.tasks), _enqueue_one),
    "claim": _consuming(lambda asked: drained(partial(_step, asked.queue))),
    "claims": _consuming(_claims),
    "claim-many": _consuming(_claim_many),
    "claim-strict": _consuming(lambda asked: drained(partial(_step, asked.queue)), _fill_strict),
    "claims-strict": _consuming(_claims, _fill_strict),
    "worker": Verb(lambda asked: _working(asked, asked.number), fill),
    "worker-singly": Verb(lambda asked: _working(asked, asked.number, prefetch=1), fill),
    "worker-handlers": Verb(lambda asked: _working(asked, 8, asked.number / 1000), fill),
    "mixed": simple(_mixed, lambda asked: asked.queue.configure()),
    "payloads": simple(_payloads),
    "asyncio-enqueue": simple(_at_once(_enqueue_awaited), _enqueue_one),
    "asyncio-claim": simple(_at_once(_claim_awaited), fill),
    "claim-deep": simple(lambda asked: _after_one(asked.tasks, lambda: _claim(_deep(asked))), _fill_deep),
    "claim-cold": simple(_cold, _fill_deep),
    "start": simple(_start, _fill_start),
    "claim-filtered": simple(
        lambda asked: _after_one(asked.tasks, lambda: _claim(_foreign(asked), node=_MINE)), _fill_foreign
    ),
    "gc": simple(lambda asked: asked.queue.collect_garbage(lifetime=0).collected, _finish),
}
