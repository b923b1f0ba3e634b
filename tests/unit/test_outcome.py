"""Settling by outcome: what a handler ended itself, what is damaged, what the engine refuses: no task stays claimed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.handler_outcomes import Handled, Retry, Snooze, Success
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read.claim_status import current_claim
from airflow_provider_zkmq.engine.core.tasks import settle, transaction
from airflow_provider_zkmq.engine.core.tasks.settle_by_outcome import Settlement, settle_by, settle_outcome
from airflow_provider_zkmq.engine.core.zk_operations import Reconnect, SetData
from airflow_provider_zkmq.engine.errors import ClaimLost, OutcomeUnknown, TransportError, Unavailable, ZkmqError
from tests.unit.world import LOST, Client, Faults, carry_out, execute, new_queue

I, F, D = State.INSERTED, State.FINISHED, State.DEAD  # noqa: E741


class Hand:
    """A task in hand; `unit`: with another one, in a transaction that puts a third."""

    def __init__(self, *, unit: bool = False) -> None:
        self.client = new_queue()
        self.context, self.progress = self.client.context, Settlement()
        self.client.put(task_id="own")
        self.claimed = self.client.claimed()
        self.transaction: Any = None
        if unit:
            self.client.put(task_id="other")
            self.other = self.client.claimed()
            self.transaction = transaction.TransactionState([(self.context, self.claimed), (self.context, self.other)])
            transaction.put(self.transaction.put, self.context, Message(b"y", task_id="put"))

    def do(self, procedure: Any, faults: Faults | None = None, *, cut_off: bool = False) -> Any:
        """Carry a procedure out; `cut_off`: a connection that was lost does not come back."""
        zk, session, chosen = self.client.zk, self.client.session, faults or Faults()

        def each(op: Any) -> Any:
            if cut_off and isinstance(op, Reconnect):
                raise Unavailable("away")
            return execute(zk, session, op, chosen)

        try:
            return carry_out(procedure, each)
        finally:
            for late in chosen.late:
                zk.perform(session, late)

    def unheard(self, procedure: Any, at: int, kind: str) -> None:
        """It is cut off, and told that nobody knows."""
        with pytest.raises(OutcomeUnknown):
            self.do(procedure, Faults(at, kind), cut_off=True)

    def settling(self, outcome: Handled) -> Any:
        return settle_outcome(self.context, self.claimed, outcome, self.transaction, self.progress)

    def states(self) -> dict[str, State]:
        return {task: state.state for task, state in self.client.check().items()}

    def damaged(self, name: str = "own") -> str:
        """The record of a task in hand, overwritten."""
        path = self.context.paths.task(name, "state")
        self.client.zk.multi(0, (SetData(path, b"no record"),))
        return path


def expected(state: State, *, unit: bool) -> dict[str, State]:
    if not unit:
        return {"own": state}
    return {"own": state, "other": F, "put": I} if state is F else {"own": state, "other": I}


def test_a_handler_that_ended_its_transaction_has_settled_its_task() -> None:
    """What it committed is finished, what it rolled back is given back; nothing is asked of the server again."""
    for end, told, states in (
        (transaction.commit, ["put"], {"own": F, "other": F, "put": I}),
        (transaction.rollback, None, {"own": I, "other": I}),
    ):
        hand, faults = Hand(unit=True), Faults()
        assert hand.do(end(hand.transaction)) == told
        assert hand.do(end(hand.transaction), faults) == told
        assert hand.do(hand.settling(Success()), faults) is True
        assert (faults.seen, hand.states()) == (0, states)


def test_what_a_handler_ended_and_was_cut_off_from_is_finished(subtests: pytest.Subtests) -> None:
    """It swallowed the error and returned a result: a rollback stays one, and a commit is committed once."""
    back, forth = {"own": I, "other": I}, {"own": F, "other": F, "put": I}
    for end, at, kind, states in (
        *((transaction.rollback, at, LOST[0], back) for at in (0, 1)),
        *((lambda unit: transaction.commit(unit, b"r"), 0, kind, forth) for kind in LOST),
    ):
        with subtests.test(at=at, kind=kind, states=states):
            hand = Hand(unit=True)
            hand.unheard(end(hand.transaction), at, kind)
            assert hand.do(hand.settling(Success(b"r"))) is (states is forth)
            assert hand.states() == states


def test_what_a_handler_could_not_commit_is_given_back_though_nobody_knows_what_became_of_that(
    subtests: pytest.Subtests,
) -> None:
    """Its own task was all that it had taken; its commit was cut off, and it failed: it ends at the first try."""
    for kind, states in ((LOST[0], {"own": I}), (LOST[1], {"own": F, "put": I}), (LOST[2], {"own": F, "put": I})):
        with subtests.test(kind=kind):
            hand = Hand()
            hand.transaction = transaction.TransactionState([(hand.context, hand.claimed)])
            transaction.put(hand.transaction.put, hand.context, Message(b"y", task_id="put"))
            hand.unheard(transaction.commit(hand.transaction), 1, kind)
            if kind == LOST[0]:
                assert hand.do(hand.settling(Retry("busy"))) is False
            else:
                with pytest.raises(ClaimLost):
                    hand.do(hand.settling(Retry("busy")))
            assert hand.states() == states


def test_a_lost_claim_takes_nothing_with_it() -> None:
    """One of a transaction's claims is over when it is committed: nothing is, and the rest is given back."""
    for lost, rest in (("own", "other"), ("other", "own")):
        hand = Hand(unit=True)
        token = (hand.claimed if lost == "own" else hand.other).token
        thief = hand.do(current_claim(hand.context, lost, token))
        hand.do(settle.complete(hand.context, thief))
        if lost == "own":
            with pytest.raises(ClaimLost):
                hand.do(hand.settling(Success()))
        else:
            assert hand.do(hand.settling(Success())) is False
        assert hand.states() == {lost: F, rest: I}


