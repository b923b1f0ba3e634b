"""The engine's verbs, as its users call them, one thread at a time or many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.bench.jobs import (
    PATIENCE,
    PAYLOAD,
    Asked,
    BenchError,
    Done,
    Run,
    SkippedError,
    Verb,
    drained,
    groups,
    simple,
    times,
)
from airflow_provider_zkmq.engine import Message

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue


def fill(asked: Asked) -> None:
    """So many tasks are pending."""
    fill_queue(asked.queue, asked.tasks)


def fill_queue(queue: AnyQueue, tasks: int, payload: bytes = PAYLOAD, **fields: Any) -> int:
    """Enqueue so many tasks, a group at a time."""
    for payloads in groups(tasks, payload):
        queue.enqueue_many([Message(data, **fields) for data in payloads])
    return tasks


def fill_strict(asked: Asked) -> None:
    """The same in a queue of strict order."""
    asked.queue.configure(order="fifo")
    fill(asked)


def offered(owner: object, name: str) -> Callable[..., Any]:
    """A method that not every version of the engine has. Raises `SkippedError`."""
    method: Callable[..., Any] | None = getattr(owner, name, None)
    if method is None:
        raise SkippedError(f"this engine has no {name}()")
    return method


def _step(queue: AnyQueue) -> bool | None:
    claim = queue.claim()
    if claim is None:
        return None
    claim.complete()
    return True


def _singly(asked: Asked) -> int:
    return drained(partial(_step, asked.queue))


def _in_a_loop(asked: Asked) -> int:
    return sum(1 for _ in offered(asked.queue, "claims")(timeout=0, prefetch=asked.number or 1))


def _in_groups(asked: Asked) -> int:
    take, done = offered(asked.queue, "claim_many"), 0
    while claims := take(asked.number or 32):
        for claim in claims:
            claim.complete()
        done += len(claims)
    return done


def consuming(consume: Callable[[Asked], int]) -> Callable[[Asked], Any]:
    """A consumer that is warm: what a client reads at its first call is not measured."""

    @contextmanager
    def opened(asked: Asked) -> Iterator[Run]:
        asked.queue.counts()
        yield lambda: Done(consume(asked))

    return opened


def _enqueue_singly(asked: Asked) -> int:
    return times(asked.tasks, lambda: asked.queue.enqueue(PAYLOAD))


@contextmanager
def _working(asked: Asked, threads: int, pause: float = 0.0, **options: Any) -> Iterator[Run]:
    ends: list[float] = []
    all_handled = Event()

    def handler(_task: object) -> None:
        if pause:
            time.sleep(pause)
        ends.append(time.perf_counter())
        if len(ends) == asked.tasks:
            all_handled.set()

    worker = _worker(asked, handler, threads=threads, **options)

    def run() -> Done:
        worker.start()
        if not all_handled.wait(PATIENCE):
            raise BenchError(f"a worker handled {len(ends)} of {asked.tasks} tasks in {PATIENCE:g} s")
        return Done(asked.tasks - 1, ends[-1] - ends[0] if asked.tasks > 1 else None)

    try:
        yield run
    finally:
        worker.stop()
        worker.join()


def _worker(asked: Asked, handler: Callable[[object], None], **options: Any) -> Any:
    """A worker; one that knows no prefetch says so."""
    try:
        return asked.queue.worker(handler, **options)
    except TypeError as error:
        if "prefetch" not in str(error):
            raise
        raise SkippedError("this engine's workers have no prefetch") from error


def _handlers(asked: Asked) -> Any:
    return _working(asked, 8, asked.number / 1000)


def _mixed(asked: Asked) -> int:
    """One thread enqueues what another, with a client of its own, claims and completes meanwhile."""
    producer = Thread(target=times, args=(asked.tasks, partial(asked.queue.enqueue, PAYLOAD)))
    producer.start()
    with asked.clients.new() as other:
        queue = other.queue(asked.name)
        for _ in range(asked.tasks):
            claim = queue.claim(timeout=PATIENCE)
            if claim is None:
                raise BenchError(f"nothing was enqueued for {PATIENCE:g} s")
            claim.complete()
    producer.join()
    return asked.tasks


def _payloads(asked: Asked) -> int:
    fill_queue(asked.queue, asked.tasks, b"x" * asked.number)
    return sum(1 for _ in islice(iter(partial(_step, asked.queue), None), asked.tasks))


VERBS: Final[dict[str, Verb]] = {
    "enqueue": simple(_enqueue_singly, lambda asked: asked.queue.enqueue(PAYLOAD)),
    "enqueue-many": simple(lambda asked: fill_queue(asked.queue, asked.tasks), lambda asked: asked.queue.enqueue(b"")),
    "claim": Verb(consuming(_singly), fill),
    "claims": Verb(consuming(_in_a_loop), fill),
    "claim-many": Verb(consuming(_in_groups), fill),
    "claim-strict": Verb(consuming(_singly), fill_strict),
    "claims-strict": Verb(consuming(_in_a_loop), fill_strict),
    "worker": Verb(lambda asked: _working(asked, asked.number), fill),
    "worker-singly": Verb(lambda asked: _working(asked, asked.number, prefetch=1), fill),
    "worker-handlers": Verb(_handlers, fill),
    "mixed": simple(_mixed, lambda asked: asked.queue.configure()),
    "payloads": simple(_payloads),
}
