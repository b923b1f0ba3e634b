"""Claims that their callers never got, or left in a transaction, are given back, whatever cut the call off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.memory.claims import Caller
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Reconnect, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.tasks import giveback, settle, transaction
from airflow_provider_zkmq.engine.core.writing import combining
from airflow_provider_zkmq.engine.errors import ClaimLost, OutcomeUnknown
from tests.unit.claiming import (
    ANY,
    LEASED,
    ORDERS,
    another,
    asked_by_id,
    cut_anywhere,
    ids,
    in_doubt,
    lost_anywhere,
    many,
    queue_of,
    step,
)
from tests.unit.world import UNKNOWN, Client, new_context

#: Calls that claim, and what each claims of the tasks a, b, c and d.
CALLS: dict[str, tuple[Callable[[Client], Any], list[str]]] = {
    "bound": (lambda client: claim.claim_many(client.context, ANY, 1), ["a"]),
    "leased": (lambda client: claim.claim_many(client.context, LEASED, 1), ["a"]),
    "by its id": (asked_by_id, ["a"]),
    "a group": (lambda client: claim.claim_many(client.context, ANY, 3), ["a", "b", "c"]),
    "a leased group": (lambda client: claim.claim_many(client.context, LEASED, 3), ["a", "b", "c"]),
}
CASES = [(order, name, call, expected) for order in ORDERS for name, (call, expected) in CALLS.items()]


def fresh(order: str = "default", attempts: int = 1, names: str = "a") -> Client:
    return queue_of(names, order=order, policy=RetryPolicy(attempts=attempts, factor=0))


def test_a_claim_whose_reply_is_lost_is_handed_out(subtests: pytest.Subtests) -> None:
    """The caller gets what its first try, or its second, has claimed, a group whole; nothing stays behind."""
    for order, name, call, expected in CASES:
        with subtests.test(order=order, claim=name):
            for client, claims in lost_anywhere(lambda order=order: fresh(order, names="abcd"), call):  # type: ignore[misc]
                assert [(each.task_id, each.state.attempt) for each in claims] == [(each, 1) for each in expected]
                assert not client.context.claims.handovers
                for each in claims:
                    client.complete(each)
                states = client.check()
                assert {states[each].state for each in expected} == {State.FINISHED}


def test_a_claim_cut_off_at_any_operation_is_given_back(subtests: pytest.Subtests) -> None:
    """The client's next claim finds all of it, and nobody else registers in vain.

    There is one attempt in all, which shows that the one nobody got was not counted.
    """
    for order, name, call, _ in CASES:
        with subtests.test(order=order, claim=name):
            for client, where in cut_anywhere(lambda order=order: fresh(order, names="abcd"), call):  # type: ignore[misc]
                assert not client.context.registration.joining
                claims = many(client, 5)
                assert sorted(ids(claims)) == list("abcd"), f"{where}, some are in nobody's hand"
                assert {each.state.attempt for each in claims} == {1}
                assert not client.context.claims.handovers
                for each in claims:
                    client.complete(each)
                assert {state.state for state in client.check().values()} == {State.FINISHED}


@pytest.mark.parametrize("arrived", [True, False])
def test_a_claim_of_unknown_outcome_is_resolved_before_the_next(arrived: bool, subtests: pytest.Subtests) -> None:
    """The server is away longer than the caller waits: `OutcomeUnknown`, and the next claim begins with its end.

    Where giving a group back is cut off in the middle, too, the next look goes on with the rest.
    """
    for order, name, call, expected in CASES:
        with subtests.test(order=order, claim=name):
            client = fresh(order, names="abcd")
            in_doubt(client, step(client, call(client)), "tasks/a/claim", arrived=arrived)
            assert len(client.context.claims.handovers) == 1
            if len(expected) > 1:
                back = step(client, giveback.give_back(client.context))
                back.until(Multi, "tasks/b/claim")
                back.step()
                back.until(Multi, "tasks/b/claim")
                back.cut()
            claims = client.do(call(client))
            assert [(each.task_id, each.state.attempt) for each in claims] == [(each, 1) for each in expected]
            assert not client.context.claims.handovers
            client.check()


def test_of_a_group_whose_reply_is_lost_one_may_be_taken_away_meanwhile() -> None:
    """The first of them was cancelled before the outcome is asked for: the others are known to be ours all the same."""
    client = fresh(names="abcde")
    stepper = step(client, claim.claim_many(client.context, ANY, 3))
    stepper.until(Multi, "/claim")
    client.zk.multi(client.session, stepper.op.ops)
    another(client).cancel("a")
    stepper.answer(UNKNOWN)
    assert isinstance(stepper.op, Reconnect)
    claims = stepper.finish()
    assert ids(claims) == ["a", "b", "c"]
    for each in claims[1:]:
        client.complete(each)
    assert client.check()["b"].state is State.FINISHED


def test_claims_are_delivered_by_one_statement() -> None:
    """Before it, all of them are on their way, given back if their caller leaves; after it, they are the caller's."""
    for names in ("a", "abc"):
        client, caller = fresh(names=names), Caller()
        claims = client.do(claim.claim_many(client.context, ANY, 3, caller=caller))
        assert list(client.context.claims.handovers) == [claims[0].state.nonce]
        assert many(client, 5) == []
        caller.left = True
        assert sorted(ids(many(client, 5))) == list(names)
        client, caller = fresh(names=names), Caller()
        claims = client.do(claim.claim_many(client.context, ANY, 3, caller=caller))
        client.context.claims.deliver(claims[-1])
        caller.left = True
        assert many(client, 5) == []
        for each in claims:
            client.complete(each)
        client.check()


