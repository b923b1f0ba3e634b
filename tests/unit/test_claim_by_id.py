"""A task claimed by its id: this one and no other, and given back like any claim that its caller never got."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming import by_id, claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany, Reconnect, Sync, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, Multi, Outcome
from airflow_provider_zkmq.engine.core.reading.explain import explain
from airflow_provider_zkmq.engine.core.tasks import beginning, configure, operate, settle
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, OutcomeUnknown, Unavailable
from tests.fake_zookeeper import LOST, Faults, drive
from tests.stepping import Stepper
from tests.unit.world import Client, new_queue

ANY = Wanted(EVERYTHING)
UNKNOWN = Outcome(committed=False, unknown=True)


def asked(client: Client, task_id: str = "a", **options: Any) -> Any:
    """As the fronts carry it out, for a caller that gets what was claimed."""
    ask = yield from by_id.ask_by_id(client.context, task_id, **options)
    claims = yield from ask.claiming(Caller())
    for claimed in claims:
        client.context.claims.deliver(claimed)
    return claims[0] if claims else None


def take(client: Client, task_id: str = "a", **options: Any) -> Claimed | None:
    claimed: Claimed | None = client.do(asked(client, task_id, **options))
    return claimed


def another(client: Client) -> Client:
    return Client(client.zk, "another")


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_the_task_is_claimed_wherever_it_stands(order: str) -> None:
    """Others of higher priority, and those before it, stay where they are."""
    client = new_queue(order=order)
    for task_id in ("before", "a", "after"):
        client.put(task_id=task_id)
    client.put(task_id="urgent", priority=5)
    claimed = take(client)
    assert claimed is not None
    assert (claimed.task_id, claimed.data, claimed.state.attempt) == ("a", b"x", 1)
    client.complete(claimed)
    assert client.work() == ["urgent", "before", "after"]
    client.check()


def test_in_strict_order_it_comes_back_to_where_it_stood() -> None:
    client = new_queue(order="fifo")
    for task_id in ("before", "a", "after"):
        client.put(task_id=task_id)
    claimed = take(client)
    assert claimed is not None
    client.do(settle.release(client.context, claimed))
    assert client.work() == ["before", "a", "after"]


def test_none_where_it_cannot_be_claimed() -> None:
    """Not there, in hand, ended, or not due; nothing is changed, and nobody else's task is taken."""
    client = new_queue()
    client.put(task_id="other")
    assert take(client, "nobodys") is None
    client.put(task_id="later", delay=60)
    assert take(client, "later") is None
    held = take(client, "other")
    assert held is not None
    assert take(client, "other") is None
    assert take(another(client), "other") is None
    client.complete(held)
    assert take(client, "other") is None
    assert client.check()["later"].state is State.INSERTED


def test_a_task_that_has_come_due_is_claimed() -> None:
    """However many others have come due before it, and are to be promoted."""
    client = new_queue()
    for number in range(300):
        client.put(task_id=f"t{number}", delay=5)
    client.put(task_id="a", delay=6)
    client.zk.advance(7)
    claimed = take(client)
    assert claimed is not None
    assert claimed.task_id == "a"
    client.check()


def test_only_the_delivery_that_is_asked_for() -> None:
    client = new_queue()
    client.put(task_id="a")
    assert take(client, attempt=2) is None
    claimed = take(client, attempt=1)
    assert claimed is not None
    client.fail(claimed)
    assert take(client, attempt=1) is None
    claimed = take(client, attempt=2)
    assert claimed is not None
    assert claimed.state.attempt == 2


@pytest.mark.parametrize(
    ("task_id", "options"), [("a/b", {}), ("a", {"attempt": 0}), ("a", {"lease": 0}), ("a", {"ahead": "all"})]
)
def test_what_is_no_id_no_attempt_or_no_lease_is_refused(task_id: str, options: dict[str, Any]) -> None:
    client = new_queue()
    with pytest.raises(ConfigError):
        take(client, task_id, **options)


