"""Claims taken ahead for others, who begin them by id and token: what counts, and how many there are at once."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming import ask, claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Multi
from airflow_provider_zkmq.engine.core.reading.claims import current_claim
from airflow_provider_zkmq.engine.core.tasks import beginning, holding, settle
from airflow_provider_zkmq.engine.core.upkeep import rescue
from airflow_provider_zkmq.engine.core.writing.pieces import mark_path
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError
from tests.stepping import Stepper
from tests.unit.world import Client, new_queue

#: How a claim is bound: to its session, to a lease.
BOUND = [{}, {"lease": 5}]
IDS = ["bound", "leased"]


def filled(count: int, **conf: Any) -> Client:
    """A client of a queue with so many tasks."""
    client = new_queue(**conf)
    for number in range(count):
        client.put(task_id=f"t{number}")
    return client


def taking(client: Client, most: int, bound: int | None = None, lease: float | None = 5) -> Procedure[list[Claimed]]:
    return claim.claim_many(client.context, Wanted(EVERYTHING, lease, "all", bound), most)


def by_token(client: Client, claimed: Claimed, procedure: Any, *args: Any) -> Any:
    """What another process does that knows the task's id and the token."""

    def carried_out() -> Procedure[Any]:
        held = yield from current_claim(client.context, claimed.task_id, claimed.token)
        return (yield from procedure(client.context, held, *args))

    return client.do(carried_out())


def leases(client: Client) -> int:
    return len(client.zk.names(client.context.paths.at("leases")))


def attempts(client: Client) -> dict[str, tuple[State, int]]:
    return {name: (state.state, state.attempt) for name, state in client.check().items()}


@pytest.mark.parametrize("options", BOUND, ids=IDS)
def test_all_of_a_group_are_taken_ahead(options: dict[str, Any]) -> None:
    """Also the first: the end of their consumer and of their leases counts nothing, and leaves no history."""
    client = filled(3)
    claims = client.do(taking(client, 3, lease=options.get("lease")))
    assert [(each.ahead, each.state.attempt) for each in claims] == [(True, 1)] * 3
    client.zk.expire(client.session)
    client.zk.ms += 60_000
    other = Client(client.zk, "other")
    assert other.do(rescue.tend(other.context)) == 3
    assert set(attempts(other).values()) == {(State.INSERTED, 0)}
    assert all(not state.history for state in other.check().values())
    assert sorted(other.work()) == ["t0", "t1", "t2"]


@pytest.mark.parametrize("options", BOUND, ids=IDS)
def test_another_process_begins_a_claim_by_its_token(options: dict[str, Any]) -> None:
    """From then on the delivery counts; begun twice it counts once, and what was not begun counts nothing."""
    client = filled(2)
    begun, idle = client.do(taking(client, 2, lease=options.get("lease")))
    run = Client(client.zk, "run")
    for _ in range(2):
        by_token(run, begun, beginning.begin_for)
    mark = client.zk.nodes[mark_path(client.context, begun.task_id, begun.state)]
    assert b"ahead" not in mark.data
    client.zk.expire(client.session)
    client.zk.ms += 60_000
    assert run.do(rescue.tend(run.context)) == 2
    assert attempts(run) == {begun.task_id: (State.INSERTED, 1), idle.task_id: (State.INSERTED, 0)}
    for each in (begun, idle):
        with pytest.raises(ClaimLost):
            by_token(run, each, beginning.begin_for)
    assert sorted(run.work()) == ["t0", "t1"]


def test_a_begun_claim_of_another_process_is_completed_by_token() -> None:
    """Begun, extended and completed by token: one attempt, and the claimer can do nothing with it any more."""
    client = filled(1)
    [claimed] = client.do(taking(client, 1))
    run = Client(client.zk, "run")
    by_token(run, claimed, beginning.begin_for)
    by_token(run, claimed, holding.extend, 1000)
    client.zk.ms += 60_000
    assert run.do(rescue.tend(run.context)) == 0
    by_token(run, claimed, settle.complete, b"r")
    assert attempts(run) == {"t0": (State.FINISHED, 1)}
    with pytest.raises(ClaimLost):
        client.do(settle.release(client.context, claimed))


