"""What the znodes hold: frozen records and their byte codecs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.errors import CorruptRecord

MAX_HISTORY: Final = 10
MAX_ERROR: Final = 4_000
MAX_PAST_ERROR: Final = 1_000
MAX_SECONDS: Final = 1e10
#: Where a task that is not in a lane is listed, and how many parts the name of its entry there has.
_INDEXES: Final = {"scheduled": 3, "requeued": 3, "finished": 3, "cancelled": 3, "dlq": 2}
_PART: Final = re.compile(r"[^/\x00-\x1f\x7f-\x9f]+\Z")


def dump(record: object) -> bytes:
    """Compact JSON, as every record of ours is stored."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")


def load(path: str, data: bytes) -> dict[str, Any]:
    """A JSON object. Raises `CorruptRecord` naming `path`."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        msg = f"{path} does not hold JSON: {error}"
        raise CorruptRecord(msg) from error
    if not isinstance(record, dict):
        msg = f"{path} does not hold a JSON object"
        raise CorruptRecord(msg)
    return record


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
        try:
            if record.pop("v") != 1:
                msg = "written by a newer version"
                raise ValueError(msg)
            record["state"] = State(record["state"])
            record["history"] = tuple(_attempt(attempt) for attempt in record.get("history", ()))
            record["settled"] = tuple(record.get("settled", ()))
            return _checked(cls(**{name: value for name, value in record.items() if name in _DEFAULTS}))
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path} does not hold a task's state: {error}"
            raise CorruptRecord(msg) from error

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


def _checked(state: TaskState) -> TaskState:
    """The record, if every field is of its type: what is malformed must be found here, not in the middle of a move."""
    for name, kinds in _KINDS.items():
        value = getattr(state, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            msg = f"{name} is {value!r}"
            raise TypeError(msg)
    texts = (*state.settled, *state.filters, *state.filters.values())
    if not all(isinstance(text, str) for text in texts):
        msg = "settled and filters hold text"
        raise TypeError(msg)
    if state.policy is not None:
        RetryPolicy(**state.policy)
    if state.lock is not None and not 0 < state.lock < MAX_SECONDS:
        msg = f"lock is {state.lock!r}"
        raise ValueError(msg)
    _check_paths(state)
    return state


def _check_paths(state: TaskState) -> None:
    """What becomes part of a path must be one: ZooKeeper refuses others in a way that looks like no refusal of ours."""
    lane, _, rest = state.place.partition("/")
    segment, _, entry = rest.partition("/")
    index = (state.index or "dlq/-").split("/")
    parts = [lane, segment or "-", entry, *index, *state.filters]
    parts += [state.lease or "-", state.consumer or "-", state.batch or "-"]
    listed = index[0] in _INDEXES and len(index) == _INDEXES[index[0]]
    if not listed or not all(_PART.match(part) and part not in {".", ".."} for part in parts):
        msg = f"its place {state.place!r}, index {state.index!r}, a filter, consumer, lease or batch is no name of ours"
        raise ValueError(msg)
    if state.state is State.CLAIMED and not state.consumer:
        msg = "it is claimed by nobody"
        raise ValueError(msg)


def _attempt(record: Mapping[str, Any]) -> Attempt:
    """One past delivery. Raises `TypeError` for what is none."""
    attempt = Attempt(**record)
    numbers, texts = (attempt.number, attempt.claimed, attempt.ended), (attempt.consumer, attempt.outcome)
    if not all(isinstance(number, int) for number in numbers) or not all(isinstance(text, str) for text in texts):
        msg = f"its history holds {record!r}"
        raise TypeError(msg)
    return attempt


_NUMBER: Final = (int, type(None))
_TEXT: Final = (str, type(None))
_KINDS: Final[dict[str, Any]] = {
    "place": str,
    "nonce": str,
    "priority": int,
    "attempt": int,
    "filters": dict,
    "policy": (dict, type(None)),
    "lock": (int, float, type(None)),
    **dict.fromkeys(("bound", "requeue", "result"), bool),
    **dict.fromkeys(("due", "claimed", "ended", "dedupe", "rank", "ended_zxid"), _NUMBER),
    **dict.fromkeys(("index", "consumer", "lease", "error", "batch"), _TEXT),
}


def _slim(attempt: Attempt) -> dict[str, Any]:
    return {name: value for name, value in asdict(attempt).items() if value is not None}


def clip(text: str | None, most: int = MAX_ERROR) -> str | None:
    """An error text at the length that is kept."""
    return text if text is None or len(text) <= most else text[: most - 1] + "…"
