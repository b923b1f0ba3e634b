"""JSON records as bytes and back: each value is checked, and what is refused is shown in the error."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

# --- Values of callers as errors show them.

_MOST_CHARACTERS: Final = 80


def abbreviated(value: object) -> str:
    """A value in an error: short, and without an error of its own, as that of an endless number would be."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  whatever its `__repr__` raises
        return f"of type {type(value).__name__}"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def named(what: str, value: object) -> str:
    """A value behind the name of the parameter that it was given for; without one, the value alone."""
    return f"{what} {abbreviated(value)}" if what else abbreviated(value)


# --- What may stand in a znode: texts that can be written again, parts of paths, finite numbers in range.
#
# Each check gives back what it was given, or raises `ValueError`. Whatever is decoded goes through one of them
# before anybody computes with it or makes a path of it: a path that cannot be encoded ends the thread of a
# connection, and a number without bound ends whoever makes a time of it.

T = TypeVar("T")
Check: TypeAlias = Callable[[Any], T]

#: ZooKeeper's server takes no other characters in a path; lone surrogates cannot even be sent.
_PART: Final = re.compile(r"[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+\Z")
#: The last millisecond of the year 9999: what is later is no time that could be shown.
MAX_MS: Final = 253_402_300_799_999
MAX_SECONDS: Final = 1e10
#: Transactions of ZooKeeper are numbered by 64 bits.
MAX_ZXID: Final = (1 << 63) - 1
MAX_COUNT: Final = (1 << 31) - 1
MAX_PRIORITY: Final = 9_999


def flag(value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise _no("flag", value)


def whole(least: int, most: int) -> Check[int]:
    """A check of whole numbers from `least` to `most`."""

    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise _no(f"whole number from {least} to {most}", value)

    return check


def number(least: float, most: float) -> Check[float]:
    """A check of finite numbers from `least` to `most`."""

    def check(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise _no(f"number from {least:g} to {most:g}", value)

    return check


#: A time of the server's clock, in milliseconds since 1970.
moment: Final = whole(0, MAX_MS)
zxid: Final = whole(0, MAX_ZXID)
count: Final = whole(0, MAX_COUNT)
priority: Final = whole(-MAX_PRIORITY, MAX_PRIORITY)


def finite(value: object) -> float:
    """A number that is neither infinite nor none at all."""
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise _no("finite number", value)


def text(value: object) -> str:
    """Text that can be encoded: without lone surrogates."""
    if isinstance(value, str) and _encodable(value):
        return value
    raise _no("text", value)


def shown(value: object) -> str:
    """Text for people, such as an error's; lone surrogates are spelt out, so that it can be printed and archived."""
    if isinstance(value, str):
        return value if _encodable(value) else value.encode("utf-8", "backslashreplace").decode()
    raise _no("text", value)


def part(value: object) -> str:
    """Text that can stand for one znode in a path."""
    if isinstance(value, str) and _PART.match(value) and value not in {".", ".."}:
        return value
    raise _no("part of a path", value)


def optional(check: Check[T]) -> Check[T | None]:
    """A check that lets None pass."""
    return lambda value: None if value is None else check(value)


def many(check: Check[T]) -> Check[tuple[T, ...]]:
    """A check of arrays of what another one checks."""

    def checked(value: object) -> tuple[T, ...]:
        if isinstance(value, list | tuple):
            return tuple(check(item) for item in value)
        raise _no("array", value)

    return checked


def mapping(name: Check[str], check: Check[T]) -> Check[dict[str, T]]:
    """A check of objects: of their names and values."""

    def checked(value: object) -> dict[str, T]:
        if isinstance(value, dict):
            return {name(key): check(item) for key, item in value.items()}
        raise _no("object", value)

    return checked


def _encodable(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no(what: str, value: object) -> ValueError:
    """What is refused is shown, as far as a line has room for it."""
    return ValueError(f"{_brief(value)} is no {what}")


def _brief(value: object, most: int = 60) -> str:
    try:
        spelt = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or nested beyond what can be shown
        return f"a {type(value).__name__}"
    return spelt if len(spelt) <= most else f"{spelt[:most]}…"


# --- JSON as znodes hold it: written compactly, read with suspicion.

#: Nothing of ours is nested nearly so deep; what is nested deeper could be read here and not be written there.
MAX_NESTING: Final = 100
#: What bytes that are not ours make whoever reads them raise.
UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


def dump(record: object) -> bytes:
    """Compact JSON, as every record of ours is stored."""
    return stored(_ENCODER.encode(record))


def spell(value: object) -> str:
    """A value in compact JSON. Whole numbers take an encoder of their own five times as long."""
    return repr(value) if type(value) is int else _ENCODER.encode(value)


def stored(text: str) -> bytes:
    """JSON as it is stored: lone surrogates are spelt out, since no bytes stand for them."""
    return text.encode("utf-8", "backslashreplace")


def load(path: str, data: bytes) -> dict[str, Any]:
    """A JSON object, with finite numbers only. Raises `CorruptRecord` naming `path`."""
    try:  # not `corrupt_unless_read`, which takes longer than reading a small record
        record = _DECODER.decode(data.decode())
        refuse_deep(data, record)
    except UNREADABLE as error:
        raise _corrupt(path, "JSON", error) from error
    if not isinstance(record, dict):
        msg = f"{path} does not hold a JSON object"
        raise CorruptRecord(msg)
    return record


@contextlib.contextmanager
def corrupt_unless_read(path: str, what: str) -> Iterator[None]:
    """Whatever the block makes of the bytes at `path` but an error of theirs is `CorruptRecord` naming the path."""
    try:
        yield
    except CorruptRecord:
        raise
    except UNREADABLE as error:
        raise _corrupt(path, what, error) from error


def _corrupt(path: str, what: str, error: Exception) -> CorruptRecord:
    return CorruptRecord(f"{path} does not hold {what}: {error}")


def refuse_deep(data: bytes, record: object) -> None:
    """Raise `ValueError` for JSON that is nested deeper than can be read again; `data`: how it is stored."""
    if data.count(b"{") + data.count(b"[") <= MAX_NESTING:
        return
    level, depth = [record], 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            msg = f"nested more than {MAX_NESTING} deep"
            raise ValueError(msg)
        level = [item for value in level for item in _inside(value)]


def _inside(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _constant(name: str) -> float:
    msg = f"{name} is no number"
    raise ValueError(msg)


#: Made once: `json.dumps` makes one for each call that asks for anything but its defaults.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_DECODER: Final = json.JSONDecoder(parse_constant=_constant, parse_float=lambda text: finite(float(text)))

# --- Whole numbers that callers give: how many at the most, how many at least.

#: So many tasks can be claimed together.
MOST_AT_ONCE: Final = 64


def whole_number(what: str, value: object, least: int = 0) -> int:
    """A whole number of `least` or more; `what` is the parameter's name. Raises `ConfigError`, which names it."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    msg = f"{named(what, value)} is not allowed: a whole number, {least} or more"
    raise ConfigError(msg)


def optional_whole_number(what: str, value: object, least: int = 0) -> int | None:
    """Like `whole_number`, keeping None."""
    return None if value is None else whole_number(what, value, least)


def number_of_claims(n: int, what: str = "n") -> int:
    """How many tasks a caller wants to claim together; `what` is the parameter's name. Raises `ConfigError`."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_AT_ONCE:
        raise ConfigError(f"{what} {n!r} is not allowed: a whole number from 1 to {MOST_AT_ONCE}")
    return n
