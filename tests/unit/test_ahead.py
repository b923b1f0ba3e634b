"""Claims taken ahead: only what had begun counts an attempt, whatever ends the claim and whoever is at it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Post
from airflow_provider_zkmq.engine.core.protocol.writes import Multi, SetData
from airflow_provider_zkmq.engine.core.tasks import beginning, holding, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import debts, rescue
from airflow_provider_zkmq.engine.core.writing.pieces import lease_path, mark_path
from airflow_provider_zkmq.engine.errors import ClaimLost, Unavailable
from tests.stepping import Stepper
from tests.unit.world import LOST_REPLY, LOST_REQUEST, NOT_SENT, Client, at, new_queue

#: How a claim is bound: to its session, to its session and a lock, to a lease.
BOUND = [{}, {"lock": 5}, {"lease": 5}]
IDS = ["bound", "locked", "leased"]


def take_ahead(client: Client, options: dict[str, Any], count: int = 1, first: int = 0) -> list[Claimed]:
    """So many claims taken ahead; the one that came with them and began at once is settled."""
    names = ["lead", *(f"t{number}" for number in range(first, first + count))]
    for name in names:
        client.put(task_id=name, lock=options.get("lock"))
    wanted = Wanted(EVERYTHING, options.get("lease"), ahead=True)
    claims: list[Claimed] = client.do(claim.claim_many(client.context, wanted, count + 1))
    assert [(each.task_id, each.ahead) for each in claims] == [(name, name != "lead") for name in names]
    client.complete(claims[0])
    client.do(operate.drop(client.context, "lead"))
    return claims[1:]


def begin(client: Client, claimed: Claimed) -> None:
    client.do(beginning.begin(client.context, claimed))


def die(client: Client, options: dict[str, Any]) -> None:
    """The client ends without a word, and its lease, where it has one."""
    client.zk.expire(client.session)
    if "lease" in options:
        client.zk.ms += 60_000


def mark_of(client: Client, claimed: Claimed) -> bytes:
    return client.zk.nodes[mark_path(client.context, claimed.task_id, claimed.state)].data


@pytest.mark.parametrize("options", BOUND, ids=IDS)
def test_the_death_of_a_consumer_counts_only_what_had_begun(options: dict[str, Any]) -> None:
    """Of three that were taken ahead one had begun: it alone counts; all are pending, and handled by the next one."""
    client = new_queue()
    claims = take_ahead(client, options, 3)
    assert [each.state.attempt for each in claims] == [1, 1, 1]
    begin(client, claims[1])
    die(client, options)
    other = Client(client.zk, "other")
    assert other.do(rescue.tend(other.context)) == 3
    states = other.check()
    assert {name: (state.state, state.attempt, len(state.history)) for name, state in states.items()} == {
        "t0": (State.INSERTED, 0, 0),
        "t1": (State.INSERTED, 1, 1),
        "t2": (State.INSERTED, 0, 0),
    }
    assert sorted(other.work()) == ["t0", "t1", "t2"]
    assert client.zk.names(client.context.paths.at("consumers")) == [other.context.registration.consumer.id]  # type: ignore[union-attr]


@pytest.mark.parametrize("options", BOUND[1:], ids=IDS[1:])
def test_the_end_of_a_lock_counts_only_what_had_begun(options: dict[str, Any]) -> None:
    """The client lives, but nobody extends what it has: begun or not decides; the client hears that it lost both."""
    client = new_queue()
    idle, begun = take_ahead(client, options, 2)
    begin(client, begun)
    client.zk.ms += 60_000
    other = Client(client.zk, "other")
    assert other.do(rescue.tend(other.context)) == 2
    assert [other.state(each.task_id).attempt for each in (idle, begun)] == [0, 1]
    for each in (idle, begun):
        with pytest.raises(ClaimLost):
            client.do(settle.complete(client.context, each))
    assert sorted(other.work()) == ["t0", "t1"]


@pytest.mark.parametrize("options", BOUND, ids=IDS)
def test_a_last_attempt_that_never_began_is_none(options: dict[str, Any]) -> None:
    """With one attempt only, death of its consumer buries no task whose handler was not called."""
    client = new_queue(policy=RetryPolicy(attempts=1))
    take_ahead(client, options)
    die(client, options)
    other = Client(client.zk, "other")
    assert other.work() == ["t0"]
    assert other.state("t0").attempt == 1


@pytest.mark.parametrize("options", BOUND[1:], ids=IDS[1:])
def test_a_handler_that_begins_while_its_claim_is_given_back(options: dict[str, Any]) -> None:
    """Between the rescue's reading and its transaction the handler begins: the delivery counts."""
    client = new_queue()
    (claimed,) = take_ahead(client, options)
    client.zk.ms += 60_000
    other = Client(client.zk, "other")
    stepper = Stepper(client.zk, other.session, rescue.tend(other.context))
    stepper.until(Multi, "t0/state")
    begin(client, claimed)
    stepper.finish()
    assert (other.state("t0").state, other.state("t0").attempt) == (State.INSERTED, 1)
    assert other.state("t0").history[-1].outcome == "rescued"
    other.check()
    with pytest.raises(ClaimLost):
        client.do(settle.complete(client.context, claimed))
    assert other.work() == ["t0"]


