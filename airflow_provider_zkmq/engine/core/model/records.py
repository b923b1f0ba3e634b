"""What the znodes hold: frozen records and their byte codecs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Final

from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.stored import UNREADABLE, corrupt_unless_read, dump, load
from airflow_provider_zkmq.engine.errors import CorruptRecord

__all__ = ["MAX_ERROR", "Attempt", "TaskState", "clip", "dump", "load", "load_claim", "load_fields", "load_span"]

MAX_HISTORY: Final = 10
MAX_ERROR: Final = 4_000
MAX_PAST_ERROR: Final = 1_000
#: Where a task that is not in a lane is listed, and how many parts the name of its entry there has.
_INDEXES: Final = {"scheduled": 3, "requeued": 3, "finished": 3, "cancelled": 3, "dlq": 2}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One delivery that ended: by whom, from when to when (server's milliseconds), and how."""

    number: int
    consumer: str
    claimed: int
    ended: int
    outcome: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TaskState:
    """What ``tasks/<task>/state`` holds.

    ``place`` is the task's place among the pending (``<lane>/<segment>/<entry>``), kept for its whole life so
    that it comes back there. ``due`` is set while it is scheduled (server's milliseconds). ``index`` names the
    entry that lists it elsewhere than among the pending: scheduled, finished, cancelled or dead. ``nonce`` is that of
    the last write, ``settled`` those of the last moves that were no claim: by them a lost reply is resolved.

    ``lease`` names the claim's entry under ``leases``; ``bound``: the claim ends with its session all the same.
    ``lock``: seconds that a claim of this task holds without being extended. ``requeue``: a run is held in escrow.
    ``dedupe``: until when (server's milliseconds) the id of a finished task is refused. ``result``: a result is kept.
    ``rank``: the transaction that first listed it, in a queue of strict order. ``batch``: the batch it counts for.
    ``ended_zxid``: the transaction in which its run ended, where the record was written once more since then.
    """

    state: State
    place: str
    nonce: str
    priority: int = 0
    filters: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 0
    due: int | None = None
    index: str | None = None
    consumer: str | None = None
    claimed: int | None = None
    ended: int | None = None
    lease: str | None = None
    settled: tuple[str, ...] = ()
    error: str | None = None
    policy: Mapping[str, Any] | None = None
    history: tuple[Attempt, ...] = ()
    bound: bool = False
    lock: float | None = None
    requeue: bool = False
    dedupe: int | None = None
    result: bool = False
    rank: int | None = None
    batch: str | None = None
    ended_zxid: int | None = None

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
        record: dict[str, Any] = {"v": 1}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default and value not in (None, (), {}):
                record[name] = value
        if self.history:
            record["history"] = [_slim(attempt) for attempt in self.history]
        return dump(record)

    @classmethod
    def decode(cls, path: str, data: bytes) -> TaskState:
        """Read a state record. Raises `CorruptRecord`."""
        record = load(path, data)
        with corrupt_unless_read(path, "a task's state"):
            _refuse_newer(record)
            known = {name: check(record[name]) for name, check in _FIELDS.items() if name in record}
            return _consistent(cls(**known))

    def with_attempt(self, outcome: str, ended: int, error: str | None) -> TaskState:
        """The record with the current delivery added to its history (the last ten are kept)."""
        done = Attempt(
            self.attempt, self.consumer or "", self.claimed or 0, ended, outcome, clip(error, MAX_PAST_ERROR)
        )
        return replace(self, history=(*self.history, done)[-MAX_HISTORY:])

    def retry(self, default: RetryPolicy) -> RetryPolicy:
        """The task's own policy, else the queue's."""
        return default if self.policy is None else RetryPolicy(**self.policy)


#: The fields of a state record, and what each has where it is left out.
_DEFAULTS: Final = {spec.name: spec.default for spec in fields(TaskState)}
#: What those that may be missing are then.
_OPTIONAL: Final = {"filters": {}} | {name: value for name, value in _DEFAULTS.items() if value is not MISSING}


