"""Replies that are lost, on a real server: the call has happened once, or its caller is told that nobody knows.

Each operation at each of its transactions stands in `tests/unit/test_crash_points.py`, on the in-memory server; here
the connection itself is lost, with its watches, and a real client comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ClaimLost, Message, OutcomeUnknown, Queue, RetryPolicy, Zkmq
from airflow_provider_zkmq.engine.errors import TransportError
from tests.faulty import CutAfter, Faulty, Once, is_write
from tests.integration.conftest import taken
from tests.support import eventually, fresh_root

MOST_WRITES = 8
LOST_AND_AWAY = CutAfter(math.inf)
QUEUED, LOCKED, DONE = "queued", "locked", "done-awaiting-gc"


def nothing(zk: Zkmq) -> Any:
    return zk.queue("q")


def pending(zk: Zkmq) -> Any:
    zk.queue("q").enqueue(b"old", task_id="a")
    return zk.queue("q")


def requeued(zk: Zkmq) -> Any:
    claim = pending(zk).claim()
    zk.queue("q").enqueue(b"new", task_id="a", on_conflict="requeue")
    return claim


def moved(zk: Zkmq) -> Any:
    pending(zk)
    tx = zk.transaction()
    tx.try_take("q")
    tx.put("out", b"y", task_id="b")
    return tx


THREE = [Message(b"x", task_id=name) for name in "abc"]
#: name: (what is there before, the operation on it, the statuses after it)
OPERATIONS: dict[str, tuple[Callable[[Zkmq], Any], Callable[[Any], Any], dict[str, str]]] = {
    "configure": (pending, lambda q: q.configure(lock=5), {"a": QUEUED}),
    "enqueue_many": (nothing, lambda q: q.enqueue_many(THREE), dict.fromkeys("abc", QUEUED)),
    "batch": (nothing, lambda q: q.enqueue_many(THREE, batch="b"), dict.fromkeys("abc", QUEUED)),
    "claim": (pending, lambda q: q.claim(lease=60), {"a": LOCKED}),
    "complete, requeued": (requeued, lambda claim: claim.complete(b"r"), {"a": QUEUED}),
    "clear": (pending, lambda q: q.clear(), {}),
    "commit": (moved, lambda tx: tx.commit(), {"a": DONE}),
    "rollback": (moved, lambda tx: tx.rollback(), {"a": QUEUED}),
}


def test_a_lost_reply_leaves_one_effect(door: Faulty, subtests: pytest.Subtests) -> None:
    """Whichever of its writes loses its reply, the call succeeds and has happened exactly once."""
    for name, (before, operate, after) in OPERATIONS.items():
        with subtests.test(operation=name):
            for at in range(MOST_WRITES):
                with Zkmq.connect(door.hosts, root=fresh_root(), gc=False) as zk:
                    q = zk.queue("q")
                    q.configure(policy=RetryPolicy(factor=0))
                    subject = before(zk)
                    door.plan = lost = Once(is_write, CutAfter(), at)
                    operate(subject)
                    assert {task.id: str(task.status) for task in q.tasks()} == after
                    counts = q.counts()
                    assert sum(counts.values()) - counts["scheduled"] == len(after)
                    if name == "commit":
                        assert [task.id for task in zk.queue("out").tasks()] == ["b"]
                if not lost.met.is_set():
                    break
            assert 0 < at < MOST_WRITES - 1, "so often it writes"


# --- outages that last longer than a call waits


@pytest.fixture
def impatient(door: Faulty, root: str) -> Any:
    """A client through the door that soon gives up, and its queue."""
    with Zkmq.connect(door.hosts, root=root, gc=False, session_timeout=30, request_timeout=1.0) as zk:
        queue = zk.queue("q")
        queue.configure(policy=RetryPolicy(factor=0))
        yield queue


def back(door: Faulty, q: Queue) -> None:
    door.up()
    eventually(q._session.connected.is_set)


def test_an_enqueue_that_a_long_outage_leaves_unknown_is_one_task_when_made_again(
    door: Faulty, impatient: Queue
) -> None:
    """`OutcomeUnknown` names the id, with which it is made again; a batch whose sealing was unknown is one batch."""
    q, messages = impatient, [Message(str(number)) for number in range(30)]
    door.plan = Once(is_write, LOST_AND_AWAY)
    with pytest.raises(OutcomeUnknown) as unknown:
        q.enqueue(b"x")
    back(door, q)
    (named,) = unknown.value.task_ids
    assert [q.enqueue(b"x", task_id=named)] == [named] == [task.id for task in q.tasks()]
    door.plan = Once(is_write, LOST_AND_AWAY, 3)  # opened, two transactions of members, sealed
    with pytest.raises(OutcomeUnknown) as unknown:
        q.enqueue_many(messages, batch="b", then=Message(b"then"))
    back(door, q)
    ids = q.enqueue_many(messages, batch="b", then=Message(b"then"))
    assert (unknown.value.task_ids, q.batch("b").total, len(q.tasks())) == (tuple(ids), 30, 31)


def test_a_claim_of_unknown_outcome_is_given_back_although_its_client_claims_nothing_more(
    door: Faulty, impatient: Queue, other: Zkmq
) -> None:
    """Once the connection is back its client returns the task by itself, and another client gets it."""
    impatient.enqueue(b"x", task_id="a")
    door.plan = lost = Once(lambda request: request.claims, LOST_AND_AWAY)
    with suppress(TransportError):
        impatient.claim()
        pytest.fail("a claim that nobody can tell of was returned")
    assert lost.met.is_set()
    back(door, impatient)
    task = taken(other.queue("q"), timeout=20).task
    assert (task.id, task.attempt) == ("a", 1)


def test_what_the_record_has_forgotten_is_told_as_such_by_token_too(
    door: Faulty, impatient: Queue, other: Zkmq
) -> None:
    """A release whose reply is lost, and four others settle the task: first unknown, then lost, and never denied."""
    impatient.enqueue(b"x", task_id="a")
    token = taken(impatient, lease=600).token
    door.plan = Once(is_write, LOST_AND_AWAY)
    with pytest.raises(OutcomeUnknown):
        impatient.claim_handle("a", token).release()
    for _ in range(4):
        taken(other.queue("q"), timeout=60).release()
    back(door, impatient)
    for kind in (OutcomeUnknown, ClaimLost, ClaimLost):
        with pytest.raises(kind, match="cannot be told any more"):
            impatient.claim_handle("a", token).release()
    last = taken(impatient)
    assert (last.task.id, last.task.attempt) == ("a", 1)
    last.complete()
