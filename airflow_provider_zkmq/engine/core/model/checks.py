"""What may stand in a znode: texts that can be written again, parts of paths, finite numbers in range.

Each check gives back what it was given, or raises `ValueError`. Whatever is decoded goes through one of them before
anybody computes with it or makes a path of it: a path that cannot be encoded ends the thread of a connection, and a
number without bound ends whoever makes a time of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

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