@pytest.mark.parametrize("options", BOUND, ids=IDS)
@pytest.mark.parametrize("junk", [b"", b"\xff", b"[]", b'{"ahead":1}', b'{"ahead":false}'])
def test_a_mark_that_cannot_be_read_counts(options: dict[str, Any], junk: bytes) -> None:
    """What does not say that no handler had begun makes the delivery count, and the rescue goes on."""
    client = new_queue()
    (claimed,) = take_ahead(client, options)
    client.zk.nodes[mark_path(client.context, "t0", claimed.state)].data = junk
    die(client, options)
    other = Client(client.zk, "other")
    assert other.do(rescue.tend(other.context)) == 1
    assert other.state("t0").attempt == 1
    assert other.work() == ["t0"]


@pytest.mark.parametrize("options", BOUND, ids=IDS)
def test_extending_what_was_taken_ahead_does_not_begin_it(options: dict[str, Any]) -> None:
    """A heartbeat leaves the mark, and a beginning leaves the deadline."""
    client = new_queue()
    (claimed,) = take_ahead(client, options)
    before = mark_of(client, claimed)
    client.do(holding.extend(client.context, claimed, 5))
    assert mark_of(client, claimed) == before
    deadline = claimed.state.lease and client.zk.nodes[lease_path(client.context, claimed.state)].mzxid
    begin(client, claimed)
    assert (claimed.ahead, mark_of(client, claimed) == before) == (False, False)
    if deadline:
        assert client.zk.nodes[lease_path(client.context, claimed.state)].mzxid == deadline
    client.complete(claimed)
    assert client.check()["t0"].state is State.FINISHED


@pytest.mark.parametrize("options", BOUND, ids=IDS)
def test_a_beginning_whose_reply_is_lost_has_begun(options: dict[str, Any]) -> None:
    """It is said once more, which changes nothing."""
    client = new_queue()
    (claimed,) = take_ahead(client, options)
    client.zk.ms += 2_000
    client.do(beginning.begin(client.context, claimed), at(0, LOST_REPLY))
    assert not claimed.ahead
    client.complete(claimed)


def test_what_was_not_taken_ahead_begins_without_a_word() -> None:
    """Nothing is written for a claim that counts from the first; one that is lost does not begin."""
    client = new_queue()
    client.put(task_id="t0")
    claimed = client.claimed()
    version = client.zk.zxid
    begin(client, claimed)
    assert client.zk.zxid == version
    client.complete(claimed)
    with pytest.raises(ClaimLost):
        begin(client, claimed)


# --- said without waiting for the reply


def posts(client: Client, claimed: Claimed) -> list[str]:
    """Have it begin; which writes that took."""
    seen: list[str] = []
    client.do(
        beginning.begin(client.context, claimed),
        lambda op: seen.append(type(op).__name__) if isinstance(op, Multi | Post) else None,
    )
    return seen


@pytest.mark.parametrize("options", BOUND, ids=IDS)
def test_a_fresh_claim_begins_without_waiting(options: dict[str, Any]) -> None:
    """It is posted, and stands when its consumer dies."""
    client = new_queue()
    claims = take_ahead(client, options, 2)
    assert posts(client, claims[0]) == ["Post"]
    assert [each.ahead for each in claims] == [False, True]
    assert posts(client, claims[0]) == []
    die(client, options)
    other = Client(client.zk, "other")
    assert other.do(rescue.tend(other.context)) == 2
    assert [other.state(each.task_id).attempt for each in claims] == [1, 0]


@pytest.mark.parametrize("why", ["held", "another session", "cancelled", "short lease", "unknown", "not sent"])
def test_what_may_be_over_begins_only_when_the_server_says_so(why: str) -> None:
    client = new_queue()
    (claimed,) = take_ahead(client, {"lease": 0.5} if why == "short lease" else {})
    expected = ["Multi"]
    match why:
        case "held":
            client.zk.ms += 1_001
        case "short lease":
            client.zk.ms += 300
        case "another session":
            claimed.session += 1
        case "cancelled":
            claimed.cancelled = True
        case "unknown":
            claimed.sent = None
        case "not sent":
            expected = ["Post", "Multi"]
    seen: list[str] = []

    def refuse_posts(op: Any) -> Any:
        seen.extend([type(op).__name__] if isinstance(op, Multi | Post) else [])
        return NOT_SENT if why == "not sent" else None

    client.do(beginning.begin(client.context, claimed), refuse_posts)
    assert (seen, claimed.ahead) == (expected, False)
    die(client, {"lease": 1})
    other = Client(client.zk, "other")
    assert other.do(rescue.tend(other.context)) == 1
    assert other.state("t0").attempt == 1


