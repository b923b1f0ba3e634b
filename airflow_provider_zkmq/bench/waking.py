"""From the beginning of an enqueue to the claim of a consumer that waits, however many of its threads are idle.

The floor is a bare write, and the event of a watch that reaches another client's thread. What a claim needs besides,
it lists, reads and writes after the event, is measured as kazoo alone does it. Each wake-up comes after the same pause:
threads, processors and the server are slower to answer when they have had nothing to do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient

from airflow_provider_zkmq.bench.jobs import PATIENCE, PAYLOAD, Asked, Done, Run, Verb
from airflow_provider_zkmq.bench.rows import Goal, Row, Way
from airflow_provider_zkmq.engine import ZkmqError

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyClient, AnyQueue, AsyncZkmq

#: A client is idle again when it has done nothing for so many looks, so many seconds apart.
_LOOKS: Final = 4
_LOOK_S: Final = 0.02
#: A process that was at work for a larger part of a look has something to do.
_BUSY: Final = 0.25
Moments = SimpleQueue[float]


def _fill(asked: Asked) -> None:
    """The lane and its segment are there: only the first enqueue of all makes them."""
    asked.queue.enqueue(PAYLOAD)
    claim = asked.queue.claim()
    if claim is not None:
        claim.complete()


def await_quiet(client: AnyClient | AsyncZkmq) -> None:
    """Return when a client has sent nothing for a while, and this process has had nothing to do either."""
    quiet, last = 0, client.requests
    while quiet < _LOOKS:
        spent = time.process_time()
        time.sleep(_LOOK_S)
        idle = client.requests == last and time.process_time() - spent < _LOOK_S * _BUSY
        quiet, last = (quiet + 1, last) if idle else (0, client.requests)


def _consume(queue: AnyQueue, claimed: Moments) -> None:
    """A thread that waits for tasks until its client is closed."""
    with contextlib.suppress(ZkmqError):
        while (claim := queue.claim(timeout=PATIENCE)) is not None:
            claimed.put(time.perf_counter())
            claim.complete()


def timed(count: int, tell: Callable[[], object], heard: Moments, settle: Callable[[], object]) -> Done:
    """So many times, from telling to hearing; what is done to be ready again is not counted."""
    seconds = 0.0
    for _ in range(count):
        settle()
        begun = time.perf_counter()
        tell()
        seconds += heard.get(timeout=PATIENCE) - begun
    settle()
    return Done(count, seconds)


@contextmanager
def _idle(asked: Asked) -> Iterator[Run]:
    """`number` threads of a client of their own wait."""
    claimed: Moments = SimpleQueue()
    with asked.clients.new() as client:
        queue = client.queue(asked.name)
        threads = [Thread(target=_consume, args=(queue, claimed), daemon=True) for _ in range(asked.number)]
        for thread in threads:
            thread.start()
        await_quiet(client)
        yield lambda: timed(asked.tasks, lambda: asked.queue.enqueue(PAYLOAD), claimed, lambda: await_quiet(client))
    for thread in threads:
        thread.join(PATIENCE)


@contextmanager
def _bare(asked: Asked, act: Callable[[KazooClient, str], object]) -> Iterator[Run]:
    """A thread of another client waits for the event of a znode that is created, and then acts."""
    writer, events, heard = asked.clients.kazoo, SimpleQueue[bool](), SimpleQueue[float]()
    watcher = KazooClient(asked.clients.hosts)
    writer.ensure_path(asked.path)
    watcher.start()

    def listen() -> None:
        while events.get():
            act(watcher, asked.path)
            heard.put(time.perf_counter())

    def arm() -> None:
        watcher.get_children(asked.path, watch=lambda _event: events.put(True))
        time.sleep(_LOOKS * _LOOK_S)  # as long as one of ours is seen to be idle

    listener = Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield lambda: timed(asked.tasks, lambda: writer.create(f"{asked.path}/e-", PAYLOAD, sequence=True), heard, arm)
    finally:
        events.put(False)
        listener.join(PATIENCE)
        watcher.stop()
        watcher.close()


def _claim_barely(kazoo: KazooClient, path: str) -> None:
    """The requests of a claim, with nothing of what makes it safe: a listing, a read, a transaction."""
    first = f"{path}/{min(kazoo.get_children(path))}"
    data, stat = kazoo.get(first)
    transaction = kazoo.transaction()
    transaction.set_data(first, data, stat.version)
    transaction.delete(first)
    _check(transaction.commit())


def _check(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result


VERBS: Final[dict[str, Verb]] = {
    "wake": Verb(_idle, _fill),
    "wake-barely": Verb(lambda asked: _bare(asked, lambda _kazoo, _path: None)),
    "wake-and-claim-barely": Verb(lambda asked: _bare(asked, _claim_barely)),
}
_FLOOR: Final = Way("bare write and watch", "wake-barely", share=0.2)
_OURS: Final = tuple(
    Way(f"{threads} idle thread{'s' if threads > 1 else ''}", "wake", threads, share=0.1, ours=True)
    for threads in (1, 8, 64)
)
WAKING: Final = Row(
    "waking",
    "from an enqueue to a waiting consumer's claim",
    (*_OURS, _FLOOR, Way("the same, and a bare claim", "wake-and-claim-barely", share=0.2)),
    tuple(Goal(way.name, 1 / 3, _FLOOR.name) for way in _OURS),
)
