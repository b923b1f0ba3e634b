"""Claims that follow one another read their candidates ahead; what was read is no promise."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.readahead import MOST, MOST_KINDS, Paces, ReadAhead
from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany
from airflow_provider_zkmq.engine.core.tasks import enqueue, operate
from tests.stepping import Stepper
from tests.unit.world import Client, new_queue

ORDERS = pytest.mark.parametrize("order", ["default", "fifo"])


def filled(order: str, count: int = 30, data: bytes = b"x") -> Client:
    client = new_queue(order=order, filters={"c": OrderedEnum("low", "high")})
    client.do(enqueue.enqueue_many(client.context, [Message(data, task_id=f"t{number:02}") for number in range(count)]))
    return client


def reads(client: Client, seconds: float = 0.0) -> int:
    """How many candidates are asked for by the next claim, which is completed."""
    seen: list[str] = []

    def note(op: Any) -> None:
        if isinstance(op, GetMany):
            seen.extend(path for path in op.paths if path.endswith("/state"))

    client.zk.ms += int(seconds * 1000)
    (claimed,) = client.do(claim.claim_many(client.context, Wanted(EVERYTHING), 1), note)
    client.complete(claimed)
    return len(seen)


@ORDERS
def test_claims_far_between_read_their_own_candidate_only(order: str) -> None:
    """Nobody waits for what may never be claimed."""
    client = filled(order)
    assert [reads(client, 60) for _ in range(5)] == [1] * 5


@ORDERS
def test_claims_that_follow_one_another_read_for_those_to_come(order: str) -> None:
    """More and more at once, as far as they are small; each task comes once, in order."""
    client = filled(order)
    assert [reads(client) for _ in range(13)] == [1, 4, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]
    large = filled(order, data=b"x" * 50_000)
    assert sum(reads(large) for _ in range(13)) == 13
    assert max(large.context.paces.kinds.values(), key=lambda one: one.asked_at).most == 1
    for one in (client, large):
        assert one.work() == [f"t{number:02}" for number in range(13, 30)]
        assert {state.attempt for state in one.check().values()} == {1}


@ORDERS
def test_what_was_read_ahead_is_no_promise(order: str) -> None:
    """Changed, cancelled or taken by another client meanwhile: each is handled as it is by then."""
    client = filled(order)
    other = Client(client.zk, "other")
    assert [reads(client) for _ in range(2)] == [1, 4]  # t02, t03 and t04 have been read
    other.cancel("t02")
    other.do(operate.replace_data(other.context, "t03", b"new"))
    other.complete(other.claimed())
    client.zk.ms += 500
    data = {}
    while (claimed := client.take()) is not None:
        data[claimed.task_id] = claimed.data
        client.complete(claimed)
    assert len(data) == 26
    assert data.get("t03", b"new") == b"new"
    states = client.check()
    assert states.pop("t02").state is State.CANCELLED
    assert {(state.state, state.attempt) for state in states.values()} == {(State.FINISHED, 1)}


def test_what_was_read_long_ago_is_read_again() -> None:
    """A second later it may be another's."""
    client = filled("default")
    assert [reads(client), reads(client), reads(client, 0.9)] == [1, 4, 0]
    assert reads(client, 0.9) == 8
    assert len(client.work()) == 26


@ORDERS
@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_is_not_judged_by_what_was_read_before_it(order: str, *, damaged: bool) -> None:
    """Its id was gone when it was read ahead, or its record was corrupt; by then it has been enqueued anew."""
    client = filled(order, 6)
    other = Client(client.zk, "other")
    assert reads(client) == 1
    step = Stepper(client.zk, client.session, claim.claim_many(client.context, Wanted(EVERYTHING), 1))
    step.until(GetMany, "/state")
    record = client.zk.nodes[client.context.paths.task("t03", "state")]
    if damaged:
        sound, record.data = record.data, b"no record"
        step.step()
        record.data = sound
    other.do(operate.drop(other.context, "t03"))
    client.complete(step.finish()[0])
    client.zk.ms += 300  # names that were listed before are not used any more, what was read then is
    other.put(b"new", task_id="t03")
    assert client.work() == ["t02", "t04", "t05", "t03"]
    assert client.reports == []
    assert {state.state for state in client.check().values()} == {State.FINISHED}


def test_what_is_read_later_makes_nothing_younger() -> None:
    """What is left of an earlier reading is read again a second after that."""
    ahead = ReadAhead()
    ahead.learn(1, 10, 1.0)
    ahead.tasks["early"] = ()
    ahead.learn(1, 10, 1.9)
    ahead.tasks["late"] = ()
    ahead.forget_old(2.1)
    assert not ahead.tasks


@ORDERS
def test_a_task_that_two_listings_show_is_read_once(order: str) -> None:
    """It was enqueued anew with other filters, and an older listing of its first lane is still in use."""
    client = filled(order)
    other = Client(client.zk, "other")
    done = [client.claimed() for _ in range(25)]
    for name in ("t27", "t28"):
        other.cancel(name)
        other.put(task_id=name, filters={"c": "low"}, requeue=True)
    for claimed in done:
        client.complete(claimed)
    (ahead,) = client.context.paces.kinds.values()
    ahead.tasks.clear()
    ahead.most = MOST
    assert sorted(client.work()) == ["t25", "t26", "t27", "t28", "t29"]
    assert {state.state for state in client.check().values()} == {State.FINISHED}


def test_a_client_remembers_a_few_kinds_of_claims() -> None:
    """Those that were asked for last."""
    paces = Paces(lambda: 5.0)
    for number in range(3 * MOST_KINDS):
        assert paces.ask(number) is None
    assert list(paces.kinds) == list(range(2 * MOST_KINDS, 3 * MOST_KINDS))
    assert paces.ask(3 * MOST_KINDS - 1) is paces.kinds[3 * MOST_KINDS - 1]


def test_as_many_are_read_as_are_small() -> None:
    """By what those before had; never none, and never many times as many as before."""
    ahead = ReadAhead()
    for size, most in ((100, MOST), (10 * 64_000, 1), (10, 2), (10, 4), (0, 8), (10, MOST)):
        ahead.learn(10, size, 0.0)
        assert ahead.most == most
