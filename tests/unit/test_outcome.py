"""Settling by outcome, cut off at each of its writes and begun again: tasks end in one place, none stays claimed."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.outcomes import Error, Retry, Snooze, Success
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Reconnect
from airflow_provider_zkmq.engine.core.protocol.writes import SetData
from airflow_provider_zkmq.engine.core.reading.claims import current_claim
from airflow_provider_zkmq.engine.core.tasks import putting, settle, transaction
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled, Settlement, settle_by, settle_outcome
from airflow_provider_zkmq.engine.errors import ClaimLost, OutcomeUnknown, TransportError, Unavailable, ZkmqError
from tests.fake_zookeeper import LOST, Faults, check_tree
from tests.unit.test_crash_points import World

I, F, D = State.INSERTED, State.FINISHED, State.DEAD  # noqa: E741
#: What a handler has done, and the state of its task then; a result that the engine refuses is final.
OUTCOMES: dict[str, tuple[Handled, State]] = {
    "success": (Success(b"r"), F),
    "error": (Error("no"), D),
    "retry": (Retry("busy", backoff=60), I),
    "snooze": (Snooze(60), I),
    "snooze into the past": (Snooze(-1), I),
    "a refused success": (Success(object()), D),  # type: ignore[arg-type]
}


@dataclass
class Hand:
    """A task in hand; `unit`: with another one, in a transaction that puts a third."""

    world: World = field(default_factory=World)
    transaction: transaction.Transaction | None = None

    def __post_init__(self) -> None:
        self.world.put(task_id="own")
        self.claimed: Claimed = self.world.take()
        self.progress = Settlement()

    def in_transaction(self) -> Hand:
        self.world.put(task_id="other")
        other = self.world.take()
        context = self.world.context
        self.transaction = transaction.Transaction([(context, self.claimed), (context, other)])
        putting.put(self.transaction.put, context, Message(b"y", task_id="put"))
        return self

    def settling(self, outcome: Handled) -> Any:
        return settle_outcome(self.world.context, self.claimed, outcome, self.transaction, self.progress)

    def states(self) -> dict[str, State]:
        return {task: state.state for task, state in check_tree(self.world.zk, self.world.context).items()}


def made(name: str) -> Hand:
    return Hand().in_transaction() if name == "transaction" else Hand()


def expected(name: str, state: State) -> dict[str, State]:
    if name != "transaction":
        return {"own": state}
    return {"own": state, "other": F, "put": I} if state is F else {"own": state, "other": I}


def cut_off(procedure: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The procedure, for which a connection that was lost does not come back."""
    try:
        op = next(procedure)
        while True:
            if isinstance(op, Reconnect):
                op = procedure.throw(Unavailable("away"))
                continue
            try:
                result = yield op
            except ZkmqError as error:
                op = procedure.throw(error)
            else:
                op = procedure.send(result)
    except StopIteration as stop:
        return stop.value


def writes(where: str, outcome: Handled) -> int:
    hand, faults = made(where), Faults()
    hand.world.do(hand.settling(outcome), faults)
    return faults.seen


POINTS = [
    (where, name, at, kind)
    for where in ("alone", "transaction")
    for name, (outcome, _) in OUTCOMES.items()
    for at in range(writes(where, outcome))
    for kind in LOST
]


@pytest.mark.parametrize(("where", "name", "at", "kind"), POINTS)
def test_an_unknown_outcome_does_not_stop_the_settling(where: str, name: str, at: int, kind: str) -> None:
    """Repeated with its progress it goes on where it was: each task is in its place, and the worker takes the next.

    Who settles hears what happened.
    """
    outcome, state = OUTCOMES[name]
    hand = made(where)
    with pytest.raises(OutcomeUnknown):
        hand.world.do(cut_off(hand.settling(outcome)), Faults(at, kind))
    good = hand.world.do(hand.settling(outcome))
    assert hand.states() == expected(where, state)
    assert good is (state is F)
    hand.world.put(task_id="next", priority=1)
    assert hand.world.take().task_id == "next"


@pytest.mark.parametrize(("where", "name", "at", "kind"), POINTS)
def test_a_lost_reply_is_no_news_to_the_settling(where: str, name: str, at: int, kind: str) -> None:
    """Where the connection comes back in time, the settling needs no repetition."""
    outcome, state = OUTCOMES[name]
    hand = made(where)
    assert hand.world.do(hand.settling(outcome), Faults(at, kind)) is (state is F)
    assert hand.states() == expected(where, state)


def test_a_handler_that_ended_its_transaction_has_settled_its_task() -> None:
    """What it committed is finished, what it rolled back is given back; nothing is asked of the server again."""
    for end, states in (
        (transaction.commit, {"own": F, "other": F, "put": I}),
        (transaction.rollback, {"own": I, "other": I}),
    ):
        hand, faults = made("transaction"), Faults()
        hand.world.do(end(hand.transaction))
        assert hand.world.do(hand.settling(Success()), faults) is True
        assert (faults.seen, hand.states()) == (0, states)


