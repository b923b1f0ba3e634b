"""Durations and moments: how they are given, and how they are told."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from airflow_provider_zkmq.engine.core.model.codec import abbreviated, named
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

if TYPE_CHECKING:
    from pendulum import DateTime

# --- Durations: seconds, `timedelta` or pendulum's in calls, text in commands and templates; each is checked here.

#: A number of seconds or a `datetime.timedelta`, which `pendulum.Duration` is, too.
Duration: TypeAlias = float | timedelta

#: Nearly three centuries: a thread can still wait for so long, and added to today's time it fits the names of buckets.
LONGEST: Final = 9e9
#: In seconds.
SHORTEST_INTERVAL: Final = 1.0
#: The longest text that is read: whatever a person writes is shorter.
_MOST_CHARACTERS: Final = 64
_NUMBER: Final = r"[0-9]+(?:[.,][0-9]+)?"
_PLAIN: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MILLISECONDS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_UNITS: Final = re.compile(
    rf"(?:(?P<w>{_NUMBER}) ?w)? ?(?:(?P<d>{_NUMBER}) ?d)? ?(?:(?P<h>{_NUMBER}) ?h)? ?"
    rf"(?:(?P<m>{_NUMBER}) ?m(?:in)?)? ?(?:(?P<s>{_NUMBER}) ?s)? ?(?:(?P<ms>{_NUMBER}) ?ms)?"
)
_ISO: Final = re.compile(
    rf"P(?=[0-9T])(?:(?P<w>{_NUMBER})W)?(?:(?P<d>{_NUMBER})D)?"
    rf"(?:T(?=[0-9])(?:(?P<h>{_NUMBER})H)?(?:(?P<m>{_NUMBER})M)?(?:(?P<s>{_NUMBER})S)?)?"
)


def seconds(what: str, value: object) -> float:
    """A duration in seconds; `what` is the parameter's name. Raises `ConfigError`, which names it."""
    span = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(span, int | float) and not isinstance(span, bool) and 0 <= span < LONGEST:
        return float(span)
    msg = f"{named(what, value)} is not allowed: a duration is seconds (0 or more), a timedelta or pendulum's Duration"
    raise ConfigError(msg)


def optional_seconds(what: str, value: object) -> float | None:
    """Like `seconds`, keeping None."""
    return None if value is None else seconds(what, value)


def lock_seconds(value: object) -> float | None:
    """A lock time: more than 0 seconds, or None. Raises `ConfigError`."""
    span = optional_seconds("lock", value)
    if span == 0:
        msg = "a lock of 0 seconds would end at once; leave it out for none"
        raise ConfigError(msg)
    return span


def interval_seconds(what: str, value: object) -> float:
    """How often something runs: every second at the most. Raises `ConfigError`."""
    span = seconds(what, value)
    if span < SHORTEST_INTERVAL:
        msg = f"{named(what, value)} is not allowed: an interval is 1 second or more, or servers would do nothing else"
        raise ConfigError(msg)
    return span


def parse_duration(value: Duration | str, what: str = "") -> float:
    """Seconds from a duration, or from its text; `what`: its name in errors, if any. Raises `ConfigError`.

    A text is a number of seconds (``90``), units from the largest to the smallest (``1h30m``, ``250ms``; ``w``, ``d``,
    ``h``, ``m`` or ``min``, ``s``, ``ms``), or an ISO 8601 duration of weeks, days and below (``PT1H30M``). Years and
    months are refused: nobody can say how long they are.
    """
    if not isinstance(value, str):
        return seconds(what, value)
    text = value.strip()
    if len(text) <= _MOST_CHARACTERS:
        if _PLAIN.fullmatch(text):
            return seconds(what, float(text))
        match = _ISO.fullmatch(text) or _UNITS.fullmatch(text)
        if text and match is not None:
            return seconds(what, _total(match.groupdict()))
    msg = f"{named(what, value)} is no duration: write seconds (90), units (1h30m, 250ms) or ISO 8601 (PT1H30M)"
    raise ConfigError(msg)


