"""Claims of this client: on their way to their callers, in their hands, and left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from airflow_provider_zkmq.engine.core.client.clock import Clock
from airflow_provider_zkmq.engine.core.model.records import TaskState, Times
from airflow_provider_zkmq.engine.core.protocol.ops import Multi, Procedure, Signal

# --- Claims of this client: on their way to their callers, in their hands, and left behind. Owner: this module.
#
# Without the client's lock, a caller that gets its claim takes it off with `deliver`, whoever goes away sets
# ``Caller.left``, and anybody may read ``lost`` and ``cancelled``: each is one statement.

MAX_UNSURE: Final = 256


@dataclass(slots=True, eq=False, weakref_slot=True)
class Claimed:
    """A task in hand: what settling it needs. ``token`` is the zxid of the claim: rising, and unique for its task.

    Tasks that were claimed in one transaction share it.
    """

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
    sent: float | None = None
    """When the transaction that claimed it was sent, by the driver's monotonic clock; None: that is not known."""
    began: float | None = None
    """When its handler began, by the driver's monotonic clock; None: that is not known."""
    handled: float | None = None
    """When its handler ended; None: it has not, or it ends its delivery itself."""
    prefetched: bool = False
    """Prefetched, and no handler has begun: until one does, the death of its consumer counts no attempt."""
    chained: bool = False
    """It is being settled together with others, which send its transaction (`core.write.group_commit`)."""
    reported: bool = False
    """Whoever settles it has been told that it is over: settled, or lost."""
    claim: dict[str, Any] = field(default_factory=dict)
    """What the claim's znode holds, less the progress; ``began``: when another process said that it begins."""
    nonces: dict[str, str] = field(default_factory=dict)
    """The nonce with which each way to settle it was first sent: asked again, the same one tells what happened."""
    settling: Signal | None = None
    """A call that settles it is under way; fired when that is over: another thread's waits for it."""
    unsure: bool = False
    """A try to settle it was sent, and its outcome is not known."""
    forgotten: bool = False
    """What became of such a try can be told by nobody any more: the record is gone, or has no room for its nonce."""
    handover: str = ""
    """The key of the note under which it is on its way to its caller."""

    @property
    def span(self) -> float | None:
        """For how many seconds it holds unless it is extended; None: as long as its session lives."""
        return self.claim.get("lease")

    def times(self, clock: Clock, now: int) -> Times:
        """When its handler began and ended, by the server's clock, which stands at about `now`."""
        started = self.claim.get("began") if self.began is None else clock.at(self.began)
        if started is None:
            return Times(None, now)
        return Times(started, clock.at(clock.monotonic() if self.handled is None else self.handled) or now)

    @property
    def ends_with_session(self) -> bool:
        """Whether it ends with its session, with a lock or without."""
        return self.state.bound or self.state.lease is None


@dataclass(slots=True, eq=False)
class Caller:
    """Whoever asked for claims; ``left``: it went away without them. ``key``: that of what is on its way to it."""

    left: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True)
class Sending:
    """A transaction that claims, and what it claims."""

    claims: tuple[Claimed, ...]
    multi: Multi


@dataclass(slots=True, eq=False)
class Handover:
    """Claims on their way to their caller, from before they are sent until the caller has all of them."""

    caller: Caller
    sent: list[Sending] = field(default_factory=list)
    busy: Signal | None = None
    """It is being given back; fired when that is over."""


@dataclass(frozen=True, slots=True)
class UnsettledClaim:
    """A claim that nobody settles any more, and how its client does."""

    claimed: Claimed
    end: Callable[[Any, Claimed], Procedure[None]]
    """A procedure on the client's memory of the queue; raises `ClaimLost` where nothing is left to be settled."""


@dataclass(slots=True, eq=False)
class Sender:
    """A call that takes along what was put down; ``over``: it does not any more. That is a statement of its own."""

    over: bool = False


@dataclass(slots=True, eq=False)
class DeferredCompletion:
    """A claim that has been handled, and is settled together with others: see `core.tasks.deferred_completions`."""

    claimed: Claimed
    settle: Callable[[], Procedure[Any]]
    """Settles it; asked for again after a `TransportError`."""
    on_settled: Callable[[Any, Exception | None], None]
    """Called with what `settle` returned, or raised in the end; with the client's memory locked: it waits for nothing.

    A `TransportError` is told only where nobody tries again: of a client that was closed. Where an interrupt meets it,
    it is called once more.
    """
    due: float
    """When it is settled at the latest, by our monotonic clock, whether anything goes with it or not."""
    error: Exception | None = None
    """Why the latest try has failed."""
    sender: Sender | None = None
    """Who has taken it along last."""
    settling: Any = None
    """How far that has come (`core.write.group_commit.Settling`)."""

    @property
    def waits(self) -> bool:
        """Whether nobody has taken it along."""
        return self.sender is None or self.sender.over