def test_nothing_is_claimed_for_a_caller_that_has_left() -> None:
    """The client gives back what is owed and claims again; a call that nobody waits for must not claim after that."""
    for order, timeout in product(ORDERS, (0, 60)):
        for number in range(60):
            client, caller = fresh(order), Caller()
            stepper = step(client, claim.claim(client.context, ANY, timeout, lambda it=caller: it.left, caller))  # type: ignore[misc]
            for _ in range(number):
                stepper.step()
            caller.left = True
            if isinstance(stepper.op, Multi) and "tasks/a/claim" in repr(stepper.op):
                break  # sent by now: that is given back
            assert stepper.finish() is None
            assert not client.context.claims.handovers
            assert client.check()["a"].state is State.INSERTED
        else:
            pytest.fail("the claim is not sent by then")


def rolling_back(client: Client) -> Any:
    """The end of a transaction that has taken the task."""
    return transaction.rollback(transaction.Transaction(taken=[(client.context, client.claimed())]))


def test_a_rollback_cut_off_at_any_operation_is_made_by_the_next_claim() -> None:
    """Who left the transaction cannot roll back again; its client does, once: the taking counts as one delivery."""
    for client, where in cut_anywhere(lambda: fresh(attempts=3), rolling_back):
        claimed = client.take()
        assert claimed is not None, f"{where}, the task is in nobody's hand"
        assert claimed.state.attempt == 2
        assert not client.context.claims.owed
        client.check()


@pytest.mark.parametrize("arrived", [True, False])
def test_a_rollback_of_unknown_outcome_can_be_made_again_or_is_made_by_the_next_claim(arrived: bool) -> None:
    """Whoever comes first, the caller or the next claim; the other finds nothing left to do."""
    for again in (True, False):
        client = fresh(attempts=3)
        it = transaction.Transaction(taken=[(client.context, client.claimed())])
        in_doubt(client, step(client, transaction.rollback(it)), "tasks/a/state", arrived=arrived)
        if again:
            client.do(transaction.rollback(it))
        claimed = client.claimed()
        assert (claimed.task_id, claimed.state.attempt) == ("a", 2)
        client.do(transaction.rollback(it))
        client.complete(claimed)
        assert client.check()["a"].state is State.FINISHED


