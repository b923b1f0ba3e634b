r"""A queue file as lines of bytes, each with its exact offset; read in bounded memory.

The format is TextQueue's (PyPI ``textqueue``, its README): the byte in column 0 says what a line is, nothing is
escaped, a line ends with ``\n`` or the file. A byte order mark before the first line is stepped over. Where the first
line ends with ``\r\n``, as some editors write, so does every line, and the ``\r`` is no text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from airflow_provider_zkmq.textqueue.errors import HostileFile

BOM: Final = b"\xef\xbb\xbf"
CHUNK: Final = 1 << 16


class Source(Protocol):
    """Where bytes are read from, by offset."""

    def read(self, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset`; none at the end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is read at the most: bytes of a line, of a message with continuations, of a file; variables of a message.

    ``lines``: lines of a file, which bounds the time that reading takes.
    """

    line: int = 4 << 20
    lines: int = 5_000_000
    message: int = 16 << 20
    variables: int = 1_000
    file: int = 256 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One line: where it begins and ends (the newline included), and what stands in it without the newline."""

    offset: int
    end: int
    body: bytes

    @property
    def control(self) -> bytes:
        """The byte in column 0; none for a blank line."""
        return self.body[:1]

    @property
    def rest(self) -> bytes:
        """What follows it."""
        return self.body[1:]


def scan(name: str, source: Source, limits: Limits, start: int = 0) -> Iterator[Line]:
    """The lines from `start`, which must be the offset of a line. Raises `HostileFile`.

    What is appended while this runs may be seen.
    """
    crlf = uses_crlf(source)
    offset = start or (len(BOM) if source.read(len(BOM), 0) == BOM else 0)
    count = 0
    buffer, at, read = b"", 0, offset  # what was read, how much of it was given, where to read on
    while True:
        cut = buffer.find(b"\n", at)
        if cut >= 0:
            body, at = buffer[at:cut], cut + 1
            end = offset + len(body) + 1
            count += 1
            if count > limits.lines:
                msg = f"{name} has more than {limits.lines:,} lines"
                raise HostileFile(msg)
            yield Line(offset, end, body.removesuffix(b"\r") if crlf else body)
            offset = end
            continue
        if len(buffer) - at > limits.line:
            msg = f"{name}: the line at byte {offset} is longer than {limits.line:,} bytes"
            raise HostileFile(msg)
        more = source.read(CHUNK, read)
        if not more:
            break
        buffer, at, read = buffer[at:] + more, 0, read + len(more)
    if at < len(buffer):
        yield Line(offset, offset + len(buffer) - at, buffer[at:])


def uses_crlf(source: Source) -> bool:
    """Whether the first line ends with a carriage return and a newline."""
    seen = b""
    while b"\n" not in seen and len(seen) < CHUNK:
        more = source.read(CHUNK, len(seen))
        if not more:
            return False
        seen += more
    head, newline, _ = seen.partition(b"\n")
    return bool(newline) and head.endswith(b"\r")
