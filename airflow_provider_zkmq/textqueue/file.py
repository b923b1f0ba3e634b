"""`TextQueue`: a queue in a file that people can read and edit."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from airflow_provider_zkmq.textqueue import mutex
from airflow_provider_zkmq.textqueue.errors import HostileFile, StaleMessage, TextQueueError
from airflow_provider_zkmq.textqueue.lines import BOM, Limits, scan, uses_crlf
from airflow_provider_zkmq.textqueue.message import Message
from airflow_provider_zkmq.textqueue.parse import BYTE, Record, Status, records
from airflow_provider_zkmq.textqueue.watch import changes
from airflow_provider_zkmq.textqueue.write import CRLF, NEWLINE, spell

QUEUED: Final = "queued"
ALL: Final = "all"


class TextQueue:
    """A queue in a file: read, appended to, and edited in place, at exact offsets; a context manager.

    A byte that this library did not have to change is never written. Appends and edits hold a lock on the file
    (``flock``), which other processes of this library respect; people's editors do not, so that every edit checks that
    what it replaces still stands there. A reader beside one appender is safe but for the final message, which may
    be incomplete: ``messages(final=False)`` leaves it out.
    """

    def __init__(self, path: Path, descriptor: int, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        #: What was not understood, as (offset, why), found by reading.
        self.reports: dict[int, str] = {}
        self._descriptor = descriptor
        self._depth = 0
        self._threads = threading.RLock()

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

        Raises `OSError`, and `HostileFile` for a file that is too large or no plain file.
        """
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
        flags |= os.O_CREAT if create and write else 0
        queue = cls(Path(path), os.open(path, flags, 0o644), limits or Limits())
        try:
            queue._check()
        except BaseException:
            queue.close()
            raise
        return queue

    def _check(self) -> None:
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            msg = f"{self.path} is no plain file"
            raise HostileFile(msg)
        if found.st_size > self.limits.file:
            msg = f"{self.path} has {found.st_size:,} bytes, more than {self.limits.file:,}"
            raise HostileFile(msg)

    def read(self, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset`."""
        return os.pread(self._descriptor, size, offset)

    @property
    def newline(self) -> bytes:
        """How the file ends its lines."""
        return CRLF if uses_crlf(self) else NEWLINE

    def messages(
        self, include: str | Collection[str] = QUEUED, *, start: int = 0, final: bool = True
    ) -> Iterator[Message]:
        """The messages in the order of the file: ``"queued"`` ones, ``"all"`` with comments, or those of some statuses.

        `start`: the offset of a line to begin at. `final=False` leaves out the last one, which somebody may still be
        writing. What is not understood is stepped over, and noted in `reports`. Raises `HostileFile`.
        """
        wanted = set(Status) if include == ALL else {include} if isinstance(include, str) else set(include)
        if unknown := wanted - set(Status):
            msg = f"include {sorted(unknown)} is not known: use {', '.join(Status)}, or all"
            raise ValueError(msg)
        self._check()
        lines = scan(str(self.path), self, self.limits, start)
        last: Record | None = None
        for record in records(str(self.path), lines, self.limits, self._report):
            if last is not None and last.status in wanted:
                yield Message(self, last)
            last = record
        if final and last is not None and last.status in wanted:
            yield Message(self, last)

    def _report(self, offset: int, why: str) -> None:
        if len(self.reports) < self.limits.variables:
            self.reports[offset] = why

    def append(
        self, text: str | bytes, variables: Sequence[str] = (), *, status: Status = Status.QUEUED, mutex: bool = False
    ) -> int:
        """Add a message at the end, in one write; returns its offset. `mutex`: with a mutex variable, free.

        Raises `ValueError` for what would not read back as it is given: a variable with a newline, a carriage
        return where the file's lines end with one.
        """
        with self.locked():
            size = os.fstat(self._descriptor).st_size
            newline = self.newline
            reserved = [_mutex_variable()] if mutex else []
            data = spell(text, [*variables, *reserved], newline, status)
            if size <= len(BOM) and data.partition(NEWLINE)[0].endswith(b"\r"):
                msg = "the first line of a file cannot end with a carriage return: it would tell how all its lines end"
                raise ValueError(msg)
            gap = b"" if size == 0 or self._ends_whole(size) else newline
            return self._write_at_the_end(gap + data) - len(data)

    def _write_at_the_end(self, data: bytes) -> int:
        """One write where the file ends by then, since a shell may append meanwhile; returns its end afterwards."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            written = os.write(descriptor, data)
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
        finally:
            os.close(descriptor)
        if written != len(data):
            msg = f"{self.path}: only {written:,} of {len(data):,} bytes could be appended; is the disk full?"
            raise TextQueueError(msg)
        return end

    def _ends_whole(self, size: int) -> bool:
        return self.read(1, size - 1) == NEWLINE or (size == len(BOM) and self.read(size, 0) == BOM)

    def claim(self, owner: str, seconds: float, *, start: int = 0) -> Message | None:
        """Take the first queued message whose mutex is free or expired, for so long; None: there is none.

        `settle` ends it. Messages without a mutex are left alone, and so are those that `owner` has already. `start`
        spares reading what has ended.
        """
        for message in self.messages(start=start):
            if any(map(mutex.is_mutex, message.variables)):
                with self.locked():
                    if not message.holds(owner) and message.try_lock(owner, seconds):
                        return message
        return None

    def watch(self, stop: threading.Event, include: str | Collection[str] = QUEUED) -> Iterator[Message]:
        """The messages that are there, then those that are appended, until `stop` is set.

        Changes are told by the system where the package ``watchfiles`` is there, else looked for regularly. What was
        given is not given again, also when it is edited. Raises `HostileFile`.
        """
        start = 0
        for _ in changes(self.path, stop):
            with self.locked():  # no append is under way: the final message is whole
                found = list(self.messages(ALL, start=start))
            wanted = set(Status) if include == ALL else {include} if isinstance(include, str) else set(include)
            for message in found:
                start = message.end
                if message.status in wanted:
                    yield message

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file's mutex: no other process of this library writes meanwhile. May be nested.

        Raises `StaleMessage` if the file was replaced, as some editors do on saving: open it again.
        """
        with self._threads:
            if self._depth == 0:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._depth += 1
            try:
                self._same_file()
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _same_file(self) -> None:
        mine = os.fstat(self._descriptor)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            msg = f"{self.path} was replaced since it was opened; nothing was written: open it again"
            raise StaleMessage(msg)

    def overwrite(self, offset: int, expected: bytes, data: bytes, record: Record, status: Status) -> None:
        """Replace bytes in place, within `locked`, if they and the message they belong to are still what they were."""
        if status is not Status.QUEUED and offset == record.offset:
            msg = f"{self.path}: the message at byte {record.offset} is {status}; only a queued one can be marked"
            raise StaleMessage(msg)
        head, there = self.read(len(record.head), record.offset), self.read(len(expected), offset)
        if head != record.head or there != expected:
            msg = f"{self.path} holds something else at byte {offset} by now; nothing was written: read it again"
            raise StaleMessage(msg)
        self._write(data, offset)

    def _write(self, data: bytes, offset: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], offset + done)

    def refresh(self, record: Record) -> bool:
        """Read a message's status and variables again; False if another message, or none, stands there now."""
        head = self.read(len(record.head), record.offset)
        if head[1:] != record.head[1:]:
            return False
        found = {byte: status for status, byte in BYTE.items()}.get(head[:1])
        if found is None:
            return False
        record.status, record.head = found, head
        record.variables = [(offset, self.read(len(value), offset)) for offset, value in record.variables]
        return True

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def read_all(
    paths: Iterable[str | os.PathLike[str]], include: str | Collection[str] = QUEUED
) -> Iterator[Iterator[Message]]:
    """The messages of several files, one after the other, each marked in its own; so that every writer has its own.

    Raises `OSError`, `HostileFile`.
    """
    with contextlib.ExitStack() as stack:
        queues = [stack.enter_context(TextQueue.open(path, create=False)) for path in paths]
        yield (message for queue in queues for message in queue.messages(include))


def _mutex_variable() -> str:
    return mutex.RESERVED
