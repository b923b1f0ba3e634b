"""Messages to lines: what is appended, checked so that it reads back as it was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_provider_zkmq.textqueue.lines import CRLF, NEWLINE
from airflow_provider_zkmq.textqueue.parse import BYTE, Status

_DIGITS: Final = 18


def encode(text: str | bytes) -> bytes:
    """A text's bytes; what could not be decoded when it was read is given back as it was."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def decode(data: bytes) -> str:
    """Bytes as text; bytes that are no UTF-8 are kept as surrogates, which `encode` turns back."""
    return data.decode("utf-8", "surrogateescape")


def spell(text: str | bytes, variables: Sequence[str | bytes], newline: bytes, status: Status = Status.QUEUED) -> bytes:
    """The lines of a message, each with its newline. Raises `ValueError` for what would not read back as it is."""
    lines = encode(text).split(NEWLINE)
    if newline == CRLF and any(line.endswith(b"\r") for line in lines):
        msg = "a line of the text ends with a carriage return, which this file uses to end its lines"
        raise ValueError(msg)
    out = [BYTE[status] + lines[0], *(b" " + line for line in lines[1:])]
    out += [b"\\" + check_variable(value, newline) for value in variables]
    return newline.join(out) + newline


def check_variable(value: str | bytes, newline: bytes = NEWLINE) -> bytes:
    """A variable's bytes. Raises `ValueError` where it would not stand on one line."""
    data = encode(value)
    if NEWLINE in data or (newline == CRLF and data.endswith(b"\r")):
        msg = f"variable {value!r} holds a newline; a variable is a single line"
        raise ValueError(msg)
    return data


def whole_number(text: str) -> int:
    """The number that digits spell; 0 for anything else, also for more of them than a count has."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdigit() else 0
