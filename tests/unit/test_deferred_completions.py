"""What goes with other calls of a client, transactions in line and completions put down, is done and told once."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claim.claim import claim_many
from airflow_provider_zkmq.engine.core.claim.claim_iterator import go_on
from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.client_state import FIRST_PAUSE, Caller, Claimed, RetryTimes, Schedule
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum, parse_selector
from airflow_provider_zkmq.engine.core.model.handler_outcomes import Retry
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import enqueue, settle
from airflow_provider_zkmq.engine.core.tasks.settle import DeferredCompletions
from airflow_provider_zkmq.engine.core.tasks.settle_by_outcome import Settlement, settle_by_outcome
from airflow_provider_zkmq.engine.core.zk_operations import Multi, Pipeline, Reconnect, Wait
from airflow_provider_zkmq.engine.errors import AccessDenied, ClaimLost, OutcomeUnknown, Unavailable, ZkmqError
from tests.interrupting import interrupted, keyboard
from tests.stepping import Stepper
from tests.unit.claiming import ANY, another, in_hand, many, refused, step
from tests.unit.looping import filled, following, loop_of, rest
from tests.unit.world import Client, Fault, new_queue

I, C, F = State.INSERTED, State.CLAIMED, State.FINISHED  # noqa: E741
CODES = {getattr(DeferredCompletions, name).__code__ for name in ("_take_deferred", "_notify", "_end", "close")}
AWAY, DENIED = Unavailable("no server answered"), AccessDenied("not yours")


# --- transactions of calls at the same time


def completing(client: Client, claimed: Claimed) -> Stepper:
    """A settlement that is about to be sent, or stands in line."""
    stepper = step(client, settle.complete(client.context, claimed, b"r"))
    while not (isinstance(stepper.op, Wait) or (isinstance(stepper.op, Multi) and "tasks/" in repr(stepper.op))):
        stepper.step()
    return stepper


def in_flight() -> tuple[Client, dict[str, Claimed], list[Stepper]]:
    """A client has four tasks in hand: the settlement of one is on its way, the others stand in line."""
    client = filled(names="abcd")  # the bucket of what is finished stands
    claims = {each.task_id: each for each in many(client, 4)}
    client.put(task_id="z")
    calls = [completing(client, claims[name]) for name in "abcd"]
    assert [type(each.op) for each in calls] == [Multi, Wait, Wait, Wait]
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


def sending(*, falls_back: bool) -> tuple[Client, list[Stepper]]:
    """The second of the calls sends for all in line; `falls_back`: part by part, as one of them was refused."""
    client, _, calls = in_flight()
    if falls_back:
        another(client).cancel("b")
    calls[0].step()
    leading(calls[1])
    if falls_back:
        calls[1].step()
        assert isinstance(calls[1].op, Pipeline)
    return client, calls


def finished(client: Client, names: str) -> None:
    """These are finished, once; nobody is left in line, and the client goes on."""
    states = client.check()
    assert [name for name, state in states.items() if state.state is State.FINISHED] == ["0", *names]
    assert all(states[name].attempt == 1 for name in names)
    line = client.context.group
    assert (line.on_their_way, line.carried, list(line.waiting)) == (0, 0, [])
    client.complete(client.claimed())


def test_what_comes_meanwhile_goes_together() -> None:
    """The first call is a request of its own; the three after it are one transaction; each caller is told."""
    client, calls = sending(falls_back=False)
    assert calls[0].over
    assert {name for name in "abcd" if f"tasks/{name}/state" in repr(calls[1].op)} == set("bcd")
    calls[1].step()
    assert all(call.over or woken(call).over for call in calls)
    finished(client, "abcd")


def test_what_one_is_denied_is_not_told_of_another() -> None:
    """The server names no part of a transaction that it denies: each sends its own, which tells."""
    for falls_back in (False, True):
        client, calls = sending(falls_back=falls_back)
        calls[1].fail(DENIED)
        with pytest.raises(ClaimLost) if falls_back else nullcontext():
            calls[1].finish()
        woken(calls[3]).finish()
        assert isinstance(woken(calls[2]).op, Reconnect)
        calls[2].answer(None)
        with pytest.raises(AccessDenied):
            calls[2].fail(DENIED)
        client.complete(client.context.claims.held["c"])
        finished(client, "acd" if falls_back else "abcd")


def forward(calls: list[Stepper]) -> None:
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


@pytest.mark.parametrize("alone", [True, False])
def test_an_interrupt_leaves_nobody_in_line_for_ever(*, alone: bool) -> None:
    """Wherever it meets a call that leads: the client's next call is sent, with whoever was forgotten in line."""
    for number in count():
        client, claims, calls = in_flight()
        if not alone:
            calls[0].step()
        at = 0 if alone else 1
        leader = calls.pop(at)

        def lead(leader: Stepper = leader) -> None:
            (leading(leader) if isinstance(leader.op, Wait) else leader).step()

        of_commit = lambda code: code.co_filename.endswith("write/commit.py")
        if not interrupted(lead, number, of_commit, events=frozenset({"call"})):
            break
        leader.cut()
        calls.append(completing(client, claims["abcd"[at]]))
        forward(calls)
        for call in calls:
            if not call.over:  # it was sent, and told nothing: it waits no longer than its own patience
                call.fail(AWAY)
        forward(calls)
        assert all(call.over for call in calls)
        finished(client, "abcd")
    assert number > 3


