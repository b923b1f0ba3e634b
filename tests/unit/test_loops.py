"""Loops over claims: each step settles one task and claims the next, whatever happens in between."""

from __future__ import annotations

from collections import Counter
from itertools import count, product
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming.loop import Loop, go_on
from airflow_provider_zkmq.engine.core.memory.claims import Caller
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Pipeline, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.tasks import configure, departing, giveback
from airflow_provider_zkmq.engine.core.upkeep import debts
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, TaskTooLarge
from tests.unit.claiming import ORDERS, another, counting, step
from tests.unit.looping import filled, following, handed_out, loop_of, rest
from tests.unit.world import LOST_REPLY, LOST_REQUEST, Client

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
    assert not any((claims.handovers, claims.owed, claims.trying))
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
        assert not claimed.ahead
        assert counts == ({"Post": number} if number < 4 else {"Multi": 1} | ({"Post": number - 1}))
        if number == 4:
            states = [client.state(name).state for name in "abcdefgh"]
            assert states == [State.FINISHED] * 4 + [State.CLAIMED] * 4
    assert following(client, loop) is None
    all_finished(client, "abcdefgh")


def test_what_others_do_costs_no_task() -> None:
    """What was read ahead is no promise: others may take it, cancel it, also once it is claimed ahead, or go first."""
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


def test_what_was_handled_waits_for_no_slow_body() -> None:
    """It is completed in the background, though its loop does not come back; once."""
    client, loop = begun(prefetch=3)
    assert following(client, loop) is not None
    for seconds, state in ((0, State.CLAIMED), (1, State.FINISHED)):  # before that it may still go with others
        assert debts.in_debt(client.context)
        client.zk.ms += seconds * 1000
        client.do(debts.pay_debts(client.context))
        assert client.state("a").state is state
    assert not debts.in_debt(client.context)
    assert rest(client, loop) == ["c", "d", "e"]
    all_finished(client)


def test_a_result_that_is_too_large_keeps_the_task_in_hand() -> None:
    """The step says so; the body settles it, and the loop goes on with what was claimed beside it."""
    client, loop = begun()
    assert loop.hand is not None
    loop.result = b"x" * 1_100_000
    for _ in range(2):
        with pytest.raises(TaskTooLarge):
            client.do(go_on(loop, Caller()))
    client.fail(loop.hand, "too large", retry=False)
    assert rest(client, loop) == ["b", "c", "d", "e"]
    assert client.check()["a"].state is State.DEAD


@IN_BOTH_ORDERS
@IN_GROUPS
def test_whatever_reply_is_lost_each_task_is_handled_once(order: str, prefetch: int) -> None:
    """Of no request, of one or of several in a row: in the queue's order, with the result that the body set, if any."""
    for kind, many in product((LOST_REPLY, LOST_REQUEST), (1, 3)):
        for number in range(100):
            client, seen = filled(order), count()
            struck = range(number, number + many)
            fault = lambda op, kind=kind, seen=seen, struck=struck: (
                kind if isinstance(op, Multi) and next(seen) in struck else None
            )
            loop, ids = loop_of(client, prefetch=prefetch), []
            while (claimed := following(client, loop, fault)) is not None:
                ids.append(claimed.task_id)
                loop.result = f"result of {claimed.task_id}" if claimed.task_id != "c" else None
            assert ids == list("abcde"), (kind, number, many)
            results = [client.zk.nodes[client.context.paths.task(name, "result")].data for name in "abc"]
            assert results == [b"result of a", b"result of b", b""]
            all_finished(client)
            if next(seen) <= number:
                break  # there are no more requests
        assert number > 1


@IN_BOTH_ORDERS
@IN_GROUPS
def test_a_loop_cut_off_anywhere_loses_nothing(order: str, prefetch: int) -> None:
    """What had been handled is completed, what was never handed out counts no attempt: each task is handled once."""
    for arrived in (True, False):
        for at in range(100):
            client = filled(order)
            loop = loop_of(client, prefetch=prefetch)
            ids, ended = cut_after(client, loop, at, arrived=arrived)
            if ended:
                break
            handled = ids if loop.hand is None else ids[:-1]
            loop.leave()
            client.do(departing.settle_leaving(client.context))
            client.do(giveback.give_back(client.context))
            states = client.check()
            assert [name for name in "abcde" if states[name].state is State.FINISHED] == handled, at
            again = client.work()
            assert sorted(again) == sorted(set("abcde").difference(handled)), at
            states = client.check()
            failed = set(ids).difference(handled)
            assert {name: states[name].attempt for name in "abcde"} == {
                name: 1 + (name in failed) for name in "abcde"
            }, at
            assert not client.context.claims.handovers
        else:
            pytest.fail("the loop has more operations than this test cuts")


def cut_after(client: Client, loop: Loop, operations: int, *, arrived: bool) -> tuple[list[str], bool]:
    """Go through a loop, and cut it off after so many operations: what its body had, and whether it ended before."""
    ids: list[str] = []
    while True:
        stepper = step(client, go_on(loop, Caller()))
        while not stepper.over and operations:
            stepper.step()
            operations -= 1
        if not stepper.over:
            if arrived and isinstance(stepper.op, Multi | Pipeline):
                for op in stepper.op.ops if isinstance(stepper.op, Pipeline) else (stepper.op,):
                    client.zk.multi(client.session, op.ops)
            stepper.cut()
            return ids, False
        if not stepper.result:
            return ids, True
        ids.append(handed_out(loop).task_id)


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
    client.do(configure.pause(client.context))
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
