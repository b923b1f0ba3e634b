"""A task claimed by its id, this one and no other; a claim taken over by its token, as its maker has it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConfigError, CorruptRecord, TaskNotFound
from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.client_state import Claimed
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read.inspect import explain
from airflow_provider_zkmq.engine.core.tasks import admin, enqueue, settle
from airflow_provider_zkmq.engine.core.zk_operations import Delete, GetMany, Multi, Wait
from tests.unit.claiming import ANY, another, asked_by_id, delivered, queue_of, step
from tests.unit.world import Client, new_queue


def take(client: Client, task_id: str = "a", **options: Any) -> Claimed | None:
    return next(iter(client.do(asked_by_id(client, task_id, **options))), None)


def claimed(client: Client, task_id: str = "a", **options: Any) -> Claimed:
    taken = take(client, task_id, **options)
    assert taken is not None
    assert taken.task_id == task_id
    return taken


@pytest.mark.parametrize(
    ("order", "verb", "rest"),
    [
        ("default", settle.complete, ["urgent", "before", "after"]),
        ("fifo", settle.complete, ["urgent", "before", "after"]),
        ("fifo", settle.release, ["urgent", "before", "a", "after"]),
    ],
)
def test_the_task_is_claimed_wherever_it_stands(order: str, verb: Any, rest: list[str]) -> None:
    """Others of higher priority, and those before it, stay where they are; given back, it stands where it stood."""
    client = queue_of(("before", "a", "after"), order=order)
    client.put(task_id="urgent", priority=5)
    taken = claimed(client)
    assert (taken.data, taken.state.attempt) == (b"x", 1)
    client.do(verb(client.context, taken))
    assert client.work() == rest
    client.check()


def test_none_where_it_cannot_be_claimed() -> None:
    """Not there, in hand, ended, not due, or in a paused queue; nothing is changed, and nobody else's task is taken.

    Once it is due it is claimed, however many others have come due before it, and are to be promoted.
    """
    client = queue_of(["other"])
    assert take(client, "nobodys") is None
    client.do(enqueue.enqueue_many(client.context, [Message(b"x", delay=5) for _ in range(300)]))
    client.put(task_id="later", delay=6)
    assert take(client, "later") is None
    client.do(admin.pause(client.context))
    assert take(client, "other") is None
    client.do(admin.resume(client.context))
    held = claimed(client, "other")
    assert (take(client, "other"), take(another(client), "other")) == (None, None)
    client.complete(held)
    assert take(client, "other") is None
    assert client.check()["later"].state is State.INSERTED
    client.zk.advance(7)
    claimed(client, "later")
    client.check()


def test_only_the_delivery_that_is_asked_for() -> None:
    """Another number of delivery is not there; where no attempts are left, the task goes to the dead letters."""
    client = queue_of("a")
    assert take(client, attempt=2) is None
    client.fail(claimed(client, attempt=1))
    assert take(client, attempt=1) is None
    taken = claimed(client, attempt=2)
    assert taken.state.attempt == 2
    client.fail(taken)
    client.do(admin.configure(client.context, policy=RetryPolicy(attempts=1)))
    assert take(client) is None
    assert client.check()["a"].state is State.DEAD


def test_the_task_of_a_dead_consumer_is_claimed_without_anybody_else() -> None:
    """Its claim is the look that gives it back; a leased claim outlives its session, until its lease ends."""
    for lease in (None, 60):
        client = queue_of("a")
        claimed(client, lease=lease)
        other = another(client)
        client.zk.expire(client.session)
        if lease:
            assert take(other) is None
            client.zk.advance(61)
        assert claimed(other, attempt=2).state.attempt == 2
        other.check()


@pytest.mark.parametrize("prefetch", [True, False])
def test_claimed_ahead_it_counts_once_it_has_begun(prefetch: bool) -> None:
    """Else the end of its lease counts nothing, as of every claim that is taken for somebody else."""
    client = queue_of("a", policy=RetryPolicy(attempts=2, factor=0))
    taken = claimed(client, lease=5, prefetch=prefetch)
    assert (taken.prefetched, taken.state.attempt) == (prefetch, 1)
    client.zk.ms += 60_000
    other = another(client)
    again = claimed(other, prefetch=prefetch)
    assert again.state.attempt == (1 if prefetch else 2)
    other.do(settle.begin(other.context, again))
    other.complete(again)
    other.check()


def test_damage_is_told_and_is_no_loop() -> None:
    """Without its entry, a task is not to be had; a record that cannot be read is told; a lost session registers."""
    client = queue_of("a")
    assert take(client, "nobodys") is None
    assert client.context.registration.consumer is not None
    client.zk.multi(0, (Delete(client.context.paths.live(client.context.registration.consumer.id)),))
    client.do(settle.release(client.context, claimed(client)))
    client.check()
    client.zk.multi(0, (Delete(client.context.paths.entry(client.state("a").place)),))
    ops: list[Any] = []
    assert client.do(asked_by_id(client), lambda op: ops.append(op)) == []
    assert len(ops) < 50
    client.zk.nodes[client.context.paths.task("a", "state")].data = b"nonsense"
    with pytest.raises(CorruptRecord, match="tasks/a/state"):
        take(client)


def test_it_costs_one_read_and_one_transaction() -> None:
    """Of a client that has claimed before. Who waits for work is not kept from what was not asked for by its id.

    It announces no selector: who asks why nobody takes a task is not told that this consumer does.
    """
    client = queue_of("abe")
    client.complete(claimed(client))
    (consumer,) = client.do(explain(client.context, "b")).consumers
    assert consumer.refuses == "it has announced nothing that it accepts"
    client.complete(client.claimed())
    assert client.context.registration.consumer is not None
    assert client.context.registration.consumer.accepts == [str(EVERYTHING)]
    assert take(client, "nobodys") is None
    ops: list[Any] = []
    assert client.do(asked_by_id(client, "e"), lambda op: ops.append(op))
    assert [type(op) for op in ops if not isinstance(op, Wait)][-2:] == [GetMany, Multi]
    assert len(ops) <= 6
    waiter = step(client, claim.claim(client.context, ANY, 30))
    waiter.until(Wait)
    other = another(client)
    for name in "cd":
        other.put(task_id=name)
    claimed(other, "c")
    waiter.answer(True)
    assert waiter.finish().task_id == "d"
    client.check()


def test_a_cancellation_is_heard_of_although_the_claim_was_on_its_way_when_it_came() -> None:
    """Another thread of the client has listened meanwhile, and found nothing in hand that it was about."""
    client = queue_of("ab")
    claimed(client, "b")
    stepper = step(client, asked_by_id(client))
    stepper.until(Multi, "tasks/a/claim")
    outcome = client.zk.multi(client.session, stepper.op.ops)
    another(client).cancel("a")
    client.do(due_work.maintain(client.context))
    stepper.answer(outcome)
    [taken] = stepper.finish()
    client.do(due_work.maintain(client.context))
    assert taken.cancelled


# --- taken over by its token


def taken_over(client: Client, token: Any, task_id: str = "a", **options: Any) -> Claimed:
    [taken] = client.do(delivered(client, claim.request_handle(client.context, task_id, token, **options)))
    return taken


def made(**options: Any) -> tuple[Client, Client, Claimed]:
    """Who claimed the task, another client, and the claim."""
    client = new_queue()
    client.put(task_id="a", metadata={"k": "v"})
    return client, another(client), claimed(client, **options)


def test_the_claim_is_as_its_maker_has_it_and_nothing_is_written() -> None:
    """Whoever has taken it over completes it; its maker has lost it then. In one process it is one and the same."""
    maker, other, its = made(lease=60)
    before = maker.zk.zxid
    assert taken_over(maker, its.token) is its
    taken = taken_over(other, its.token)
    assert (maker.zk.zxid, its.lost) == (before, False)
    names = ("task_id", "token", "version", "state", "created", "data", "metadata", "span", "prefetched")
    assert [getattr(taken, name) for name in names] == [getattr(its, name) for name in names]
    other.complete(taken)
    with pytest.raises(ClaimLost):
        maker.complete(its)
    assert (maker.work(), maker.check()["a"].state) == ([], "finished")
    maker, other, its = made(lease=60)  # it holds as long as is asked for; for its maker it is as it was
    assert (taken_over(other, its.token, lease=7).span, its.span) == (7, 60)
    maker.zk.advance(8)
    assert another(maker, "third").claimed().state.attempt == 2
    with pytest.raises(ClaimLost):
        taken_over(other, its.token)
    with pytest.raises(TaskNotFound):
        taken_over(other, its.token, "nobodys")


def test_of_two_calls_that_take_it_over_at_once_both_get_the_same() -> None:
    """So that each knows what became of the other's: settled by one, it is over for both."""
    _, other, its = made(lease=60)
    first = step(other, delivered(other, claim.request_handle(other.context, "a", its.token, lease=9)))
    first.until(Multi)
    second = taken_over(other, its.token)
    assert first.finish() == [second]


