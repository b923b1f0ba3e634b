"""What a worker needs of a queue, of a claim and of a transaction, whether they are kept in ZooKeeper or in files."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from .core.model.selectors import FilterMethod, Selector
from .core.model.values import Duration
from .core.read.inspect import Task
from .core.tasks.outcome import Handled, Settlement

Method: TypeAlias = FilterMethod | Mapping[str, FilterMethod]

T_co = TypeVar("T_co", covariant=True)


class BaseClaim(Protocol):
    """A claim, as far as both kinds of worker only look at it."""

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
        """Whether it was prefetched, and nobody has said yet that its handling begins."""

    def mark_begun(self) -> int | None:
        """Its handler begins now; when that is (milliseconds since 1970), if it is known. Nothing is sent."""

    def mark_ended(self) -> None:
        """Its handler has ended now. Nothing is sent."""

    def settle_later(
        self, outcome: Handled, progress: Settlement, on_settled: Callable[[bool, Exception | None], None]
    ) -> None:
        """End the delivery as `Ending.settle` does, soon, and together with others; `on_settled` hears how that went.

        It is told whether that was a success, or what kept it from being ended by whatever means. It may be called from
        another thread, with what it must not wait for locked.
        """


class Held(BaseClaim, Protocol[T_co]):
    """A claim, as far as its handler extends it and tells how far it has come; `T_co`: what its calls return."""

    def extend(self, lease: Duration) -> T_co:
        """Hold the claim for `lease` more seconds from now. Raises `ClaimLost`."""

    def progress(self, progress: float, note: str = "") -> T_co:
        """Tell how far the task has come, from 0 to 1. Raises `ClaimLost`."""

    def begin(self) -> T_co:
        """Say that the handling of a claim prefetched begins: from here on it counts. Raises `ClaimLost`.

        Of a claim of less than a second ago that is sent and not waited for: if it is lost, its settlement tells.
        """


class Ending(Protocol[T_co]):
    """What can end a delivery: a claim, or the transaction that adopted it; `T_co`: what its calls return."""

    def settle(self, outcome: Handled, progress: Settlement) -> T_co:
        """End the delivery by what its handler has done; whether that is a success.

        Raises `TransportError`, after which the call is to be repeated with the same `progress`, `ClaimLost`, or what
        says that the delivery cannot be ended by whatever means.
        """


class Closing(Protocol):
    """A transaction that its handler has had."""

    def close(self) -> None:
        """Let the handler take and put no more."""


class WorkerTransaction(Closing, Ending[bool], Protocol):
    """A transaction whose calls block."""


class WorkerClaim(Held[None], Ending[bool], Protocol):
    """A claim whose calls block."""

    def transaction(self) -> WorkerTransaction:
        """A transaction with this claim in it, as a handler gets it."""


class AsyncWorkerTransaction(Closing, Ending[Coroutine[Any, Any, bool]], Protocol):
    """A transaction whose calls are awaited."""


class AsyncWorkerClaim(Held[Coroutine[Any, Any, None]], Ending[Coroutine[Any, Any, bool]], Protocol):
    """A claim whose calls are awaited."""

    def transaction(self) -> AsyncWorkerTransaction:
        """A transaction with this claim in it, as a handler gets it."""


class Named(Protocol):
    """A queue, as far as both kinds of worker only look at it."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def closed(self) -> bool:
        """Whether its connection has been closed: nothing can be done with it any more."""

    @property
    def consumer(self) -> str:
        """How this process is called as a consumer of it."""


class WorkerQueue(Named, Protocol):
    """A queue whose calls block."""

    def check_wanted(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        selector: Selector | str | None = None,
    ) -> object:
        """Raise `ConfigError` for what the queue's declarations refuse, `QueueNotFound` where there is none."""

    def exists(self, timeout: Duration | None = 0, *, stopping: Callable[[], bool] = ...) -> bool:
        """Whether the queue is there; waits for it at most `timeout` seconds (None: to the end), until `stopping`."""

    def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
        stopping: Callable[[], bool] = ...,
    ) -> WorkerClaim | None:
        """Take the first task that fits, waiting at most `timeout` seconds, and until `stopping`."""

    def claim_many(
        self,
        n: int,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
        stopping: Callable[[], bool] = ...,
        prefetch: bool = False,
    ) -> Sequence[WorkerClaim]:
        """Take the first `n` tasks that fit, or as many as there are, waiting at most `timeout` seconds for the first.

        `prefetch`: the handling of all but the first begins later; see `WorkerClaim.begin`.
        """

    def pending(self) -> int:
        """How many tasks are pending."""

    def run_maintenance(self) -> None:
        """Rescue and promote what is due, as a claim would."""

    @property
    def changes(self) -> int:
        """How often the queue has changed, as far as its client was told."""

    def wait_for_change(self, seen: int, timeout: Duration) -> bool:
        """Wait until `changes` is more than `seen`, or the queue is woken, at most `timeout` seconds."""

    def wake(self) -> None:
        """Wake every call that waits for the queue to change."""


class AsyncWorkerQueue(Named, Protocol):
    """A queue whose calls are awaited."""

    def check_wanted(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        selector: Selector | str | None = None,
    ) -> Coroutine[Any, Any, object]:
        """Raise `ConfigError` for what the queue's declarations refuse, `QueueNotFound` where there is none."""

    def exists(self, timeout: Duration | None = 0) -> Coroutine[Any, Any, bool]:
        """Whether the queue is there; waits for it at most `timeout` seconds (None: to the end)."""

    def pending(self) -> Coroutine[Any, Any, int]:
        """How many tasks are pending."""

    def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
    ) -> Coroutine[Any, Any, AsyncWorkerClaim | None]:
        """Take the first task that fits, waiting at most `timeout` seconds; cancelled, give back what was taken."""

    def claim_many(
        self,
        n: int,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
        prefetch: bool = False,
    ) -> Coroutine[Any, Any, Sequence[AsyncWorkerClaim]]:
        """Take the first `n` tasks that fit, or as many as there are; cancelled, give back what was taken.

        `prefetch`: the handling of all but the first begins later; see `WorkerClaim.begin`.
        """

    def run_maintenance(self) -> Coroutine[Any, Any, None]:
        """Rescue and promote what is due, as a claim would."""