def load_fields(path: str, data: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Some fields of a state record; the others are not looked at, whatever they hold. Raises `CorruptRecord`."""
    record = load(path, data)
    try:  # as `corrupt_unless_read`, which takes longer than this
        _refuse_newer(record)
        return {name: _FIELDS[name](record[name]) if name in record else _OPTIONAL[name] for name in names}
    except UNREADABLE as error:
        raise CorruptRecord(f"{path} does not hold a task's state: {error}") from error


def _refuse_newer(record: Mapping[str, Any]) -> None:
    if record.get("v") != 1:
        msg = f"version {record.get('v')!r}: written by a newer one"
        raise ValueError(msg)


def load_claim(path: str, data: bytes) -> dict[str, Any]:
    """What a claim's znode tells, as far as we know it: by whom, until when, how far. Raises `CorruptRecord`."""
    record = load(path, data)
    with corrupt_unless_read(path, "a claim"):
        return {name: check(record[name]) for name, check in _CLAIM.items() if name in record}


def load_span(path: str, data: bytes) -> float:
    """For how many seconds a lease or a lock holds. Raises `CorruptRecord`."""
    record = load(path, data)
    with corrupt_unless_read(path, "a lease of ours"):
        return _SPAN(record["seconds"])


def _consistent(state: TaskState) -> TaskState:
    """The record, if what it says of itself fits together. Raises `ValueError`."""
    if state.policy is not None:
        RetryPolicy(**state.policy)
    if state.lock == 0:
        msg = "a lock of no time"
        raise ValueError(msg)
    if state.state is State.CLAIMED and not state.consumer:
        msg = "it is claimed by nobody"
        raise ValueError(msg)
    return state


def _place(value: object) -> str:
    """``<lane>/<segment>/<entry>``; what began delayed has no segment yet."""
    lane, segment, entry = checks.text(value).split("/")
    for name in (lane, segment or "-", entry):
        checks.part(name)
    return f"{lane}/{segment}/{entry}"


def _index(value: object) -> str:
    """Where a task is listed that is not in a lane."""
    parts = [checks.part(name) for name in checks.text(value).split("/")]
    if _INDEXES.get(parts[0]) != len(parts):
        msg = f"{'/'.join(parts)} is no index"
        raise ValueError(msg)
    return "/".join(parts)


def _attempt(record: object) -> Attempt:
    """One past delivery; what a newer version says of it besides is left out."""
    known = checks.mapping(checks.text, lambda value: value)(record)
    return Attempt(**{name: check(known[name]) for name, check in _ATTEMPT.items() if name in known})


_MOMENT: Final = checks.optional(checks.moment)
_PART: Final = checks.optional(checks.part)
_SPAN: Final = checks.number(0, checks.MAX_SECONDS)
_CLAIM: Final[dict[str, checks.Check[Any]]] = {
    "consumer": checks.shown,
    "nonce": checks.text,
    "lease": checks.optional(_SPAN),
    "progress": checks.optional(checks.number(0, 1)),
    "note": checks.optional(checks.shown),
}
_ATTEMPT: Final[dict[str, checks.Check[Any]]] = {
    "number": checks.count,
    "consumer": checks.shown,
    "claimed": checks.moment,
    "ended": checks.moment,
    "outcome": checks.shown,
    "error": checks.optional(checks.shown),
}
#: What each field of a stored record must be; a field that is not here is not read.
_FIELDS: Final[dict[str, checks.Check[Any]]] = {
    "state": State,
    "place": _place,
    "nonce": checks.text,
    "priority": checks.priority,
    "filters": checks.mapping(checks.part, checks.text),
    "attempt": checks.count,
    "index": checks.optional(_index),
    "settled": checks.many(checks.text),
    "error": checks.optional(checks.shown),
    "policy": checks.optional(checks.mapping(checks.text, lambda value: value)),
    "history": checks.many(_attempt),
    "lock": checks.optional(_SPAN),
    "rank": checks.optional(checks.zxid),
    "ended_zxid": checks.optional(checks.zxid),
    **dict.fromkeys(("bound", "requeue", "result"), checks.flag),
    **dict.fromkeys(("due", "claimed", "ended", "dedupe"), _MOMENT),
    **dict.fromkeys(("consumer", "lease", "batch"), _PART),
}


def _slim(attempt: Attempt) -> dict[str, Any]:
    return {name: value for name, value in asdict(attempt).items() if value is not None}


def clip(text: str | None, most: int = MAX_ERROR) -> str | None:
    """An error text at the length that is kept."""
    return text if text is None or len(text) <= most else text[: most - 1] + "…"
