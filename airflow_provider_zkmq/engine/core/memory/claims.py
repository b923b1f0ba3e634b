"""Claims of this client: on their way to their callers, in their hands, and left behind. Owner: this module.

Without the client's lock, a caller that gets its claim takes it off with `deliver`, whoever goes away sets
``Caller.left``, and anybody may read ``lost`` and ``cancelled``: each is one statement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.ops import Signal
from airflow_provider_zkmq.engine.core.protocol.writes import Multi

MAX_UNSURE: Final = 256


@dataclass(slots=True, eq=False, weakref_slot=True)
class Claimed:
    """A task in hand: what settling it needs. ``token`` is the zxid of the claim, unique and rising."""

    task_id: str
    token: int
    version: int
    state: TaskState
    created: int
    data: bytes = b""
    metadata: dict[str, Any] | None = None
    lost: bool = False
    cancelled: bool = False
    session: int = 0
    ahead: bool = False
    """Taken ahead, and no handler has begun: until one does, the death of its consumer counts no attempt."""
    following: Claimed | None = None
    """Taken ahead, too: it begins in the transaction that ends this one."""
    claim: dict[str, Any] = field(default_factory=dict)
    """What the claim's znode holds, less the progress."""
    nonces: dict[str, str] = field(default_factory=dict)
    """The nonce with which each way to settle it was first sent: asked again, the same one tells what happened."""
    settling: Signal | None = None
    """A call that settles it is under way; fired when that is over: another thread's waits for it."""
    unsure: bool = False
    """A try to settle it was sent, and its outcome is not known."""

    @property
    def span(self) -> float | None:
        """For how many seconds it holds unless it is extended; None: as long as its session lives."""
        return self.claim.get("lease")

    @property
    def begins(self) -> bool:
        """Whether it is still to be said that its handler begins."""
        return self.ahead and not self.lost

    @property
    def ends_with_session(self) -> bool:
        """Whether it ends with its session, with a lock or without."""
        return self.state.bound or self.state.lease is None


@dataclass(slots=True, eq=False)
class Caller:
    """Whoever asked for a claim; ``left``: it went away without it."""

    left: bool = False


@dataclass(slots=True, eq=False)
class Handover:
    """A claim on its way to its caller, from before it is sent until the caller has it."""

    claimed: Claimed
    multi: Multi
    caller: Caller
    busy: Signal | None = None
    """It is being given back; fired when that is over."""


@dataclass(slots=True, eq=False)
class Claims:
    """As many as this client has in flight and in hand; of settlements by token, the latest `MAX_UNSURE`."""

    in_hand: WeakValueDictionary[str, Claimed] = field(default_factory=WeakValueDictionary)
    """What is in the hands of this client's callers, by task; whoever lets go of a claim takes it off."""
    handovers: dict[str, Handover] = field(default_factory=dict)
    """By the claim's nonce."""
    owed: dict[int, Claimed] = field(default_factory=dict)
    """Claims of transactions whose rollback was cut off, by token."""
    unsure: dict[tuple[str, int], Claimed] = field(default_factory=dict)
    """What was settled by token and ended in an unknown outcome, by task and token."""
    trying: set[str] = field(default_factory=set)
    """The entries that threads of this client are claiming."""

    def receive(self, claimed: Claimed, token: int) -> None:
        """Remember a claim; of two of the same task in this process the older one can only be lost.

        The older one may be the one that is learnt of last: its reply was long on its way.
        """
        claimed.token = token
        other = self.in_hand.get(claimed.task_id)
        if other is not None and other.token > claimed.token:
            claimed.lost = True
            return
        if other is not None and other is not claimed:
            other.lost = True
        self.in_hand[claimed.task_id] = claimed

    def let_go(self, claimed: Claimed) -> None:
        """The claim is over, settled or lost."""
        claimed.lost = True
        if self.in_hand.get(claimed.task_id) is claimed:
            del self.in_hand[claimed.task_id]

    def end_session(self, session: int) -> None:
        """This client is a new session's: what was bound to another one is lost."""
        for claimed in list(self.in_hand.values()):
            if claimed.ends_with_session and claimed.session != session:
                self.let_go(claimed)

    def deliver(self, claimed: Claimed) -> None:
        """The caller has its claim: from here on it is the caller's to settle.

        A statement, not a call, takes it off: an interrupt can come after a call that has done its work.
        """
        handovers, nonce = self.handovers, claimed.state.nonce
        if nonce in handovers:
            del handovers[nonce]

    def left_behind(self) -> bool:
        """Whether a caller went away from a claim, or a rollback was cut off."""
        return bool(self.owed) or any(handover.caller.left for handover in self.handovers.values())

    def remember_unsure(self, claimed: Claimed) -> None:
        """A claim whose settling by token was sent, and whose outcome is not known."""
        self.unsure[claimed.task_id, claimed.token] = claimed
        if len(self.unsure) > MAX_UNSURE:
            del self.unsure[next(iter(self.unsure))]
