"""A file that others write, too: processes of this library, which respect its lock, and editors, which do not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from .errors import HostileFile, LockHeld, StaleMessage
from .line_reader import Limits, newline_of

#: Between two looks at a lock that is held by another, in seconds.
_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.01


@dataclass(slots=True, eq=False)
class Place:
    """Where messages stand: an open file, which may be opened anew while they are kept."""

    file: SharedFile


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
        return newline_of(self.read, self.limits)

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
    def locked(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the file's mutex: no other process of this library writes meanwhile. May be nested.

        It is waited for at most so many seconds; None: for ever, for a process that was stopped holds it on. Raises
        `LockHeld`, and `StaleMessage` if the file was replaced, as some editors do on saving: open it again.
        """
        with self._threads:
            if self._depth == 0:
                self._lock(timeout)
            self._depth += 1
            try:
                mine, there = os.fstat(self._descriptor), None
                with contextlib.suppress(FileNotFoundError):
                    there = self.path.lstat()
                if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
                    msg = f"{self.path} was replaced since it was opened; nothing was written: open it again"
                    raise StaleMessage(msg)
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _lock(self, timeout: float | None) -> None:
        """The system waits for a lock for ever or not at all, so that a bounded wait is a look now and then."""
        if timeout is None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            return
        end, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() >= end:
                msg = f"{self.path} is locked by another process, which may be stopped"
                raise LockHeld(msg)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def overwrite(self, offset: int, expected: bytes, data: bytes, line: tuple[int, bytes]) -> None:
        """Replace bytes in place, within `locked`, if they and a line, by its offset, are still what they were."""
        start, head = line
        if self.read(len(head), start) != head or self.read(len(expected), offset) != expected:
            msg = f"{self.path} holds something else at byte {offset} by now; nothing was written: read it again"
            raise StaleMessage(msg)
        self.writing()
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], offset + done)

    def writing(self) -> None:
        """Note that something is about to be written, and whether somebody else was first."""
        if not self.written:
            self.written, self.disturbed = True, self.identity() != self.begun

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
