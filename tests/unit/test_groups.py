"""Several tasks claimed together: in the queue's order, in few transactions, all or none on their way to the caller."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Caller
from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany, Reconnect, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Multi, Outcome
from airflow_provider_zkmq.engine.core.tasks import enqueue, giveback, operate, settle
from airflow_provider_zkmq.engine.core.writing import plan
from airflow_provider_zkmq.engine.errors import OutcomeUnknown, Unavailable
from tests.stepping import Stepper
from tests.unit.world import LOST_REPLY, LOST_REQUEST, Client, new_queue

UNKNOWN = Outcome(committed=False, unknown=True)
BOUND, LEASED = Wanted(EVERYTHING), Wanted(EVERYTHING, 30)


def filled(order: str = "default", names: str = "abcde") -> Client:
    client = new_queue(order=order)
    client.do(enqueue.enqueue_many(client.context, [Message(b"x", task_id=name) for name in names]))
    return client


def many(client: Client, most: int, **options: Any) -> list[str]:
    return [each.task_id for each in client.do(claim.claim_many(client.context, BOUND, most, **options))]


def counting(counts: Counter[str]) -> Any:
    """A fault that strikes nothing, and counts requests."""

    def count(op: Any) -> None:
        kind = type(op).__name__
        if not isinstance(op, Wait):
            counts[kind] += 1

    return count


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_group_is_one_read_and_one_transaction(order: str) -> None:
    """In the queue's order, with one token; each is settled by itself."""
    client = filled(order)
    client.complete(client.claimed())  # it knows the queue from now on
    counts: Counter[str] = Counter()
    claims = client.do(claim.claim_many(client.context, BOUND, 3), counting(counts))
    assert [each.task_id for each in claims] == ["b", "c", "d"]
    assert len({each.token for each in claims}) == 1
    assert (counts["GetMany"], counts["Multi"]) == (1, 1)
    client.complete(claims[1])
    client.do(settle.release(client.context, claims[0]))
    assert {name: state.state for name, state in client.check().items()} == {
        "a": State.FINISHED, "b": State.INSERTED, "c": State.FINISHED, "d": State.CLAIMED, "e": State.INSERTED,
    }  # fmt: skip
    assert many(client, 5) == ["b", "e"]
    assert client.do(claim.claim_many(client.context, BOUND, 5)) == []


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_group_goes_on_with_other_priorities_and_lanes(order: str) -> None:
    """Until there are as many as were asked for, or nothing more."""
    client = new_queue(order=order)
    for number, priority in enumerate((0, 5, 0, 5, 0)):
        client.put(task_id=f"{priority}-{number}", priority=priority)
    assert many(client, 4) == ["5-1", "5-3", "0-0", "0-2"]
    assert many(client, 4) == ["0-4"]
    client.check()


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_lost_race_costs_one_request(order: str) -> None:
    """Somebody takes one of them after they were read: the others are sent again, in strict order those before it."""
    client = filled(order)
    other = Client(client.zk, "other")
    client.complete(client.claimed())
    if order == "fifo":
        client.do(claim.claim_many(other.context, BOUND, 1))  # learns the ranks
    stepper = Stepper(client.zk, client.session, claim.claim_many(client.context, BOUND, 4))
    stepper.until(Multi, "/claim")
    names = [op.path.split("/")[-2] for op in stepper.op.ops if isinstance(op, Create) and op.path.endswith("/claim")]
    lost = client.state(names[1])
    assert lost.state is State.INSERTED
    client.do(operate.cancel(other.context, names[1]))
    claims = stepper.finish()
    assert [each.task_id for each in claims] == [name for name in names if name != names[1]]
    assert client.check()[names[1]].state is State.CANCELLED
    for each in claims:
        client.complete(each)


@pytest.mark.parametrize("wanted", [BOUND, LEASED], ids=["bound", "leased"])
@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize("kind", [LOST_REPLY, LOST_REQUEST])
def test_a_group_whose_reply_is_lost_is_handed_out_whole(order: str, kind: str, wanted: Wanted) -> None:
    """Whichever try carried it out."""
    for number in range(6):
        client, seen = filled(order), iter(range(100))
        fault = lambda op, seen=seen, number=number: kind if isinstance(op, Multi) and next(seen) == number else None
        claims = client.do(claim.claim_many(client.context, wanted, 3), fault)
        assert [each.task_id for each in claims] == ["a", "b", "c"]
        assert not client.context.claims.handovers
        for each in claims:
            client.complete(each)
        client.check()


def test_of_a_group_whose_reply_is_lost_one_may_be_taken_away_meanwhile() -> None:
    """The first of them was cancelled before the outcome is asked for: the others are known to be ours all the same."""
    client, other = filled(), None
    stepper = Stepper(client.zk, client.session, claim.claim_many(client.context, BOUND, 3))
    stepper.until(Multi, "/claim")
    client.zk.multi(client.session, stepper.op.ops)
    other = Client(client.zk, "other")
    other.cancel("a")
    stepper.answer(UNKNOWN)
    assert isinstance(stepper.op, Reconnect)
    claims = stepper.finish()
    assert [each.task_id for each in claims] == ["a", "b", "c"]
    for each in claims[1:]:
        client.complete(each)
    assert client.check()["b"].state is State.FINISHED


