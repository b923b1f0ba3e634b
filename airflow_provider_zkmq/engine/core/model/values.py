"""Values of users and of znodes: numbers, JSON, durations and moments, checked, decoded and shown."""

from __future__ import annotations

import contextlib
import re
from calendar import timegm
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Meta

from ...errors import ConfigError, CorruptRecord

if TYPE_CHECKING:
    from pendulum import DateTime

# --- Values of callers as errors show them.

_SHOWN_CHARACTERS: Final = 80


def abbreviated(value: object) -> str:
    """A value in an error: short, and without an error of its own, as that of an endless number would be."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  whatever its `__repr__` raises
        return f"of type {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def named(what: str, value: object) -> str:
    """A value behind the name of the parameter that it was given for; without one, the value alone."""
    return f"{what} {abbreviated(value)}" if what else abbreviated(value)


# --- What may stand in a znode: JSON, read with suspicion, of fields whose types say what they may hold.
#
# Whatever is decoded is checked before anybody computes with it or makes a path of it: a path that cannot be encoded
# ends the thread of a connection, and a number without bound ends whoever makes a time of it.

T = TypeVar("T")
#: The last millisecond of the year 9999: what is later is no time that could be shown.
LATEST: Final = 253_402_300_799_999
#: Transactions of ZooKeeper are numbered by 64 bits.
MAX_ZXID: Final = (1 << 63) - 1
MAX_PRIORITY: Final = 9_999

#: One znode in a path: ZooKeeper's server takes no other characters there.
PATH_PART: Final = r"(?!\.\.?(?:/|\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+"
Part: TypeAlias = Annotated[str, Meta(pattern=rf"\A{PATH_PART}\Z")]
#: A time of the server's clock, in milliseconds since 1970.
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=LATEST)]
Zxid: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_ZXID)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Priority: TypeAlias = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
#: For how many seconds something holds.
Span: TypeAlias = Annotated[float, Meta(ge=0, le=1e10)]

#: Nothing of ours is nested nearly so deep; what is nested deeper could be read here and not be written there.
MAX_NESTING: Final = 100
#: What bytes that are not ours make whoever reads them raise.
UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


#: Compact JSON, as every record of ours is stored. It is made once, which takes longer than to use it.
dump: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode


@overload
def load(path: str, data: bytes) -> dict[str, Any]: ...
@overload
def load(path: str, data: bytes, kind: type[T], what: str) -> T: ...
def load(path: str, data: bytes, kind: Any = dict[str, Any], what: str = "a JSON object") -> Any:
    """What a znode holds: JSON of a `kind`, or any object. Raises `CorruptRecord`, which names `path` and `what`."""
    try:
        record = _decoder(kind).decode(data)
        refuse_deep(data, record)
    except UNREADABLE as error:
        raise corrupt(path, what, error) from error
    return record


_decoder: Final = lru_cache(msgspec.json.Decoder)


@contextlib.contextmanager
def corrupt_unless_read(path: str, what: str) -> Iterator[None]:
    """Whatever the block makes of the bytes at `path` but an error of theirs is `CorruptRecord` naming the path."""
    try:
        yield
    except CorruptRecord:
        raise
    except UNREADABLE as error:
        raise corrupt(path, what, error) from error


def corrupt(path: str, what: str, error: Exception) -> CorruptRecord:
    """The error for a znode that does not hold what it should."""
    return CorruptRecord(f"{path} does not hold {what}: {error}")


def refuse_deep(data: bytes, record: object) -> None:
    """Raise `ValueError` for JSON that is nested deeper than can be read again; `data`: how it is stored."""
    if data.count(b"{") + data.count(b"[") <= MAX_NESTING:
        return
    level: list[Any] = [record]
    for _ in range(MAX_NESTING):
        inside: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inside += value.values()
            elif isinstance(value, list | tuple):
                inside += value
        if not inside:
            return
        level = inside
    raise ValueError(f"nested more than {MAX_NESTING} deep")


def shown(value: str) -> str:
    """Text for people, such as an error's; lone surrogates are spelt out, so that it can be printed and stored."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


