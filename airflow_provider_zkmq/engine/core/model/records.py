"""Messages as callers give them, and what the znodes of a task hold."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ...errors import ConfigError, CorruptRecord
from . import values
from .names import bucket_of, check_name, entry_name, entry_task
from .policy import RetryPolicy
from .states import State
from .values import (
    UNREADABLE,
    Duration,
    Moment,
    corrupt_unless_read,
    dump,
    load,
    optional_milliseconds,
    optional_seconds,
    refuse_deep,
    spell,
    stored,
)

# --- What is enqueued: messages, and their parts as they are stored.


@dataclass(frozen=True, slots=True)
class Message:
    """What to enqueue.

    ``data``: bytes, or text stored as UTF-8. ``filters``: values of declared filters. ``priority``: higher comes
    first, -9999 to 9999. ``delay``: how long it is not to be handled yet, or ``not_before``: until when, a moment with
    a zone, by ZooKeeper's clock. ``task_id``: the caller's own id, else one is generated. ``metadata``: a JSON object
    of the caller's. ``policy``: overrides the queue's. ``lock``: how long a claim of it holds without being extended;
    overrides the queue's.

    With a task id that is in use: ``update`` replaces a task that is still queued. It keeps its place, and its time
    unless ``delay`` or ``not_before`` is given: a delay of 0 brings it forward, None leaves it. A change of filters or
    priority gives it a place in its new lane; in a queue of strict order at the end. ``requeue`` has this message run
    once more when the run under way, or the dedupe window of one that is done, has ended.
    """

    data: bytes | str
    filters: Mapping[str, object] | None = None
    priority: int = 0
    delay: Duration | None = None
    task_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    policy: RetryPolicy | None = None
    lock: Duration | None = None
    update: bool = False
    requeue: bool = False
    not_before: Moment | None = None

    def times(self) -> tuple[float | None, int | None]:
        """Its delay in seconds, or its moment in milliseconds since 1970; None for what is not given.

        Raises `ConfigError`, also for both of them.
        """
        delay, moment = optional_seconds("delay", self.delay), optional_milliseconds("not_before", self.not_before)
        if delay is not None and moment is not None:
            msg = f"a message has a delay ({self.delay}) or not_before ({self.not_before}), not both"
            raise ConfigError(msg)
        return delay, moment


def idempotency_series(queue: str, key: object) -> str:
    """What the ids of the tasks that are enqueued with this ``idempotency_key`` begin with. Raises `ConfigError`.

    A dot and the message's position, from 0, in six digits follow. Another queue's ids differ.
    """
    if not isinstance(key, str) or not key:
        msg = f"idempotency_key {key!r} is not allowed: a text that is not empty"
        raise ConfigError(msg)
    return hashlib.blake2b(json.dumps([queue, key]).encode(), digest_size=16).hexdigest()


def keyed(queue: str, key: object, messages: Sequence[Message]) -> list[Message]:
    """The messages, each with the id that the key and its position give it. Raises `ConfigError`."""
    series = idempotency_series(queue, key)
    if any(isinstance(each, Message) and each.task_id is not None for each in messages):
        msg = f"idempotency_key {key!r} names the tasks itself: give it, or messages with a task_id of their own"
        raise ConfigError(msg)
    return [
        replace(each, task_id=f"{series}.{position:06d}") if isinstance(each, Message) else each
        for position, each in enumerate(messages)
    ]


@dataclass(frozen=True, slots=True)
class NewTasks:
    """What an enqueue of what is not there yet found: the ids that it wrote, and those that were there already."""

    written: tuple[str, ...]
    existing: tuple[str, ...]


#: How no metadata are stored, where they are at all: a new task without has no znode for them.
NO_METADATA: Final = b"{}"


def encode_metadata(metadata: Mapping[str, Any] | None) -> bytes:
    """The caller's metadata as stored. Raises `ConfigError` for what JSON cannot hold."""
    if metadata is None:
        return NO_METADATA
    try:
        data = json.dumps(dict(metadata), separators=(",", ":"), allow_nan=False).encode()
        refuse_deep(data, dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"metadata must be a JSON object: {error}"
        raise ConfigError(msg) from error
    return data


def encode_data(what: str, data: object) -> bytes:
    """Payload bytes of bytes-like data or text. Raises `ConfigError`."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            msg = f"{what} is no valid text: {error}"
            raise ConfigError(msg) from error
    msg = f"{what} must be bytes or text, not {type(data).__name__}"
    raise ConfigError(msg)


# --- What each field of a stored record must be.

#: Where a task that is not in a lane is listed, and how many parts the name of its entry there has.
_INDEXES: Final = {"scheduled": 3, "requeued": 3, "finished": 3, "cancelled": 3, "dlq": 2}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One delivery that ended: by whom, from when to when (server's milliseconds), and how.

    ``started``: when its handler began; None where that is not known.
    """

    number: int
    consumer: str
    claimed: int
    ended: int
    outcome: str
    error: str | None = None
    started: int | None = None


def slim(attempt: Attempt) -> dict[str, Any]:
    """A delivery as it is stored; what is not known of it is left out."""
    return {name: value for name in _ATTEMPT if (value := getattr(attempt, name)) is not None}


def _state(value: Any) -> State:
    """A state by its word: looked up, which takes a third of the time that its class does."""
    return _STATES.get(value) or State(value)


def _place(value: object) -> str:
    """``<lane>/<segment>/<entry>``; what began delayed has no segment yet."""
    place = values.text(value)
    lane, segment, entry = place.split("/")
    for name in (lane, segment or "-", entry):
        values.part(name)
    return place


def _index(value: object) -> str:
    """Where a task is listed that is not in a lane."""
    parts = [values.part(name) for name in values.text(value).split("/")]
    if _INDEXES.get(parts[0]) != len(parts):
        msg = f"{'/'.join(parts)} is no index"
        raise ValueError(msg)
    return "/".join(parts)


def _attempt(record: object) -> Attempt:
    """One past delivery; what else is said of it is left out."""
    known = values.mapping(values.text, lambda value: value)(record)
    return Attempt(**{name: check(known[name]) for name, check in _ATTEMPT.items() if name in known})


_STATES: Final = {str(state): state for state in State}
_MOMENT: Final = values.optional(values.moment)
_PART: Final = values.optional(values.part)
#: For how many seconds something holds.
SPAN: Final = values.number(0, values.MAX_SECONDS)
_ATTEMPT: Final[dict[str, values.Check[Any]]] = {
    "number": values.count,
    "consumer": values.shown,
    "claimed": values.moment,
    "ended": values.moment,
    "outcome": values.shown,
    "error": values.optional(values.shown),
    "started": _MOMENT,
}
#: What each field of a stored record must be; a field that is not here is not read.
FIELDS: Final[dict[str, values.Check[Any]]] = {
    "state": _state,
    "place": _place,
    "nonce": values.text,
    "priority": values.priority,
    "filters": values.mapping(values.part, values.text),
    "attempt": values.count,
    "index": values.optional(_index),
    "settled": values.many(values.text),
    "error": values.optional(values.shown),
    "policy": values.optional(values.mapping(values.text, lambda value: value)),
    "history": values.many(_attempt),
    "lock": values.optional(SPAN),
    "rank": values.optional(values.zxid),
    "ended_zxid": values.optional(values.zxid),
    **dict.fromkeys(("bound", "requeue", "result", "metadata"), values.flag),
    **dict.fromkeys(("due", "was_due", "claimed", "started", "ended", "dedupe"), _MOMENT),
    **dict.fromkeys(("consumer", "lease", "batch"), _PART),
}

# --- What the znodes hold: frozen records and their byte codecs.

MAX_HISTORY: Final = 10
MAX_ERROR: Final = 4_000
MAX_PAST_ERROR: Final = 1_000


class Times(NamedTuple):
    """When a handler began and ended, in the server's milliseconds; ``started``: None where that is not known."""

    started: int | None
    ended: int


@dataclass(frozen=True, slots=True)
class TaskState:
    """What ``tasks/<task>/state`` holds.

    ``place`` is the task's place among the pending (``<lane>/<segment>/<entry>``), kept for its whole life so
    that it comes back there. ``due`` is set while it is scheduled (server's milliseconds). ``index`` names the
    entry that lists it elsewhere than among the pending: scheduled, finished, cancelled or dead. ``nonce`` is that of
    the last write, ``settled`` those of the last moves that were no claim: by them a lost reply is resolved.

    ``was_due``: what ``due`` was before it was promoted.

    ``lease`` names the claim's entry under ``leases``; ``bound``: the claim ends with its session all the same.
    ``lock``: seconds that a claim of this task holds without being extended. ``requeue``: a run is held in escrow.
    ``dedupe``: until when (server's milliseconds) the id of a finished task is refused. ``result``: a result is kept.
    ``rank``: the transaction that first listed it, in a queue of strict order. ``batch``: the batch it counts for.
    ``ended_zxid``: the transaction in which its run ended, where the record was written once more since then.
    ``started``: when the handler of a finished run began; ``ended`` is when it ended, then, and else when that was
    written. ``metadata``: the znode of that name stands; that of the filters does where there are any.
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
    started: int | None = None
    was_due: int | None = None
    metadata: bool = False

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
        fields = "".join(
            f',"{name}":{_SPELL.get(name, spell)(value)}'
            for name, default, value in zip(_NAMES, _BLANKS, _VALUES(self), strict=True)
            if value is not default and value != default and (value or value in _SAYING)
        )
        return stored(f"{{{fields[1:]}}}")

    @classmethod
    def decode(cls, path: str, data: bytes) -> TaskState:
        """Read a state record. Raises `CorruptRecord`."""
        record = load(path, data)
        try:  # as `corrupt_unless_read`, which takes longer than this
            known = {name: FIELDS[name](value) for name, value in record.items() if name in FIELDS}
            return _consistent(cls(**known))
        except UNREADABLE as error:
            raise _unread(path, error) from error

    def with_attempt(self, outcome: str, ended: int, error: str | None, started: int | None = None) -> TaskState:
        """The record with the current delivery added to its history (the last ten are kept)."""
        claimed, text = claimed_before(self.claimed, started) or 0, clip(error, MAX_PAST_ERROR)
        done = Attempt(self.attempt, self.consumer or "", claimed, ended, outcome, text, started)
        return replace_fields(self, history=(*self.history, done)[-MAX_HISTORY:])

    def retry(self, default: RetryPolicy) -> RetryPolicy:
        """The task's own policy, else the queue's."""
        return default if self.policy is None else RetryPolicy(**self.policy)


#: The fields of a state record, and what each has where it is left out.
_DEFAULTS: Final = {spec.name: spec.default for spec in fields(TaskState)}
_NAMES: Final = tuple(_DEFAULTS)
_BLANKS: Final = tuple(_DEFAULTS.values())
_VALUES: Final = attrgetter(*_NAMES)
#: What is false and says something, where it is not the default; what is empty does not.
_SAYING: Final = (0, "")
#: How a field is spelt that is more than a text, a number or the like.
_SPELL: Final[dict[str, Callable[[Any], str]]] = {
    "history": lambda history: spell([slim(each) for each in history]),
    "settled": lambda nonces: f"[{','.join(map(spell, nonces))}]",
    **dict.fromkeys(("bound", "requeue", "result", "metadata"), lambda flag: "true" if flag else "false"),
}
#: What those that may be missing are then.
_OPTIONAL: Final = {"filters": {}} | {name: value for name, value in _DEFAULTS.items() if value is not MISSING}

_PUT: Final = {name: vars(TaskState)[name].__set__ for name in _NAMES}
_PUTS: Final = tuple(_PUT.values())


def replace_fields(before: TaskState, /, **changes: Any) -> TaskState:
    """`dataclasses.replace` for task records, which are replaced several times in each transaction.

    That one goes through the constructor of a frozen class, which takes three times as long.
    """
    after: TaskState = object.__new__(TaskState)
    for put, value in zip(_PUTS, _VALUES(before), strict=True):
        put(after, value)
    for name, value in changes.items():
        _PUT[name](after, value)
    return after


def load_fields(path: str, data: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Some fields of a state record; the others are not looked at, whatever they hold. Raises `CorruptRecord`."""
    record = load(path, data)
    try:  # as `corrupt_unless_read`, which takes longer than this
        return {name: FIELDS[name](record[name]) if name in record else _OPTIONAL[name] for name in names}
    except UNREADABLE as error:
        raise _unread(path, error) from error


def _unread(path: str, error: Exception) -> CorruptRecord:
    return CorruptRecord(f"{path} does not hold a task's state: {error}")


_CLAIM: Final[dict[str, values.Check[Any]]] = {
    "consumer": values.shown,
    "nonce": values.text,
    "lease": values.optional(SPAN),
    "progress": values.optional(values.number(0, 1)),
    "note": values.optional(values.shown),
    "began": values.optional(values.moment),
}


def load_claim(path: str, data: bytes) -> dict[str, Any]:
    """What a claim's znode tells, as far as we know it: by whom, until when, how far. Raises `CorruptRecord`."""
    record = load(path, data)
    with corrupt_unless_read(path, "a claim"):
        return {name: check(record[name]) for name, check in _CLAIM.items() if name in record}


def load_span(path: str, data: bytes) -> float:
    """For how many seconds a lease or a lock holds. Raises `CorruptRecord`."""
    record = load(path, data)
    with corrupt_unless_read(path, "a lease of ours"):
        return SPAN(record["seconds"])


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


def claimed_before(claimed: int | None, later: int | None) -> int | None:
    """When a task was claimed, which is estimated, and may be late: no later than what came after."""
    return claimed if claimed is None or later is None else min(claimed, later)


def clip(text: str | None, most: int = MAX_ERROR) -> str | None:
    """An error text at the length that is kept."""
    return text if text is None or len(text) <= most else text[: most - 1] + "…"


# --- A run that has left its queue's indexes, as it is kept for who reads what ended: a line of JSON, data, result.

_NUMBERS: Final = ("version", "enqueued", "ended")
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


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """What a run was: the record, the metadata's text, payload and result. Times are the server's, in milliseconds.

    ``version``: the transaction in which it ended; 0: the one in which the entry was written.
    """

    task_id: str
    version: int
    enqueued: int
    ended: int
    state: TaskState
    metadata: str
    data: bytes
    result: bytes | None = None

    def encode(self) -> bytes:
        """The stored bytes; ``size``: of the data, where a result follows them."""
        head: dict[str, Any] = {name: getattr(self, name) for name in ("task_id", *_NUMBERS, "metadata")}
        head["state"] = self.state.encode().decode()
        if self.result is None:
            return dump(head) + b"\n" + self.data
        return dump({**head, "size": len(self.data)}) + b"\n" + self.data + self.result

    @classmethod
    def decode(cls, path: str, raw: bytes) -> HistoryEntry:
        """Read what `encode` wrote. Raises `CorruptRecord`."""
        head, _, body = raw.partition(b"\n")
        record = load(path, head)
        size = record.get("size", len(body))
        numbers = [*(record.get(name) for name in _NUMBERS), size]
        texts = [record.get(name) for name in ("state", "metadata")]
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not whole or not all(isinstance(text, str) for text in texts):
            msg = f"{path} does not hold a run of ours"
            raise CorruptRecord(msg)
        try:
            task_id = check_name("task id", record.get("task_id"))
        except ConfigError as error:
            msg = f"{path} does not hold a run of ours: {error}"
            raise CorruptRecord(msg) from error
        state = TaskState.decode(path, record["state"].encode("utf-8", "surrogatepass"))
        times = (record["version"], record["enqueued"], record["ended"])
        result = body[size:] if "size" in record else None
        return cls(task_id, *times, state, record["metadata"], body[:size], result)


def history_path(when_ms: int, task_id: str, version: int) -> str:
    """Where a history entry is kept, relative to the queue; its name tells which run it is."""
    stamp = f"{max(0, when_ms):015d}+{version:016x}"
    return f"unarchived/{bucket_of(when_ms)}/{entry_name(stamp, task_id)}"


class HistoryName(NamedTuple):
    """What the name of a history entry tells: the task, when it left, and the version."""

    task_id: str
    when: int
    version: int


def parse_history_name(entry: str) -> HistoryName | None:
    """What the name of a history entry tells; None for a foreign name."""
    named, task_id = _ENTRY.match(entry), entry_task(entry)
    if named is None or task_id is None:
        return None
    return HistoryName(task_id, int(named[1]), int(named[2], 16))
