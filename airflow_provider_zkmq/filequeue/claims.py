"""`FileClaim`: a task in hand, out of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.errors import ClaimLost, TaskNotFound
from airflow_provider_zkmq.filequeue.refusals import PROGRESS, refused

if TYPE_CHECKING:
    from airflow_provider_zkmq.filequeue.queue import FileQueue

T = TypeVar("T")


class FileClaim:
    """A task in hand until its time is over. Settle it with exactly one of `complete`, `fail`, `release`, `snooze`.

    ``task``: as it was handed out; ``token``: how often it has been claimed; ``span``: for how many seconds;
    ``settled``: whether this object knows that the claim is over, settled here or lost.
    Every method raises `ClaimLost` once the claim is another's, or its time is over; then nothing is changed.
    """

    #: Nothing cancels a task in a file.
    cancelled = False
    progress = refused(PROGRESS)

    def __init__(self, queue: FileQueue, task: Task, span: float) -> None:
        self.task = task
        self.token = task.version
        self.span = span
        self.settled = False
        self._queue = queue

    def complete(self, result: bytes | str | None = None, *, dedupe: object = None) -> None:
        """See `FileQueue.complete`."""
        self._carry_out(lambda name, token: self._queue.complete(name, token, result, dedupe=dedupe), ends=True)

    def fail(self, error: str | BaseException, *, retry: bool = True, backoff: object = None) -> State:
        """See `FileQueue.fail`."""
        return self._carry_out(
            lambda name, token: self._queue.fail(name, token, error, retry=retry, backoff=backoff), ends=True
        )

    def release(self, delay: object = None) -> None:
        """See `FileQueue.release`."""
        self._carry_out(lambda name, token: self._queue.release(name, token, delay), ends=True)

    def snooze(self, span: object) -> None:
        """See `FileQueue.snooze`."""
        self._carry_out(lambda name, token: self._queue.snooze(name, token, span), ends=True)

    def extend(self, lease: object) -> None:
        """See `FileQueue.extend`."""
        self._carry_out(lambda name, token: self._queue.extend(name, token, lease), ends=False)

    def _carry_out(self, call: Callable[[str, int], T], *, ends: bool) -> T:
        if self.settled:
            msg = f"claim {self.token} of task {self.task.id!r} is over; nothing was changed"
            raise ClaimLost(msg)
        try:
            done = call(self.task.id, self.token)
        except (ClaimLost, TaskNotFound) as error:  # its lines may have been deleted
            self.settled = True
            raise ClaimLost(str(error)) from error
        self.settled = ends
        return done

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.token} of task {self.task.id!r}>"
