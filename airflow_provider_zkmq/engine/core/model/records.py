"""What the znodes of a task hold: its record, and the copy that is kept of a run that has left."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider_zkmq.engine.core.model import codec
from airflow_provider_zkmq.engine.core.model.codec import UNREADABLE, corrupt_unless_read, dump, load, spell, stored
from airflow_provider_zkmq.engine.core.model.names import bucket_of, check_name, entry_name, entry_task
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

if TYPE_CHECKING:
    from dataclasses import replace

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
    place = codec.text(value)
    lane, segment, entry = place.split("/")
    for name in (lane, segment or "-", entry):
        codec.part(name)
    return place


def _index(value: object) -> str:
    """Where a task is listed that is not in a lane."""
    parts = [codec.part(name) for name in codec.text(value).split("/")]
    if _INDEXES.get(parts[0]) != len(parts):
        msg = f"{'/'.join(parts)} is no index"
        raise ValueError(msg)
    return "/".join(parts)


def _attempt(record: object) -> Attempt:
    """One past delivery; what else is said of it is left out."""
    known = codec.mapping(codec.text, lambda value: value)(record)
    return Attempt(**{name: check(known[name]) for name, check in _ATTEMPT.items() if name in known})


_STATES: Final = {str(state): state for state in State}
_MOMENT: Final = codec.optional(codec.moment)
_PART: Final = codec.optional(codec.part)
#: For how many seconds something holds.
SPAN: Final = codec.number(0, codec.MAX_SECONDS)
_ATTEMPT: Final[dict[str, codec.Check[Any]]] = {
    "number": codec.count,
    "consumer": codec.shown,
    "claimed": codec.moment,
    "ended": codec.moment,
    "outcome": codec.shown,
    "error": codec.optional(codec.shown),
    "started": _MOMENT,
}
#: What each field of a stored record must be; a field that is not here is not read.
FIELDS: Final[dict[str, codec.Check[Any]]] = {
    "state": _state,
    "place": _place,
    "nonce": codec.text,
    "priority": codec.priority,
    "filters": codec.mapping(codec.part, codec.text),
    "attempt": codec.count,
    "index": codec.optional(_index),
    "settled": codec.many(codec.text),
    "error": codec.optional(codec.shown),
    "policy": codec.optional(codec.mapping(codec.text, lambda value: value)),
    "history": codec.many(_attempt),
    "lock": codec.optional(SPAN),
    "rank": codec.optional(codec.zxid),
    "ended_zxid": codec.optional(codec.zxid),
    **dict.fromkeys(("bound", "requeue", "result", "metadata"), codec.flag),
    **dict.fromkeys(("due", "was_due", "claimed", "started", "ended", "dedupe"), _MOMENT),
    **dict.fromkeys(("consumer", "lease", "batch"), _PART),
}

# --- What the znodes hold: frozen records and their byte codecs.

__all__ = [
    "MAX_ERROR",
    "Attempt",
    "TaskState",
    "Times",
    "claimed_before",
    "clip",
    "load_claim",
    "load_fields",
    "load_span",
    "replace",
]

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
        return replace(self, history=(*self.history, done)[-MAX_HISTORY:])

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

if not TYPE_CHECKING:  # checkers know it as that of `dataclasses`
    _PUT: Final = {name: vars(TaskState)[name].__set__ for name in _NAMES}
    _PUTS: Final = tuple(_PUT.values())

    def replace(before: TaskState, /, **changes: Any) -> TaskState:
        """`dataclasses.replace` for task records, which are replaced several times in each transaction.

        That one goes through the constructor of a frozen class, which takes three times as long.
        """
        after = object.__new__(TaskState)
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


_CLAIM: Final[dict[str, codec.Check[Any]]] = {
    "consumer": codec.shown,
    "nonce": codec.text,
    "lease": codec.optional(SPAN),
    "progress": codec.optional(codec.number(0, 1)),
    "note": codec.optional(codec.shown),
    "began": codec.optional(codec.moment),
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

    ``version``: the transaction in which it ended; 0: the one in which the letter was written.
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
    """Where a letter is kept, relative to the queue; its name tells which run it is, so that nobody need read it."""
    stamp = f"{max(0, when_ms):015d}+{version:016x}"
    return f"unarchived/{bucket_of(when_ms)}/{entry_name(stamp, task_id)}"


class HistoryName(NamedTuple):
    """What the name of a letter tells: the task, when it left, and the version."""

    task_id: str
    when: int
    version: int


def parse_history_name(entry: str) -> HistoryName | None:
    """What the name of a letter tells; None for a foreign name."""
    named, task_id = _ENTRY.match(entry), entry_task(entry)
    if named is None or task_id is None:
        return None
    return HistoryName(task_id, int(named[1]), int(named[2], 16))
