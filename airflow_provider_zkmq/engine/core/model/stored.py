"""JSON as znodes hold it: written compactly, read with suspicion."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.errors import CorruptRecord

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
_DECODER: Final = json.JSONDecoder(parse_constant=_constant, parse_float=lambda text: checks.finite(float(text)))
