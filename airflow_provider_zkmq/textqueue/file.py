"""`TextQueue`: a queue in a file that people can read and edit."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from airflow_provider_zkmq.textqueue.errors import TextQueueError
from airflow_provider_zkmq.textqueue.lines import BOM, Limits, scan
from airflow_provider_zkmq.textqueue.message import Message
from airflow_provider_zkmq.textqueue.mutex import RESERVED, is_mutex
from airflow_provider_zkmq.textqueue.parse import Record, Status, records
from airflow_provider_zkmq.textqueue.shared import SharedFile
from airflow_provider_zkmq.textqueue.watch import changes
from airflow_provider_zkmq.textqueue.write import NEWLINE, spell

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

    def messages(
        self, include: str | Collection[str] = QUEUED, *, start: int = 0, final: bool = True
    ) -> Iterator[Message]:
        """The messages in the order of the file: ``"queued"`` ones, ``"all"`` with comments, or those of some statuses.

        `start`: the offset of a line to begin at. `final=False` leaves out the last one, which somebody may still be
        writing. What is not understood is stepped over, and noted in `reports`. Raises `HostileFile`.
        """
        wanted = _statuses(include)
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
            size = self.size()
            newline = self.newline
            reserved = [RESERVED] if mutex else []
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
            if any(map(is_mutex, message.variables)):
                with self.locked():
                    if not message.holds(owner) and message.try_lock(owner, seconds):
                        return message
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
    """The messages of several files, one after the other, each marked in its own; so that every writer has its own.

    Raises `OSError`, `HostileFile`.
    """
    with contextlib.ExitStack() as stack:
        queues = [stack.enter_context(TextQueue.open(path, create=False)) for path in paths]
        yield (message for queue in queues for message in queue.messages(include))
