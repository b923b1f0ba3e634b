"""Holding and ending a claim out of a file by its task's id and its token, from whichever process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_provider_zkmq.engine.errors import ClaimLost, QueueNotFound, TaskNotFound, TaskTooLarge
from airflow_provider_zkmq.engine.model import (
    MAX_PAYLOAD,
    Duration,
    State,
    Task,
    check_name,
    encode_data,
    optional_seconds,
    seconds,
)
from airflow_provider_zkmq.filequeue import refusals, settling
from airflow_provider_zkmq.filequeue.awake import Awake
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.claims import FileClaim
from airflow_provider_zkmq.filequeue.conf import lock_span
from airflow_provider_zkmq.filequeue.refusals import refuse

T = TypeVar("T")


class ByToken(Awake):
    """What whoever knows a claim's token does with it."""

    def take_over(self, task_id: str, token: int, *, lease: Duration | None = None) -> FileClaim | None:
        """Return a claim that another process made as one's own; None where it is not the current one. See `Queue`.

        Without `lease`, its ``span`` is what is left of it, and the task's or the queue's lock at least. It is always
        an object of its own, also where the claim was made through this client.
        """
        name, span = check_name("task id", task_id), None if lease is None else lock_span("lease", lease)

        def work(book: Book) -> tuple[Task, float]:
            item, _ = settling.current(book, name, token)
            if span is not None:
                settling.extend(book, name, token, span)
            left = 0.0 if item.holder is None else item.holder[1] - book.now
            return book.task(item), span or max(left, item.span(book.conf))

        try:
            return FileClaim(self, *self._do(work))
        except (ClaimLost, TaskNotFound):
            return None

    def complete(
        self, task_id: str, token: int, result: bytes | str | None = None, *, dedupe: Duration | None = None
    ) -> None:
        """Finish the task and keep `result` (bytes or text). Raises `ClaimLost`, `TaskNotFound`, `TaskTooLarge`."""
        refuse({refusals.DEDUPE: dedupe})
        data = b"" if result is None else encode_data("result", result)
        if len(data) > MAX_PAYLOAD:
            msg = f"the result of task {task_id!r} has {len(data):,} bytes; as in ZooKeeper, {MAX_PAYLOAD:,} are taken"
            raise TaskTooLarge(msg)
        self._settle(task_id, token, lambda book: settling.complete(book, task_id, token, data))

    def fail(
        self,
        task_id: str,
        token: int,
        error: str | BaseException,
        *,
        retry: bool = True,
        backoff: Duration | None = None,
    ) -> State:
        """The delivery failed: run again by the policy, or be dead. Returns the new state. Raises `ClaimLost`.

        Of `error` the first 200 bytes are kept.
        """
        wait = optional_seconds("backoff", backoff)
        return self._settle(
            task_id, token, lambda book: settling.fail(book, task_id, token, error, retry=retry, wait=wait)
        )

    def release(self, task_id: str, token: int, delay: Duration | None = None) -> None:
        """Give the task back, for `delay` seconds; the delivery counts as no attempt. Raises `ClaimLost`."""
        span = optional_seconds("delay", delay) or 0.0
        self._settle(task_id, token, lambda book: settling.release(book, task_id, token, span))

    def snooze(self, task_id: str, token: int, delay: Duration) -> None:
        """Give the task back, not to be handled for `delay`; counts as no attempt. Raises `ClaimLost`."""
        self.release(task_id, token, seconds("delay", delay))

    def begin(self, task_id: str, token: int) -> None:
        """Check that the claim is the current one: it began when it was claimed. Raises `ClaimLost`."""
        self._do(lambda book: settling.current(book, task_id, token))

    def extend(self, task_id: str, token: int, lease: Duration) -> None:
        """Hold the claim for `lease` more seconds from now. Raises `ClaimLost`."""
        span = lock_span("lease", lease)
        self._do(lambda book: settling.extend(book, task_id, token, span))

    def _settle(self, task_id: str, token: int, work: Callable[[Book], T]) -> T:
        try:
            done = self._do(work)
        except (ClaimLost, QueueNotFound, TaskNotFound):
            self.folder.hold(self.name, task_id, token, held=False)
            raise
        self.folder.hold(self.name, task_id, token, held=False)
        return done
