"""Moments: points in time that have a zone. One without is refused, as only its author knows when it is."""

from __future__ import annotations

from calendar import timegm
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from airflow_provider_zkmq.engine.core.model.shown import named, shown
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

if TYPE_CHECKING:
    from pendulum import DateTime

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
        msg = f"{shown(ms)} milliseconds since 1970 are no time: {error}"
        raise CorruptRecord(msg) from error


def optional_moment_of(ms: int | None) -> DateTime | None:
    """Like `moment_of`, keeping None."""
    return None if ms is None else moment_of(ms)
