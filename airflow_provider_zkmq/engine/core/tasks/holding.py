"""What the holder of a claim does besides settling it: begin, extend, report progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.client.claims import Claimed
from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.codec import dump
from airflow_provider_zkmq.engine.core.model.names import is_prefetched
from airflow_provider_zkmq.engine.core.model.records import TaskState, clip
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.time import Duration, seconds
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Check,
    Create,
    Exists,
    Failure,
    Get,
    Multi,
    Node,
    Ops,
    Outcome,
    Post,
    Procedure,
    SetData,
    WriteOp,
)
from airflow_provider_zkmq.engine.core.protocol.transact import Tries, failed_at, never, refused, transact
from airflow_provider_zkmq.engine.core.read.leases import claim_lost, current_claim, lease_path, mark_path
from airflow_provider_zkmq.engine.core.write.record import may_have_dropped
from airflow_provider_zkmq.engine.core.write.transitions import beginning, notes_of
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    ConfigError,
    OutcomeUnknown,
    TaskNotFound,
    TransportError,
    ZkmqError,
)

# --- Whose a claim is after its holder was refused: another's by now, or the holder's still, in a tree that is damaged.


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
        """After a refusal: see `still_held`. One that says that the claim's note is gone has it written anew.

        `tried`: the version that was refused; another thread with the same claim may have learnt of a newer one
        meanwhile. Raises `CorruptRecord` for what is refused again and again although the claim is ours.
        """
        ended = yield from still_held(self.context, self.claimed, verb)
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
        context.warn_once(path, f"the note of a claim of task {claimed.task_id!r} was missing; made anew")


def still_held(context: Context, claimed: Claimed, verb: str = "") -> Procedure[TaskState | None]:
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
            context.pending.lost_claims[context.paths.current(claimed.state.consumer or "", claimed.task_id)] = (
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


def cancel_note(context: Context, state: TaskState) -> Procedure[list[WriteOp]]:
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


# --- What the holder of a claim does besides settling it: extend it, report its progress.


def progress(context: Context, claimed: Claimed, value: float, note: str = "") -> Procedure[None]:
    """Report how far the handling has come: `value` from 0 to 1, and a note. Raises `ClaimLost`.

    It stands in the claim's znode, and goes with it.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        msg = f"progress {value!r} is not allowed: a number from 0 to 1"
        raise ConfigError(msg)
    path = context.paths.task(claimed.task_id, "claim")
    record = dump(claimed.claim | {"progress": value, "note": clip(str(note))})
    # The record's version alone may be that of another run of the same id; the claim's note is this one's.
    notes = [Check(note) for note in notes_of(context, claimed.task_id, claimed.state)]
    yield from check_and_set(context, claimed, SetData(path, record), notes)


def extend(context: Context, claimed: Claimed, lease: Duration) -> Procedure[None]:
    """Hold the claim for `lease` more seconds from now; for a session-bound claim, check that it still holds.

    Raises `ClaimLost`.
    """
    span = seconds("lease", lease)
    if claimed.lost:
        raise claim_lost(claimed.task_id, claimed.token)
    if claimed.state.lease is None:
        yield from current_claim(context, claimed.task_id, claimed.token, claimed.claim.get("nonce"))
        return
    record = dump({"seconds": span, "consumer": claimed.state.consumer})
    # The deadline outlives the ephemeral of a session that has ended: until a rescue, only the claim's znode tells.
    held = [Check(context.paths.task(claimed.task_id, "claim"))]
    yield from check_and_set(context, claimed, SetData(lease_path(context, claimed.state), record), held)


def check_and_set(context: Context, claimed: Claimed, op: SetData, more: Sequence[WriteOp] = ()) -> Procedure[None]:
    """Write to a znode of the claim while it is the current one; `more`: what else has to hold for that."""
    if claimed.lost:
        raise claim_lost(claimed.task_id, claimed.token)
    holding = Holding(context, claimed, f"writing to the claim of task {claimed.task_id!r}")
    while True:
        tried = claimed.version
        ops = Ops([Check(context.paths.task(claimed.task_id, "state"), tried), *more, op])
        outcome = yield from transact(ops.multi(), never)
        if outcome.committed:
            context.clock.learn(outcome)
            return
        if outcome.failure is Failure.OTHER:
            raise refused("writing to the claim", outcome, ops.multi())
        yield from holding.after(outcome, ops.multi(), tried)


