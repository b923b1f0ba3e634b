"""What the engine gives, for programs: one name for one fact, times in ISO 8601, bytes as text or base64."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

#: Fields whose names do not tell enough, or that end in ``_ms``, as milliseconds do, and in JSON are text.
_NAMES: Final = {
    **{name: f"{name}_at" for name in ("claimed", "started", "ended")},  # of an attempt
    "number": "attempt",
    "dedupe_ms": "dedupe_until",
    "lease_ms": "lease_until",
}
_ATTEMPT: Final = frozenset({"claimed", "started", "ended", "number"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def record(thing: Any) -> dict[str, Any]:
    """An object of the engine for JSON, its fields by the names of docs/command-line.md."""
    names: Iterable[str] = getattr(thing, "__struct_fields__", None) or thing.__dataclass_fields__
    found: dict[str, Any] = {}
    for name in names:
        value, milliseconds = getattr(thing, name), name.endswith("_ms")
        if name in {"data", "result"}:
            found |= payload(name, value)
        elif milliseconds or (name in _ATTEMPT and "outcome" in names):
            known = _NAMES.get(name, f"{name[:-3]}_at")
            found[known] = value if name == "number" else iso(value)
        else:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if hasattr(value, "__struct_fields__") or hasattr(value, "__dataclass_fields__"):
        return record(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value


def iso(milliseconds: int | None) -> str | None:
    """A server's time in ISO 8601, in UTC; None for none, and for what is no time of a calendar."""
    try:
        return (
            None
            if milliseconds is None
            else (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat("T", "milliseconds")
        )
    except OverflowError:
        return None


def payload(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as JSON can hold them: text under `name`, else base64 under ``name_base64``."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


#: What errors tell besides their message.
_DETAILS: Final = {
    "DuplicateTask": ("status", "duplicates", "enqueued"),
    "QueueNotFound": ("similar",),
    "WaitTimeout": ("left",),
}


def error_record(error: Exception, message: str) -> dict[str, Any]:
    """An error, its message as people read it."""
    kind = type(error).__name__
    return {"error": kind, "message": message, **{name: getattr(error, name) for name in _DETAILS.get(kind, ())}}
