"""A file that others write, too: processes of this library, which respect its lock, and editors, which do not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from airflow_provider_zkmq.textqueue.errors import HostileFile, LockHeld, StaleMessage
from airflow_provider_zkmq.textqueue.lines import Limits, newline_of
from airflow_provider_zkmq.textqueue.parse import BYTE, Record, Status

#: Between two looks at a lock that is held by another, in seconds.
_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.01


class Place:
    """Where messages stand: an open file, which may be opened anew while they are kept."""

    def __init__(self, file: SharedFile) -> None:
        self.file = file


class SharedFile:
    """An open file: read at offsets, locked, and changed in place where it still holds what is to be replaced."""

    def __init__(self, path: Path, descriptor: int, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self._descriptor = descriptor
        self._depth = 0
        self._threads = threading.RLock()
        self.place = Place(self)
        #: Whether something was written through this object.
        self.written = False
        #: Which file it was when it was begun to be read, and whether somebody else had written by our first write.
        self.begun: tuple[int, ...] | None = None
        self.disturbed = False

    def _check(self) -> None:
        if (size := self.size()) > self.limits.file:
            msg = f"{self.path} has {size:,} bytes, more than {self.limits.file:,}"
            raise HostileFile(msg)

    def read(self, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset`."""
        return os.pread(self._descriptor, size, offset)

    @property
    def newline(self) -> bytes:
        """How the file ends its lines."""
        return newline_of(self, self.limits)

    def size(self) -> int:
        """How many bytes the file has now."""
        return os.fstat(self._descriptor).st_size

    @property
    def mode(self) -> int:
        """Who may read and write it: its permission bits."""
        return stat.S_IMODE(os.fstat(self._descriptor).st_mode)

    def identity(self) -> tuple[int, ...] | None:
        """Which file it is, its size and when it was written to; None for one that was deleted."""
        seen = os.fstat(self._descriptor)
        return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns) if seen.st_nlink else None

    def stamp(self) -> bool:
        """Give the file a time of writing that no other write gives it; False where that is not possible.

        The system's own times are those of its ticks: two writes within one have the same.
        """
        now = time.time_ns()
        try:
            os.utime(self._descriptor, ns=(now, now))
        except OSError:  # another user's file
            return False
        return os.fstat(self._descriptor).st_mtime_ns == now

    @contextlib.contextmanager
    def locked(self, within: float | None = None) -> Iterator[None]:
        """Hold the file's mutex: no other process of this library writes meanwhile. May be nested.

        It is waited for at most so many seconds; None: for ever, for a process that was stopped holds it on. Raises
        `LockHeld`, and `StaleMessage` if the file was replaced, as some editors do on saving: open it again.
        """
        with self._threads:
            if self._depth == 0:
                self._lock(within)
            self._depth += 1
            try:
                self._same_file()
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _lock(self, within: float | None) -> None:
        """The system waits for a lock for ever or not at all, so that a bounded wait is a look now and then."""
        if within is None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            return
        end, pause = time.monotonic() + within, _FIRST_PAUSE
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    msg = f"{self.path} is locked by another process, which may be stopped"
                    raise LockHeld(msg) from None
            else:
                return
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _same_file(self) -> None:
        mine = os.fstat(self._descriptor)
        try:
            there = self.path.lstat()
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
        self.writing()
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], offset + done)

    def writing(self) -> None:
        """Note that something is about to be written, and whether somebody else was first."""
        if not self.written:
            self.written, self.disturbed = True, self.identity() != self.begun

    def refresh(self, record: Record) -> bool:
        """Read a message's status and variables again; False if another message, or none, stands there now."""
        head = self.read(len(record.head), record.offset)
        if head[1:] != record.head[1:]:
            return False
        status = {byte: known for known, byte in BYTE.items()}.get(head[:1])
        if status is None:
            return False
        record.status, record.head = status, head
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
