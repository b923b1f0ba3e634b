"""`FileQueue`: the interface of `Queue` over one file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar

from airflow_provider_zkmq.engine.errors import BadMessage, ClaimLost, QueueNotFound, TaskNotFound, TaskTooLarge
from airflow_provider_zkmq.engine.model import (
    MAX_PAYLOAD,
    Duration,
    FilterMethod,
    FilterType,
    Message,
    Moment,
    NewTasks,
    RetryPolicy,
    Selector,
    State,
    Task,
    check_name,
    choose,
    encode_data,
    keyed,
    number_of_claims,
    optional_milliseconds,
    optional_seconds,
    optional_whole_number,
    seconds,
)
from airflow_provider_zkmq.engine.protocols import Queue
from airflow_provider_zkmq.engine.working.options import Handler
from airflow_provider_zkmq.engine.working.worker import Worker
from airflow_provider_zkmq.filequeue import directory, refusals, settling
from airflow_provider_zkmq.filequeue.claims import FileClaim, FileClaims
from airflow_provider_zkmq.filequeue.directory import Folder, end_of, look_until
from airflow_provider_zkmq.filequeue.queue_file import Book, lock_span
from airflow_provider_zkmq.filequeue.refusals import BOUNDS, TRANSACTIONS, refuse, refused
from airflow_provider_zkmq.filequeue.settling import Putting
from airflow_provider_zkmq.filequeue.view import FileView

# --- Several tasks of a file, one after the other: each claim locks the file for itself.

Method: TypeAlias = FilterMethod | Mapping[str, FilterMethod]
#: Who waits without a bound asks again after so many seconds.
LONG: Final = 600.0


class Several(FileView):
    """What a queue in a file does with several tasks at once."""

    @abstractmethod
    def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> FileClaim | None:
        """Take the first task that fits."""

    def claim_many(
        self,
        n: int,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
        stopping: Callable[[], bool] = lambda: False,
        ahead: Literal["all"] | bool = False,  # noqa: ARG002  in a file, each claim counts at once
        max_leases: int | None = None,
    ) -> list[FileClaim]:
        """Take the first `n` tasks that fit (1 to 64), or as many as there are; the first is waited for, see `claim`.

        A call that fails or is interrupted gives back what it took.
        """
        refuse({BOUNDS: max_leases is not None})
        most = number_of_claims(n)
        claims: list[FileClaim] = []
        try:
            while len(claims) < most:
                wait = 0 if claims else timeout
                claim = self.claim(node, filter_method, selector=selector, timeout=wait, lease=lease, stopping=stopping)
                if claim is None:
                    break
                claims.append(claim)
        except BaseException:
            for claim in claims:
                claim.release()
            raise
        return claims

    def claims(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        prefetch: int = 1,
        stopping: Callable[[], bool] = lambda: False,
    ) -> FileClaims:
        """Loop over the tasks that fit; what the body has not settled when the loop comes back is completed.

        See `Queue.claims`. `prefetch` is checked, and no more: each claim locks the file for itself.
        """
        number_of_claims(prefetch, "prefetch")
        span = optional_seconds("timeout", timeout)

        def take() -> FileClaim | None:
            wait = LONG if span is None else span
            choice: dict[str, Any] = {"selector": selector, "timeout": wait, "lease": lease, "stopping": stopping}
            while True:
                claim = self.claim(node, filter_method, **choice)
                if claim is not None or span is not None or stopping():
                    return claim

        return FileClaims(take)


# --- Knowing of work in a file: whether there is any, and being woken.


class Awake(Several):
    """What a queue in a file tells those who wait for work."""

    def __init__(self, folder: Folder, name: str) -> None:
        super().__init__(folder, name)
        self._wakes = 0

    def ready(
        self,
        node: Mapping[str, object] | Selector | str | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration | None = 0,
        stopping: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Whether there is a task that fits and could be claimed now; nothing is claimed.

        Waits for one at most `timeout` seconds; None: to the end.
        """
        folder, most = self.folder, optional_seconds("timeout", timeout)

        def work(book: Book) -> settling.Seen:
            chosen = choose(book.conf.types, node=node, filter_method=filter_method, selector=selector)
            return settling.find_ready(book, chosen)

        look = partial(folder.carry_out, self.name, work, end=end_of(most))
        return look_until(self.path, look, most, folder.alarms, stopping) is not None

    @property
    def changes(self) -> int:
        """How often the queue was woken; what changes in the file tells nobody who does not wait for that."""
        return self._wakes

    def wait_for_change(self, seen: int, timeout: Duration) -> bool:
        """Wait until the queue is woken more than `seen` times, at most for `timeout`."""
        span = seconds("timeout", timeout)
        with self.folder.alarms.one() as alarm:
            return self._wakes > seen or alarm.event.wait(span)

    def wake(self) -> None:
        """Wake whoever waits for something in the folder; they look again."""
        self._wakes += 1
        self.folder.alarms.fire()

    def look_after(self) -> None:
        """Nothing is promoted or rescued in a file: whoever claims finds what is due."""


# --- Holding and ending a claim out of a file by its task's id and its token, from whichever process.

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


# --- The worker over a file, which is `Worker` itself: a file's queue and claims have what it needs.


def worker(queue: Queue, handler: Handler, *, transactional: bool = False, **options: Any) -> Worker:
    """A worker on a file's queue; the options are `Worker`'s. Raises `ConfigError` for ``transactional``.

    Every claim has an end here: while its handler runs, it is extended each time a third of its span has passed,
    unless ``heartbeat`` is False. Nothing is claimed ahead: in a file, each claim counts as a delivery.
    """
    refuse({TRANSACTIONS: transactional})
    return Worker(queue, handler, **options | {"prefetch": 0})


