"""Durations: numbers of seconds or `timedelta` objects, checked at the edge and spelled in znodes."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_zkmq.engine.errors import ConfigError


def seconds(what: str, value: object) -> float:
    """A time span in seconds from a number or a duration (`datetime.timedelta`, so also `pendulum.Duration`)."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e10:
        return float(value)
    msg = f"{what} {value!r} is not allowed: seconds (0 or more) or a duration"
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


def spell_seconds(value: float) -> bytes:
    """ASCII seconds, whole where they are."""
    return (f"{value:.0f}" if value == int(value) else repr(value)).encode()
