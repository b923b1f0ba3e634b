"""What each field of a stored record must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.states import State

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
    place = checks.text(value)
    lane, segment, entry = place.split("/")
    for name in (lane, segment or "-", entry):
        checks.part(name)
    return place


def _index(value: object) -> str:
    """Where a task is listed that is not in a lane."""
    parts = [checks.part(name) for name in checks.text(value).split("/")]
    if _INDEXES.get(parts[0]) != len(parts):
        msg = f"{'/'.join(parts)} is no index"
        raise ValueError(msg)
    return "/".join(parts)


def _attempt(record: object) -> Attempt:
    """One past delivery; what else is said of it is left out."""
    known = checks.mapping(checks.text, lambda value: value)(record)
    return Attempt(**{name: check(known[name]) for name, check in _ATTEMPT.items() if name in known})


_STATES: Final = {str(state): state for state in State}
_MOMENT: Final = checks.optional(checks.moment)
_PART: Final = checks.optional(checks.part)
#: For how many seconds something holds.
SPAN: Final = checks.number(0, checks.MAX_SECONDS)
_ATTEMPT: Final[dict[str, checks.Check[Any]]] = {
    "number": checks.count,
    "consumer": checks.shown,
    "claimed": checks.moment,
    "ended": checks.moment,
    "outcome": checks.shown,
    "error": checks.optional(checks.shown),
    "started": _MOMENT,
}
#: What each field of a stored record must be; a field that is not here is not read.
FIELDS: Final[dict[str, checks.Check[Any]]] = {
    "state": _state,
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
    "lock": checks.optional(SPAN),
    "rank": checks.optional(checks.zxid),
    "ended_zxid": checks.optional(checks.zxid),
    **dict.fromkeys(("bound", "requeue", "result", "metadata"), checks.flag),
    **dict.fromkeys(("due", "was_due", "claimed", "started", "ended", "dedupe"), _MOMENT),
    **dict.fromkeys(("consumer", "lease", "batch"), _PART),
}
