"""Claims out of a file, and the loop over them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Self, TypeVar

from ..engine import errors
from ..engine.core.model import values
from ..engine.core.model.handler_outcomes import Follows, Handled, Success
from ..engine.core.model.new_message import encode_data
from ..engine.core.model.states import State
from ..engine.core.read.inspect import Task
from ..engine.core.tasks.settle_by_outcome import Settlement, settle_by
from ..engine.core.zk_operations import MAX_PAYLOAD, Procedure
from . import operations, refusals
from .directory import Directory
from .refusals import PROGRESS, TRANSACTIONS, refuse, refused
from .task_store import QueueFile, lock_span

# --- `FileClaim`: a task in hand, out of a file.

T = TypeVar("T")


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

    def __init__(self, directory: Directory, queue: str, task: Task, span: float) -> None:
        self.task = task
        self.queue = queue
        self.token = task.version
        self.span = span
        self.settled = False
        self._directory = directory

    def complete(self, result: bytes | str | None = None, *, dedupe: values.Duration | None = None) -> None:
        """Finish the task and keep `result` (bytes or text). Raises `ClaimLost`, `TaskTooLarge`."""
        refuse({refusals.DEDUPE: dedupe})
        data = b"" if result is None else encode_data("result", result)
        if len(data) > MAX_PAYLOAD:
            size = f"{len(data):,} bytes; as in ZooKeeper, {MAX_PAYLOAD:,} are taken"
            raise errors.TaskTooLarge(f"the result of task {self.task.id!r} has {size}")
        self._carry_out(partial(operations.complete, result=data))

    def fail(self, error: str | BaseException, *, retry: bool = True, backoff: values.Duration | None = None) -> State:
        """The delivery failed: run again by the policy, or be dead. Returns the new state. Raises `ClaimLost`.

        Of `error` the first 200 bytes are kept.
        """
        wait = values.optional_seconds("backoff", backoff)
        return self._carry_out(partial(operations.fail, error=error, retry=retry, wait=wait))

    def release(self, delay: values.Duration | None = None) -> None:
        """Give the task back, for `delay` seconds; the delivery counts as no attempt. Raises `ClaimLost`."""
        self._carry_out(partial(operations.release, delay=values.optional_seconds("delay", delay) or 0.0))

    def snooze(self, delay: values.Duration) -> None:
        """Give the task back, not to be handled for `delay`; counts as no attempt. Raises `ClaimLost`."""
        self.release(values.seconds("delay", delay))

    def extend(self, lease: values.Duration) -> None:
        """Hold the claim for `lease` more seconds from now. Raises `ClaimLost`."""
        self._carry_out(partial(operations.extend, span=lock_span("lease", lease)), ends=False)

    def begin(self) -> None:
        """Nothing is to be said: it began when it was claimed."""

    def mark_begun(self) -> int:
        """A file does not keep when its handler began; by this machine's clock."""
        return time.time_ns() // 1_000_000

    def mark_ended(self) -> None:
        """A file does not keep when its handler ended."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to settle: a file's claim ends with its connection only."""
        return self._directory.closed

    def settle(self, outcome: Handled, progress: Settlement) -> bool:
        """End the claim by what a handler has done; whether that is a success. See `settle_by`."""
        try:
            next(settle_by(_Ends(self), outcome, progress))
        except StopIteration as stop:
            return bool(stop.value)
        msg = "a file's procedure asks for no operation"
        raise AssertionError(msg)

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

    def _carry_out(self, work: Callable[[QueueFile, str, int], T], *, ends: bool = True) -> T:
        if self.settled:
            msg = f"claim {self.token} of task {self.task.id!r} is over; nothing was changed"
            raise errors.ClaimLost(msg)
        try:
            done = self._directory.carry_out(self.queue, lambda queue_file: work(queue_file, self.task.id, self.token))
        except (
            errors.ClaimLost,
            errors.QueueNotFound,
            errors.TaskNotFound,
        ) as error:  # its lines may have been deleted
            self._end()
            raise errors.ClaimLost(str(error)) from error
        if ends:
            self._end()
        return done

    def _end(self) -> None:
        self.settled = True
        self._directory.hold(self.queue, self.task.id, self.token, held=False)

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

    def fail(self, error: str | BaseException, *, retry: bool, backoff: values.Duration | None) -> Procedure[Follows]:
        return Follows(self.claim.fail(error, retry=retry, backoff=backoff))
        yield  # pragma: no cover  a procedure that asks for nothing

    def snooze(self, delay: values.Duration) -> Procedure[None]:
        self.claim.snooze(delay)
        yield from ()

    def recover(self) -> Procedure[bool]:
        yield from ()
        return False


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
        if claim is None or claim.settled or claim.over:
            return
        with contextlib.suppress(errors.ClaimLost):  # it is another's by now
            claim.fail(LEFT)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
