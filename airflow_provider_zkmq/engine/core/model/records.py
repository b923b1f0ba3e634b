"""What the znodes of a task hold: its record, its claim, its history."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypedDict

import msgspec
from msgspec import Meta, Struct, structs

from . import values
from .settings import RetryPolicy
from .states import State
from .znode_names import bucket_of, entry_name, entry_task

# --- What the znodes hold: frozen records, whose types say what each field may be; what has no field is not read.

#: ``<lane>/<segment>/<entry>``; what began delayed has no segment yet.
Place: TypeAlias = Annotated[str, Meta(pattern=rf"\A{values.PATH_PART}/(?:{values.PATH_PART})?/{values.PATH_PART}\Z")]
#: ``<key>/<number>``; see `znode_names.limit_key`.
Slot: TypeAlias = Annotated[str, Meta(pattern=rf"\A{values.PATH_PART}/[0-9]{{1,6}}\Z")]
#: Where a task is listed that is not in a lane.
Index: TypeAlias = Annotated[
    str, Meta(pattern=rf"\A(?:(?:scheduled|requeued|finished|cancelled)/{values.PATH_PART}|dlq)/{values.PATH_PART}\Z")
]

MAX_HISTORY: Final = 10
#: How many of the last moves' nonces a record keeps: by them a repeated call knows its own.
KEPT_NONCES: Final = 4
MAX_ERROR: Final = 4_000
MAX_PAST_ERROR: Final = 1_000


class Times(NamedTuple):
    """When a handler began and ended, in the server's milliseconds; ``started``: None where that is not known."""

    started: int | None
    ended: int


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One delivery that ended: by whom, when (server's milliseconds; ``started`` where that is known), and how."""

    number: values.Count
    consumer: str
    claimed: values.Milliseconds
    ended: values.Milliseconds
    outcome: str
    error: str | None = None
    started: values.Milliseconds | None = None


class TaskState(Struct, frozen=True, omit_defaults=True):
    """What ``tasks/<task>/state`` holds. Replaced by `msgspec.structs.replace`.

    ``place`` is the task's place among the pending (``<lane>/<segment>/<entry>``), kept for its whole life so
    that it comes back there. ``due`` is set while it is scheduled (server's milliseconds). ``index`` names the
    entry that lists it elsewhere than among the pending: scheduled, finished, cancelled or dead. ``nonce`` is that of
    the last write, ``settled`` those of the last moves that were no claim: by them a lost reply is resolved.

    ``was_due``: what ``due`` was before it was promoted. ``lease`` names the claim's entry under ``leases``;
    ``bound``: the claim ends with its session all the same. ``lock``: seconds that a claim of this task holds without
    being extended. ``requeue``: a run is held in escrow. ``dedupe``: until when (server's milliseconds) the id of a
    finished task is refused. ``result``: a result is kept. ``rank``: the transaction that first listed it, in a queue
    of strict order. ``batch``: the batch it counts for. ``ended_zxid``: the transaction in which its run ended, where
    the record was written once more since then. ``started``: when the handler of a finished run began; ``ended`` is
    when it ended, then, and else when that was written. ``metadata``: the znode of that name stands; that of the
    filters does where there are any. ``slot``: what a claim holds of a limit of concurrency, relative to ``slots``.
    """

    state: State
    place: Place
    nonce: str
    priority: values.Priority = 0
    filters: dict[values.Part, str] = {}
    attempt: values.Count = 0
    due: values.Milliseconds | None = None
    index: Index | None = None
    consumer: values.Part | None = None
    claimed: values.Milliseconds | None = None
    ended: values.Milliseconds | None = None
    lease: values.Part | None = None
    settled: tuple[str, ...] = ()
    error: str | None = None
    policy: RetryPolicy | None = None
    history: tuple[Attempt, ...] = ()
    bound: bool = False
    lock: Annotated[float, Meta(gt=0, le=1e10)] | None = None
    requeue: bool = False
    dedupe: values.Milliseconds | None = None
    result: bool = False
    rank: values.Zxid | None = None
    batch: values.Part | None = None
    ended_zxid: values.Zxid | None = None
    started: values.Milliseconds | None = None
    was_due: values.Milliseconds | None = None
    metadata: bool = False
    slot: Slot | None = None

    @property
    def entry(self) -> str:
        """The name of its entry among the pending."""
        return self.place.rpartition("/")[2]

    @property
    def placed(self) -> bool:
        """Whether it has stood in a lane: what began delayed has an entry's name and no segment to go back to."""
        return "//" not in self.place

    def encode(self) -> bytes:
        """The stored bytes; what has its default is left out."""
        return values.dump(self)

    @classmethod
    def decode(cls, path: str, data: bytes) -> TaskState:
        """Read a state record. Raises `CorruptRecord`."""
        try:  # as `load`, which takes longer than this
            state = _DECODER.decode(data)
        except values.UNREADABLE as error:
            raise values.corrupt(path, "a task's state", error) from error
        if state.state is State.CLAIMED and not state.consumer:
            raise values.corrupt(path, "a task's state", ValueError("it is claimed by nobody"))
        return state

    def with_attempt(self, outcome: str, ended: int, error: str | None, started: int | None = None) -> TaskState:
        """The record with the current delivery added to its history (the last ten are kept)."""
        claimed = claimed_before(claimed_before(self.claimed, started), ended or None) or 0
        text = clip(error, MAX_PAST_ERROR)
        done = Attempt(self.attempt, self.consumer or "", claimed, ended, outcome, text, started)
        return structs.replace(self, history=(*self.history, done)[-MAX_HISTORY:])

    def may_have_dropped(self, known: Iterable[str]) -> bool:
        """Whether it has had so many moves that it keeps none of these nonces: a later one may be gone as well."""
        return len(self.settled) >= KEPT_NONCES and not set(known) & set(self.settled)

    def retry(self, default: RetryPolicy) -> RetryPolicy:
        """The task's own policy, else the queue's."""
        return self.policy or default


_DECODER: Final = msgspec.json.Decoder(TaskState)


class ClaimRecord(TypedDict, total=False):
    """What a claim's znode tells: by whom, until when, how far."""

    consumer: str
    nonce: str
    lease: values.Span | None
    progress: Annotated[float, Meta(ge=0, le=1)] | None
    note: str | None
    began: values.Milliseconds | None


def load_claim(path: str, data: bytes) -> dict[str, Any]:
    """What a claim's znode tells, as far as we know it. Raises `CorruptRecord`."""
    return {**values.load(path, data, ClaimRecord, "a claim")}


class _Lease(TypedDict):
    seconds: values.Span


def load_span(path: str, data: bytes) -> float:
    """For how many seconds a lease or a lock holds. Raises `CorruptRecord`."""
    return values.load(path, data, _Lease, "a lease of ours")["seconds"]


class RecentClaims(Struct, frozen=True, omit_defaults=True):
    """What ``rates/<key>`` holds: how many claims there were of late, by the server's clock.

    ``past``: times in milliseconds, the oldest first, each with how many. ``latest``: how many were made in the
    transaction that wrote this; its time is that of the znode's change, and ``ahead`` milliseconds later the last of
    them begins.
    """

    past: tuple[tuple[values.Milliseconds, values.Count], ...] = ()
    latest: values.Count = 0
    ahead: values.Count = 0

    def until(self, changed: int) -> tuple[tuple[int, int], ...]:
        """All of them with their times; `changed`: when this was written, by the server's clock."""
        return (*self.past, (changed + self.ahead, self.latest)) if self.latest else self.past


def claimed_before(claimed: int | None, later: int | None) -> int | None:
    """When a task was claimed, which is estimated, and may be late: no later than what came after."""
    return claimed if claimed is None or later is None else min(claimed, later)


def clip(text: str | None, most: int = MAX_ERROR) -> str | None:
    """An error text as it is kept: printable, and not longer than this."""
    return text if text is None else values.shown(text if len(text) <= most else text[: most - 1] + "…")


# --- A run that has left its queue's indexes, as it is kept for who reads what ended: a line of JSON, data, result.

_ENTRY: Final = re.compile(r"(\d{15})\+([0-9a-f]{16})~", re.ASCII)


class Ended(NamedTuple):
    """A run that has ended: its task's id, and the transaction in which it ended.

    ``place``: where the run is kept whose task has left what lists it; None of one that stands.
    """

    id: str
    version: int
    place: str | None = None


class Unreadable(Ended):
    """One whose record is damaged, which was reported: it cannot be read, nor archived; clean-up keeps it."""

    __slots__ = ()


class HistoryEntry(Struct, frozen=True, omit_defaults=True):
    """What a run was: the record, the metadata's text, payload and result. Times are the server's, in milliseconds.

    ``version``: the transaction in which it ended; 0: the one in which the entry was written. ``size``: only as it is
    stored, of the data, where a result follows them.
    """

    task_id: values.Part
    version: values.Zxid
    enqueued: values.Milliseconds
    ended: values.Milliseconds
    state: TaskState
    metadata: str
    data: bytes = b""
    result: bytes | None = None
    size: values.Count | None = None

    def encode(self) -> bytes:
        """The stored bytes: a line of JSON, then the data and the result."""
        size = None if self.result is None else len(self.data)
        head = structs.replace(self, data=b"", result=None, size=size)
        return values.dump(head) + b"\n" + self.data + (self.result or b"")

    @classmethod
    def decode(cls, path: str, raw: bytes) -> HistoryEntry:
        """Read what `encode` wrote. Raises `CorruptRecord`."""
        line, _, body = raw.partition(b"\n")
        head = values.load(path, line, cls, "a run of ours")
        result = None if head.size is None else body[head.size :]
        return structs.replace(head, data=body[: head.size], result=result, size=None)


def history_path(when_ms: int, task_id: str, version: int) -> str:
    """Where a history entry is kept, relative to the queue; its name tells which run it is."""
    stamp = f"{max(0, when_ms):015d}+{version:016x}"
    return f"unarchived/{bucket_of(when_ms)}/{entry_name(stamp, task_id)}"


class HistoryName(NamedTuple):
    """What the name of a history entry tells: the task, when it left, and the version; ``place``: where it is kept."""

    task_id: str
    when: int
    version: int
    place: str


def parse_history_name(place: str) -> HistoryName | None:
    """What the name of a history entry tells, which its place may precede; None for a foreign name."""
    entry = place.rpartition("/")[2]
    named, task_id = _ENTRY.match(entry), entry_task(entry)
    if named is None or task_id is None:
        return None
    return HistoryName(task_id, int(named[1]), int(named[2], 16), place)
