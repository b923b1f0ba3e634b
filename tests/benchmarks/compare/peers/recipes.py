"""kazoo's recipes, the algorithm that this queue began as, and kazoo alone writing the znodes that we write.

`Queue` loses the task of a consumer that dies, `LockingQueue` does not. The flat algorithm has a znode for each part of
a task, one flat list and a lock for each claim; each step is a request of its own, as published, and a consumer lists
all that is pending for each claim. The bare client is the floor of `enqueue_many`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any, Final
from uuid import uuid4

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.recipe.queue import LockingQueue, Queue

from tests.benchmarks.compare.jobs import (
    GROUP,
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
    started_kazoo,
    times,
)

#: How long a consumer asks an empty queue before it takes it for empty, in seconds.
_EMPTY_S: Final = 0.05
#: Tasks in a transaction, as the engine's `enqueue_many` has them.
_TOGETHER: Final = 20
#: The znodes of a task of the flat algorithm.
_PARTS: Final = (("", b""), ("/filters", b""), ("/state", b"inserted"), ("/metadata", b"{}"), ("/data", PAYLOAD))
NewTask = list[tuple[str, bytes]]


def _queue(requested: Asked) -> Any:
    return Queue(requested.clients.kazoo, requested.path)


def _locking(requested: Asked) -> Any:
    return LockingQueue(requested.clients.kazoo, requested.path)


def _put_all(requested: Asked) -> int:
    """A hundred flat znodes in each transaction."""
    queue = _locking(requested)
    for payloads in groups(requested.tasks):
        queue.put_all(payloads)
    return requested.tasks


def _fill(requested: Asked) -> None:
    """`Queue` has no call for many: one transaction for a hundred of what its `put` creates."""
    requested.clients.kazoo.ensure_path(requested.path)
    for payloads in groups(requested.tasks):
        transaction = requested.clients.kazoo.transaction()
        for data in payloads:
            transaction.create(f"{requested.path}/entry-100-", data, sequence=True)
        transaction.commit()


def _take(queue: Any, timeout: float) -> bool | None:
    return True if queue.get(timeout) is not None and queue.consume() else None


def _get_locked(requested: Asked) -> Done:
    """What is known to be the last get's vain wait is not counted."""
    queue, begun, ended, count = _locking(requested), time.perf_counter(), time.perf_counter(), 0
    while count < requested.tasks and _take(queue, _EMPTY_S):
        count, ended = count + 1, time.perf_counter()
    return Done(count, ended - begun)


def _expect(queue: Any, tasks: int) -> None:
    for _ in range(tasks):
        if not _take(queue, TIMEOUT_S):
            raise BenchError(f"a LockingQueue gave nothing for {TIMEOUT_S:g} s")


def _mixed(requested: Asked) -> int:
    """One thread puts what another, with a client of its own, gets and consumes meanwhile."""
    producer = Thread(target=times, args=(requested.tasks, partial(_locking(requested).put, PAYLOAD)))
    producer.start()
    with started_kazoo(requested.clients.hosts) as other:
        _expect(LockingQueue(other, requested.path), requested.tasks)
    producer.join()
    return requested.tasks


def _payloads(requested: Asked) -> int:
    queue = _locking(requested)
    times(requested.tasks, partial(queue.put, b"x" * requested.number))
    _expect(queue, requested.tasks)
    return requested.tasks


def _trees(requested: Asked) -> None:
    """As many small trees as tasks of ours would be, to be deleted."""
    for number in range(requested.tasks):
        tree = f"{requested.path}/{number}"
        requested.clients.kazoo.ensure_path(tree)
        transaction = requested.clients.kazoo.transaction()
        for name in ("data", "state", "metadata", "filters"):
            transaction.create(f"{tree}/{name}", PAYLOAD)
        transaction.commit()


def _delete_trees(requested: Asked) -> int:
    for number in range(requested.tasks):
        requested.clients.kazoo.delete(f"{requested.path}/{number}", recursive=True)
    return requested.tasks


# --- the flat algorithm


def _flat_lists(requested: Asked) -> None:
    for name in ("tasks", "queue"):
        requested.clients.kazoo.ensure_path(f"{requested.path}/{name}")


