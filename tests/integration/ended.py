"""Tasks that have ended: a few that were handled, and many as workers would have left them."""

from __future__ import annotations

import time

from airflow_provider_zkmq.engine import Message
from airflow_provider_zkmq.engine.api.queue import Queue
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.znode_names import bucket_of, index_path
from airflow_provider_zkmq.engine.queue_internals import internals

#: So many tasks are written by one transaction, and so many transactions are in flight.
TOGETHER, WINDOW = 12, 16


def finish(queue: Queue, count: int, *, dead: int = 0, retried: int = 0) -> list[str]:
    """Tasks of two classes, in the order of their ends: first the dead ones, then those of two deliveries, the rest."""
    kinds = ("low", "standard")
    queue.enqueue_many(
        [Message(f"data {n}", {"performance_class": kinds[n % 2]}, metadata={"n": n}) for n in range(count)]
    )
    ended: list[str] = []
    while len(ended) < count:
        claim = queue.claim(timeout=5)
        assert claim is not None
        number = claim.task.metadata["n"]
        if number < dead:
            claim.fail("no", retry=False)
        elif number < dead + retried and claim.task.attempt == 1:
            claim.fail("once", backoff=0)
            continue
        else:
            claim.complete(b"result of " + claim.task.data)
        ended.append(claim.task.id)
    return ended


def ended_tasks(queue: Queue, count: int, first: int = 0, data: bytes = b"data") -> list[str]:
    """Write so many finished tasks by many transactions in flight, as if each had ended 1 ms after another."""
    client, base = queue._session.client, queue._context.paths.base
    now = int(time.time() * 1000) - count
    for bucket in sorted({bucket_of(now + number) for number in range(count)}):
        client.ensure_path(f"{base}/finished/{bucket}")
    flying = []
    for start in range(0, count, TOGETHER):
        transaction = client.transaction()
        for number in range(start, min(count, start + TOGETHER)):
            _add(transaction, base, f"t{first + number:07d}", now + number, data)
        flying.append(transaction.commit_async())
        if len(flying) > WINDOW:
            flying.pop(0).get()
    assert not [result for sent in flying for result in sent.get() if isinstance(result, Exception)]
    return [f"t{first + number:07d}" for number in range(count)]


def produce(queue: Queue, count: int, number: int) -> None:
    """Tasks that finish, one at its second delivery; one that dies and is dropped; one whose id is run again."""
    ended_tasks(queue, count, first=number * count)
    finish(queue, 1, retried=1)
    for _ in range(2):
        queue.enqueue(b"x", task_id="again")
        queue.claim(timeout=20).complete(b"r")
    queue.enqueue(b"x", task_id=f"dead{number}")
    queue.claim(timeout=20).fail("no", retry=False)
    queue.drop(f"dead{number}")


def ended_runs(queue: Queue) -> set[tuple[str, int]]:
    """Which runs have ended so far: ids and versions."""
    return {each[:2] for each in internals(queue).ended_between(0)}


def _add(transaction: object, base: str, task_id: str, now: int, data: bytes) -> None:
    """The tree of one finished task, and what lists it."""
    index, path = index_path("finished", now, task_id), f"{base}/tasks/{task_id}"
    place = f"p09999/00000001/{'0' * 22}~{task_id}"
    times = {"claimed": now - 50, "ended": now, "consumer": "w-1"}
    state = TaskState(State.FINISHED, place, "n", attempt=1, index=index, result=True, **times)
    parts = {"": b"", "/data": data, "/result": b"r", "/state": state.encode()}
    for name, value in parts.items():
        transaction.create(f"{path}{name}", value)
    transaction.create(f"{base}/{index}")
