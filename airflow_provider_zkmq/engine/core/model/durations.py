"""Durations: seconds, `timedelta` or pendulum's in calls, text in commands and templates; each is checked here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Final, TypeAlias

from airflow_provider_zkmq.engine.core.model.shown import named
from airflow_provider_zkmq.engine.errors import ConfigError

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