def test_extending_alone_begins_nothing() -> None:
    """What is extended by token and never begun comes back uncounted at its new end, not at its old one."""
    client = filled(1)
    [claimed] = client.do(taking(client, 1))
    run = Client(client.zk, "run")
    by_token(run, claimed, holding.extend, 100)
    client.zk.ms += 60_000
    assert run.do(rescue.tend(run.context)) == 0
    client.zk.ms += 60_000
    assert run.do(rescue.tend(run.context)) == 1
    assert attempts(run) == {"t0": (State.INSERTED, 0)}


def test_progress_by_token_is_a_beginning() -> None:
    """Who reports progress is at it: the delivery counts, whoever reports."""
    client = filled(1)
    [claimed] = client.do(taking(client, 1))
    run = Client(client.zk, "run")
    by_token(run, claimed, holding.progress, 0.5)
    client.zk.ms += 60_000
    assert run.do(rescue.tend(run.context)) == 1
    assert attempts(run) == {"t0": (State.INSERTED, 1)}


@pytest.mark.parametrize("begun", [False, True])
def test_release_by_token_counts_nothing(begun: bool) -> None:
    """Given back at once, begun or not; the next claimer has the first attempt."""
    client = filled(1)
    [claimed] = client.do(taking(client, 1))
    run = Client(client.zk, "run")
    if begun:
        by_token(run, claimed, beginning.begin_for)
    by_token(run, claimed, settle.release)
    assert attempts(run) == {"t0": (State.INSERTED, 0)}
    assert leases(run) == 0
    [again] = run.do(taking(run, 1))
    assert again.state.attempt == 1


def test_failing_by_token_what_had_not_begun_counts() -> None:
    """Whoever fails it says that it was tried: with one attempt it is dead, for the reason given."""
    client = filled(1, policy=RetryPolicy(attempts=1))
    [claimed] = client.do(taking(client, 1))
    by_token(client, claimed, settle.fail, "broken")
    state = client.check()["t0"]
    assert (state.state, state.attempt, state.error) == (State.DEAD, 1, "broken")


def test_begun_between_a_rescue_s_reading_and_its_transaction() -> None:
    """The rescue is refused, reads again and counts: nobody hears of a beginning that is then forgotten."""
    client = filled(1)
    [claimed] = client.do(taking(client, 1))
    client.zk.ms += 60_000
    other, run = Client(client.zk, "other"), Client(client.zk, "run")
    stepper = Stepper(client.zk, other.session, rescue.tend(other.context))
    stepper.until(Multi, "t0/state")
    by_token(run, claimed, beginning.begin_for)
    stepper.finish()
    assert attempts(other) == {"t0": (State.INSERTED, 1)}


