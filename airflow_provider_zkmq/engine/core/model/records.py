"""What the znodes hold: frozen records and their byte codecs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.fields import FIELDS, SPAN, Attempt, slim
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.stored import UNREADABLE, corrupt_unless_read, load, spell, stored
from airflow_provider_zkmq.engine.errors import CorruptRecord

if TYPE_CHECKING:
    from dataclasses import replace

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


_CLAIM: Final[dict[str, checks.Check[Any]]] = {
    "consumer": checks.shown,
    "nonce": checks.text,
    "lease": checks.optional(SPAN),
    "progress": checks.optional(checks.number(0, 1)),
    "note": checks.optional(checks.shown),
    "began": checks.optional(checks.moment),
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