def test_a_paused_queue_hands_out_nothing_by_id_either() -> None:
    client = new_queue()
    client.put(task_id="a")
    client.do(configure.pause(client.context))
    assert take(client) is None
    client.do(configure.resume(client.context))
    assert take(client) is not None


def test_a_task_whose_attempts_are_used_up_is_not_delivered() -> None:
    """The policy was lowered: it goes to the dead letters."""
    client = new_queue()
    client.put(task_id="a")
    client.fail(client.claimed())
    client.do(configure.configure(client.context, policy=RetryPolicy(attempts=1)))
    assert take(client) is None
    assert client.check()["a"].state is State.DEAD


def test_the_task_of_a_dead_consumer_is_claimed_without_anybody_else() -> None:
    """Its claim is the look that gives it back."""
    client = new_queue()
    client.put(task_id="a")
    assert take(client) is not None
    other = another(client)
    client.zk.expire(client.session)
    claimed = take(other)
    assert claimed is not None
    assert claimed.state.attempt == 2


def test_a_leased_claim_outlives_its_session() -> None:
    client = new_queue()
    client.put(task_id="a")
    claimed = take(client, lease=60)
    assert claimed is not None
    other = another(client)
    client.zk.expire(client.session)
    assert take(other) is None
    client.zk.advance(61)
    assert take(other, attempt=2) is not None
    other.check()


@pytest.mark.parametrize("ahead", [True, False])
def test_claimed_ahead_it_counts_once_it_has_begun(ahead: bool) -> None:
    """Else the end of its lease counts nothing, as of every claim that is taken for somebody else."""
    client = new_queue(policy=RetryPolicy(attempts=2, factor=0))
    client.put(task_id="a")
    claimed = take(client, lease=5, ahead=ahead)
    assert claimed is not None
    assert (claimed.ahead, claimed.state.attempt) == (ahead, 1)
    client.zk.ms += 60_000
    other = another(client)
    again = take(other, ahead=ahead)
    assert again is not None
    assert again.state.attempt == (1 if ahead else 2)
    other.do(beginning.begin_for(other.context, again))
    other.complete(again)
    other.check()


def test_a_server_that_lags_behind_is_asked_to_catch_up() -> None:
    """Whoever was told of a task by another client may know more than its own server."""
    client = new_queue()
    stepper = Stepper(client.zk, client.session, asked(client))
    stepper.until(Sync)
    another(client).put(task_id="a")
    claimed = stepper.finish()
    assert claimed is not None
    assert claimed.task_id == "a"


def test_a_record_that_changes_between_the_read_and_the_write_is_read_again() -> None:
    client = new_queue()
    client.put(task_id="a")
    stepper = Stepper(client.zk, client.session, asked(client))
    stepper.until(Multi, "tasks/a/claim")
    client.do(operate.replace_data(another(client).context, "a", b"new"))
    assert stepper.finish().data == b"new"


def test_another_that_is_faster_has_it() -> None:
    client = new_queue()
    client.put(task_id="a")
    stepper = Stepper(client.zk, client.session, asked(client))
    stepper.until(Multi, "tasks/a/claim")
    assert take(another(client)) is not None
    assert stepper.finish() is None
    assert not client.context.claims.handovers
    client.check()


@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize("kind", LOST)
def test_a_claim_whose_reply_is_lost_is_handed_out(order: str, kind: Any) -> None:
    spy = new_queue(order=order)
    spy.put(task_id="a")
    faults = Faults()
    drive(spy.zk, spy.session, asked(spy), faults)
    for at in range(faults.seen):
        client = new_queue(order=order)
        client.put(task_id="a")
        claimed = drive(client.zk, client.session, asked(client), Faults(at, kind))
        assert claimed is not None
        assert (claimed.task_id, claimed.state.attempt) == ("a", 1)
        client.complete(claimed)
        assert client.check()["a"].state is State.FINISHED


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_call_cut_off_at_any_operation_leaves_nothing_behind(carried_out: bool) -> None:
    """What it took is handed out by the client's next claim, and the delivery that nobody got is not counted."""
    for at in range(60):
        client = new_queue()
        client.put(task_id="a")
        stepper = Stepper(client.zk, client.session, asked(client))
        for _ in range(at):
            if not stepper.over:
                stepper.step()
        if stepper.over:
            break
        if carried_out and isinstance(stepper.op, Multi):
            client.zk.multi(client.session, stepper.op.ops)
        stepper.cut()
        claimed = client.take()
        assert claimed is not None, f"cut off at operation {at}, the task is in nobody's hand"
        assert claimed.state.attempt == 1
        assert not client.context.claims.handovers
        client.check()
    else:
        pytest.fail("the claim has more operations than this test cuts")