def test_enqueues_go_together_and_one_of_them_opens_the_segment() -> None:
    """The lane is looked for once; what the first one opens the others need not open again."""
    client = new_queue()
    calls = [step(client, enqueue.enqueue(client.context, Message(b"x", task_id=name))) for name in "abcd"]
    forward(calls * 2)
    assert len(client.zk.nodes[client.context.paths.at("queue")].children) == 1
    assert [call.result for call in calls] == client.work() == list("abcd")
    client.check()


# --- completions that are put down


def put_down(client: Client, claims: list[Claimed]) -> dict[str, list[Any]]:
    """Completions of these; what is told of each."""
    told: dict[str, list[Any]] = {claimed.task_id: [] for claimed in claims}
    for claimed in claims:
        settle.settle_later(
            client.context,
            claimed,
            partial(settle.complete, client.context, claimed),
            lambda _value, error, task_id=claimed.task_id: told[task_id].append(error),  # type: ignore[misc]
        )
    return told


def two_put_down() -> tuple[Client, dict[str, list[Any]]]:
    """A client that has put down two of five tasks; what is told of them."""
    client = filled()
    return client, put_down(client, many(client, 2))


def states(client: Client, names: str) -> list[State]:
    return [client.state(name).state for name in names]


def denying(path: str, error: ZkmqError) -> Fault:
    """The server denies transactions that touch this."""
    return lambda op: error if isinstance(op, Multi) and any(path in each.path for each in op.ops) else None


def test_an_interrupt_anywhere_loses_nothing_that_was_put_down() -> None:
    """All of it is settled by a later call, and told as what it was: completed."""
    for number in count():
        client = filled()
        told = put_down(client, many(client, 3))
        claiming = partial(client.do, claim_many(client.context, ANY, 1))
        if not interrupted(claiming, number, CODES.__contains__, events=frozenset({"call", "line"})):
            break
        client.do(settle.settle_deferred(client.context))
        client.do(due_work.give_back(client.context))
        assert all(errors and not any(errors) for errors in told.values()), (number, told)
        assert not client.context.claims.deferred
        assert states(client, "abc") == [F] * 3
        assert client.work() in (["d", "e"], ["e"]), number
        client.check()
    assert number > 30


def test_a_loop_that_is_interrupted_while_it_comes_back_settles_once() -> None:
    """It had put its task down, and did not know: called again, it does not put it down once more."""
    client = filled()
    loop = loop_of(client)
    first = following(client, loop)
    assert first is not None
    client.context.run.finish_later = keyboard
    with pytest.raises(KeyboardInterrupt):
        client.do(go_on(loop, Caller()))
    assert loop.current is first
    client.context.run.finish_later = lambda: None
    assert rest(client, loop) == ["b", "c", "d", "e"]
    assert {state.attempt for name, state in client.check().items() if name != "0"} == {1}


def test_who_cannot_be_told_keeps_nobody_else_from_being_told() -> None:
    """It is reported; all of them are settled."""
    client = filled()
    claims = many(client, 3)

    def broken(_value: object, _error: Exception | None) -> None:
        raise RuntimeError("the event loop is closed")

    settle.settle_later(client.context, claims[0], lambda: settle.complete(client.context, claims[0]), broken)
    told = put_down(client, claims[1:])
    client.do(settle.settle_deferred(client.context))
    assert told == {"b": [None], "c": [None]}
    assert states(client, "abc") == [F] * 3
    assert ["the event loop is closed" in why for _, why in client.reports] == [True]
    assert not client.context.claims.deferred


def test_what_a_claim_is_denied_for_is_not_what_was_handled_is_denied_for() -> None:
    """The error tells of no part of the transaction: each finds out by its own."""
    client, told = two_put_down()
    refused(client, AccessDenied, claim_many(client.context, ANY, 1), None, denying("/c/", DENIED))
    assert (told, states(client, "abc")) == ({"a": [None], "b": [None]}, [F, F, I])
    client.do(due_work.give_back(client.context))
    assert client.work() == ["c", "d", "e"]
    for error in (DENIED, ZkmqError("refused")):  # of one settlement: that one is told, alone
        client, told = two_put_down()
        claims = client.do(claim_many(client.context, ANY, 1), denying("/a/", error))
        assert ([each.task_id for each in claims], told) == (["c"], {"a": [error], "b": [None]})
        assert states(client, "abc") == [C, F, C]