@pytest.mark.parametrize("options", BOUND, ids=IDS)
@pytest.mark.parametrize("fault", [LOST_REQUEST, LOST_REPLY])
def test_a_mark_that_was_lost_is_written_again(options: dict[str, Any], fault: str) -> None:
    """The handler goes on meanwhile; once it is paid, the death of the consumer counts."""
    client = new_queue()
    (claimed,) = take_ahead(client, options)
    before = mark_of(client, claimed)
    client.do(beginning.begin(client.context, claimed), at(0, fault, Post))
    assert (claimed.ahead, mark_of(client, claimed) == before) == (False, fault == LOST_REQUEST)
    assert debts.in_debt(client.context)
    client.do(debts.pay_debts(client.context))
    assert not debts.in_debt(client.context)
    assert mark_of(client, claimed) != before
    die(client, options)
    other = Client(client.zk, "other")
    assert other.do(rescue.tend(other.context)) == 1
    assert other.state("t0").attempt == 1
    assert other.work() == ["t0"]
    other.check()


def test_a_lost_mark_is_owed_until_the_connection_is_back() -> None:
    client = new_queue()
    (claimed,) = take_ahead(client, {})
    client.do(beginning.begin(client.context, claimed), at(0, LOST_REQUEST, Post))
    with pytest.raises(Unavailable):
        client.do(debts.pay_debts(client.context), at(0, Unavailable("away")))
    assert debts.in_debt(client.context)
    client.do(debts.pay_debts(client.context))
    client.complete(claimed)
    assert client.check()["t0"].attempt == 1


@pytest.mark.parametrize("end", ["settled", "taken away", "session over"])
def test_a_lost_mark_of_a_claim_that_is_over_is_nobody_s(end: str) -> None:
    """Nothing is written for it, and nobody hears of it but who settles it."""
    client = new_queue()
    (claimed,) = take_ahead(client, {"lock": 5})
    client.do(beginning.begin(client.context, claimed), at(0, LOST_REQUEST, Post))
    other = Client(client.zk, "other")
    match end:
        case "settled":
            client.complete(claimed)
        case "taken away":
            client.zk.ms += 60_000
            other.do(rescue.tend(other.context))
        case "session over":
            client.context.claims.end_session(client.session + 1)
    tree = dict(client.zk.nodes)
    client.do(debts.pay_debts(client.context))
    assert not debts.in_debt(client.context)
    assert client.zk.nodes == tree
    assert client.reports == []
    if end != "settled":
        with pytest.raises(ClaimLost):
            client.complete(claimed)


def test_a_mark_that_is_refused_although_the_claim_is_ours_is_written_again() -> None:
    """The record was written meanwhile, by somebody who leaves the claim as it is."""
    client = new_queue()
    (claimed,) = take_ahead(client, {})
    path = client.context.paths.task("t0", "state")
    client.zk.multi(0, (SetData(path, client.zk.nodes[path].data),))
    before = mark_of(client, claimed)
    assert posts(client, claimed) == ["Post"]
    assert (mark_of(client, claimed), debts.in_debt(client.context)) == (before, True)
    client.do(debts.pay_debts(client.context))
    assert mark_of(client, claimed) != before
    client.complete(claimed)
    client.check()


def test_a_lost_mark_waits_for_a_settlement_that_is_under_way() -> None:
    """That ends the claim, or leaves it: then it is looked at again."""
    client = new_queue()
    (claimed,) = take_ahead(client, {})
    client.do(beginning.begin(client.context, claimed), at(0, LOST_REQUEST, Post))
    stepper = Stepper(client.zk, client.session, settle.complete(client.context, claimed))
    stepper.until(Multi)
    version = client.zk.zxid
    client.do(debts.pay_debts(client.context))
    assert (client.zk.zxid, debts.in_debt(client.context)) == (version, True)
    stepper.finish()
    client.do(debts.pay_debts(client.context))
    assert not debts.in_debt(client.context)
    assert client.check()["t0"].state is State.FINISHED


def test_a_late_mark_touches_no_later_claim_of_the_same_id() -> None:
    """The lease ended, the task was dropped, and an id of the same name is claimed by another, at the same version."""
    client = new_queue()
    (claimed,) = take_ahead(client, {"lease": 5})
    stepper = Stepper(client.zk, client.session, beginning.begin(client.context, claimed))
    stepper.until(Post)
    late: Multi = stepper.op.multi
    stepper.cut()
    client.zk.ms += 60_000
    other = Client(client.zk, "other")
    assert other.do(rescue.tend(other.context)) == 1
    other.do(operate.drop(other.context, "t0"))
    other.put(task_id="t0")
    theirs = other.claimed(lease=5)
    assert theirs.version == claimed.version
    tree = dict(client.zk.nodes)
    assert not client.zk.multi(client.session, late.ops).committed
    assert client.zk.nodes == tree
    other.complete(theirs)
