"""A queue file as lines of bytes, each with its exact offset; read in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from .errors import HostileFile

# The format is TextQueue's (PyPI ``textqueue``, its README): the byte in column 0 says what a line is, nothing is
# escaped, a line ends with ``\n`` or the file. A byte order mark before the first line is stepped over. Where the
# first line ends with ``\r\n``, as some editors write, so does every line, and the ``\r`` is no text.

BOM: Final = b"\xef\xbb\xbf"
NEWLINE: Final = b"\n"
CRLF: Final = b"\r\n"
CHUNK: Final = 1 << 16
_HEAD: Final = 512
_COUNTED: Final = 1 << 20
#: Blank lines, by how the file ends its lines: a file may have millions, which are stepped over together.
_BLANK: Final = {NEWLINE: re.compile(rb"\n+"), CRLF: re.compile(rb"(?:\r?\n)+")}
#: What reads at most so many bytes from an offset; none at the end.
Read: TypeAlias = Callable[[int, int], bytes]


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


class Line(NamedTuple):
    """One line: where it begins and ends (the newline included), and what stands in it without the newline."""

    offset: int
    end: int
    body: bytes


def scan(name: str, read: Read, limits: Limits, start: int = 0) -> Iterator[Line]:
    """The lines from `start`, which must be the offset of a line, without the blank ones. Raises `HostileFile`.

    What is appended while this runs may be seen.
    """
    crlf = newline_of(read, limits) == CRLF
    blank = _BLANK[CRLF if crlf else NEWLINE]
    offset = start or (len(BOM) if read(len(BOM), 0) == BOM else 0)
    check_lines(name, read, limits, offset)
    buffer, at, searched, there = b"", 0, 0, offset  # `at`: what was given; `searched`: up to there is no newline
    while True:
        if run := blank.match(buffer, at):
            offset, at = offset + run.end() - at, run.end()
        cut = buffer.find(NEWLINE, max(at, searched))
        if (cut if cut >= 0 else len(buffer)) - at > limits.line:
            msg = f"{name}: the line at byte {offset} is longer than {limits.line:,} bytes"
            raise HostileFile(msg)
        if cut >= 0:
            body, end = buffer[at:cut], offset + cut + 1 - at
            yield Line(offset, end, body.removesuffix(b"\r") if crlf else body)
            offset, at = end, cut + 1
            continue
        more = read(max(CHUNK, len(buffer) - at), there)  # twice as much each time: a long line is read once
        if not more:
            break
        buffer, at, there = buffer[at:] + more, 0, there + len(more)
        searched = len(buffer) - len(more)
    if at < len(buffer):
        yield Line(offset, offset + len(buffer) - at, buffer[at:])


def check_lines(name: str, read: Read, limits: Limits, start: int = 0, more: int = 0) -> int:
    """Return how many lines there are from `start` on, `more` counted in.

    Raises `HostileFile` where they are too many, before any is looked at. What is appended later may make them more;
    each reading counts anew.
    """
    size, offset = _COUNTED, start
    while more <= limits.lines and size == _COUNTED:
        chunk = read(_COUNTED, offset)
        size, more = len(chunk), more + chunk.count(NEWLINE)
        offset += size
    if more > limits.lines:
        msg = f"{name} has more than {limits.lines:,} lines"
        raise HostileFile(msg)
    return more


def newline_of(read: Read, limits: Limits) -> bytes:
    r"""How a file ends its lines: as it ends the first one.

    A file without any newline that ends with a ``\r`` ends its lines with ``\r\n``: whatever is appended must not make
    that byte of its only line a part of the line's end.
    """
    head = b""
    while NEWLINE not in head and len(head) <= limits.line:
        more = read(max(_HEAD, len(head)), len(head))
        if not more:
            break
        head += more
    return CRLF if head.partition(NEWLINE)[0].endswith(b"\r") else NEWLINE
