"""Loops over claims: each step settles one task and claims the next, whatever happens in between."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claim.claim_iterator import Loop, go_on
from airflow_provider_zkmq.engine.core.client_state import Caller
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import admin, settle
from airflow_provider_zkmq.engine.core.zk_operations import Multi, Wait
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, TaskTooLarge, Unavailable
from tests.unit.claiming import ORDERS, another, counting, step
from tests.unit.looping import filled, following, handed_out, loop_of, rest
from tests.unit.world import Client

IN_BOTH_ORDERS = pytest.mark.parametrize("order", ORDERS)
IN_GROUPS = pytest.mark.parametrize("prefetch", [1, 2, 8])


def begun(names: str = "abcde", **options: Any) -> tuple[Client, Loop]:
    """A loop over these tasks whose body has the first one in hand."""
    client = filled(names=names)
    loop = loop_of(client, **options)
    assert following(client, loop) is not None
    return client, loop


def all_finished(client: Client, names: str = "abcde") -> None:
    """Each of these was delivered once, and is finished; nothing is on its way, and the client goes on."""
    states = client.check()
    ended = {name: (state.state, state.attempt) for name, state in states.items() if name != "0"}
    assert ended == dict.fromkeys(names, (State.FINISHED, 1))
    claims = client.context.claims
    assert not any((claims.handovers, claims.unsettled, claims.trying))
    client.put(task_id="later")
    assert client.work() == ["later"]


def test_a_warm_step_is_one_request() -> None:
    """The settlement and the claim are one transaction; the candidates were read ahead."""
    (client, loop), counts = begun("abcdefgh"), Counter[str]()
    for _ in range(7):
        assert following(client, loop, counting(counts)) is not None
    assert counts == {"Multi": 7}
    assert following(client, loop) is None
    all_finished(client, "abcdefgh")


def test_a_group_is_completed_with_the_claim_of_the_next_one() -> None:
    """In one transaction, which is one request; a step within a group posts that it begins, and waits for nothing."""
    (client, loop), counts = begun("abcdefgh", prefetch=4), Counter[str]()
    for number in range(1, 8):
        if number == 4:
            assert [client.state(name).state for name in "abcd"] == [State.CLAIMED] * 4
        claimed = following(client, loop, counting(counts))
        assert claimed is not None
        assert not claimed.prefetched
        assert counts == ({"Post": number} if number < 4 else {"Multi": 1} | ({"Post": number - 1}))
        if number == 4:
            states = [client.state(name).state for name in "abcdefgh"]
            assert states == [State.FINISHED] * 4 + [State.CLAIMED] * 4
    assert following(client, loop) is None
    all_finished(client, "abcdefgh")


@pytest.mark.parametrize("fate", ["cut off", "no server"])
def test_a_step_goes_on_when_another_call_leaves_its_settlement(fate: str) -> None:
    """Another call of its client had it, and ended without it: the step hears of that, and settles it by itself."""
    client, loop = begun("a", timeout=0)
    looper = step(client, go_on(loop, Caller()))
    other = step(client, settle.settle_deferred(client.context))
    other.until(Multi, "finished")
    looper.until(Wait)
    assert (looper.op.signal.count, looper.op.turn) == (looper.op.seen, True)
    if fate == "cut off":
        other.cut()
    else:
        other.fail(Unavailable("no server"))
    assert other.over
    assert looper.finish() is False
    all_finished(client, "a")


def test_a_step_that_settles_for_others_sleeps_until_they_are_over() -> None:
    """It takes along what a third call has put down, and no server answers: its own signal does not keep it awake."""
    client = filled(names="ac")
    loop = loop_of(client)
    assert following(client, loop) is not None
    third = client.claimed()
    looper = step(client, go_on(loop, Caller()))
    other = step(client, settle.settle_deferred(client.context))
    other.until(Multi, "tasks/a/state")
    looper.until(Wait)
    settle.settle_later(client.context, third, partial(settle.complete, client.context, third), lambda *_: None)
    client.context.settled.fire()
    looper.step()
    assert looper.op.signal is not client.context.settled, "it stands in line, to send what the third has put down"
    looper.fail(Unavailable("its time is over"))
    assert (looper.op.signal, looper.op.seen) == (client.context.settled, client.context.settled.count)
    other.finish()
    assert looper.finish() is False
    assert client.work() == []
    all_finished(client, "ac")


def test_what_others_do_costs_no_task() -> None:
    """What was read ahead is no promise: others may take it, cancel it, also once it is prefetched, or go first."""
    client, loop = begun()
    other = another(client)
    other.cancel("b")
    client.put(task_id="urgent", priority=5)
    claimed = following(client, loop)
    assert claimed is not None
    assert claimed.task_id == "urgent"
    assert sorted(other.work()) == ["c", "d", "e"]
    assert rest(client, loop) == []
    states = client.check()
    assert states.pop("b").state is State.CANCELLED
    assert {(state.state, state.attempt) for state in states.values()} == {(State.FINISHED, 1)}
    client, loop = begun(prefetch=5)
    for name in "bc":
        another(client).cancel(name)
    client.zk.ms += 2_000  # what was claimed just now begins without being asked for
    assert rest(client, loop) == ["d", "e"]
    assert [state.state for state in client.check().values()].count(State.FINISHED) == 4


@IN_GROUPS
def test_a_lost_claim_is_told_by_the_step_that_finds_out(prefetch: int) -> None:
    """The next one, or that after the group; what it claimed meanwhile is not lost: the loop goes on."""
    client, loop = begun(prefetch=prefetch)
    another(client).cancel("a")
    ids = [claimed.task_id for _ in range(min(prefetch, 5) - 1) if (claimed := following(client, loop)) is not None]
    with pytest.raises(ClaimLost):
        following(client, loop)
    assert ids == list("bcde")[: prefetch - 1]
    assert [*ids, *rest(client, loop)] == ["b", "c", "d", "e"]
    states = client.check()
    assert states.pop("a").state is State.CANCELLED
    assert all(state.state is State.FINISHED and state.attempt == 1 for state in states.values())


def test_a_result_that_is_too_large_keeps_the_task_in_hand() -> None:
    """The step says so; the body settles it, and the loop goes on with what was claimed beside it."""
    client, loop = begun()
    assert loop.current is not None
    loop.result = b"x" * 1_100_000
    for _ in range(2):
        with pytest.raises(TaskTooLarge):
            client.do(go_on(loop, Caller()))
    client.fail(loop.current, "too large", retry=False)
    assert rest(client, loop) == ["b", "c", "d", "e"]
    assert client.check()["a"].state is State.DEAD


def test_a_settlement_waits_for_no_task() -> None:
    """Where nothing is to be claimed, it is sent before the wait; where the queue is paused, the loop ends with it."""
    client, loop = begun("a", timeout=5)
    stepper = step(client, go_on(loop, Caller()))
    stepper.until(Wait)
    assert client.state("a").state is State.FINISHED
    another(client).put(task_id="b")
    stepper.answer(reply=True)
    assert stepper.finish()
    assert handed_out(loop).task_id == "b"
    assert following(client, loop) is None
    all_finished(client, "ab")
    client, loop = begun()
    client.do(admin.pause(client.context))
    assert following(client, loop) is None
    assert client.check()["a"].state is State.FINISHED


def test_what_cannot_be_asked_for_is_refused_at_once() -> None:
    """By the name of the argument."""
    client = filled()
    for name, value in (("prefetch", 0), ("prefetch", 65), ("prefetch", True), ("prefetch", "2"), ("timeout", -1)):
        with pytest.raises(ConfigError, match=name):
            loop_of(client, **{name: value})
    with pytest.raises(ConfigError, match="lease"):
        client.do(go_on(loop_of(client, lease=0), Caller()))
