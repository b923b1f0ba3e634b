"""Whose a claim is after its holder was refused: another's by now, or the holder's still, in a tree that is damaged."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.stored import dump
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, Node, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at
from airflow_provider_zkmq.engine.core.protocol.tries import Tries
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Create, Failure, Multi, Outcome, SetData, WriteOp
from airflow_provider_zkmq.engine.core.reading.claims import claim_lost, current_claim
from airflow_provider_zkmq.engine.core.writing.pieces import notes_of
from airflow_provider_zkmq.engine.core.writing.record import may_have_dropped
from airflow_provider_zkmq.engine.errors import ClaimLost, OutcomeUnknown, TaskNotFound


@dataclass(slots=True)
class Holding:
    """The tries of one call that writes as the holder of a claim."""

    context: Context
    claimed: Claimed
    what: str
    tries: Tries = field(init=False)

    def __post_init__(self) -> None:
        self.tries = Tries(self.what)

    def after(self, outcome: Outcome, multi: Multi, tried: int, verb: str = "") -> Procedure[TaskState | None]:
        """After a refusal: see `still_ours`. One that says that the claim's note is gone has it written anew.

        `tried`: the version that was refused; another thread with the same claim may have learnt of a newer one
        meanwhile. Raises `CorruptRecord` for what is refused again and again although the claim is ours.
        """
        ended = yield from still_ours(self.context, self.claimed, verb)
        if ended is None and self.claimed.version == tried:
            yield from self.tries.refused(outcome, multi, tried)
            if outcome.failure is Failure.NO_NODE:
                yield from renote(self.context, self.claimed, failed_at(outcome, multi))
        return ended


def renote(context: Context, claimed: Claimed, path: str) -> Procedure[None]:
    """Write anew where a claim is noted, if that is what is missing: it is ours, as its record and its znode say.

    A rescue takes a note off together with the record's state: without it nobody would ever end the claim.
    """
    if path not in notes_of(context, claimed.task_id, claimed.state):
        return
    span = {"seconds": claimed.span, "consumer": claimed.state.consumer}
    note = Create(path, b"" if claimed.state.lease is None or "/current/" in path else dump(span))
    outcome: Outcome = yield Multi((Check(context.paths.task(claimed.task_id, "state"), claimed.version), note))
    if outcome.committed:
        context.tell(path, f"the note of a claim of task {claimed.task_id!r} was missing; made anew")


def still_ours(context: Context, claimed: Claimed, verb: str = "") -> Procedure[TaskState | None]:
    """After a refusal: the claim is another's (`ClaimLost`), or ours still, as `claimed` is then updated to say.

    Where an earlier try of `verb` is what ended the claim, its reply having been lost: the record that it left.
    """
    try:
        now = yield from current_claim(context, claimed.task_id, claimed.token, claimed.claim.get("nonce"))
    except (ClaimLost, TaskNotFound) as error:
        happened = yield from settled_before(context, claimed, verb)
        context.claims.let_go(claimed)
        if happened is not None:
            return happened
        if claimed.state.lease is None and claimed.session == context.run.session():
            context.debts.orphans[context.paths.current(claimed.state.consumer or "", claimed.task_id)] = (
                claimed.task_id
            )
        raise over(claimed) from error
    claimed.version, claimed.state = now.version, now.state
    return None


def settled_before(context: Context, claimed: Claimed, verb: str) -> Procedure[TaskState | None]:
    """The record, if an earlier call of the same verb ended this claim; None if another verb or somebody else did.

    Raises `OutcomeUnknown` where that cannot be told any more.
    """
    if not claimed.unsure:
        return None
    path = context.paths.task(claimed.task_id, "state")
    node: Node | None = yield Get(path)
    state = None if node is None else TaskState.decode(path, node.data)
    known = (*claimed.state.settled[-1:], *claimed.nonces.values())
    if state is None or may_have_dropped(state, known):
        context.claims.let_go(claimed)  # asked once more it is lost: no later look would tell more
        claimed.unsure, claimed.forgotten = False, True
        raise OutcomeUnknown(str(over(claimed)))
    return state if claimed.nonces.get(verb) in state.settled else None


def telling(context: Context, state: TaskState) -> Procedure[list[WriteOp]]:
    """What tells the consumer of a claimed task, which watches this znode, that it loses it; a dead one is not told."""
    path = context.paths.consumer(state.consumer or "", "current")
    there = state.state is State.CLAIMED and (yield Exists(path)) is not None
    return [SetData(path, b"")] if there else []


def over(claimed: Claimed) -> ClaimLost:
    """The error for a claim that is not the current one, which says so where a call of ours may have ended it."""
    if not claimed.forgotten:
        return claim_lost(claimed.task_id, claimed.token)
    which = f"claim {claimed.token} of task {claimed.task_id!r}"
    return ClaimLost(f"{which} is over; whether it was settled by us cannot be told any more")
