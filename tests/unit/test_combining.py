"""Calls of one client at the same time: their transactions go together, and each is told what became of its own."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Pipeline, Reconnect, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.tasks import enqueue, settle
from airflow_provider_zkmq.engine.errors import AccessDenied, ClaimLost, OutcomeUnknown, Unavailable
from tests.interrupting import interrupted
from tests.stepping import Stepper
from tests.unit.world import UNKNOWN, Client, new_queue

AWAY, DENIED = Unavailable("no server answered"), AccessDenied("not yours")


def completing(client: Client, claimed: Claimed) -> Stepper:
    """A settlement that is about to be sent, or stands in line."""
    stepper = Stepper(client.zk, client.session, settle.complete(client.context, claimed, b"r"))
    while not (isinstance(stepper.op, Wait) or (isinstance(stepper.op, Multi) and "tasks/" in repr(stepper.op))):
        stepper.step()
    return stepper


def in_flight() -> tuple[Client, dict[str, Claimed], list[Stepper]]:
    """A client has four tasks in hand: the settlement of one is on its way, the others stand in line."""
    client = new_queue()
    client.put(task_id="0")
    client.work()  # the bucket of what is finished stands from now on
    client.do(enqueue.enqueue_many(client.context, [Message(b"x", task_id=name) for name in "abcd"]))
    claims = {each.task_id: each for each in client.do(claim.claim_many(client.context, Wanted(EVERYTHING), 4))}
    client.put(task_id="z")
    calls = [completing(client, claims[name]) for name in "abcd"]
    assert isinstance(calls[0].op, Multi)
    assert all(isinstance(each.op, Wait) for each in calls[1:])
    return client, claims, calls


def woken(call: Stepper) -> Stepper:
    """What it waited for has happened."""
    assert isinstance(call.op, Wait)
    assert call.op.signal.count > call.op.seen
    call.answer(reply=True)
    return call


def leading(call: Stepper) -> Stepper:
    """A call that is about to send what stands in line."""
    woken(call)
    if isinstance(call.op, Reconnect):
        call.answer(None)
    assert isinstance(call.op, Multi)
    return call


def sending(*, falls_back: bool) -> tuple[Client, dict[str, Claimed], list[Stepper]]:
    """The second of the calls sends for all in line; `falls_back`: part by part, as one of them was refused."""
    client, claims, calls = in_flight()
    if falls_back:
        Client(client.zk, "other").cancel("b")
    calls[0].step()
    leading(calls[1])
    if falls_back:
        calls[1].step()
        assert isinstance(calls[1].op, Pipeline)
    return client, claims, calls


def finished(client: Client, names: str) -> None:
    """These are finished, once; nobody is left in line, and the client goes on."""
    states = client.check()
    assert [name for name, state in states.items() if state.state is State.FINISHED] == ["0", *names]
    assert all(states[name].attempt == 1 for name in names)
    line = client.context.line
    assert (line.on_their_way, line.carried, list(line.waiting)) == (0, 0, [])
    client.complete(client.claimed())


def test_what_comes_meanwhile_goes_together() -> None:
    """The first call is a request of its own; the three after it are one transaction; each caller is told."""
    client, _, calls = in_flight()
    calls[0].step()
    assert calls[0].over
    leading(calls[1])
    assert {name for name in "abcd" if f"tasks/{name}/state" in repr(calls[1].op)} == set("bcd")
    calls[1].step()
    assert calls[1].over
    assert all(woken(call).over for call in calls[2:])
    finished(client, "abcd")


def test_one_that_is_refused_keeps_none_of_the_others() -> None:
    """The merged transaction falls back to its parts: who has lost its claim is told so, and nobody else."""
    client, _, calls = in_flight()
    Client(client.zk, "other").cancel("c")
    calls[0].step()
    leading(calls[1]).step()
    assert isinstance(calls[1].op, Pipeline)
    calls[1].step()
    assert calls[1].over
    with pytest.raises(ClaimLost):
        woken(calls[2]).finish()
    assert woken(calls[3]).over
    assert client.check()["c"].state is State.CANCELLED
    finished(client, "abd")


def test_whose_leader_is_cut_off_or_hears_nothing_finds_out_for_itself(subtests: pytest.Subtests) -> None:
    """What was sent is of unknown outcome: each one's own transaction tells, and is carried out once."""
    for carried_out, (ends, falls_back) in itertools.product(
        (True, False), (("cut off", False), ("cut off", True), ("reply lost", False))
    ):
        with subtests.test(carried_out=carried_out, ends=ends, falls_back=falls_back):
            client, _, calls = sending(falls_back=falls_back)
            leader = calls[1]
            if carried_out:
                for op in leader.op.ops if isinstance(leader.op, Pipeline) else (leader.op,):
                    client.zk.multi(client.session, op.ops)
            if ends == "cut off":
                leader.cut()
            else:
                leader.answer(UNKNOWN)
                leader.finish()
            for call in calls[2:]:
                woken(call).finish()
            without_it = ends == "cut off" and (falls_back or not carried_out)
            finished(client, "acd" if without_it else "abcd")