def _flat_task(path: str) -> NewTask:
    task = uuid4().hex
    return [*((f"{path}/tasks/{task}{part}", data) for part, data in _PARTS), (f"{path}/queue/{task}", b"")]


def _flat_enqueue(requested: Asked) -> None:
    for path, data in _flat_task(requested.path):
        requested.clients.kazoo.create(path, data)


def _flat_fill(requested: Asked) -> None:
    """The same znodes in transactions: how they came there is not measured."""
    _flat_lists(requested)
    for start in range(0, requested.tasks, _TOGETHER):
        transaction = requested.clients.kazoo.transaction()
        for _ in range(min(_TOGETHER, requested.tasks - start)):
            for path, data in _flat_task(requested.path):
                transaction.create(path, data)
        transaction.commit()


def _flat_consume(kazoo: KazooClient, path: str) -> bool | None:
    """Claim one of those that are listed and finish it; None: there is none."""
    for name in sorted(kazoo.get_children(f"{path}/queue")):
        task = f"{path}/tasks/{name}"
        try:
            kazoo.create(f"{task}/claim", b"bench", ephemeral=True)
            kazoo.delete(f"{path}/queue/{name}")
        except (NodeExistsError, NoNodeError):
            continue
        kazoo.set(f"{task}/state", b"claimed")
        kazoo.get(f"{task}/data")
        kazoo.set(f"{task}/state", b"finished")
        kazoo.delete(f"{task}/claim")
        return True
    return None


# --- the bare client


def _below(kazoo: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    """A znode and all under it, each with its data, parents first."""
    yield path, kazoo.get(path)[0]
    for name in sorted(kazoo.get_children(path)):
        yield from _below(kazoo, f"{path}/{name}")


def _example(requested: Asked) -> tuple[str, NewTask]:
    """The id of a task that the engine enqueues for the purpose, and the znodes that it consists of."""
    queue, kazoo = requested.queue, requested.clients.kazoo
    task = queue.enqueue(PAYLOAD)
    base = f"{queue.root}/{queue.name}"
    entries = [each for each in _below(kazoo, f"{base}/queue") if each[0].endswith(f"~{task}")]
    return task, [*_below(kazoo, f"{base}/tasks/{task}"), *entries]


def _commit(kazoo: KazooClient, first: str, tree: NewTask, tasks: int) -> Any:
    transaction = kazoo.transaction()
    for _ in range(tasks):
        task = uuid4().hex
        for path, data in tree:
            transaction.create(path.replace(first, task), data)
    return transaction.commit_async()


def _check(sent: Any) -> None:
    for result in sent.get():
        if not isinstance(result, str):
            raise BenchError(f"a transaction of the bare client was refused: {result!r}")


@contextmanager
def _enqueueing_barely(requested: Asked) -> Iterator[Run]:
    """As many transactions under way as `enqueue_many` of a hundred has; finding out what to write is not measured."""
    first, tree = _example(requested)

    def run() -> Done:
        under_way: deque[Any] = deque()
        for start in range(0, requested.tasks, _TOGETHER):
            if len(under_way) == GROUP // _TOGETHER:
                _check(under_way.popleft())
            under_way.append(_commit(requested.clients.kazoo, first, tree, min(_TOGETHER, requested.tasks - start)))
        for each in under_way:
            _check(each)
        return Done(requested.tasks)

    yield run


VERBS: Final[dict[str, Verb]] = {
    "queue-put": simple(lambda requested: times(requested.tasks, partial(_queue(requested).put, PAYLOAD))),
    "queue-get": simple(lambda requested: drained(_queue(requested).get), _fill),
    "locking-put": simple(lambda requested: times(requested.tasks, partial(_locking(requested).put, PAYLOAD))),
    "locking-put-all": simple(_put_all),
    "locking-get": simple(_get_locked, _put_all),
    "locking-mixed": simple(_mixed),
    "locking-payloads": simple(_payloads),
    "kazoo-delete": simple(_delete_trees, _trees),
    "flat-enqueue": simple(lambda requested: times(requested.tasks, partial(_flat_enqueue, requested)), _flat_lists),
    "flat-claim": simple(
        lambda requested: drained(partial(_flat_consume, requested.clients.kazoo, requested.path)), _flat_fill
    ),
    "bare-enqueue": Verb(_enqueueing_barely),
}