@pytest.mark.parametrize("at", [0, 1])
def test_a_handler_s_rollback_that_was_cut_off_is_finished(at: int) -> None:
    """It swallowed the error and returned a result: that is not committed, and no task stays claimed."""
    hand = made("transaction")
    with pytest.raises(OutcomeUnknown):
        hand.world.do(cut_off(transaction.rollback(hand.transaction)), Faults(at, LOST[0]))
    assert hand.world.do(hand.settling(Success(b"r"))) is False
    assert hand.states() == {"own": I, "other": I}


@pytest.mark.parametrize("kind", LOST)
def test_a_handler_s_commit_that_was_cut_off_tells_what_happened(kind: str) -> None:
    """It swallowed the error and returned: the settling asks again, and all of it is committed once."""
    hand = made("transaction")
    with pytest.raises(OutcomeUnknown):
        hand.world.do(cut_off(transaction.commit(hand.transaction, b"r")), Faults(0, kind))
    assert hand.world.do(hand.settling(Success(b"r"))) is True
    assert hand.states() == {"own": F, "other": F, "put": I}


@pytest.mark.parametrize("lost", ["own", "other"])
def test_a_lost_claim_takes_nothing_with_it(lost: str) -> None:
    """One of a transaction's claims is over when it is committed: nothing is, and the rest is given back."""
    hand = made("transaction")
    assert hand.transaction is not None
    others = {claimed.task_id: claimed for _, claimed in hand.transaction.taken}
    thief = hand.world.do(current_claim(hand.world.context, lost, others[lost].token))
    hand.world.do(settle.complete(hand.world.context, thief))
    if lost == "own":
        with pytest.raises(ClaimLost):
            hand.world.do(hand.settling(Success()))
    else:
        assert hand.world.do(hand.settling(Success())) is False
    rest = "other" if lost == "own" else "own"
    assert hand.states() == {lost: F, rest: I}


@pytest.mark.parametrize("where", ["alone", "transaction"])
@pytest.mark.parametrize("outcome", [Success(b"r"), Retry("busy")])
def test_a_damaged_record_is_written_over_by_who_holds_the_task(where: str, outcome: Handled) -> None:
    """The task is a dead letter with the reason; a claim that is another's by then changes nothing."""
    hand = made(where)
    path = hand.world.context.paths.task("own", "state")
    hand.world.zk.multi(0, (SetData(path, b"no record"),))
    assert hand.world.do(hand.settling(outcome)) is False
    assert hand.states() == expected(where, D)
    record = check_tree(hand.world.zk, hand.world.context)["own"]
    assert "does not hold" in (record.error or "")


def test_a_damaged_record_of_a_lost_claim_stays_as_it_is() -> None:
    """Its session ended: whoever settles is told `ClaimLost` and does not touch what stands there."""
    hand = made("alone")
    path = hand.world.context.paths.task("own", "state")
    hand.world.zk.multi(0, (SetData(path, b"no record"),))
    hand.world.zk.expire(hand.world.session)
    hand.world.session = hand.world.zk.connect()
    with pytest.raises(ClaimLost):
        hand.world.do(hand.settling(Success()))
    node = hand.world.zk.node(path)
    assert node is not None
    assert node.data == b"no record"


class Stubborn:
    """A delivery of which the engine refuses every end."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _refuse(self, what: str) -> Any:
        self.asked.append(what)
        raise ZkmqError(f"{what} was refused")
        yield  # pragma: no cover

    def succeed(self, _outcome: Success) -> Any:
        return self._refuse("success")

    def withdraw(self) -> Any:
        yield from ()

    def fail(self, _error: Any, *, retry: bool, **_: object) -> Any:
        return self._refuse("a failure" if retry else "a final failure")

    def snooze(self, _delay: object) -> Any:
        return self._refuse("a snooze")

    def recover(self) -> Any:
        yield from ()


@pytest.mark.parametrize(
    ("outcome", "asked"),
    [(Success(), ["success", "a final failure", "a failure"]), (Snooze(1), ["a snooze", "a failure", "a failure"])],
)
def test_what_cannot_be_settled_is_raised(outcome: Handled, asked: list[str]) -> None:
    """After the failure in its place was refused, too, the error leaves: no loop, and no success that was none."""
    ends = Stubborn()
    with pytest.raises(ZkmqError, match="refused"):
        World().do(settle_by(ends, outcome, Settlement()))
    assert ends.asked == asked


def test_a_rollback_without_anything_taken_cannot_keep_a_commit_out() -> None:
    """Its puts were sent and may still come: the rollback says so, rather than that nothing will happen."""
    world = World()
    for kind, error in ((LOST[0], OutcomeUnknown), (LOST[1], ZkmqError)):
        it = transaction.Transaction()
        putting.put(it.put, world.context, Message(b"y", task_id="put"))
        with pytest.raises(OutcomeUnknown):
            world.do(cut_off(transaction.commit(it)), Faults(0, kind))
        with pytest.raises(error) as caught:
            world.do(transaction.rollback(it))
        assert isinstance(caught.value, TransportError) is (kind == LOST[0])


def test_a_repeated_commit_writes_no_second_time() -> None:
    """Asked again after it has ended, it returns the ids and sends nothing."""
    hand, faults = made("transaction"), Faults()
    assert hand.world.do(transaction.commit(hand.transaction)) == ["put"]
    assert hand.world.do(transaction.commit(hand.transaction), faults) == ["put"]
    assert faults.seen == 0