def test_a_claim_of_unknown_outcome_is_given_back() -> None:
    client = new_queue()
    client.put(task_id="a")
    stepper = Stepper(client.zk, client.session, asked(client))
    stepper.until(Multi, "tasks/a/claim")
    client.zk.multi(client.session, stepper.op.ops)
    stepper.answer(UNKNOWN)
    assert isinstance(stepper.op, Reconnect)
    with pytest.raises(OutcomeUnknown):
        stepper.fail(Unavailable("no server answered"))
    claimed = take(client)
    assert claimed is not None
    assert claimed.state.attempt == 1


def test_a_session_that_is_no_consumer_any_more_registers_again() -> None:
    """It was taken for dead while it was away."""
    client = new_queue()
    client.put(task_id="a")
    assert take(client, "nobodys") is None
    assert client.context.registration.consumer is not None
    client.zk.multi(0, (Delete(client.context.paths.live(client.context.registration.consumer.id)),))
    assert take(client) is not None
    client.check()


def test_a_task_that_cannot_be_read_is_told_of() -> None:
    client = new_queue()
    client.put(task_id="a")
    client.zk.nodes[client.context.paths.task("a", "state")].data = b"nonsense"
    with pytest.raises(CorruptRecord, match="tasks/a/state"):
        take(client)


def test_what_cannot_be_taken_although_it_is_pending_is_no_loop() -> None:
    """Its entry is missing, which is damage: the call ends."""
    client = new_queue()
    client.put(task_id="a")
    client.zk.multi(0, (Delete(client.context.paths.entry(client.state("a").place)),))
    ops: list[Any] = []
    assert client.do(asked(client), lambda op: ops.append(op)) is None
    assert len(ops) < 50


def test_whoever_claims_by_id_announces_no_selector() -> None:
    """Who asks why nobody takes a task is not told that this consumer does."""
    client = new_queue()
    client.put(task_id="a")
    take(client)
    client.put(task_id="b")
    why = client.do(explain(client.context, "b"))
    assert [verdict.refuses for verdict in why.consumers] == ["it has announced nothing that it accepts"]
    client.take()
    assert client.context.registration.consumer is not None
    assert client.context.registration.consumer.accepts == [str(EVERYTHING)]


def test_it_costs_one_read_and_one_transaction() -> None:
    """Of a client that has claimed before."""
    client = new_queue()
    client.put(task_id="a")
    client.put(task_id="b")
    client.complete(client.claimed())
    assert take(client, "nobodys") is None
    ops: list[Any] = []
    assert client.do(asked(client, "b"), lambda op: ops.append(op)) is not None
    assert [type(op) for op in ops if not isinstance(op, Wait)][-2:] == [GetMany, Multi]
    assert len(ops) <= 6


def test_a_claimer_that_waits_is_not_kept_from_other_work() -> None:
    """It sleeps until there is some, and takes what was not asked for by its id."""
    client = new_queue()
    waiter = Stepper(client.zk, client.session, claim.claim(client.context, ANY, 30))
    waiter.until(Wait)
    other = another(client)
    other.put(task_id="a")
    other.put(task_id="b")
    assert take(other) is not None
    waiter.answer(True)
    assert waiter.finish().task_id == "b"
    client.check()