@dataclass(slots=True, eq=False)
class ClaimTable:
    """As many as this client has in flight and in hand; of settlements by token, the latest `MAX_UNSURE`."""

    held: WeakValueDictionary[str, Claimed] = field(default_factory=WeakValueDictionary)
    """What is in the hands of this client's callers, by task; whoever lets go of a claim takes it off."""
    handovers: dict[str, Handover] = field(default_factory=dict)
    """One for each call, by the nonce of the claim that it noted first."""
    unsettled: dict[tuple[str, int], UnsettledClaim] = field(default_factory=dict)
    """Claims of transactions whose rollback was cut off, and of loops that were left, by task and token."""
    deferred: dict[tuple[str, int], DeferredCompletion] = field(default_factory=dict)
    """What has been handled, by task and token, until it is told: it goes with this client's next claim, or soon."""
    unsure: dict[tuple[str, int], Claimed] = field(default_factory=dict)
    """What was settled by token and ended in an unknown outcome, by task and token."""
    trying: set[str] = field(default_factory=set)
    """The entries that threads of this client are claiming."""

    def receive(self, claimed: Claimed, token: int, sent: float | None = None) -> None:
        """Remember a claim; of two of the same task in this process the older one can only be lost.

        The older one may be the one that is learnt of last: its reply was long on its way.
        """
        claimed.token = token
        claimed.sent = sent
        other = self.held.get(claimed.task_id)
        if other is not None and other.token > claimed.token:
            claimed.lost = True
            return
        if other is not None and other is not claimed:
            other.lost = True
        self.held[claimed.task_id] = claimed

    def let_go(self, claimed: Claimed) -> None:
        """The claim is over, settled or lost."""
        claimed.lost = True
        if self.held.get(claimed.task_id) is claimed:
            del self.held[claimed.task_id]

    def end_session(self, session: int, zxid: int) -> None:
        """This client is a new session's: what was bound to another one is lost.

        So is what was claimed later than `zxid`, the server's latest transaction: it was restored from an older state.
        """
        for claimed in list(self.held.values()):
            if (claimed.ends_with_session and claimed.session != session) or claimed.token > zxid:
                self.let_go(claimed)

    def note(self, caller: Caller, claims: tuple[Claimed, ...], multi: Multi) -> Sending:
        """A transaction that claims is about to be sent: what it takes is on its way to the caller."""
        if caller.key not in self.handovers:
            caller.key = claims[0].state.nonce
            self.handovers[caller.key] = Handover(caller)
        for claimed in claims:
            claimed.handover = caller.key
        sending = Sending(claims, multi)
        self.handovers[caller.key].sent.append(sending)
        return sending

    def strike(self, caller: Caller, sending: Sending) -> None:
        """A transaction that was to claim did not happen."""
        handover = self.handovers.get(caller.key)
        if handover is None:
            return
        handover.sent = [each for each in handover.sent if each is not sending]
        if not handover.sent:
            del self.handovers[caller.key]

    def deliver(self, claimed: Claimed) -> None:
        """The caller has its claim, and all that it asked for together with it: they are the caller's to settle.

        A statement, not a call, takes them off, all or none: an interrupt can come after a call that has done its work.
        """
        handovers, key = self.handovers, claimed.handover
        if key in handovers:
            del handovers[key]

    def has_undelivered(self) -> bool:
        """Whether a caller went away from a claim, a rollback was cut off, or a loop was left."""
        return bool(self.unsettled) or any(handover.caller.left for handover in self.handovers.values())

    def remember_unsure(self, claimed: Claimed) -> None:
        """A claim whose settling by token was sent, and whose outcome is not known."""
        self.unsure[claimed.task_id, claimed.token] = claimed
        if len(self.unsure) > MAX_UNSURE:
            del self.unsure[next(iter(self.unsure))]


# --- What calls left to be put right, besides claims.
#
# Owners: `core.write.batch_closing`, `core.tasks.holding`, `core.tasks.holding`, `core.maintenance.consumers`.


@dataclass(slots=True, eq=False)
class PendingOperations:
    """At most what is in flight when a connection is lost."""

    batches: set[str] = field(default_factory=set)
    """Batches whose last member may be off, and which were not ended."""
    lost_claims: dict[str, str] = field(default_factory=dict)
    """Of claims that were lost while their session lives: the task by the note, which may still stand."""
    unmarked_starts: dict[tuple[str, int], Claimed] = field(default_factory=dict)
    """Claims whose handlers have begun, and where that does not stand, by task and token.

    The connection's thread adds to it, without the client's lock: it is read as a copy, and changed by a statement.
    """
    finishing: bool = False
    """A thread puts things right in the background; changed with the client's lock held, read without it."""


@dataclass(slots=True, eq=False)
class Maintenance:
    """The maintenance lock, as far as this client has to do with it."""

    content: str | None = None
    """What the lock holds when it is this client's: made before it is first sent, kept for good."""
    busy: bool = False
    closing: bool = False
    """The client is being closed: a clean-up under way ends soon, where it is. Anybody may set it."""
    left: bool = False
    """A clean-up of this client was cut short or never heard of its end: its lock may still stand."""
