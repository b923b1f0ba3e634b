"""What each operation costs in ZooKeeper requests, and that none grows with what is pending.

Measured on warm clients: the cheapest of a few times, since once in a while an index needs a new bucket (a minute of
the server's clock) or a segment is full.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Claim, ConsumeTimes, Message, Queue, String, UnitOfWork, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.integration.clients import clients, spent, together
from tests.integration.conftest import taken
from tests.support import eventually

TIMES = 3
DEEP = 100_000 if os.environ.get("ZKMQ_SCALE") == "1" else 5_000
WRITE = {"Multi": 1}
#: Of claims that follow one another: the candidate has been read.
CLAIM = {"Multi": 1}
FIFO_CLAIM = {"Children": 1, **CLAIM}
Cost = dict[str, int]


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    """A queue with work, its client warm."""
    queue = zk.queue("census")
    queue.configure(filters={"kind": String()}, policy=ConsumeTimes(3))
    queue.enqueue_many([Message(b"x") for _ in range(60)])
    taken(queue).complete()
    return queue


@pytest.fixture
def there(q: Queue, other: Zkmq) -> Queue:
    """The queue by a second client, which has not claimed."""
    queue = other.queue(q.name)
    queue.counts()
    return queue


def _cost(client: Zkmq, prepare: Callable[[], Any], call: Callable[[Any], object]) -> Cost:
    """The cheapest of a few calls, each on something prepared beforehand."""
    costs = []
    for _ in range(TIMES):
        made = prepare()
        costs.append(spent(client, partial(call, made)))
    return min(costs, key=lambda cost: sum(cost.values()))


def _nothing() -> None:
    return None


def test_enqueues(zk: Zkmq, q: Queue) -> None:
    """One task is one transaction, a hundred are five; with ids of the caller's, one each."""
    ids = count()
    assert _cost(zk, _nothing, lambda _: q.enqueue(b"x")) == WRITE
    assert _cost(zk, _nothing, lambda _: q.enqueue_many([Message(b"x") for _ in range(100)])) == {"Multi": 5}
    own = lambda: [Message(b"x", task_id=f"own-{next(ids)}") for _ in range(20)]
    assert _cost(zk, own, q.enqueue_many) == {"Multi": 20}


def test_an_enqueue_of_what_is_new(zk: Zkmq, q: Queue) -> None:
    """A hundred with ids of the caller's are five transactions and two reads; where all are there, the reads only."""
    ids = count()
    own = lambda: [Message(b"x", task_id=f"own-{next(ids)}") for _ in range(100)]
    known = own()
    internals(q).enqueue_new(known)
    cost = _cost(zk, own, internals(q).enqueue_new)
    assert (cost.pop("Multi"), _cost(zk, lambda: known, internals(q).enqueue_new)) == (5, cost)
    assert sum(cost.values()) == 2
    skip = lambda messages: q.enqueue_many(messages, on_conflict="skip")
    assert _cost(zk, lambda: known, skip) == cost


def test_claims_that_follow_one_another_share_their_reads(zk: Zkmq, q: Queue, other: Zkmq, there: Queue) -> None:
    """Candidates are read sixteen at a time; a claim by itself reads its own. Large ones are not read ahead."""
    assert spent(zk, lambda: [taken(q).complete() for _ in range(32)])["GetMany"] <= 5
    lone = spent(other, lambda: taken(there).complete())
    assert (lone["Multi"] - 1, lone["GetMany"] - 1) <= (2, 2)  # it registers, too
    q.clear()
    for _ in range(24):
        q.enqueue(b"x" * 100_000)
    assert spent(zk, lambda: [taken(q).complete() for _ in range(24)])["GetMany"] >= 7


@pytest.mark.parametrize(("order", "claim"), [("default", CLAIM), ("fifo", FIFO_CLAIM)])
def test_a_claim_and_its_ends(zk: Zkmq, q: Queue, order: str, claim: Cost) -> None:
    """Soon after another claim one is a transaction, in strict order with a listing; so is each way to settle it."""
    q.configure(order=order)
    take = partial(taken, q)
    taken(q).snooze(3_600)
    assert _cost(zk, _nothing, lambda _: take().complete()) == {**claim, "Multi": 2}
    assert _cost(zk, _nothing, lambda _: take()) == claim
    for settle in (
        lambda it: it.complete(b"result"),
        lambda it: it.fail("broken"),
        lambda it: it.fail("broken", retry=False),
        lambda it: it.release(),
        lambda it: it.snooze(3_600),
        lambda it: it.progress(0.5, "half"),
    ):
        assert _cost(zk, take, settle) == WRITE


def test_leases(zk: Zkmq, q: Queue) -> None:
    """A leased claim costs what another does; extending it is one transaction; a session-bound one is only read."""
    leased = partial(taken, q, lease=600)
    leased()
    assert _cost(zk, _nothing, lambda _: leased()) == CLAIM
    assert _cost(zk, leased, lambda it: it.extend(600)) == WRITE
    assert _cost(zk, leased, lambda it: it.complete()) == WRITE
    assert _cost(zk, partial(taken, q), lambda it: it.extend(600)) == {"GetMany": 1}