def test_what_one_is_denied_is_not_told_of_another(subtests: pytest.Subtests) -> None:
    """The server names no part of a transaction that it denies: each sends its own, which tells."""
    for falls_back in (False, True):
        with subtests.test(falls_back=falls_back):
            client, _, calls = sending(falls_back=falls_back)
            calls[1].fail(DENIED)
            if falls_back:
                with pytest.raises(ClaimLost):
                    calls[1].finish()
            else:
                calls[1].finish()
            woken(calls[3]).finish()
            woken(calls[2])
            assert isinstance(calls[2].op, Reconnect)
            calls[2].answer(None)
            with pytest.raises(AccessDenied):
                calls[2].fail(DENIED)
            client.do(settle.complete(client.context, client.context.claims.in_hand["c"], b"r"))
            finished(client, "acd" if falls_back else "abcd")


def test_where_the_leader_reaches_no_server_nothing_was_sent(subtests: pytest.Subtests) -> None:
    """It is told so, before its last look or after; the others send their own, with whoever stands in line by then."""
    for looked in (False, True):
        with subtests.test(looked=looked):
            client, claims, calls = in_flight()
            calls[0].step()
            leader = leading(calls[1]) if looked else woken(calls[1])
            assert looked or isinstance(leader.op, Reconnect)
            with pytest.raises(Unavailable):
                leader.fail(AWAY)
            if looked:
                woken(calls[2])
                assert isinstance(calls[2].op, Multi)
                woken(calls[3])
                calls[2].step()
                leading(calls[3]).step()
            else:
                leading(calls[2]).step()
                assert calls[2].over
                woken(calls[3])
            assert calls[3].over
            client.complete(claims["b"])
            finished(client, "abcd")


def test_who_is_cut_off_in_line_keeps_nobody(subtests: pytest.Subtests) -> None:
    """Whether it was on its way, first in line, behind, or told to send what stands there and had not begun."""
    for at, first_is_over in ((0, False), (1, False), (2, False), (3, False), (1, True)):
        with subtests.test(at=at, first_is_over=first_is_over):
            client, claims, calls = in_flight()
            if first_is_over:
                calls[0].step()
            calls[at].cut()
            rest = [call for number, call in enumerate(calls) if number != at]
            if at:
                if not first_is_over:
                    rest[0].step()
                rest = rest[1:]
            leading(rest[0]).step()
            assert rest[0].over
            assert all(woken(call).over for call in rest[1:])
            client.complete(claims["abcd"[at]])
            finished(client, "abcd")


def test_who_waits_too_long_is_told_whether_its_write_was_sent() -> None:
    """In line nothing was sent; what another call has sent is of unknown outcome, and is asked for."""
    client, claims, calls = in_flight()
    with pytest.raises(Unavailable):
        calls[3].fail(AWAY)
    calls[0].step()
    leader = leading(calls[1])
    calls[2].fail(AWAY)
    assert isinstance(calls[2].op, Reconnect)
    with pytest.raises(OutcomeUnknown):
        calls[2].fail(AWAY)
    leader.step()
    assert leader.over
    for name in "cd":
        client.complete(claims[name])
    finished(client, "abcd")


def go_on(calls: list[Stepper]) -> None:
    """As far as they get without waiting for what does not happen."""
    for call in calls * 20:
        if call.over or (isinstance(call.op, Wait) and call.op.signal.count == call.op.seen):
            continue
        if isinstance(call.op, Wait):
            woken(call)
        elif isinstance(call.op, Reconnect):
            call.answer(None)
        else:
            call.step()


@pytest.mark.parametrize("alone", [True, False])
def test_an_interrupt_leaves_nobody_in_line_for_ever(*, alone: bool) -> None:
    """Wherever it meets a call that leads: the client's next call is sent, with whoever was forgotten in line."""
    for number in itertools.count():
        client, claims, calls = in_flight()
        leader = calls[0]
        if not alone:
            leader.step()
            leader = calls[1]

        def lead(leader: Stepper = leader) -> None:
            if isinstance(leader.op, Wait):
                leading(leader)
            leader.step()

        of_combining = lambda code: code.co_filename.endswith("writing/combining.py")
        if not interrupted(lead, number, of_combining, events=frozenset({"call"})):
            break
        leader.cut()
        mine = completing(client, claims["abcd"[calls.index(leader)]])
        rest = [call for call in [*calls, mine] if call is not leader]
        go_on(rest)
        for call in rest:
            if not call.over:  # it was sent, and told nothing: it waits no longer than its own patience
                call.fail(AWAY)
        go_on(rest)
        assert all(call.over for call in rest)
        finished(client, "abcd")
    assert number > 3


def test_enqueues_go_together_and_one_of_them_opens_the_segment() -> None:
    """The lane is looked for once; what the first one opens the others need not open again."""
    client = new_queue()
    messages = [Message(b"x", task_id=name) for name in "abcd"]
    calls = [Stepper(client.zk, client.session, enqueue.enqueue(client.context, message)) for message in messages]
    go_on(calls * 2)
    assert [call.result for call in calls] == list("abcd")
    assert len(client.zk.nodes[client.context.paths.at("queue")].children) == 1
    assert client.work() == list("abcd")
    client.check()