# --- `FileQueue`: the interface of `Queue` over one file.


class FileQueue(ByToken):
    """A queue in a file, each call blocking until the file is changed. Usable from several threads and processes.

    The methods are those of `Queue` and raise what those raise; what a file cannot promise raises `Unsupported`.
    """

    pause = resume = refused(refusals.PAUSES)
    collect_garbage = clear = drop = refused(refusals.COLLECTION)
    redrive = redrive_many = refused(refusals.REDRIVING)
    replace = refused(refusals.UPDATES)
    cancel = refused(refusals.CANCELLING)
    revoke = refused(refusals.REVOKING)
    progress = refused(refusals.PROGRESS)
    publish_archive = refused(refusals.ARCHIVES)
    open_batch = seal_batch = refused(refusals.BATCHES)

    def configure(
        self,
        *,
        filters: Mapping[str, FilterType] | None = None,
        task_gc_lifetime: Duration | None = None,
        task_gc_interval: Duration | None = None,
        policy: RetryPolicy | None = None,
        lock: Duration | None = None,
        order: str | None = None,
        archive: bool | None = None,
        follow: bool | None = None,
    ) -> None:
        """Make the file if it is not there and set the given values. ``lock``: how long a claim holds (60 seconds).

        Raises `ConfigError` for values that are refused; then nothing is written.
        """
        collected = task_gc_lifetime is not None or task_gc_interval is not None
        refuse({refusals.COLLECTION: collected, refusals.ARCHIVES: archive or follow})
        self.folder.configure(self.name, lambda conf: conf.changed(filters, policy, lock, order))

    def delete(self, *, confirm: bool = False, force: bool = False) -> int:
        """Delete the file with everything in it, its configuration and its results; returns how many tasks that were.

        `confirm`: has to be True, as nothing of it comes back. `force`: also while tasks are claimed. Raises
        `ConfigError` without `confirm`, `QueueNotFound`, and `QueueError` for what takes `force`.
        """
        return directory.delete(self.folder, self.name, confirm=confirm, force=force)

    # --- enqueue

    def enqueue(
        self,
        data: bytes | str,
        filters: Mapping[str, object] | None = None,
        *,
        priority: int = 0,
        delay: Duration | None = None,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: RetryPolicy | None = None,
        lock: Duration | None = None,
        update: bool = False,
        requeue: bool = False,
        not_before: Moment | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Append one task; returns its id. The arguments are `Message`'s; `idempotency_key` as in `enqueue_many`."""
        message = Message(data, filters, priority, delay, task_id, metadata, policy, lock, update, requeue, not_before)
        return self.enqueue_many([message], idempotency_key=idempotency_key)[0]

    def enqueue_many(
        self,
        messages: Sequence[Message],
        *,
        batch: str | None = None,
        then: Message | None = None,
        idempotency_key: str | None = None,
    ) -> list[str]:
        """Append many tasks, each all or nothing; returns their ids in order. Raises what `Putting.write` does.

        `idempotency_key`: the ids come from the queue's name, this text and each message's position; of the tasks that
        are there already nothing is changed.
        """
        refuse({refusals.BATCHES: batch is not None or then is not None})
        if idempotency_key is None:
            return self._do(Putting(messages).write, create=True)
        try:
            putting = Putting(keyed(self.name, idempotency_key, messages), only_new=True)
            return self._do(putting.write, create=True)
        except BadMessage as error:
            raise error.__cause__ or error from None

    def enqueue_new(
        self, messages: Sequence[Message], *, batch: str | None = None, since: Moment | None = None
    ) -> NewTasks:
        """Append the messages whose ids no line has; what is there stays as it is. Raises what `Putting.write` does.

        `since` is checked and no more: the file keeps what is done until somebody deletes its lines.
        """
        refuse({refusals.BATCHES: batch})
        optional_milliseconds("since", since)
        putting = Putting(messages, only_new=True)
        self._do(putting.write, create=True)
        return putting.new_tasks()

    # --- claims

    def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
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

        most = seconds("timeout", timeout)
        look, end = partial(folder.carry_out, self.name, work), end_of(most)
        taken = look_until(self.path, partial(look, end=end), most, folder.alarms, stopping)
        return self._handed_out(taken, held=lease is None)

    def claim_task(
        self,
        task_id: str,
        *,
        lease: Duration | None = None,
        attempt: int | None = None,
        ahead: bool = False,  # noqa: ARG002  in a file, each claim counts at once
    ) -> FileClaim | None:
        """Take this task and no other, if it is pending and due; None where it is not. `attempt`: see `Queue`."""
        name, number = check_name("task id", task_id), optional_whole_number("attempt", attempt, 1)
        owner, span = self.folder.owner, None if lease is None else lock_span("lease", lease)
        taken, _ = self._do(lambda book: settling.take_one(book, owner, name, span, number))
        return self._handed_out(taken, held=lease is None)

    def _handed_out(self, taken: tuple[Task, float] | None, *, held: bool) -> FileClaim | None:
        """The claim that a caller gets; `held`: it is given back when the connection is closed."""
        claim = None if taken is None else FileClaim(self, *taken)
        if claim is not None and held:
            self.folder.hold(self.name, claim.task.id, claim.token, held=True)
        return claim

    def check_wanted(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        selector: Selector | str | None = None,
        lease: object = None,
    ) -> None:
        """Raise `ConfigError` for a node, selector or lease that the queue refuses."""
        if lease is not None:
            lock_span("lease", lease)
        self._do(lambda book: choose(book.conf.types, node=node, filter_method=filter_method, selector=selector))

    def worker(self, handler: Handler, **options: Any) -> Worker:
        """A worker that claims, runs `handler` and settles; the options are `Worker`'s, but for ``transactional``."""
        return worker(self, handler, **options)