def test_given_back_between_a_beginning_s_reading_and_its_transaction() -> None:
    """The other way round: the beginning is refused, nothing is written, and the next claimer has the first attempt."""
    client = filled(1)
    [claimed] = client.do(taking(client, 1))
    client.zk.ms += 60_000
    other, run = Client(client.zk, "other"), Client(client.zk, "run")
    held = run.do(current_claim(run.context, claimed.task_id, claimed.token))
    stepper = Stepper(client.zk, run.session, beginning.begin_for(run.context, held))
    stepper.until(Multi, "t0/claim")
    assert other.do(rescue.tend(other.context)) == 1
    with pytest.raises(ClaimLost):
        stepper.finish()
    [again] = other.do(taking(other, 1))
    assert (again.state.attempt, again.ahead) == (1, True)
    with pytest.raises(ClaimLost):
        by_token(run, claimed, beginning.begin_for)
    other.check()


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_no_more_are_claimed_than_leave_so_many_leases(order: str) -> None:
    """Whoever holds the leases; a full queue gives none, and what is settled or expires makes room."""
    client = filled(8, order=order)
    assert len(client.do(taking(client, 2))) == 2
    claims = client.do(taking(client, 8, bound=5))
    assert (len(claims), leases(client)) == (3, 5)
    assert client.do(taking(client, 8, bound=5)) == []
    client.do(settle.complete(client.context, claims[0]))
    other = Client(client.zk, "other")
    assert (len(other.do(taking(other, 8, bound=5))), leases(client)) == (1, 5)
    assert other.do(taking(other, 8, bound=1)) == []
    client.zk.ms += 60_000
    assert (len(other.do(taking(other, 8, bound=5))), leases(client)) == (5, 5)
    client.check()


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_two_who_saw_the_same_room(order: str) -> None:
    """One of them is refused although none of its tasks is taken; it looks again, and the bound holds."""
    client = filled(9, order=order)
    other = Client(client.zk, "other")
    stepper = Stepper(client.zk, client.session, taking(client, 4, bound=5))
    stepper.until(Multi, "/leases")
    assert len(other.do(taking(other, 4, bound=5))) == 4
    assert len(stepper.finish()) == 1
    assert leases(client) == 5
    states = [state for state, _ in attempts(client).values()]
    assert (states.count(State.CLAIMED), states.count(State.INSERTED)) == (5, 4)


def test_the_last_room_is_lost_to_another() -> None:
    """Nothing is claimed, nothing is owed, and both can go on once there is room."""
    client = filled(3)
    other = Client(client.zk, "other")
    stepper = Stepper(client.zk, client.session, taking(client, 1, bound=1))
    stepper.until(Multi, "/leases")
    [taken] = other.do(taking(other, 1, bound=1))
    assert stepper.finish() == []
    assert not client.context.claims.handovers
    other.do(settle.complete(other.context, taken))
    assert len(client.do(taking(client, 1, bound=1))) == 1


def test_where_leases_stand_is_made_again() -> None:
    """A damaged tree, without that znode, is mended: it does not keep the bounded claims away for ever."""
    client = filled(1)
    del client.zk.nodes[client.context.paths.at("leases")]
    assert len(client.do(taking(client, 1, bound=1))) == 1
    assert leases(client) == 1


def test_what_is_no_lease_takes_no_room() -> None:
    """Foreign znodes, and a lease of ours that cannot be read: none of them ever ends. The leases beside them count."""
    client = filled(5)
    path = client.context.paths.at("leases")
    client.zk.multi(client.session, (Create(f"{path}/foreign"), Create(f"{path}/t9~nobody", b"?")))
    assert len(client.do(taking(client, 4, bound=2))) == 2
    assert client.do(taking(client, 4, bound=2)) == []
    client.zk.ms += 60_000
    assert len(client.do(taking(client, 4, bound=2))) == 2
    assert client.zk.names(path)[0] == "foreign"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"max_leases": 1}, "goes with a lease"),
        ({"max_leases": 0, "lease": 5}, "max_leases 0 is not allowed"),
        ({"ahead": "some"}, "ahead 'some' is not allowed"),
    ],
)
def test_what_is_not_understood_is_refused(asked: dict[str, Any], told: str) -> None:
    """Before anything is read of the tasks."""
    client = filled(1)
    with pytest.raises(ConfigError, match=told):
        client.do(ask.ask_many(client.context, 1, **asked))


def test_a_caller_that_left_takes_nothing() -> None:
    """A bounded claim whose caller is gone claims nothing, and leaves the room to others."""
    client = filled(1)
    caller = Caller(left=True)
    wanted = Wanted(EVERYTHING, 5, "all", 1)
    assert client.do(claim.claim_many(client.context, wanted, 1, caller=caller)) == []
    assert leases(client) == 0
