"""A claim in a caller's hand: what claims of both APIs and transactions know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..core.context import Claimed, Context
from ..core.model.states import State, derive_status
from ..core.read.inspect import Task
from ..zk.session import Session

#: What a session's id is while it is not known, which is no news of its end.
UNKNOWN_SESSION: Final = 0


@dataclass(frozen=True, slots=True)
class ClaimHandle:
    """A claim, and its client's memory of the queue that it was taken from."""

    context: Context
    claimed: Claimed

    @property
    def span(self) -> float | None:
        """For how many seconds the claim holds unless it is extended; None: to the end of its session."""
        return self.claimed.claim.get("lease")

    def is_over(self, session: Session) -> bool:
        """Whether the session that the claim is bound to has ended: one that is merely cut off still holds it."""
        leased = self.span is not None and not self.claimed.state.bound
        return session.closed or not (leased or session.id in {self.claimed.session, UNKNOWN_SESSION})


def task_of(context: Context, claimed: Claimed) -> Task:
    """The task of a claim, as it was handed out."""
    state = claimed.state
    return Task(
        id=claimed.task_id,
        state=State.CLAIMED,
        status=derive_status(State.CLAIMED, scheduled=False),
        attempt=state.attempt,
        priority=state.priority,
        filters=dict(state.filters),
        metadata=claimed.metadata or {},
        data=claimed.data,
        result=None,
        error=state.error,
        consumer=state.consumer,
        enqueued_ms=claimed.created,
        claimed_ms=state.claimed,
        ended_ms=None,
        due_ms=state.was_due,
        history=state.history,
        version=claimed.token,
        batch=state.batch,
        started_ms=None if claimed.began is None else context.clock.at(claimed.began),
    )
