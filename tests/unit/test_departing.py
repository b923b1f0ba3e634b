"""What was put down is settled and told, once, whatever meets the calls that take it along."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming.claim import claim_many
from airflow_provider_zkmq.engine.core.claiming.loop import go_on
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.agenda import FIRST_PAUSE, Agenda, Postponed
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum
from airflow_provider_zkmq.engine.core.model.outcomes import Retry
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING, parse_selector
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.tasks import departing, giveback, settle
from airflow_provider_zkmq.engine.core.tasks.departing import Departure
from airflow_provider_zkmq.engine.core.tasks.outcome import Settlement, settle_by_outcome
from airflow_provider_zkmq.engine.core.upkeep import debts, rescue
from airflow_provider_zkmq.engine.errors import AccessDenied, ClaimLost, ZkmqError
from tests.interrupting import interrupted, keyboard
from tests.stepping import Stepper
from tests.unit.looping import filled, following, loop_of, rest
from tests.unit.world import Client, Fault, new_queue

I, C, F = State.INSERTED, State.CLAIMED, State.FINISHED  # noqa: E741
CODES = {getattr(Departure, name).__code__ for name in ("_board", "_tell", "_end", "close")}
ANYTHING = Wanted(EVERYTHING)


def put_down(client: Client, claims: list[Claimed]) -> dict[str, list[Any]]:
    """Completions of these; what is told of each."""
    told: dict[str, list[Any]] = {claimed.task_id: [] for claimed in claims}
    for claimed in claims:
        departing.settle_later(
            client.context,
            claimed,
            partial(settle.complete, client.context, claimed),
            lambda _value, error, task_id=claimed.task_id: told[task_id].append(error),  # type: ignore[misc]
        )
    return told


def taken(client: Client, number: int) -> list[Claimed]:
    claims: list[Claimed] = client.do(claim_many(client.context, ANYTHING, number))
    return claims


def two_put_down() -> tuple[Client, dict[str, list[Any]]]:
    """A client that has put down two of five tasks; what is told of them."""
    client = filled()
    return client, put_down(client, taken(client, 2))


def states(client: Client, names: str) -> list[State]:
    return [client.state(name).state for name in names]


def denying(path: str, error: ZkmqError) -> Fault:
    """The server denies transactions that touch this."""
    return lambda op: error if isinstance(op, Multi) and any(path in each.path for each in op.ops) else None


def test_an_interrupt_anywhere_loses_nothing_that_was_put_down() -> None:
    """All of it is settled by a later call, and told as what it was: completed."""
    for number in count():
        client = filled()
        told = put_down(client, taken(client, 3))
        claiming = partial(client.do, claim_many(client.context, ANYTHING, 1))
        if not interrupted(claiming, number, CODES.__contains__, events=frozenset({"call", "line"})):
            break
        client.do(departing.settle_leaving(client.context))
        client.do(giveback.give_back(client.context))
        assert all(errors and not any(errors) for errors in told.values()), (number, told)
        assert not client.context.claims.leaving
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
    client.context.run.pay = keyboard
    with pytest.raises(KeyboardInterrupt):
        client.do(go_on(loop, Caller()))
    assert loop.hand is first
    client.context.run.pay = lambda: None
    assert rest(client, loop) == ["b", "c", "d", "e"]
    assert {state.attempt for name, state in client.check().items() if name != "0"} == {1}


def test_who_cannot_be_told_keeps_nobody_else_from_being_told() -> None:
    """It is reported; all of them are settled."""
    client = filled()
    claims = taken(client, 3)

    def broken(_value: object, _error: Exception | None) -> None:
        raise RuntimeError("the event loop is closed")

    departing.settle_later(client.context, claims[0], lambda: settle.complete(client.context, claims[0]), broken)
    told = put_down(client, claims[1:])
    client.do(departing.settle_leaving(client.context))
    assert told == {"b": [None], "c": [None]}
    assert states(client, "abc") == [F] * 3
    assert ["the event loop is closed" in why for _, why in client.reports] == [True]
    assert not client.context.claims.leaving


def test_what_a_claim_is_denied_for_is_not_what_was_handled_is_denied_for() -> None:
    """The error tells of no part of the transaction: each finds out by its own."""
    client, told = two_put_down()
    with pytest.raises(AccessDenied):
        client.do(claim_many(client.context, ANYTHING, 1), denying("/c/", AccessDenied("no rights")))
    assert told == {"a": [None], "b": [None]}
    assert states(client, "abc") == [F, F, I]
    client.do(giveback.give_back(client.context))
    assert client.work() == ["c", "d", "e"]
    for error in (AccessDenied("no rights"), ZkmqError("refused")):  # of one settlement: that one is told, alone
        client, told = two_put_down()
        claims = client.do(claim_many(client.context, ANYTHING, 1), denying("/a/", error))
        assert [each.task_id for each in claims] == ["c"]
        assert told == {"a": [error], "b": [None]}
        assert states(client, "abc") == [C, F, C]


def test_what_another_call_has_is_late_only_when_that_gives_it_up() -> None:
    """Who looks after it waits for that, for a moment, and is not told that it is due."""
    client, told = two_put_down()
    client.zk.ms += 1_000
    assert departing.leaves_late(client.context)
    assert debts.until_due(client.context, 5.0) == 0.0
    stepper = Stepper(client.zk, client.session, departing.settle_leaving(client.context))
    stepper.until(Multi)
    assert not departing.leaves_late(client.context)
    assert debts.in_debt(client.context)
    assert 0.0 < debts.until_due(client.context, 5.0) < 0.1
    stepper.cut()
    assert departing.leaves_late(client.context)
    client.do(debts.pay_debts(client.context))
    assert told == {"a": [None], "b": [None]}
    assert not debts.in_debt(client.context)


def test_a_client_that_is_closed_settles_also_what_another_call_has() -> None:
    """That is waited for, and settled where it is cut off."""
    for cut in (True, False):
        client, told = two_put_down()
        other = Stepper(client.zk, client.session, departing.settle_leaving(client.context))
        other.until(Multi)
        closing = Stepper(client.zk, client.session, departing.settle_last(client.context))
        assert not closing.over
        if cut:
            other.cut()
        else:
            other.finish()
        closing.answer(reply=True)
        closing.finish()
        assert told == {"a": [None], "b": [None]}
        assert states(client, "ab") == [F] * 2


def test_what_a_loop_that_was_left_cannot_complete_is_reported() -> None:
    """Nobody comes back to whom it could be raised."""
    client = filled()
    loop = loop_of(client, prefetch=3)
    for _ in range(2):
        assert following(client, loop) is not None
    Client(client.zk, "other").cancel("a")
    loop.leave()
    client.do(departing.settle_leaving(client.context))
    assert [path for path, _ in client.reports] == [client.context.paths.task("a")]
    assert (loop.errors, loop.handled) == ([], {})


def test_what_is_put_down_in_a_queue_that_is_deleted_is_lost() -> None:
    """It is told so, and not kept for ever."""
    client, told = two_put_down()
    base = client.context.paths.base
    for path in [path for path in client.zk.nodes if path.startswith(base)]:
        del client.zk.nodes[path]
    client.do(departing.settle_leaving(client.context))
    assert all(len(errors) == 1 and isinstance(errors[0], ClaimLost) for errors in told.values())
    assert not client.context.claims.leaving


def test_what_a_claim_gave_back_by_itself_is_looked_for_again() -> None:
    """It was not there when the queue was looked at: a claim that waits for nothing takes it all the same."""
    client = new_queue()
    client.put(task_id="a")
    claimed, told = client.claimed(), list[Any]()
    settle_it = partial(settle_by_outcome, client.context, claimed, Retry("e"), Settlement())
    departing.settle_later(client.context, claimed, settle_it, lambda *how: told.append(how))
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
        claims, told = taken(client, 40), dict[str, list[Any]]()

        def more(op: Any, client: Client = client, claims: list[Claimed] = claims, told: Any = told) -> None:
            if isinstance(op, Multi) and claims:
                client.zk.ms += 1_000
                told.update(put_down(client, [claims.pop()]))

        told.update(put_down(client, [claims.pop()]))
        assert client.do(claim_many(client.context, Wanted(parse_selector("c==high")), 1, span), more) == []
        assert 30 - span < len(claims) < 40
        client.do(departing.settle_leaving(client.context))
        assert set(map(str, told.values())) == {"[None]"}
        assert len(told) + len(claims) == 40


def test_a_note_that_another_call_looks_after_is_left_to_it() -> None:
    """Two calls of a client tend the queue side by side: neither stumbles over what the other has done."""
    client = new_queue()
    orphans = client.context.debts.orphans
    for name in "ab":
        orphans[client.context.paths.current("me", name)] = name
    first = Stepper(client.zk, client.session, rescue._rescue_orphans(client.context))
    assert Stepper(client.zk, client.session, rescue._rescue_orphans(client.context)).finish() == 0
    assert first.finish() == 0
    assert not orphans


def test_refusals_of_one_moment_are_one_refusal() -> None:
    """Several calls that were refused side by side do not put off the next try for longer than one does."""
    now = [0.0]
    postponed = Postponed(lambda: now[0])
    for _ in range(8):
        postponed.postpone("x", Agenda(lambda: now[0]))
    agenda = Agenda(lambda: now[0])
    assert postponed.waits("x", agenda)
    assert agenda.left(60.0) == FIRST_PAUSE
    now[0] += FIRST_PAUSE
    assert not postponed.waits("x", Agenda(lambda: now[0]))
    postponed.postpone("x", agenda)
    assert postponed.pauses["x"].until == now[0] + 2 * FIRST_PAUSE
