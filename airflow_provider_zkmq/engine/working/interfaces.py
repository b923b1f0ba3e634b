"""What a worker needs of a queue, of a claim and of a transaction, whether they are kept in ZooKeeper or in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict, Unpack

from ..core.model.filters import FilterMethods, Selector
from ..core.model.handler_outcomes import Handled
from ..core.model.values import Duration
from ..core.read.inspect import Task
from ..core.tasks.settle_by_outcome import Settlement


class WorkerTransaction(Protocol):
    """A transaction, as a worker and its handler get it. Its calls block, or are awaited."""

    def settle(self, outcome: Handled, progress: Settlement) -> Any:
        """End the delivery that it adopted; see `WorkerClaim.settle`."""

    def close(self) -> None:
        """Let the handler take and put no more."""


class WorkerClaim(Protocol):
    """A claim, as a worker needs it. Calls that return `Any` block, or are awaited."""

    @property
    def task(self) -> Task:
        """The task as it was handed out."""

    @property
    def queue(self) -> str:
        """The name of the queue that it was taken from."""

    @property
    def token(self) -> int:
        """The fencing token."""

    @property
    def settled(self) -> bool:
        """Whether the claim is known to be over: settled, or lost."""

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled while it was in hand."""

    @property
    def span(self) -> float | None:
        """For how many seconds the claim holds unless it is extended; None: to the end of its session."""

    @property
    def over(self) -> bool:
        """Whether what the claim is bound to has ended, so that nothing is left to settle."""

    @property
    def prefetched(self) -> bool:
        """Whether it was prefetched, and its handling has not begun."""

    def mark_begun(self) -> int | None:
        """Its handler begins now; when that is (milliseconds since 1970), if it is known. Nothing is sent."""

    def mark_ended(self) -> None:
        """Its handler has ended now. Nothing is sent."""

    def begin(self) -> Any:
        """Say that the handling of a prefetched claim begins: from here on it counts. Raises `ClaimLost`.

        For a claim younger than a second the write is not waited for; if it is lost, the settlement tells.
        """

    def extend(self, lease: Duration) -> Any:
        """Hold the claim for `lease` more seconds from now. Raises `ClaimLost`."""

    def progress(self, progress: float, note: str = "") -> Any:
        """Report how far the task has come, from 0 to 1. Raises `ClaimLost`."""

    def settle(self, outcome: Handled, progress: Settlement) -> Any:
        """End the delivery by what its handler has done; whether that is a success.

        Raises `TransportError`, after which the call is to be repeated with the same `progress`, `ClaimLost`, or what
        says that the delivery cannot be ended by whatever means.
        """

    def settle_later(
        self, outcome: Handled, progress: Settlement, on_settled: Callable[[bool, Exception | None], None]
    ) -> None:
        """End the delivery as `settle` does, soon, and together with others.

        `on_settled` is called with whether it was a success, or with the error; in any thread. It must not wait.
        """

    def transaction(self) -> WorkerTransaction:
        """A transaction with this claim in it, as a handler gets it."""


class Choice(TypedDict, total=False):
    """Which tasks fit, in the terms of a queue's `claim`."""

    node: Mapping[str, object] | None
    filter_method: FilterMethods
    selector: Selector | str | None


class ClaimOptions(Choice, total=False):
    """What else a claim is told."""

    timeout: Duration
    lease: Duration | None
    stopping: Callable[[], bool]


class WorkerInternals(Protocol):
    """What a worker needs of a queue that is not public: `engine.queue_internals`. Calls of type `Any` may block."""

    @property
    def closed(self) -> bool:
        """Whether the queue's connection has been closed: nothing can be done with it any more."""

    def check_wanted(self, **choice: Unpack[Choice]) -> Any:
        """Raise `ConfigError` for what the queue's declarations refuse, `QueueNotFound` where there is none."""

    def pending(self) -> Any:
        """How many tasks are pending."""

    def run_maintenance(self) -> Any:
        """Rescue and promote what is due, as a claim would."""

    @property
    def changes(self) -> int:
        """How often the queue has changed, as far as its client was told."""

    def wait_for_change(self, seen: int, timeout: Duration) -> Any:
        """Wait until `changes` is more than `seen`, or the queue is woken, at most `timeout` seconds."""

    def wake(self) -> None:
        """Wake every call that waits for the queue to change."""


class WorkerQueue(Protocol):
    """A queue, as a worker needs it. Calls that return `Any` block, or are awaited."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def consumer(self) -> str:
        """How this process is called as a consumer of it."""

    def exists(self, timeout: Duration | None = 0, *, stopping: Callable[[], bool] = ...) -> Any:
        """Whether the queue is there; waits for it at most `timeout` seconds (None: to the end), until `stopping`."""

    def claim(self, **options: Unpack[ClaimOptions]) -> Any:
        """Take the first task that fits, a `WorkerClaim` or None, waiting at most `timeout` seconds.

        It ends when `stopping` says so, or gives back what it took when it is cancelled.
        """

    def claim_many(self, n: int, *, prefetch: bool = False, **options: Unpack[ClaimOptions]) -> Any:
        """Take the first `n` tasks that fit, or as many as there are, waiting at most `timeout` seconds for the first.

        `prefetch`: the handling of all but the first begins later; see `WorkerClaim.begin`.
        """

    def __internals__(self) -> WorkerInternals:
        """What is not public."""


class BlockingWorkerQueue(WorkerQueue, Protocol):
    """A queue whose calls block, as the threads of a worker need it."""

    def exists(self, timeout: Duration | None = 0, *, stopping: Callable[[], bool] = ...) -> bool:
        """See `WorkerQueue.exists`."""
