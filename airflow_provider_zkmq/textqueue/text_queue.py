"""`TextQueue`: a queue in a file that people can read and edit."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from .errors import HostileFile, TextQueueError
from .line_reader import BOM, NEWLINE, Limits, check_lines, scan
from .message import Message, Status, read_messages, spell
from .message_mutex import RESERVED, is_mutex
from .plain_files import open_plain
from .shared_file import SharedFile

# --- Following a file: waiting for its next change without polling, where the platform allows.

#: Without `watchfiles` the file's size and time are looked at this often, in seconds.
POLL_SECONDS: Final = 0.2


def changes(path: Path, stop: threading.Event) -> Iterator[None]:
    """Yield at once, and after each change of the file, until `stop` is set.

    With the package ``watchfiles`` the system tells of changes; without it the file is looked at regularly.
    """
    yield
    try:
        from watchfiles import watch
    except ImportError:
        yield from _poll(path, stop)
        return
    # The folder, since editors replace files; a time-out now and then, since a change may precede the watch.
    for _ in watch(path.parent, stop_event=stop, recursive=False, yield_on_timeout=True, rust_timeout=1_000, step=10):
        yield


def _poll(path: Path, stop: threading.Event) -> Iterator[None]:
    last = _mark(path)
    while not stop.wait(POLL_SECONDS):
        now = _mark(path)
        if now != last:
            last = now
            yield


def _mark(path: Path) -> tuple[int, int]:
    try:
        stats = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (stats.st_size, stats.st_mtime_ns)


# --- `TextQueue`: a queue in a file that people can read and edit.

QUEUED: Final = "queued"
ALL: Final = "all"


class TextQueue(SharedFile):
    """A queue in a file: read, appended to, and edited in place, at exact offsets; a context manager.

    A byte that this library did not have to change is never written. Appends and edits hold a lock on the file
    (``flock``), which other processes of this library respect; people's editors do not, so that every edit checks that
    what it replaces still stands there. A reader beside one appender is safe but for the final message, which may
    be incomplete: ``messages(final=False)`` leaves it out.
    """

    def __init__(self, path: Path, descriptor: int, limits: Limits) -> None:
        super().__init__(path, descriptor, limits)
        #: What was not understood, as (offset, why), found by reading.
        self.reports: dict[int, str] = {}
        #: From where to where it has grown by what was appended through this object, if nobody else appended meanwhile.
        self.grown: tuple[int, int] | None = None
        #: How many lines end before an offset, as far as they were counted for appending.
        self._counted = (0, 0)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        write: bool = True,
        limits: Limits | None = None,
    ) -> Self:
        """Open a file, made where it does not exist (unless `create` is False); `write=False`: only to be read.

        One that is made is its owner's alone (mode 0600); one that is there keeps its mode. Raises `OSError`, and
        `HostileFile` for a file that is too large, no plain file, or a symbolic link.
        """
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create and write else 0)
        queue = cls(Path(path), open_plain(path, flags), limits or Limits())
        try:
            queue._check()
        except BaseException:
            queue.close()
            raise
        return queue

    def messages(
        self, include: str | Collection[str] = QUEUED, *, start: int = 0, final: bool = True
    ) -> Iterator[Message]:
        """The messages in the order of the file: ``"queued"`` ones, ``"all"`` with comments, or those of some statuses.

        `start`: the offset of a line to begin at. `final=False` leaves out the last one, which somebody may still be
        writing. What is not understood is stepped over, and noted in `reports`. Raises `HostileFile`.
        """
        wanted = _statuses(include)
        self._check()
        lines = scan(str(self.path), self.read, self.limits, start)
        last: Message | None = None
        for message in read_messages(self.place, lines, self._report):
            if last is not None and last.status in wanted:
                yield last
            last = message
        if final and last is not None and last.status in wanted:
            yield last

    def _report(self, offset: int, why: str) -> None:
        if len(self.reports) < self.limits.variables:
            self.reports[offset] = why

    def append(
        self, text: str | bytes, variables: Sequence[str] = (), *, status: Status = Status.QUEUED, mutex: bool = False
    ) -> int:
        """Add a message at the end, in one write; returns its offset. `mutex`: with a mutex variable, free.

        What is there reads as before. Raises `ValueError` for what would not read back as it is given: a variable with
        a newline, a carriage return where the file's lines end with one; `HostileFile` for what would be too large to
        be read. Then nothing is written.
        """
        with self.locked():
            size, newline = self.size(), self.newline
            spelled = [*variables, RESERVED] if mutex else variables
            data = spell(text, spelled, newline, status)
            if self._is_blank(size) and data.partition(NEWLINE)[0].endswith(b"\r"):
                msg = "the first line of a file cannot end with a carriage return: it would tell how all its lines end"
                raise ValueError(msg)
            self._check_fits(size, data, len(spelled))
            whole = data if size == 0 or self._ends_whole(size) else newline + data
            self.writing()
            # One write where the file ends by then, since a shell may append meanwhile.
            descriptor = open_plain(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                written = os.write(descriptor, whole)
                end = os.lseek(descriptor, 0, os.SEEK_CUR)
                if written == len(whole):
                    begin = self.grown[0] if self.grown and self.grown[1] == end - written else end - written
                    self.grown = (begin, end)
                    return end - len(data)
                if self.size() == end:  # else somebody else has appended to what was written in part
                    os.ftruncate(descriptor, end - written)
            finally:
                os.close(descriptor)
        msg = f"{self.path}: only {written:,} of {len(whole):,} bytes could be appended; is the disk full?"
        raise TextQueueError(msg)

    def _check_fits(self, size: int, data: bytes, variables: int) -> None:
        """Raise `HostileFile` for a message with which nobody would read the file any more."""
        limits, name = self.limits, f"{self.path} with this message"
        if size + len(data) > limits.file or len(data) > limits.message or variables > limits.variables:
            msg = (
                f"{name} would have {size + len(data):,} bytes, the message {len(data):,} and {variables:,} variables; "
                f"at most {limits.file:,}, {limits.message:,} and {limits.variables:,} are read"
            )
            raise HostileFile(msg)
        if len(data) > limits.line and max(map(len, data.split(NEWLINE))) > limits.line:
            msg = f"{name} would have a line that is longer than {limits.line:,} bytes"
            raise HostileFile(msg)
        if size + len(data) > limits.lines:
            start, before = self._counted if self._counted[0] <= size else (0, 0)
            lines = check_lines(name, self.read, limits, start, before + data.count(NEWLINE) + 1)
            self._counted = (size, lines - data.count(NEWLINE) - 1)

    def _ends_whole(self, size: int) -> bool:
        return self.read(1, size - 1) == NEWLINE or self._is_blank(size)

    def _is_blank(self, size: int) -> bool:
        return size == 0 or (size == len(BOM) and self.read(size, 0) == BOM)

    def claim(self, owner: str, seconds: float, *, start: int = 0) -> Message | None:
        """Take the first queued message whose mutex is free or expired, for so long; None: there is none.

        `settle` ends it. Messages without a mutex are left alone, and so are those that `owner` has already; one whose
        mutex has no room for an owner, as the seed's, is noted in `reports` and stepped over. `start` spares reading
        what has ended. Raises `ValueError` for an owner that is no name, or too long for the room that `append` leaves.
        """
        if not owner or owner != owner.strip() or "\n" in owner:
            msg = f"owner {owner!r} is not allowed: a name on one line, without spaces around it"
            raise ValueError(msg)
        for message in self.messages(start=start):
            if not any(map(is_mutex, message.variables)):
                continue
            with self.locked():
                try:
                    if not message.holds(owner) and message.try_lock(owner, seconds):
                        return message
                except ValueError as error:
                    if message.room >= len(RESERVED):
                        raise
                    self._report(message.offset, f"its mutex has no room for an owner: {error}; stepped over")
        return None

    def watch(self, stop: threading.Event, include: str | Collection[str] = QUEUED) -> Iterator[Message]:
        """The messages that are there, then those that are appended, until `stop` is set.

        Changes are told by the system where the package ``watchfiles`` is there, else looked for regularly. What was
        given is not given again, also when it is edited. Raises `HostileFile`.
        """
        start, wanted = 0, _statuses(include)
        for _ in changes(self.path, stop):
            with self.locked():  # no append is under way: the final message is whole
                messages = list(self.messages(ALL, start=start))
            for message in messages:
                start = message.end
                if message.status in wanted:
                    yield message


def _statuses(include: str | Collection[str]) -> Collection[str]:
    """The statuses that are meant. Raises `ValueError` for one that is not known."""
    wanted = set(Status) if include == ALL else {include} if isinstance(include, str) else set(include)
    if unknown := wanted - set(Status):
        msg = f"include {sorted(unknown)} is not known: use {', '.join(Status)}, or all"
        raise ValueError(msg)
    return wanted


@contextlib.contextmanager
def read_all(
    paths: Iterable[str | os.PathLike[str]], include: str | Collection[str] = QUEUED
) -> Iterator[Iterator[Message]]:
    """The messages of several files, one after the other, each marked in its own. Raises `OSError`, `HostileFile`."""
    with contextlib.ExitStack() as stack:
        queues = [stack.enter_context(TextQueue.open(path, create=False)) for path in paths]
        yield (message for queue in queues for message in queue.messages(include))