# --- Saying that the handler of a claim prefetched begins: from then on the delivery counts.
#
# Until then the death of its consumer, or the end of its lock or lease, counts no attempt. It is said without
# waiting for the reply where the claim can hardly be another's by now: what was given to the system arrives
# although this process is killed in the next moment, and before whatever settles the claim. Where it turns out not
# to stand, because the connection was lost, it is owed, and said once more.

#: Of a claim that was asked for longer ago it is not taken for granted that it is ours still: its session may be over.
FRESH_SECONDS: Final = 1.0
#: Nor of one of whose lock or lease this part has passed.
FRESH_PART: Final = 0.5


def begin(context: Context, claimed: Claimed) -> Procedure[None]:
    """Say that the handling of a claim prefetched begins: from here on the delivery counts. Raises `ClaimLost`.

    Of a claim of less than a second ago that is sent and not waited for: if it is lost, its settlement tells. Nothing
    is written for a claim that was not prefetched.
    """
    if claimed.lost:
        raise claim_lost(claimed.task_id, claimed.token)
    claimed.began = context.run.monotonic()
    if claimed.prefetched:
        if not (yield from _post(context, claimed)):
            yield from _acknowledged(context, claimed)
        claimed.prefetched = False


def begin_for(context: Context, claimed: Claimed) -> Procedure[None]:
    """Say that the handling of a claim begins that was prefetched, by another process, say: from here on it counts.

    Nothing is written for a claim that has begun. Raises `ClaimLost`.
    """
    if claimed.ends_with_session:  # it stands in its consumer's note; where that is gone, the claim is over, or damaged
        path = mark_path(context, claimed.task_id, claimed.state)
        node: Node | None = yield Get(path)
        claimed.prefetched = node is None or is_prefetched(path, node.data)
    yield from begin(context, claimed)


def begin_again(context: Context) -> Procedure[None]:
    """Say once more what does not stand, unless the claim is over. Raises `TransportError`: then it is owed still."""
    for key, claimed in context.pending.unmarked_starts.copy().items():
        if claimed.settling is not None:
            continue  # that tells whose it is; what is left then is looked at again
        try:
            yield from _acknowledged(context, claimed)
        except TransportError:
            raise
        except ClaimLost:
            pass
        except ZkmqError as error:
            path = context.paths.task(claimed.task_id)
            context.run.report(path, f"that its handler has begun is not noted, its death may count nothing: {error}")
        context.pending.unmarked_starts.pop(key, None)


def _post(context: Context, claimed: Claimed) -> Procedure[bool]:
    """Say it and do not wait, if that will do."""
    if not _is_fresh(context, claimed):
        return False
    multi = Multi((Check(context.paths.task(claimed.task_id, "state"), claimed.version), *_checks(context, claimed),
                   beginning(context, claimed)))  # fmt: skip
    sent: bool = yield Post(multi, partial(_note_unmarked_start, context, claimed))
    return sent


def _acknowledged(context: Context, claimed: Claimed) -> Procedure[None]:
    yield from check_and_set(context, claimed, beginning(context, claimed), _checks(context, claimed))


def _checks(context: Context, claimed: Claimed) -> list[Check]:
    """What tells a claim from another of the same task at the same version, where its mark's own path does not."""
    return [] if claimed.ends_with_session else [Check(lease_path(context, claimed.state))]


def _is_fresh(context: Context, claimed: Claimed) -> bool:
    """Whether the claim is ours still, as far as that can be told without asking."""
    if claimed.sent is None or claimed.cancelled or claimed.session != context.run.session():
        return False
    span = FRESH_SECONDS if claimed.span is None else min(FRESH_SECONDS, FRESH_PART * claimed.span)
    return context.run.monotonic() - claimed.sent < span


def _note_unmarked_start(context: Context, claimed: Claimed) -> None:
    """It does not stand. Called by the connection's thread, without the client's lock."""
    context.pending.unmarked_starts[claimed.task_id, claimed.token] = claimed
    context.run.finish_later()
