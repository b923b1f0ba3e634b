"""Times as the command line tells them: with zone and age for people, in ISO 8601 for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

#: Fields that hold milliseconds since 1970, and what the same time is called as text.
_TEXTS: Final = {
    "enqueued_ms": "enqueued_at",
    "claimed_ms": "claimed_at",
    "started_ms": "started_at",
    "ended_ms": "ended_at",
    "due_ms": "due_at",
    "dedupe_ms": "dedupe_until",
    "claimed": "claimed_at",
    "started": "started_at",
    "ended": "ended_at",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def moment(milliseconds: int | None) -> str | None:
    """A server's time for people, such as ``2026-11-22 10:31:05 UTC, 5 min ago``; None for none."""
    when = _utc(milliseconds)
    if when is None:
        return None if milliseconds is None else f"{milliseconds} ms since 1970"
    return f"{when:%Y-%m-%d %H:%M:%S} UTC, {age(time.time() - when.timestamp())}"


def age(seconds: float) -> str:
    """How long ago something was, or in how long it will be, in its largest unit; by this machine's clock."""
    for unit, size in _UNITS:
        count = int(abs(seconds) / size)
        if count:
            return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"
    return "now"


def with_text(record: Mapping[str, object]) -> dict[str, object]:
    """A record for JSON, its times also in ISO 8601."""
    return {**record, **{name: iso(record[field]) for field, name in _TEXTS.items() if field in record}}


def iso(milliseconds: object) -> str | None:
    """A server's time in ISO 8601, in UTC; None for none, and for what is no time of a calendar."""
    when = _utc(milliseconds)
    return None if when is None else when.isoformat(timespec="milliseconds")


def _utc(milliseconds: object) -> datetime | None:
    if not isinstance(milliseconds, int):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