@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize("arrived", [True, False])
def test_a_group_cut_off_anywhere_is_given_back_whole(order: str, *, arrived: bool) -> None:
    """The next claim of the client finds all of it, with no delivery counted."""
    for at in range(40):
        client = filled(order, "abcd")
        stepper = Stepper(client.zk, client.session, claim.claim_many(client.context, BOUND, 3))
        for _ in range(at):
            if not stepper.over:
                stepper.step()
        if stepper.over:
            break
        if arrived and isinstance(stepper.op, Multi):
            client.zk.multi(client.session, stepper.op.ops)
        stepper.cut()
        claims = client.do(claim.claim_many(client.context, BOUND, 4))
        assert sorted(each.task_id for each in claims) == ["a", "b", "c", "d"], f"cut off at operation {at}"
        assert {each.state.attempt for each in claims} == {1}
        assert not client.context.claims.handovers
        client.check()
    else:
        pytest.fail("the claim has more operations than this test cuts")


@pytest.mark.parametrize("arrived", [True, False])
def test_a_group_of_unknown_outcome_is_resolved_before_the_next(*, arrived: bool) -> None:
    """Giving back is cut off in the middle, too: the next look goes on with the rest."""
    client = filled()
    stepper = Stepper(client.zk, client.session, claim.claim_many(client.context, BOUND, 3))
    stepper.until(Multi, "/claim")
    if arrived:
        client.zk.multi(client.session, stepper.op.ops)
    stepper.answer(UNKNOWN)
    with pytest.raises(OutcomeUnknown):
        stepper.fail(Unavailable("no server answered"))
    back = Stepper(client.zk, client.session, giveback.give_back(client.context))
    back.until(Multi, "tasks/b/claim")
    back.step()
    back.until(Multi, "tasks/b/claim")
    back.cut()
    assert sorted(many(client, 5)) == ["a", "b", "c", "d", "e"]
    assert not client.context.claims.handovers
    client.check()


def test_a_group_is_delivered_by_one_statement() -> None:
    """Before it, all of them are the client's to give back; after it, all of them are the caller's."""
    client, caller = filled(), Caller()
    claims = client.do(claim.claim_many(client.context, BOUND, 3, caller=caller))
    assert len(client.context.claims.handovers) == 1
    caller.left = True
    assert sorted(many(client, 5)) == ["a", "b", "c", "d", "e"]
    client, caller = filled(), Caller()
    claims = client.do(claim.claim_many(client.context, BOUND, 3, caller=caller))
    client.context.claims.deliver(claims[2])
    caller.left = True
    assert many(client, 5) == ["d", "e"]
    for each in claims:
        client.complete(each)
    client.check()


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_what_cannot_be_claimed_keeps_no_group_from_the_others(order: str) -> None:
    """A foreign entry, one without a task and a corrupt record are reported, and stepped over."""
    client = filled(order)
    lane, segment, entry = client.state("b").place.split("/")
    path = client.context.paths.at("queue", lane, segment)
    client.zk.multi(client.session, (Create(f"{path}/foreign"), Create(f"{path}/{entry.rpartition('~')[0]}~gone")))
    client.zk.nodes[client.context.paths.task("c", "state")].data = b"{"
    assert many(client, 5) == ["a", "b", "d", "e"]
    assert len(client.reports) == 3


def test_a_group_goes_no_further_than_a_segment_in_strict_order() -> None:
    """Of a lane with later segments only the first is read: what other lanes have may not pass what follows there."""
    client = new_queue(order="fifo", filters={"c": OrderedEnum("low", "high")})
    client.put(task_id="a", filters={"c": "low"})
    client.put(task_id="b", filters={"c": "high"})
    lane = client.state("a").place.split("/")[0]
    slot = next(each for each in client.context.slots.open.values() if each.lane.name == lane)
    slot.count = 512  # the next one opens a segment
    full = client.context.paths.at("queue", lane, slot.segment)
    client.zk.multi(client.session, tuple(Create(f"{full}/foreign{number}") for number in range(511)))
    client.put(task_id="c", filters={"c": "low"})
    client.put(task_id="d", filters={"c": "high"})
    assert client.state("c").place.split("/")[1] != slot.segment
    assert many(client, 4) == ["a", "b", "c", "d"]


def test_a_large_group_is_split_by_what_fits_into_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may be long: what does not fit is claimed by the next transaction."""
    client = filled(names="abcdef")
    monkeypatch.setattr(plan, "MAX_REQUEST", 3_000)
    claims = client.do(claim.claim_many(client.context, BOUND, 6))
    assert [each.task_id for each in claims] == list("abcdef")
    assert 1 < len({each.token for each in claims}) < 6
    client.check()


def test_candidates_are_read_together() -> None:
    """However many: one request for 32 of them."""
    client = new_queue()
    client.do(enqueue.enqueue_many(client.context, [Message(b"x") for _ in range(64)]))
    seen: list[int] = []
    claims = client.do(
        claim.claim_many(client.context, BOUND, 64),
        lambda op: seen.append(len(op.paths)) if isinstance(op, GetMany) else None,
    )
    assert len(claims) == 64
    assert [size for size in seen if size > 3] == [96, 96]