# --- Whole numbers that callers give: how many at the most, how many at least.

#: So many tasks can be claimed together.
MOST_AT_ONCE: Final = 64


def whole_number(what: str, value: object, least: int = 0, most: int | None = None) -> int:
    """A whole number in these bounds; `what` is the parameter's name. Raises `ConfigError`, which names it."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return value
    bounds = f", {least} or more" if most is None else f" from {least} to {most}"
    raise ConfigError(f"{named(what, value)} is not allowed: a whole number{bounds}")


def optional_whole_number(what: str, value: object, least: int = 0) -> int | None:
    """Like `whole_number`, keeping None."""
    return None if value is None else whole_number(what, value, least)


# --- Durations: seconds, `timedelta` or pendulum's in calls, text in commands and templates; each is checked here.

#: A number of seconds or a `datetime.timedelta`, which `pendulum.Duration` is, too.
Duration: TypeAlias = float | timedelta

#: Nearly three centuries: a thread can still wait for so long, and added to today's time it fits the names of buckets.
LONGEST: Final = 9e9
#: In seconds.
SHORTEST_INTERVAL: Final = 1.0
#: The longest text that is read: whatever a person writes is shorter.
_LONGEST_TIME: Final = 64
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
        raise ConfigError("a lock of 0 seconds would end at once; leave it out for none")
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
    if len(text) <= _LONGEST_TIME:
        if _PLAIN.fullmatch(text):
            return seconds(what, float(text))
        match = _ISO.fullmatch(text) or _UNITS.fullmatch(text)
        if text and match is not None:
            # Decimal: exactly to the digits that were written.
            parts = [Decimal(n.replace(",", ".")) * _MILLISECONDS[unit] for unit, n in match.groupdict().items() if n]
            return seconds(what, float(sum(parts, Decimal()) / 1000))
    msg = f"{named(what, value)} is no duration: write seconds (90), units (1h30m, 250ms) or ISO 8601 (PT1H30M)"
    raise ConfigError(msg)


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
        raise ConfigError(f"{named(what, value)} is not allowed: in UTC it lies outside the years 1 to 9999") from error


def optional_milliseconds(what: str, value: object) -> int | None:
    """Like `milliseconds`, keeping None."""
    return None if value is None else milliseconds(what, value)


def parse_moment(value: Moment | str, what: str = "") -> Moment:
    """A moment, or its text in ISO 8601 with a zone; `what`: its name in errors, if any. Raises `ConfigError`.

    Such as ``2026-11-22T10:31:05Z`` or ``2026-11-22 11:31:05+01:00``; ``UTC`` after it is a zone, too.
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            moment = datetime.fromisoformat(text.removesuffix("UTC").rstrip() + "Z" if text.endswith("UTC") else text)
        except ValueError:
            msg = f"{named(what, value)} is no moment: write ISO 8601 with a zone, such as 2026-11-22T10:31:05Z"
            raise ConfigError(msg) from None
        if moment.utcoffset() is None:
            msg = f"{named(what, value)} has no zone: end it with Z for UTC, or with an offset such as +01:00"
            raise ConfigError(msg)
    else:
        moment = value
    milliseconds(what, moment)
    return moment


def moment_of(ms: int) -> DateTime:
    """Milliseconds since 1970 as pendulum's DateTime, in UTC. Raises `CorruptRecord` for what no calendar has."""
    import pendulum  # now, not before: the command line starts faster without

    try:
        return pendulum.instance(_EPOCH + timedelta(milliseconds=ms))
    except (OverflowError, TypeError) as error:
        raise CorruptRecord(f"{abbreviated(ms)} milliseconds since 1970 are no time: {error}") from error


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
        raise ConfigError(f"cannot wait for {event!r}: use 'completion' or 'claim'") from None