def test_what_another_call_has_is_late_only_when_that_gives_it_up() -> None:
    """Who looks after it waits for that, for a moment, and is not told that it is due; a client that closes waits, too.

    Both settle it where that call is cut off.
    """
    client, told = two_put_down()
    client.zk.ms += 1_000
    assert (settle.has_overdue(client.context), due_work.until_due(client.context, 5.0)) == (True, 0.0)
    stepper = step(client, settle.settle_deferred(client.context))
    stepper.until(Multi)
    assert (settle.has_overdue(client.context), due_work.has_pending(client.context)) == (False, True)
    assert 0.0 < due_work.until_due(client.context, 5.0) < 0.1
    stepper.cut()
    assert settle.has_overdue(client.context)
    client.do(due_work.finish_pending(client.context))
    assert (told, due_work.has_pending(client.context)) == ({"a": [None], "b": [None]}, False)
    for end in (Stepper.cut, Stepper.finish):
        client, told = two_put_down()
        other = step(client, settle.settle_deferred(client.context))
        other.until(Multi)
        closing = step(client, settle.settle_last(client.context))
        assert not closing.over
        end(other)
        closing.answer(reply=True)
        closing.finish()
        assert (told, states(client, "ab")) == ({"a": [None], "b": [None]}, [F] * 2)


def test_what_cannot_be_completed_any_more_is_reported_or_told() -> None:
    """Of a loop that was left, to whom it could not be raised; of a queue that is deleted, and is not kept for ever."""
    client = filled()
    loop = loop_of(client, prefetch=3)
    for _ in range(2):
        assert following(client, loop) is not None
    another(client).cancel("a")
    loop.leave()
    client.do(settle.settle_deferred(client.context))
    assert [path for path, _ in client.reports] == [client.context.paths.task("a")]
    assert (loop.errors, loop.handled) == ([], {})
    client, told = two_put_down()
    for path in [path for path in client.zk.nodes if path.startswith(client.context.paths.base)]:
        del client.zk.nodes[path]
    client.do(settle.settle_deferred(client.context))
    assert [type(error) for errors in told.values() for error in errors] == [ClaimLost, ClaimLost]
    assert not client.context.claims.deferred


def test_what_a_claim_gave_back_by_itself_is_looked_for_again() -> None:
    """It was not there when the queue was looked at: a claim that waits for nothing takes it all the same."""
    (client, claimed), told = in_hand(), list[Any]()
    settle_it = partial(settle_by_outcome, client.context, claimed, Retry("e"), Settlement())
    settle.settle_later(client.context, claimed, settle_it, lambda *how: told.append(how))
    again = client.claimed()
    assert (again.task_id, again.state.attempt, told) == ("a", 2, [(False, None)])
    client.complete(again)
    assert client.take() is None
    client.check()


def test_a_claim_that_finds_nothing_ends_in_time_whatever_others_put_down() -> None:
    """It settles what they do, while it looks: that is no reason to go on once its own time is over."""
    for span in (0.0, 5.0):
        client = new_queue(filters={"c": OrderedEnum("low", "high")})
        for number in range(40):
            client.put(task_id=f"t{number:02}", filters={"c": "low"})
        claims, told = many(client, 40), dict[str, list[Any]]()

        def more(op: Any, client: Client = client, claims: list[Claimed] = claims, told: Any = told) -> None:
            if isinstance(op, Multi) and claims:
                client.zk.ms += 1_000
                told.update(put_down(client, [claims.pop()]))

        told.update(put_down(client, [claims.pop()]))
        assert client.do(claim_many(client.context, Wanted(parse_selector("c==high")), 1, span), more) == []
        assert 30 - span < len(claims) < 40
        client.do(settle.settle_deferred(client.context))
        assert set(map(str, told.values())) == {"[None]"}
        assert len(told) + len(claims) == 40


def test_a_note_that_another_call_looks_after_is_left_to_it() -> None:
    """Two calls of a client tend the queue side by side: neither stumbles over what the other has done."""
    client = new_queue()
    lost_claims = client.context.pending.lost_claims
    for name in "ab":
        lost_claims[client.context.paths.current("me", name)] = name
    first = Stepper(client.zk, client.session, due_work._rescue_lost_claims(client.context))
    assert Stepper(client.zk, client.session, due_work._rescue_lost_claims(client.context)).finish() == 0
    assert first.finish() == 0
    assert not lost_claims


def test_refusals_of_one_moment_are_one_refusal() -> None:
    """Several calls that were refused side by side do not put off the next try for longer than one does."""
    now = [0.0]
    retry_times = RetryTimes(lambda: now[0])
    for _ in range(8):
        retry_times.retry_later("x", Schedule(lambda: now[0]))
    agenda = Schedule(lambda: now[0])
    assert retry_times.waits("x", agenda)
    assert agenda.left(60.0) == FIRST_PAUSE
    now[0] += FIRST_PAUSE
    assert not retry_times.waits("x", Schedule(lambda: now[0]))
    retry_times.retry_later("x", agenda)
    assert retry_times.pauses["x"][0] == now[0] + 2 * FIRST_PAUSE
