"""`FileQueue`: the interface of `Queue` over one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_zkmq.engine.core.model.filters import FilterType
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.records import Message, encode_data
from airflow_provider_zkmq.engine.core.model.selectors import FilterMethod, Selector, as_selector, choose
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import MAX_REQUEST
from airflow_provider_zkmq.engine.core.reading.configure import optional_seconds, seconds
from airflow_provider_zkmq.engine.core.reading.inspect import Task, as_state
from airflow_provider_zkmq.engine.core.reading.wait import OnProgress, WaitFor
from airflow_provider_zkmq.engine.errors import ClaimLost, TaskNotFound, TaskTooLarge
from airflow_provider_zkmq.filequeue import refusals, settling
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.claims import FileClaim
from airflow_provider_zkmq.filequeue.conf import lock_span
from airflow_provider_zkmq.filequeue.folder import Folder
from airflow_provider_zkmq.filequeue.follow import follow
from airflow_provider_zkmq.filequeue.putting import OVERHEAD, Putting
from airflow_provider_zkmq.filequeue.refusals import refuse, refused
from airflow_provider_zkmq.filequeue.waiting import wait

if TYPE_CHECKING:
    from airflow_provider_zkmq.filequeue.worker import FileWorker

T = TypeVar("T")


class FileQueue:
    """A queue in a file, each call blocking until the file is changed. Usable from several threads and processes.

    The methods are those of `Queue` and raise what those raise; what a file cannot promise raises `ConfigError`.
    """

    pause = resume = refused(refusals.PAUSES)
    tree = refused(refusals.TREES)
    explain = refused(refusals.EXPLAINING)
    find = refused(refusals.FINDING)
    batch = wait_batch = refused(refusals.BATCHES)
    collect_garbage = clear = refused(refusals.COLLECTION)
    redrive = refused(refusals.REDRIVING)
    cancel = refused(refusals.CANCELLING)
    progress = refused(refusals.PROGRESS)

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder = folder
        self.name = name
        self.path = folder.file(name)

    @property
    def closed(self) -> bool:
        """Whether its connection has been closed."""
        return self.folder.closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def configure(
        self,
        *,
        filters: Mapping[str, FilterType] | None = None,
        task_gc_lifetime: object = None,
        task_gc_interval: object = None,
        policy: RetryPolicy | None = None,
        lock: object = None,
        order: str | None = None,
    ) -> None:
        """Make the file if it is not there and set the given values. ``lock``: how long a claim holds (60 seconds).

        Raises `ConfigError` for values that are refused; then nothing is written.
        """
        refuse({refusals.COLLECTION: task_gc_lifetime is not None or task_gc_interval is not None})
        self.folder.configure(self.name, lambda conf: conf.changed(filters, policy, lock, order))

    # --- looking

    def task(self, task_id: str) -> Task:
        """One task. Raises `TaskNotFound`."""
        return self._do(lambda book: book.task(book.find(task_id)), missing=TaskNotFound)

    def tasks(
        self, *, state: State | str | None = None, selector: Selector | str | None = None, limit: int | None = None
    ) -> list[Task]:
        """Tasks in `state` (default: any) that `selector` accepts, at most `limit`, in the order of the lines."""
        wanted = as_state(state)

        def look(book: Book) -> list[Task]:
            types = book.conf.types
            chosen = None if selector is None else as_selector(selector).bind(types)
            items = (item for item in book.tasks.values() if wanted is None or book.state(item) is wanted)
            fitting = [item for item in items if chosen is None or chosen.matches(item.filters, types)]
            return [book.task(item) for item in fitting[:limit]]

        return self._do(look)

    def counts(self) -> dict[str, int]:
        """How many tasks are in each state, ``scheduled`` being the part of ``inserted`` that waits for its time."""

        def look(book: Book) -> dict[str, int]:
            states = [(book.state(item), item.due > book.now) for item in book.tasks.values()]
            counted = {str(state): sum(found is state for found, _ in states) for state in State}
            return counted | {"scheduled": states.count((State.INSERTED, True))}

        return self._do(look)

    def wait(
        self,
        task_ids: Sequence[str],
        event: WaitFor | str = WaitFor.COMPLETION,
        timeout: object = None,
        on_progress: OnProgress | None = None,
    ) -> list[Task]:
        """Wait until every task was claimed, or has ended; returns the tasks in order. See `waiting.wait`."""
        refuse({refusals.PROGRESS: on_progress})
        return wait(self.folder, self.name, task_ids, event, timeout)

    # --- enqueue

    def enqueue(
        self,
        data: bytes | str,
        filters: Mapping[str, object] | None = None,
        *,
        priority: int = 0,
        delay: object = None,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: RetryPolicy | None = None,
        lock: object = None,
        update: bool = False,
        requeue: bool = False,
    ) -> str:
        """Append one task; returns its id. The arguments are `Message`'s."""
        message = Message(data, filters, priority, delay, task_id, metadata, policy, lock, update, requeue)
        return self.enqueue_many([message])[0]

    def enqueue_many(
        self, messages: Sequence[Message], *, batch: str | None = None, then: Message | None = None
    ) -> list[str]:
        """Append many tasks, each all or nothing; returns their ids in order. Raises what `Putting.write` does."""
        refuse({refusals.BATCHES: batch is not None or then is not None})
        return self._do(Putting(messages).write, create=True)

    # --- claims

    def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: FilterMethod | Mapping[str, FilterMethod] = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: object = 0,
        lease: object = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> FileClaim | None:
        """Take the first task that fits, waiting at most `timeout` seconds; None when there was none.

        It holds for `lease` seconds, else for the task's or the queue's lock, unless it is extended. Without `lease`
        it is given back when the connection is closed.
        """
        folder, span = self.folder, None if lease is None else lock_span("lease", lease)

        def work(book: Book) -> settling.Taken:
            chosen = choose(book.conf.types, node=node, filter_method=filter_method, selector=selector)
            return settling.take(book, folder.owner, chosen, span)

        taken = follow(
            self.path, lambda: self._do(work, create=True), seconds("timeout", timeout), folder.alarms, stopping
        )
        if taken is None:
            return None
        claim = FileClaim(self, *taken)
        if lease is None:
            folder.hold(self.name, claim.task.id, claim.token, held=True)
        return claim

    def check_wanted(self, asked: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for a node or selector that the queue refuses."""
        self._do(lambda book: choose(book.conf.types, **asked), create=True)

    def complete(self, task_id: str, token: int, result: bytes | str | None = None, *, dedupe: object = None) -> None:
        """Finish the task and keep `result` (bytes or text). Raises `ClaimLost`, `TaskNotFound`, `TaskTooLarge`."""
        refuse({refusals.DEDUPE: dedupe})
        data = b"" if result is None else encode_data("result", result)
        if len(data) > MAX_REQUEST - OVERHEAD:
            most = MAX_REQUEST - OVERHEAD
            msg = f"the result of task {task_id!r} has {len(data):,} bytes; as in ZooKeeper, {most:,} are taken"
            raise TaskTooLarge(msg)
        self._settle(task_id, token, lambda book: settling.complete(book, task_id, token, data))

    def fail(
        self, task_id: str, token: int, error: str | BaseException, *, retry: bool = True, backoff: object = None
    ) -> State:
        """The delivery failed: run again by the policy, or be dead. Returns the new state. Raises `ClaimLost`.

        Of `error` the first 200 bytes are kept.
        """
        wait = optional_seconds("backoff", backoff)
        return self._settle(
            task_id, token, lambda book: settling.fail(book, task_id, token, error, retry=retry, wait=wait)
        )

    def release(self, task_id: str, token: int, delay: object = None) -> None:
        """Give the task back, for `delay` seconds; the delivery counts as no attempt. Raises `ClaimLost`."""
        span = optional_seconds("delay", delay) or 0.0
        self._settle(task_id, token, lambda book: settling.release(book, task_id, token, span))

    def snooze(self, task_id: str, token: int, span: object) -> None:
        """Give the task back, not to be handled for `span` seconds; counts as no attempt. Raises `ClaimLost`."""
        self.release(task_id, token, seconds("snooze", span))

    def extend(self, task_id: str, token: int, lease: object) -> None:
        """Hold the claim for `lease` more seconds from now. Raises `ClaimLost`."""
        span = lock_span("lease", lease)
        self._do(lambda book: settling.extend(book, task_id, token, span), missing=TaskNotFound)

    def _settle(self, task_id: str, token: int, work: Callable[[Book], T]) -> T:
        try:
            done = self._do(work, missing=TaskNotFound)
        except (ClaimLost, TaskNotFound):
            self.folder.hold(self.name, task_id, token, held=False)
            raise
        self.folder.hold(self.name, task_id, token, held=False)
        return done

    def _do(self, work: Callable[[Book], T], **options: Any) -> T:
        return self.folder.carry_out(self.name, work, **options)

    def worker(self, handler: Callable[..., Any], **options: Any) -> FileWorker:
        """A worker that claims, runs `handler` and settles; the options are `Worker`'s, but for ``transactional``."""
        from airflow_provider_zkmq.filequeue.worker import FileWorker

        return FileWorker(self, handler, **options)
