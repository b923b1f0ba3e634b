"""A queue file as lines of bytes, each with its exact offset, and the opening of plain files."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

# --- What goes wrong with a queue file.


class TextQueueError(Exception):
    """Whatever this package raises on purpose; the message names the file, and the byte where there is one."""


class StaleMessage(TextQueueError):
    """The file holds something else by now where the message was: nothing was written. Read the file again."""


class LockHeld(TextQueueError):
    """Another process holds the file's lock, for longer than was to be waited: nothing was read or written."""


class HostileFile(TextQueueError):
    """The file exceeds what is read: a line, a message, its variables or the file itself is too large."""


# --- Plain files, opened as what they are: not through a symbolic link, and for their owner alone when they are made.

#: The mode of what is made: payloads may be secret. What is there already keeps its own.
MODE: Final = 0o600
_LINK: Final = {errno.ELOOP, errno.EMLINK}


def open_plain(path: str | os.PathLike[str], flags: int, mode: int = MODE, *, folder: int | None = None) -> int:
    """A descriptor of a plain file, by a path or by a name in an open folder.

    A symbolic link is not followed: whoever may write to the folder could lead it anywhere. A pipe or a device, which
    might block for ever, is not waited for. Raises `HostileFile` for either, and `OSError`.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in _LINK:
            msg = f"{os.fspath(path)} is a symbolic link, which is not followed: name the file itself"
            raise HostileFile(msg) from None
        if error.errno != errno.ENXIO:
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    msg = f"{os.fspath(path)} is no plain file"
    raise HostileFile(msg)


def read_plain(path: str | os.PathLike[str], most: int, *, folder: int | None = None) -> bytes:
    """What a plain file holds. Raises `HostileFile`, also for one of more than `most` bytes, and `OSError`."""
    with os.fdopen(open_plain(path, os.O_RDONLY, folder=folder), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        msg = f"{os.fspath(path)} has more than {most:,} bytes"
        raise HostileFile(msg)
    return data


def replace_plain(path: Path, data: bytes, mode: int = MODE, *, folder: int | None = None) -> None:
    """Write a file whole, beside it first: who reads meanwhile sees the old one or the new one.

    A symbolic link that has its name is replaced, not followed.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = open_plain(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask takes away
            file.write(data)
        os.replace(beside, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(beside, dir_fd=folder)
        raise


# --- A queue file as lines of bytes, each with its exact offset; read in bounded memory.
#
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
