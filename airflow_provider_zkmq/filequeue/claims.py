"""`FileClaim`, a task in hand, and `FileClaims`, the loop over them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from ..engine.core.model.policy import Success
from ..engine.core.model.states import State
from ..engine.core.model.values import Duration
from ..engine.core.protocol import Procedure
from ..engine.core.read.inspect import Task
from ..engine.core.tasks.outcome import Follows, Handled, Settlement, settle_by
from ..engine.errors import ClaimLost, QueueNotFound, TaskNotFound
from .refusals import PROGRESS, TRANSACTIONS, refused

# --- `FileClaim`: a task in hand, out of a file.

T = TypeVar("T")


class Settling(Protocol):
    """A queue in a file, as far as its claims are settled by task id and token."""

    name: str

    @property
    def closed(self) -> bool:
        """Whether its connection has been closed."""

    def complete(
        self, task_id: str, token: int, result: bytes | str | None = None, *, dedupe: Duration | None = None
    ) -> None:
        """Finish the task."""

    def fail(
        self,
        task_id: str,
        token: int,
        error: str | BaseException,
        *,
        retry: bool = True,
        backoff: Duration | None = None,
    ) -> State:
        """The delivery failed."""

    def release(self, task_id: str, token: int, delay: Duration | None = None) -> None:
        """Give the task back."""

    def snooze(self, task_id: str, token: int, delay: Duration) -> None:
        """Give the task back, not to be handled for so long."""

    def extend(self, task_id: str, token: int, lease: Duration) -> None:
        """Hold the claim for longer."""


class FileClaim:
    """A task in hand until its time is over. Settle it with exactly one of `complete`, `fail`, `release`, `snooze`.

    ``task``: as it was handed out; ``queue``: the name of its queue; ``token``: how often it has been claimed;
    ``span``: for how many seconds;
    ``settled``: whether this object knows that the claim is over, settled here or lost.
    Every method raises `ClaimLost` once the claim is another's, or its time is over; then nothing is changed.
    """

    #: Nothing cancels a task in a file.
    cancelled = False
    #: Whoever claims a task in a file begins it.
    prefetched = False
    #: With what a loop completes it (`FileQueue.claims`), unless its body settles it.
    result: bytes | str | None = None
    progress = refused(PROGRESS)
    transaction = refused(TRANSACTIONS)

    def __init__(self, queue: Settling, task: Task, span: float) -> None:
        self.task = task
        self.queue = queue.name
        self.token = task.version
        self.span = span
        self.settled = False
        self._queue = queue

    def complete(self, result: bytes | str | None = None, *, dedupe: Duration | None = None) -> None:
        """See `FileQueue.complete`."""
        self._carry_out(lambda name, token: self._queue.complete(name, token, result, dedupe=dedupe), ends=True)

    def fail(self, error: str | BaseException, *, retry: bool = True, backoff: Duration | None = None) -> State:
        """See `FileQueue.fail`."""
        return self._carry_out(
            lambda name, token: self._queue.fail(name, token, error, retry=retry, backoff=backoff), ends=True
        )

    def release(self, delay: Duration | None = None) -> None:
        """See `FileQueue.release`."""
        self._carry_out(lambda name, token: self._queue.release(name, token, delay), ends=True)

    def snooze(self, delay: Duration) -> None:
        """See `FileQueue.snooze`."""
        self._carry_out(lambda name, token: self._queue.snooze(name, token, delay), ends=True)

    def extend(self, lease: Duration) -> None:
        """See `FileQueue.extend`."""
        self._carry_out(lambda name, token: self._queue.extend(name, token, lease), ends=False)

    def begin(self) -> None:
        """Nothing is to be said: it began when it was claimed."""

    def mark_begun(self) -> int:
        """A file does not keep when its handler began; by this machine's clock."""
        return time.time_ns() // 1_000_000

    def mark_ended(self) -> None:
        """A file does not keep when its handler ended."""

    @property
    def closed(self) -> bool:
        """Whether its connection has been closed: nothing can be done with it any more."""
        return self._queue.closed

    @property
    def over(self) -> bool:
        """Whether nothing is left to settle: a file's claim ends with its connection only."""
        return self.closed

    def settle(self, outcome: Handled, progress: Settlement) -> bool:
        """End the claim by what a handler has done; whether that is a success. See `settle_by`."""
        return _driven(settle_by(_Ends(self), outcome, progress))

    def settle_later(
        self, outcome: Handled, progress: Settlement, on_settled: Callable[[bool, Exception | None], None]
    ) -> None:
        """A file has nothing to gain from waiting: it is settled at once."""
        try:
            success = self.settle(outcome, progress)
        except Exception as error:  # noqa: BLE001  whatever it is: it is told
            on_settled(False, error)
        else:
            on_settled(success, None)

    def _carry_out(self, call: Callable[[str, int], T], *, ends: bool) -> T:
        if self.settled:
            msg = f"claim {self.token} of task {self.task.id!r} is over; nothing was changed"
            raise ClaimLost(msg)
        try:
            done = call(self.task.id, self.token)
        except (ClaimLost, QueueNotFound, TaskNotFound) as error:  # its lines may have been deleted
            self.settled = True
            raise ClaimLost(str(error)) from error
        self.settled = ends
        return done

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.token} of task {self.task.id!r}>"


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of a claim out of a file, as procedures: they do at once what those of a queue ask a driver for."""

    claim: FileClaim

    def succeed(self, outcome: Success) -> Procedure[None]:
        self.claim.complete(outcome.result, dedupe=outcome.dedupe)
        yield from ()

    def withdraw(self) -> Procedure[None]:
        yield from ()

    def fail(self, error: str | BaseException, *, retry: bool, backoff: Duration | None) -> Procedure[Follows]:
        return Follows(self.claim.fail(error, retry=retry, backoff=backoff))
        yield  # pragma: no cover  a procedure that asks for nothing

    def snooze(self, delay: Duration) -> Procedure[None]:
        self.claim.snooze(delay)
        yield from ()

    def recover(self) -> Procedure[bool]:
        yield from ()
        return False


def _driven(procedure: Procedure[T]) -> T:
    """A procedure that asks for nothing, carried out."""
    try:
        next(procedure)
    except StopIteration as stop:
        value: T = stop.value
        return value
    msg = "a file's procedure asks for no operation"
    raise AssertionError(msg)


# --- `FileClaims`: the loop of `FileQueue.claims`, which settles one task and claims the next, one after the other.

LEFT: Final = "its loop was left before it was settled"


class FileClaims:
    """A loop over claims: what its body does not settle is completed with ``claim.result`` when it comes back.

    One that is left, or closed, fails what is unsettled. `take` claims the next one.
    """

    def __init__(self, take: Callable[[], FileClaim | None]) -> None:
        self._take = take
        self._claim: FileClaim | None = None
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileClaim:
        """Settle what the body has left, and claim the next one. Raises `ClaimLost`, and can be continued."""
        if self._ended:
            raise StopIteration
        if self._claim is not None and not self._claim.settled:
            self._claim.complete(self._claim.result)
        self._claim = None
        claim = self._take()
        if claim is None:
            self._ended = True
            raise StopIteration
        self._claim = claim
        return claim

    def close(self) -> None:
        """Leave the loop. Idempotent."""
        claim, self._claim, self._ended = self._claim, None, True
        if claim is None or claim.settled or claim.closed:
            return
        try:
            claim.fail(LEFT)
        except ClaimLost:  # it is another's by now
            return

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