def test_one_taken_ahead_counts_when_it_begins() -> None:
    """Until then it is ahead for whoever takes it over; afterwards it is for nobody."""
    maker, other, its = made(lease=60, prefetch=True)
    taken = taken_over(other, its.token)
    assert taken.prefetched
    other.do(settle.begin(other.context, taken))
    assert not taken_over(another(maker, "third"), its.token).prefetched


def test_what_is_no_id_attempt_lease_or_token_is_refused() -> None:
    """Nor can a claim that ends with its session be another's: it would end although whoever took it over lives."""
    maker, other, its = made()
    for task_id, options in (("a/b", {}), ("a", {"attempt": 0}), ("a", {"lease": 0}), ("a", {"prefetch": "all"})):
        with pytest.raises(ConfigError):
            take(other, task_id, **options)  # type: ignore[arg-type]
    for lease in (0, -1, "soon"):
        with pytest.raises(ConfigError, match="lease"):
            taken_over(other, its.token, lease=lease)
    for task_id, token in (("a", "1"), ("a", True), ("a/b", 1)):
        with pytest.raises(ConfigError):
            taken_over(other, token, task_id)
    with pytest.raises(ConfigError, match="ends with the session that made it: claim with a lease"):
        taken_over(other, its.token)
    maker.complete(taken_over(maker, its.token))
