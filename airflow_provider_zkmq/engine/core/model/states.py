"""The state machine of a task: this table is the specification.

Each state says who moves a task out of it and what a crash leaves:

* ``inserted``: pending, in its lane or scheduled. A consumer's claim moves it out; a crash leaves it pending. Where
  its policy was tightened below the deliveries it has had, whoever would claim it buries it instead (``exhaust``).
* ``claimed``: with a consumer. Its owner settles it; when the owner dies, a rescue gives it back. Where a run is
  held in escrow (Carmine's requeue), the end of this one, whichever way, inserts that (``rerun``).
* ``finished``: done, the result kept. Garbage collection deletes it; an enqueue of the same id runs it anew, or inside
  its dedupe window leaves a run in escrow (``requeue``). With a run in escrow it is listed as scheduled: the end of its
  dedupe window inserts that; a run that cannot be read any more is given up (``give-up-run``).
* ``dead``: ended in failure, listed in the dead letter queue. An operator's redrive moves it out.
* ``cancelled``: withdrawn. A redrive or an enqueue of the same id moves it out, or garbage collection deletes it.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import product

from ...errors import IllegalTransition


class State(StrEnum):
    """What is stored; the first three words are zkmq's."""

    INSERTED = "inserted"
    CLAIMED = "claimed"
    FINISHED = "finished"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Status(StrEnum):
    """What is derived from the stored state, in Carmine's vocabulary plus ``dead`` and ``cancelled``."""

    QUEUED = "queued"
    QUEUED_WITH_BACKOFF = "queued-with-backoff"
    LOCKED = "locked"
    LOCKED_WITH_REQUEUE = "locked-with-requeue"
    DONE_AWAITING_GC = "done-awaiting-gc"
    DONE_WITH_BACKOFF = "done-with-backoff"
    DONE_WITH_REQUEUE = "done-with-requeue"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What happens to a task."""

    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    FAIL_FINAL = "fail-final"
    RELEASE = "release"
    RESCUE = "rescue"
    RESCUE_FINAL = "rescue-final"
    PROMOTE = "promote"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    UPDATE = "update"
    REQUEUE = "requeue"
    RERUN = "rerun"
    ENQUEUE_AGAIN = "enqueue-again"
    ATTEMPTS_EXHAUSTED = "exhaust"
    GIVE_UP_RUN = "give-up-run"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.INSERTED, Event.CLAIM): State.CLAIMED,
    (State.INSERTED, Event.PROMOTE): State.INSERTED,
    (State.INSERTED, Event.CANCEL): State.CANCELLED,
    (State.INSERTED, Event.UPDATE): State.INSERTED,
    (State.INSERTED, Event.ATTEMPTS_EXHAUSTED): State.DEAD,
    (State.INSERTED, Event.RERUN): State.INSERTED,
    (State.CLAIMED, Event.COMPLETE): State.FINISHED,
    (State.CLAIMED, Event.FAIL): State.INSERTED,
    (State.CLAIMED, Event.FAIL_FINAL): State.DEAD,
    (State.CLAIMED, Event.RELEASE): State.INSERTED,
    (State.CLAIMED, Event.RESCUE): State.INSERTED,
    (State.CLAIMED, Event.RESCUE_FINAL): State.DEAD,
    (State.CLAIMED, Event.CANCEL): State.CANCELLED,
    (State.CLAIMED, Event.REQUEUE): State.CLAIMED,
    (State.CLAIMED, Event.RERUN): State.INSERTED,
    (State.FINISHED, Event.REQUEUE): State.FINISHED,
    (State.FINISHED, Event.RERUN): State.INSERTED,
    (State.FINISHED, Event.GIVE_UP_RUN): State.FINISHED,
    (State.FINISHED, Event.ENQUEUE_AGAIN): State.INSERTED,
    (State.DEAD, Event.REDRIVE): State.INSERTED,
    (State.CANCELLED, Event.REDRIVE): State.INSERTED,
    (State.CANCELLED, Event.ENQUEUE_AGAIN): State.INSERTED,
}

#: States that no consumer's work changes any more.
ENDED = frozenset({State.FINISHED, State.DEAD, State.CANCELLED})
#: Those in which a task has ended and was not done.
FAILED = frozenset({State.DEAD, State.CANCELLED})


def step(task_id: str, state: State, event: Event) -> State:
    """The state after `event`. Raises `IllegalTransition` where the table has no row."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"task {task_id!r} is {state}: {event} is not possible") from None


def derive_status(state: State, *, scheduled: bool, requeue: bool = False, window: bool = False) -> Status:
    """Carmine's word for a stored state.

    `scheduled`: it is not to be handled yet; `requeue`: a run is held in escrow; `window`: its dedupe window is open.
    """
    match state:
        case State.INSERTED:
            return Status.QUEUED_WITH_BACKOFF if scheduled else Status.QUEUED
        case State.CLAIMED:
            return Status.LOCKED_WITH_REQUEUE if requeue else Status.LOCKED
        case State.FINISHED:
            if requeue:
                return Status.DONE_WITH_REQUEUE
            return Status.DONE_WITH_BACKOFF if window else Status.DONE_AWAITING_GC
        case _:
            return Status(state.value)


#: The state that each status is a part of.
STATE_OF: dict[Status, State] = {
    derive_status(state, scheduled=scheduled, requeue=requeue, window=window): state
    for state in State
    for scheduled, requeue, window in product((False, True), repeat=3)
}
