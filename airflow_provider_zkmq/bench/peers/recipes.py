"""kazoo's recipes: `Queue`, which loses the task of a consumer that dies, and `LockingQueue`, which does not."""

from __future__ import annotations

import time
from functools import partial
from threading import Thread
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.recipe.queue import LockingQueue, Queue

from airflow_provider_zkmq.bench.jobs import PATIENCE, PAYLOAD, Asked, BenchError, Done, Verb, drained, groups, simple
from airflow_provider_zkmq.bench.jobs import times as repeat

#: How long a consumer asks an empty queue before it takes it for empty, in seconds.
_EMPTY_S = 0.05


def _queue(asked: Asked) -> Any:
    return Queue(asked.clients.kazoo, asked.path)


def _locking(asked: Asked) -> Any:
    return LockingQueue(asked.clients.kazoo, asked.path)


def _put_all(asked: Asked, payload: bytes = PAYLOAD) -> int:
    """A hundred flat znodes in each transaction."""
    queue = _locking(asked)
    for payloads in groups(asked.tasks, payload):
        queue.put_all(payloads)
    return asked.tasks


def _fill(asked: Asked) -> None:
    """`Queue` has no call for many: one transaction for a hundred of what its `put` creates."""
    asked.clients.kazoo.ensure_path(asked.path)
    for payloads in groups(asked.tasks):
        transaction = asked.clients.kazoo.transaction()
        for data in payloads:
            transaction.create(f"{asked.path}/entry-100-", data, sequence=True)
        transaction.commit()


def _get(asked: Asked) -> int:
    return drained(_queue(asked).get)


def _take(queue: Any, timeout: float) -> bool | None:
    return True if queue.get(timeout) is not None and queue.consume() else None


def _get_locked(asked: Asked) -> Done:
    """What is known to be the last get's vain wait is not counted."""
    queue, begun, ended, count = _locking(asked), time.perf_counter(), time.perf_counter(), 0
    while count < asked.tasks and _take(queue, _EMPTY_S):
        count, ended = count + 1, time.perf_counter()
    return Done(count, ended - begun)


def _mixed(asked: Asked) -> int:
    """One thread puts what another, with a client of its own, gets and consumes meanwhile."""
    other = KazooClient(asked.clients.hosts)
    other.start()
    producer = Thread(target=repeat, args=(asked.tasks, partial(_locking(asked).put, PAYLOAD)))
    producer.start()
    try:
        _expect(LockingQueue(other, asked.path), asked.tasks)
    finally:
        producer.join()
        other.stop()
        other.close()
    return asked.tasks


def _expect(queue: Any, tasks: int) -> None:
    for _ in range(tasks):
        if not _take(queue, PATIENCE):
            raise BenchError(f"a LockingQueue gave nothing for {PATIENCE:g} s")


def _payloads(asked: Asked) -> int:
    payload = b"x" * asked.number
    queue = _locking(asked)
    for _ in range(asked.tasks):
        queue.put(payload)
    _expect(queue, asked.tasks)
    return asked.tasks


def _trees(asked: Asked) -> None:
    """As many small trees as tasks of ours would be, to be deleted."""
    for number in range(asked.tasks):
        tree = f"{asked.path}/{number}"
        asked.clients.kazoo.ensure_path(tree)
        transaction = asked.clients.kazoo.transaction()
        for name in ("data", "state", "metadata", "filters"):
            transaction.create(f"{tree}/{name}", PAYLOAD)
        transaction.commit()


def _delete_trees(asked: Asked) -> int:
    for number in range(asked.tasks):
        asked.clients.kazoo.delete(f"{asked.path}/{number}", recursive=True)
    return asked.tasks


VERBS: Final[dict[str, Verb]] = {
    "queue-put": simple(lambda asked: repeat(asked.tasks, partial(_queue(asked).put, PAYLOAD))),
    "queue-get": simple(_get, _fill),
    "locking-put": simple(lambda asked: repeat(asked.tasks, partial(_locking(asked).put, PAYLOAD))),
    "locking-put-all": simple(_put_all),
    "locking-get": simple(_get_locked, _put_all),
    "locking-mixed": simple(_mixed),
    "locking-payloads": simple(_payloads),
    "kazoo-delete": simple(_delete_trees, _trees),
}
