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
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.tasks import holding, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import rescue
from airflow_provider_zkmq.engine.core.writing.pieces import lease_path, mark_path
from airflow_provider_zkmq.engine.errors import ClaimLost
from tests.stepping import Stepper
from tests.unit.world import LOST_REPLY, Client, at, new_queue

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
    client.do(holding.begin(client.context, claimed))


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
    client.do(holding.begin(client.context, claimed), at(0, LOST_REPLY))
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