def test_a_damaged_record_is_written_over_by_who_holds_the_task_and_by_nobody_else() -> None:
    """The task is a dead letter with the reason; once the claim's session has ended, what stands there stays."""
    for unit in (False, True):
        for outcome in (Success(b"r"), Retry("busy")):
            hand = Hand(unit=unit)
            hand.damaged()
            assert hand.do(hand.settling(outcome)) is False
            assert hand.states() == expected(D, unit=unit)
            assert "does not hold" in (hand.client.state("own").error or "")
    hand = Hand(unit=True)  # a handler fails whose transaction took a task that was damaged meanwhile
    hand.damaged("other")
    assert hand.do(hand.settling(Retry("busy"))) is False
    assert hand.states() == {"own": I, "other": D}
    hand = Hand()
    path = hand.damaged()
    hand.client.zk.expire(hand.client.session)
    with pytest.raises(ClaimLost):
        Client(hand.client.zk).do(hand.settling(Success()))
    assert hand.client.zk.nodes[path].data == b"no record"


def stubborn(requested: list[str]) -> Any:
    """A delivery of which the engine refuses every end, and what was asked of it."""

    def refuse(what: str) -> Any:
        requested.append(what)
        raise ZkmqError(f"{what} was refused")
        yield

    nothing = lambda: iter(())
    return SimpleNamespace(
        succeed=lambda _outcome: refuse("success"),
        fail=lambda _error, *, retry, **_: refuse("a failure" if retry else "a final failure"),
        snooze=lambda _delay: refuse("a snooze"),
        withdraw=nothing,
        recover=nothing,
    )


def test_what_cannot_be_settled_is_raised() -> None:
    """After the failure in its place was refused, too, the error leaves: no loop, and no success that was none."""
    for outcome, expected in (
        (Success(), ["success", "a final failure", "a failure"]),
        (Snooze(1), ["a snooze", "a failure", "a failure"]),
    ):
        requested: list[str] = []
        with pytest.raises(ZkmqError, match="refused"):
            new_queue().do(settle_by(stubborn(requested), outcome, Settlement()))
        assert requested == expected


def test_a_rollback_without_anything_taken_cannot_keep_a_commit_out() -> None:
    """Its puts were sent and may still come: the rollback says so, rather than that nothing will happen."""
    hand = Hand()
    for kind, error in ((LOST[0], OutcomeUnknown), (LOST[1], ZkmqError)):
        it = transaction.TransactionState()
        transaction.put(it.put, hand.context, Message(b"y", task_id="put"))
        hand.unheard(transaction.commit(it), 0, kind)
        with pytest.raises(error) as caught:
            hand.do(transaction.rollback(it))
        assert isinstance(caught.value, TransportError) is (kind == LOST[0])