def test_looking_for_work_and_claiming_by_id(zk: Zkmq, q: Queue, other: Zkmq, there: Queue) -> None:
    """Whether there is work is one read, and none where nothing fits; a task by its id is a read and a transaction."""
    assert (there.ready(), there.ready(selector="kind==none")) == (True, False)
    assert _cost(other, _nothing, lambda _: there.ready()) == {"GetMany": 1}
    assert _cost(other, _nothing, lambda _: there.ready(selector="kind==none")) == {}
    new = lambda: q.enqueue(b"x")
    assert _cost(zk, new, q.claim_task) == {"GetMany": 1, "Multi": 1}
    q.configure(order="fifo")
    assert q.claim_task(new()) is not None
    assert _cost(zk, new, q.claim_task) == {"Get": 1, "GetMany": 1, "Multi": 1}


def test_what_is_settled_by_token_is_read_first(other: Zkmq, q: Queue, there: Queue) -> None:
    """From another process: one read more than by the claim itself."""

    def take() -> tuple[str, int]:
        claim = taken(q, lease=60)
        return claim.task.id, claim.token

    there.claim_handle(*take()).complete()
    there.claim_handle(*take()).fail("x")
    for call in (
        lambda it: there.claim_handle(*it).complete(b"r"),
        lambda it: there.claim_handle(*it).fail("broken"),
        lambda it: there.claim_handle(*it).release(),
        lambda it: there.claim_handle(*it).progress(0.5),
    ):
        assert _cost(other, take, call) == {"GetMany": 1, **WRITE}


def test_cancel_and_redrive(zk: Zkmq, q: Queue) -> None:
    """A pending task is read and moved; a claimed one takes two looks more to cancel. Many are read at once."""
    put = partial(q.enqueue, b"x")
    q.cancel(put())

    def cancelled() -> str:
        task_id = put()
        q.cancel(task_id)
        return task_id

    def dead() -> str:
        claim = taken(q)
        claim.fail("no", retry=False)
        return claim.task.id

    assert _cost(zk, put, q.cancel) == {"Get": 1, "Multi": 1}
    assert _cost(zk, cancelled, q.redrive) == {"Get": 1, "Multi": 1}
    assert _cost(zk, dead, q.redrive) == {"Get": 1, "Multi": 1}
    assert _cost(zk, lambda: [dead(), cancelled(), dead()], q.redrive_many) == {"GetMany": 1, "Multi": 3}
    assert _cost(zk, lambda: taken(q).task.id, q.cancel) == {"Get": 1, "Exists": 2, "Multi": 1}


def test_ids_that_are_in_use(zk: Zkmq, q: Queue) -> None:
    """Refused once, read, written: an update and a requeue; the completion of a requeued one inserts the next run.

    That is one read of what is held in escrow more; a refused first try learns of it.
    """
    ids = (f"t{number}" for number in count())

    def pending() -> str:
        return q.enqueue(b"x", task_id=next(ids), priority=9)

    def claimed() -> str:
        task_id = pending()
        assert taken(q).task.id == task_id
        return task_id

    def requeued() -> Claim:
        pending()
        claim = taken(q)
        q.enqueue(b"again", task_id=claim.task.id, on_conflict="requeue", priority=-9)
        return claim

    update = lambda it: q.enqueue(b"y", task_id=it, priority=9, on_conflict="replace")
    assert _cost(zk, pending, update) == {"Get": 1, "Multi": 2}
    for name in ("t0", "t1", "t2"):
        q.cancel(name)
    assert _cost(zk, claimed, lambda it: q.enqueue(b"y", task_id=it, on_conflict="requeue")) == {"Get": 1, "Multi": 2}
    requeued().complete()
    assert _cost(zk, requeued, lambda it: it.complete()) == {"Get": 1, "GetMany": 1, "Multi": 2}
    assert _cost(zk, pending, q.drop) == {"Get": 1, "Multi": 1}


def test_waiting_is_one_watched_read_for_each_task(zk: Zkmq, q: Queue, other: Zkmq, there: Queue) -> None:
    """8 waiters of one process for the same 20 tasks: a read and a re-read of each in all, not for each waiter."""
    claims = [taken(q) for _ in range(20)]
    ids = [claim.task.id for claim in claims]
    paths = [there._context.paths.task(task_id, "state") for task_id in ids]
    before = other.requests

    def finish() -> None:
        eventually(lambda: all(len(there._context.listings.at(path).subscribers) == 8 for path in paths))
        eventually(lambda: all(there._context.listings.at(path).fresh for path in paths))
        for claim in claims:
            claim.complete()

    found = together(*(partial(there.wait, ids, timeout=60) for _ in range(8)), finish)
    assert [[task.state for task in tasks] for tasks in found[:8]] == [["finished"] * 20] * 8
    cost = {kind: n - before.get(kind, 0) for kind, n in other.requests.items()}
    assert cost["Get"] <= 2 * 20
    assert cost["GetMany"] == 8  # each waiter reads the tasks that it returns
    assert cost.get("Multi", 0) == 0


