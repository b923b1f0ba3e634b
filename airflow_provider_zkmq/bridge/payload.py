"""Payloads as text that people read and editors keep, or else as base64.

Text is kept from editors that strip spaces at the ends of lines, change how lines end, or know what is invisible
better than its author: what they might damage is spelled as base64. Empty lines stay, since texts have many; how many
is noted, so that their loss is seen.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final

TEXT: Final = "text"
BASE64: Final = "base64"
#: Controls but newline and tab, line and paragraph separators, what turns the direction of text, a byte order mark.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff]")
_STRIPPED: Final = re.compile(r"[^\S\n](?=\n|\Z)|\n\Z")


class Refusal(Exception):
    """Why one message is left alone."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A payload as it stands in a file: its bytes, how they are to be read, how many of its further lines are empty."""

    data: bytes
    encoding: str = TEXT
    blank: int = 0


def spell(payload: bytes) -> Spelled:
    """A payload as text, where an editor gives it back as it was, else as base64 in lines of 76 characters."""
    if _keeps(payload):
        return Spelled(payload, blank=blank_lines(payload))
    return Spelled(base64.encodebytes(payload).removesuffix(b"\n"), BASE64)


def _keeps(payload: bytes) -> bool:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return False
    return not (_CONTROL.search(text) or _STRIPPED.search(text))


def blank_lines(payload: bytes) -> int:
    """How many lines after the first are empty: in a file they are a space alone, which editors may strip."""
    return payload.split(b"\n")[1:].count(b"")


def understand(data: bytes, encoding: str) -> bytes:
    """The payload that stands in a file. Raises `Refusal`."""
    if encoding == BASE64:
        return _from_base64(data)
    if encoding != TEXT:
        raise Refusal(f"encoding={clipped(encoding)} is not known: {TEXT} (or no such line) or {BASE64}")
    text = _decoded(data)
    if control := _CONTROL.search(text):
        raise Refusal(
            f"the text holds {control.group()!r} at its character {control.start()}, which editors damage: "
            f"write it as base64, with encoding={BASE64}"
        )
    return data


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Refusal(f"the text is no UTF-8: {error.reason} at its byte {error.start}; save it as UTF-8") from None


def _from_base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(data.split()), validate=True)
    except binascii.Error as error:
        raise Refusal(f"broken base64: {error}; for plain text remove the line encoding={BASE64}") from None


def visible(text: str) -> str:
    """A text on one line, with what cannot be seen spelled out."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def clipped(text: str, most: int = 140) -> str:
    """What of a text, made `visible`, is told."""
    return visible(text if len(text) <= most else text[: most - 1] + "…")
