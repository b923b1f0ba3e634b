r"""A task's variables: ``\name=value``, what changes with reserved room, and their values as text.

In the order of the file: ``id``; with room: ``attempts``, ``claims``, ``due`` (ISO 8601), ``error`` and ``result``
(JSON text), the mutex; as they were enqueued: ``enqueued``, ``filters``, ``metadata``, ``policy``, ``lock``,
``encoding``. ``moved-from`` stands while a message is moved to the end of the file, see `moving`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from airflow_provider_zkmq.textqueue.mutex import RESERVED
from airflow_provider_zkmq.textqueue.write import encode

#: Bytes reserved for what changes.
ROOMS: Final = {"attempts": 7, "claims": 7, "due": 32, "error": 200, "result": 200, "mutex": len(RESERVED) - 6}
KEPT: Final = ("enqueued", "filters", "metadata", "policy", "lock", "encoding")
MOVED: Final = "moved-from"
#: Where a result stands in the file of its own.
ELSEWHERE: Final = "@file"


def spell(values: Mapping[str, str]) -> list[str]:
    """The variables of a message, those with room padded to it."""
    out = [f"id={values['id']}"]
    out += [pad(f"{name}={values.get(name, '')}", len(name) + 1 + room) for name, room in ROOMS.items()]
    return out + [f"{name}={values[name]}" for name in KEPT if values.get(name)]


def pad(text: str, size: int) -> str:
    """The text with spaces up to so many bytes."""
    return text + " " * (size - width(text))


def width(text: str) -> int:
    """How many bytes a text takes in the file."""
    return len(encode(text))


def body_of(data: bytes) -> tuple[str, str]:
    """The data as a message's text, and how it is encoded: as it is, or, where that is no plain text, in base64."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(char >= " " or char in "\n\t" for char in text):
        return text, ""
    return base64.encodebytes(data).decode().rstrip("\n"), "base64"


def data_of(body: bytes, encoding: str) -> bytes:
    """The data of a message's text. What is no base64 is given as it stands."""
    if encoding != "base64":
        return body
    try:
        return base64.b64decode(body)
    except ValueError:
        return body


def quote(text: str) -> str:
    """A text on one line, as JSON; what is no valid text is escaped."""
    return json.dumps(text.encode("utf-8", "backslashreplace").decode(), ensure_ascii=False)


def unquote(value: str) -> str:
    """The text that `quote` spelled; what a person wrote without quotes, as it stands."""
    try:
        text = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return text if isinstance(text, str) else value


def bytes_of(text: str) -> bytes:
    """A text's bytes; those that were no UTF-8 as they were, what is no text at all, as a person may write, escaped."""
    try:
        return encode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def clipped(text: str) -> str:
    """An error quoted within its room, ending with … where it was too long."""
    room = ROOMS["error"]
    if width(quote(text)) <= room:
        return quote(text)
    text = text[:room]
    while width(quote(text + "…")) > room:
        text = text[:-1]
    return quote(text + "…")


def quoted_result(data: bytes) -> str:
    """A result as its variable holds it: text that fits, blank for none, else the word for a file of its own."""
    try:
        value = quote(data.decode()) if data else ""
    except UnicodeDecodeError:
        return ELSEWHERE
    return value if width(value) <= ROOMS["result"] else ELSEWHERE


def spell_time(when: float) -> str:
    """A time in seconds since 1970 as people read it, to the millisecond."""
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")


def time_of(value: str) -> float | None:
    """Seconds since 1970; a time without a zone is UTC. None for what is no time."""
    try:
        when = datetime.fromisoformat(value)
        return (when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # also a time that is in no year in UTC
        return None