def test_waiting_for_a_batch_that_is_done(zk: Zkmq, q: Queue, other: Zkmq, there: Queue) -> None:
    """A batch that has ended is told by two reads; see `test_batches` for one that is waited for."""
    q.enqueue_many([Message(b"x", priority=9) for _ in range(5)], batch="b")
    for _ in range(5):
        taken(q).complete()
    assert spent(other, lambda: there.wait_batch("b")) == {"GetMany": 1, "Children": 1}


def test_the_parts_of_a_transaction(zk: Zkmq, q: Queue) -> None:
    """Taking costs what a claim does, putting nothing, committing one transaction, whatever it holds."""

    def begun(puts: int = 0) -> UnitOfWork:
        unit = zk.transaction()
        assert unit.try_take("census") is not None
        for _ in range(puts):
            unit.put("out", b"x")
        return unit

    begun(1).commit()
    assert _cost(zk, zk.transaction, lambda it: it.try_take("census")) == CLAIM
    assert _cost(zk, begun, lambda it: it.put("out", b"x")) == {}
    assert _cost(zk, partial(begun, 1), lambda it: it.commit()) == WRITE
    assert _cost(zk, partial(begun, 20), lambda it: it.commit()) == WRITE
    assert _cost(zk, partial(begun, 1), lambda it: it.rollback()) == WRITE


def test_looking(zookeeper: str, root: str, zk: Zkmq, q: Queue) -> None:
    """A task is one read; explaining it reads the live consumers as well, twenty in one request."""
    task_id = q.enqueue(b"x")
    assert _cost(zk, _nothing, lambda _: q.task(task_id)) == {"GetMany": 1}
    assert _cost(zk, _nothing, lambda _: q.explain(task_id)) == {"Children": 1, "GetMany": 2}
    with clients(zookeeper, root, 20) as many:
        for client in many:
            client.queue("census").claim(selector="kind==none")
        assert len(q.explain(task_id).consumers) == 21
        assert spent(zk, lambda: q.explain(task_id)) == {"Children": 1, "GetMany": 2}


def test_counts_grow_with_lanes_not_with_tasks(zk: Zkmq, q: Queue) -> None:
    """Ten times the tasks cost nothing more while no segment is added, a lane costs a listing and a look."""
    few = spent(zk, q.counts)
    q.enqueue_many([Message(b"x") for _ in range(400)])
    assert spent(zk, q.counts) == few
    for kind in ("a", "b", "c"):
        q.enqueue(b"x", {"kind": kind})
    assert spent(zk, q.counts) == {**few, "Children": few["Children"] + 3, "Exists": few["Exists"] + 3}


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_claim_costs_the_same_however_much_is_pending(zookeeper: str, root: str, zk: Zkmq, order: str) -> None:
    """10 or 5 000 pending, matching or not: the same requests for a warm client, and no more for a cold one.

    In strict order a cold client also reads the ranks of one segment, which holds a few hundred at the most. To find
    nothing, or to enqueue, a client starts with the requests of an empty queue, kind by kind.
    """
    put = lambda queue: queue.enqueue(b"x", {"kind": "other"}, priority=-3)
    costs: dict[str, list[Cost]] = {kind: [] for kind in ("warm", "cold", "none", "put", "nothing", "start")}
    for size in (0, 10, DEEP):
        q = zk.queue(f"q{size}")
        q.configure(filters={"kind": String()}, order=order)
        for kind in ("wanted", "foreign"):
            q.enqueue_many([Message(b"x", {"kind": kind}) for _ in range(size or 1)])
            if not size:  # its lane and its segment are there, and nothing is pending
                taken(q).complete()
        put(q)  # the lane is there
        for name, call in (("nothing", lambda queue: queue.claim(selector="kind==nothing")), ("start", put)):
            with clients(zookeeper, root, 1) as (client,):
                call(client.queue(q.name))
                costs[name].append(dict(client.requests))
        if size:
            with clients(zookeeper, root, 1) as (client,):
                there = client.queue(q.name)
                take = partial(taken, there, selector="kind==wanted")
                costs["cold"].append(spent(client, lambda take=take: take().complete()))  # type: ignore[misc]
                costs["warm"].append(_cost(client, _nothing, lambda _, take=take: take().complete()))  # type: ignore[misc]
                absent = partial(there.claim, selector="kind==absent")
                costs["none"].append(_cost(client, _nothing, lambda _, absent=absent: absent()))  # type: ignore[misc]
                costs["put"].append(_cost(client, _nothing, lambda _, there=there: put(there)))  # type: ignore[misc]
    assert costs["warm"][0] == costs["warm"][1] == {**(FIFO_CLAIM if order == "fifo" else CLAIM), "Multi": 2}
    assert costs["none"] == [{}, {}]
    assert costs["put"] == [WRITE, WRITE]
    for empty, few, many in (costs["nothing"], costs["start"]):
        assert empty == few == many
    small, large = costs["cold"]
    ranks = large.pop("GetMany") - small.pop("GetMany")
    assert small == large
    assert ranks <= (512 // 128 if order == "fifo" else 0)
