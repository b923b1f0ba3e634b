"""Messages of a queue file: read, written, and marked in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from . import message_mutex
from .errors import HostileFile, StaleMessage, TextQueueError
from .line_reader import CRLF, NEWLINE, Line
from .shared_file import Place, SharedFile


class Status(StrEnum):
    """What a message is, in the seed's words."""

    QUEUED = "queued"
    PROCESSED = "processed"
    ERROR = "error"
    COMMENT = "comment"


CONTROL: Final = {b"-": Status.QUEUED, b"=": Status.PROCESSED, b"!": Status.ERROR, b"#": Status.COMMENT}
BYTE: Final = {status: byte for byte, status in CONTROL.items()}
CONTINUATION: Final = b" "
_ATTACHED: Final = frozenset({CONTINUATION, b"\\"})


# --- Messages to lines: what is appended, checked so that it reads back as it was given.

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


# --- A message of a queue file, and its marks and variables, written in place.


@dataclass(slots=True, eq=False, repr=False)
class Message:
    """A message or comment of a file, as it stood when it was read; its marks are written in place.

    ``status``: ``queued``, ``processed``, ``error`` or ``comment``. ``offset``: of its control byte; ``end``: after its
    last line. ``head`` is its first line. Each variable is spelled as the offset of its text and the text.
    """

    place: Place
    status: Status
    offset: int
    end: int
    head: bytes
    parts: list[bytes]
    spelled: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def _file(self) -> SharedFile:
        return self.place.file

    @property
    def data(self) -> bytes:
        """The message's bytes: its lines without their first byte, joined by newlines."""
        return NEWLINE.join(self.parts)

    @property
    def text(self) -> str:
        """The same as text; bytes that are no UTF-8 stand as surrogates."""
        return decode(self.data)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables as they stand, padding included."""
        return tuple(decode(value) for _, value in self.spelled)

    @property
    def path(self) -> Path:
        """The file it stands in."""
        return self._file.path

    def overwrite(self, offset: int, expected: bytes, data: bytes) -> None:
        """Replace bytes of it in place, within `SharedFile.locked`. Raises `StaleMessage` for what is not as it was."""
        if self.status is not Status.QUEUED and offset == self.offset:
            msg = f"{self.path}: the message at byte {offset} is {self.status}; only a queued one can be marked"
            raise StaleMessage(msg)
        self._file.overwrite(offset, expected, data, (self.offset, self.head))

    def refresh(self) -> bool:
        """Read its status and variables again; False if another message, or none, stands there now."""
        head = self._file.read(len(self.head), self.offset)
        if head[1:] != self.head[1:]:
            return False
        status = CONTROL.get(head[:1])
        if status is None:
            return False
        self.status, self.head = status, head
        self.spelled = [(offset, self._file.read(len(value), offset)) for offset, value in self.spelled]
        return True

    def mark_processed(self) -> None:
        """It is done. Raises `StaleMessage` unless it still stands there as queued; then nothing is written."""
        self._mark(Status.PROCESSED)

    def mark_error(self) -> None:
        """It ended in a critical error. Raises `StaleMessage` unless it still stands there as queued."""
        self._mark(Status.ERROR)

    def _mark(self, status: Status) -> None:
        with self._file.locked():
            self.overwrite(self.offset, self.head[:1], BYTE[status])
            self.status = status
            self.head = BYTE[status] + self.head[1:]

    def set_variable(self, index: int, value: str) -> None:
        """Write a variable in place, padded with spaces to the room it has.

        Raises `ValueError` where it does not fit (in bytes) or holds a newline, `IndexError` for a variable that is
        not there, `StaleMessage` where the file holds something else by now; then nothing is written.
        """
        with self._file.locked():
            offset, now = self.spelled[index]
            data = check_variable(value, self._file.newline)
            if len(data) > len(now):
                msg = f"variable {value!r} takes {len(data)} bytes; there is room for {len(now)} at byte {offset}"
                raise ValueError(msg)
            data = data.ljust(len(now), b" ")
            self.overwrite(offset, now, data)
            self.spelled[index] = (offset, data)

    def try_lock(self, owner: str, seconds: float) -> bool:
        """Take the message's mutex for so long; False while another holds it, or if it is no longer queued.

        Raises `TextQueueError` for a message without a mutex variable, `ValueError` where the owner does not fit.
        """
        with self._file.locked():
            if not self.refresh() or self.status is not Status.QUEUED:
                return False
            index = self._mutex()
            holder = message_mutex.holder(self.variables[index])
            if holder is not None and holder[0] != owner and holder[1] > time.time():
                return False
            self.set_variable(index, message_mutex.taken(self.variables[index], owner, time.time() + seconds))
            return True

    def holds(self, owner: str) -> bool:
        """Whether `owner` has the message, which is still queued, and its time is not over."""
        if not self.refresh() or self.status is not Status.QUEUED:
            return False
        holder = message_mutex.holder(self.variables[self._mutex()])
        return holder is not None and holder[0] == owner and holder[1] > time.time()

    @property
    def room(self) -> int:
        """How many bytes its mutex variable has. Raises `TextQueueError` for a message without one."""
        return len(self.spelled[self._mutex()][1])

    def settle(self, owner: str, status: Status | None) -> None:
        """End what `try_lock` began: mark the message (None: leave it queued) and free its mutex, in one lock.

        Raises `StaleMessage` unless `owner` still has it; then nothing is written.
        """
        with self._file.locked():
            if not self.holds(owner):
                msg = f"{self.path}: {owner} does not have the message at byte {self.offset} any more"
                raise StaleMessage(msg)
            if status is not None:  # first: a crash in between leaves an ended message with a mutex nobody heeds
                self._mark(status)
            index = self._mutex()
            self.set_variable(index, message_mutex.free(self.variables[index]))

    def _mutex(self) -> int:
        index = message_mutex.place(self.variables)
        if index is None:
            msg = f"{self.path}: the message at byte {self.offset} has no mutex variable; append it with mutex=True"
            raise TextQueueError(msg)
        return index

    def count_down(self, name: str = "retries") -> int:
        """Take one off the number in the variable ``name=…`` and return what is left; 0 without one.

        Raises `TextQueueError` for a message without that variable.
        """
        with self._file.locked():
            self.refresh()
            for index, variable in enumerate(self.variables):
                key, equals, number = variable.partition("=")
                if equals and key == name:
                    left = max(0, whole_number(number.strip()) - 1)
                    self.set_variable(index, f"{name}={left}")
                    return left
        msg = f"{self.path}: the message at byte {self.offset} has no variable {name!r}"
        raise TextQueueError(msg)

    def __repr__(self) -> str:
        return f"<{self.status} message at byte {self.offset} of {self.path}>"


# --- Lines to messages: what belongs together, and what is not understood.

Report = Callable[[int, str], None]


def read_messages(place: Place, lines: Iterable[Line], report: Report) -> Iterator[Message]:
    """The messages and comments, in order. Raises `HostileFile`.

    A line with a control byte that is not known is reported and stepped over with its continuations and variables,
    so that files of later versions can be read. Blank lines end nothing: a continuation after one still belongs to
    the message before it.
    """
    limits = place.file.limits
    message: Message | None = None
    skipping = False  # the lines of something unknown
    for line in lines:
        control, rest = line.body[:1], line.body[1:]
        if control in _ATTACHED:
            if message is None:
                if not skipping:
                    report(line.offset, f"{control!r} follows no message; stepped over")
                continue
            if control == CONTINUATION:
                message.parts.append(rest)
            else:
                message.spelled.append((line.offset + 1, rest))
            message.end = line.end
            if line.end - message.offset > limits.message or len(message.spelled) > limits.variables:
                msg = (
                    f"{message.path}: the message at byte {message.offset} is larger than {limits.message:,} bytes "
                    f"or has more than {limits.variables:,} variables"
                )
                raise HostileFile(msg)
            continue
        if message is not None:
            yield message
        status = CONTROL.get(control)
        skipping = status is None
        message = None if status is None else Message(place, status, line.offset, line.end, line.body, [rest])
        if skipping:
            report(line.offset, f"unknown control byte {control!r}; stepped over")
    if message is not None:
        yield message