VERBS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], State]] = {
    "complete": (settle.complete, (b"r",), State.FINISHED),
    "fail": (settle.fail, ("e",), State.INSERTED),
    "release": (settle.release, (), State.INSERTED),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("arrived", [True, False])
def test_settling_again_after_an_unknown_outcome_tells_what_happened(verb: str, arrived: bool) -> None:
    """The same verb succeeds, whether the first try had been carried out or not; another verb is told that it lost."""
    procedure, arguments, ended = VERBS[verb]
    for same in (True, False):
        client = fresh(attempts=3)
        claimed = client.claimed()
        stepper = step(client, procedure(client.context, claimed, *arguments))
        if verb == "complete":  # the first try finds no bucket for what has finished
            stepper.until(Multi, "finished/")
            stepper.step()
        in_doubt(client, stepper, "finished/" if verb == "complete" else "tasks/a/state", arrived=arrived)
        other = settle.release if verb == "complete" else settle.complete
        again = procedure(client.context, claimed, *arguments) if same else other(client.context, claimed)
        if arrived and not same:
            with pytest.raises(ClaimLost):
                client.do(again)
        else:
            client.do(again)
        swapped = State.INSERTED if verb == "complete" else State.FINISHED
        assert client.check()["a"].state is (ended if same or arrived else swapped)
        assert not claimed.claim or claimed.lost


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("others", [3, 4])
def test_what_the_record_has_forgotten_is_never_told_as_known(arrived: bool, others: int) -> None:
    """Four settlements later nobody can tell whether an earlier try has settled the claim: both answers say so."""
    client = fresh(attempts=9)
    claimed = client.claimed()
    in_doubt(client, step(client, settle.release(client.context, claimed)), "tasks/a/state", arrived=arrived)
    if not arrived:  # somebody else ends the claim
        client.do(settle.release(new_context(client.zk, client.session), replace(claimed, nonces={}, unsure=False)))
    for _ in range(others if arrived else others - 1):
        client.do(settle.release(client.context, client.claimed()))

    def refused(kind: type[Exception], text: str, verb: Any = settle.release) -> None:
        with pytest.raises(kind, match=text):
            client.do(verb(client.context, claimed))

    if others == 4:
        refused(OutcomeUnknown, "cannot be told any more")
        refused(ClaimLost, "cannot be told any more")
        refused(ClaimLost, "cannot be told any more", settle.complete)
    elif arrived:
        client.do(settle.release(client.context, claimed))
    else:
        refused(ClaimLost, "changed nothing")
    client.complete(client.claimed())
    assert client.check()["a"].state is State.FINISHED
    assert not any((client.context.claims.owed, client.context.claims.handovers, client.context.claims.unsure))


def test_of_two_threads_that_settle_the_same_claim_one_does() -> None:
    """They come one after the other: the second is told that the claim is over, and its result is not kept."""
    client = fresh()
    claimed = client.claimed()
    one = step(client, settle.complete(client.context, claimed, b"A"))
    one.until(Multi, "tasks/a/state")
    two = step(client, settle.complete(client.context, claimed, b"B"))
    assert isinstance(two.op, Wait)
    one.finish()
    with pytest.raises(ClaimLost):
        two.answer(True)
    assert client.zk.nodes[client.context.paths.task("a", "result")].data == b"A"


def test_a_claim_that_is_learnt_of_late_takes_nothing_from_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease ended while its reply was on its way, and the same client claimed the task again: that claim holds."""
    monkeypatch.setattr(combining, "ON_THEIR_WAY", 2)  # else the later one waits for the reply, too
    client = fresh("fifo", attempts=3)  # whose consumers try what others of the client try
    late = step(client, claim.claim(client.context, LEASED))
    late.until(Multi, "tasks/a/claim")
    reply = client.zk.multi(client.session, late.op.ops)
    client.zk.advance(40)
    claimed = client.claimed()
    assert claimed.state.attempt == 2
    late.answer(reply)
    assert late.finish().lost
    assert not claimed.lost
    client.complete(claimed, result=b"r")
    with pytest.raises(ClaimLost):
        client.complete(late.result, result=b"late")
    assert client.zk.nodes[client.context.paths.task("a", "result")].data == b"r"
