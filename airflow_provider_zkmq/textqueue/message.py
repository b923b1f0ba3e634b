"""A message of a queue file, and its marks and variables, written in place."""

from __future__ import annotations

import time
from pathlib import Path

from airflow_provider_zkmq.textqueue import mutex
from airflow_provider_zkmq.textqueue.errors import StaleMessage, TextQueueError
from airflow_provider_zkmq.textqueue.parse import BYTE, Record, Status
from airflow_provider_zkmq.textqueue.shared import Place, SharedFile
from airflow_provider_zkmq.textqueue.write import check_variable, decode, whole_number


class Message:
    """A message or comment of a file, as it stood when it was read; its marks are written in place."""

    def __init__(self, place: Place, record: Record) -> None:
        self._place = place
        self._record = record

    @property
    def _file(self) -> SharedFile:
        return self._place.file

    @property
    def status(self) -> Status:
        """``queued``, ``processed``, ``error`` or ``comment``."""
        return self._record.status

    @property
    def data(self) -> bytes:
        """The message's bytes: its lines without their first byte, joined by newlines."""
        return self._record.data

    @property
    def text(self) -> str:
        """The same as text; bytes that are no UTF-8 stand as surrogates."""
        return decode(self.data)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables as they stand, padding included."""
        return tuple(decode(value) for _, value in self._record.variables)

    @property
    def offset(self) -> int:
        """The offset of its control byte in the file."""
        return self._record.offset

    @property
    def end(self) -> int:
        """The offset after its last line."""
        return self._record.end

    @property
    def path(self) -> Path:
        """The file it stands in."""
        return self._file.path

    def mark_processed(self) -> None:
        """It is done. Raises `StaleMessage` unless it still stands there as queued; then nothing is written."""
        self._mark(Status.PROCESSED)

    def mark_error(self) -> None:
        """It ended in a critical error. Raises `StaleMessage` unless it still stands there as queued."""
        self._mark(Status.ERROR)

    def _mark(self, status: Status) -> None:
        with self._file.locked():
            self._mark_now(status)

    def _mark_now(self, status: Status) -> None:
        self._file.overwrite(self.offset, self._record.head[:1], BYTE[status], self._record, self.status)
        self._record.status = status
        self._record.head = BYTE[status] + self._record.head[1:]

    def set_variable(self, index: int, value: str) -> None:
        """Write a variable in place, padded with spaces to the room it has.

        Raises `ValueError` where it does not fit (in bytes) or holds a newline, `IndexError` for a variable that is
        not there, `StaleMessage` where the file holds something else by now; then nothing is written.
        """
        with self._file.locked():
            self._set(index, value)

    def _set(self, index: int, value: str) -> None:
        offset, now = self._record.variables[index]
        data = check_variable(value, self._file.newline)
        if len(data) > len(now):
            msg = f"variable {value!r} takes {len(data)} bytes; there is room for {len(now)} at byte {offset}"
            raise ValueError(msg)
        data = data.ljust(len(now), b" ")
        self._file.overwrite(offset, now, data, self._record, self.status)
        self._record.variables[index] = (offset, data)

    def try_lock(self, owner: str, seconds: float) -> bool:
        """Take the message's mutex for so long; False while another holds it, or if it is no longer queued.

        Raises `TextQueueError` for a message without a mutex variable, `ValueError` where the owner does not fit.
        """
        with self._file.locked():
            if not self._file.refresh(self._record) or self.status is not Status.QUEUED:
                return False
            index = self._mutex()
            holder = mutex.holder(self.variables[index])
            if holder is not None and holder[0] != owner and holder[1] > time.time():
                return False
            self._set(index, mutex.taken(self.variables[index], owner, time.time() + seconds))
            return True

    def holds(self, owner: str) -> bool:
        """Whether `owner` has the message, which is still queued, and its time is not over."""
        if not self._file.refresh(self._record) or self.status is not Status.QUEUED:
            return False
        holder = mutex.holder(self.variables[self._mutex()])
        return holder is not None and holder[0] == owner and holder[1] > time.time()

    @property
    def room(self) -> int:
        """How many bytes its mutex variable has. Raises `TextQueueError` for a message without one."""
        return len(self._record.variables[self._mutex()][1])

    def settle(self, owner: str, status: Status | None) -> None:
        """End what `try_lock` began: mark the message (None: leave it queued) and free its mutex, in one lock.

        Raises `StaleMessage` unless `owner` still has it; then nothing is written.
        """
        with self._file.locked():
            if not self.holds(owner):
                msg = f"{self.path}: {owner} does not have the message at byte {self.offset} any more"
                raise StaleMessage(msg)
            if status is not None:  # first: a crash in between leaves an ended message with a mutex nobody heeds
                self._mark_now(status)
            index = self._mutex()
            self._set(index, mutex.free(self.variables[index]))

    def _mutex(self) -> int:
        index = mutex.place(self.variables)
        if index is None:
            msg = f"{self.path}: the message at byte {self.offset} has no mutex variable; append it with mutex=True"
            raise TextQueueError(msg)
        return index

    def count_down(self, name: str = "retries") -> int:
        """Take one off the number in the variable ``name=…`` and return what is left; 0 without one.

        Raises `TextQueueError` for a message without that variable.
        """
        with self._file.locked():
            self._file.refresh(self._record)
            for index, variable in enumerate(self.variables):
                key, equals, number = variable.partition("=")
                if equals and key == name:
                    left = max(0, whole_number(number.strip()) - 1)
                    self._set(index, f"{name}={left}")
                    return left
        msg = f"{self.path}: the message at byte {self.offset} has no variable {name!r}"
        raise TextQueueError(msg)

    def __repr__(self) -> str:
        return f"<{self.status} message at byte {self.offset} of {self.path}>"