def _total(counts: Mapping[str, str | None]) -> float:
    """Seconds from a number for each unit, exactly to the digits that were written."""
    parts = [Decimal(text.replace(",", ".")) * _MILLISECONDS[unit] for unit, text in counts.items() if text]
    return float(sum(parts, Decimal()) / 1000)


def spell_duration(span: float) -> str:
    """Seconds as `parse_duration` reads them and people like them, to the millisecond: ``1h30m``."""
    rest, parts = round(span * 1000), []
    for unit, size in _MILLISECONDS.items():
        count, rest = (0, rest) if unit == "w" else divmod(rest, size)  # days are what people count in
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def spell_seconds(value: float) -> bytes:
    """ASCII seconds, whole where they are."""
    return (f"{value:.0f}" if value == int(value) else repr(value)).encode()


# --- Moments: points in time that have a zone. One without is refused, as only its author knows when it is.

#: A `datetime.datetime` with a zone, which `pendulum.DateTime` is, too.
Moment: TypeAlias = datetime
#: The last millisecond of the year 9999.
LATEST: Final = 253_402_300_799_999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(what: str, value: object) -> int:
    """Milliseconds since 1970, rounded up so that nothing comes early. Raises `ConfigError` naming the parameter."""
    if not isinstance(value, datetime):
        msg = f"{named(what, value)} is not allowed: a moment is a datetime with a zone, or pendulum's DateTime"
        raise ConfigError(msg)
    if value.utcoffset() is None:
        msg = f"{named(what, value)} has no zone, so that it could mean many moments: use a datetime with tzinfo"
        raise ConfigError(msg)
    try:
        return min(LATEST, timegm(value.utctimetuple()) * 1000 - (-value.microsecond // 1000))
    except (OverflowError, ValueError) as error:
        msg = f"{named(what, value)} is not allowed: in UTC it lies outside the years 1 to 9999"
        raise ConfigError(msg) from error


def optional_milliseconds(what: str, value: object) -> int | None:
    """Like `milliseconds`, keeping None."""
    return None if value is None else milliseconds(what, value)


def parse_moment(value: Moment | str, what: str = "") -> Moment:
    """A moment, or its text in ISO 8601 with a zone; `what`: its name in errors, if any. Raises `ConfigError`.

    Such as ``2026-11-22T10:31:05Z`` or ``2026-11-22 11:31:05+01:00``; ``UTC`` after it is a zone, too.
    """
    moment = _read(value, what) if isinstance(value, str) else value
    milliseconds(what, moment)
    return moment


def _read(text: str, what: str) -> datetime:
    plain = text.strip()
    try:
        moment = datetime.fromisoformat(plain.removesuffix("UTC").rstrip() + "Z" if plain.endswith("UTC") else plain)
    except ValueError:
        msg = f"{named(what, text)} is no moment: write ISO 8601 with a zone, such as 2026-11-22T10:31:05Z"
        raise ConfigError(msg) from None
    if moment.utcoffset() is None:
        msg = f"{named(what, text)} has no zone: end it with Z for UTC, or with an offset such as +01:00"
        raise ConfigError(msg)
    return moment


def moment_of(ms: int) -> DateTime:
    """Milliseconds since 1970 as pendulum's DateTime, in UTC. Raises `CorruptRecord` for what no calendar has."""
    import pendulum  # now, not before: the command line starts faster without

    try:
        return pendulum.instance(_EPOCH + timedelta(milliseconds=ms))
    except (OverflowError, TypeError) as error:
        msg = f"{abbreviated(ms)} milliseconds since 1970 are no time: {error}"
        raise CorruptRecord(msg) from error


def optional_moment_of(ms: int | None) -> DateTime | None:
    """Like `moment_of`, keeping None."""
    return None if ms is None else moment_of(ms)


# --- What can be waited for.


class WaitFor(StrEnum):
    """What a waiter waits for: that a task was claimed, or that it ended."""

    CLAIM = "claim"
    COMPLETION = "completion"


def wait_event(event: object) -> WaitFor:
    """The event by its name. Raises `ConfigError`."""
    try:
        return WaitFor(str(event))
    except ValueError:
        msg = f"cannot wait for {event!r}: use 'completion' or 'claim'"
        raise ConfigError(msg) from None
