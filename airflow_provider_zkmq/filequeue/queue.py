"""`FileQueue`: the interface of `Queue` over one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from airflow_provider_zkmq.engine.errors import BadMessage
from airflow_provider_zkmq.engine.model import (
    Duration,
    FilterMethod,
    FilterType,
    Message,
    Moment,
    NewTasks,
    RetryPolicy,
    Selector,
    Task,
    check_name,
    choose,
    keyed,
    optional_milliseconds,
    optional_whole_number,
    seconds,
)
from airflow_provider_zkmq.filequeue import deletion, refusals, settling
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.by_token import ByToken
from airflow_provider_zkmq.filequeue.claims import FileClaim
from airflow_provider_zkmq.filequeue.conf import lock_span
from airflow_provider_zkmq.filequeue.looking import end_of, look_until
from airflow_provider_zkmq.filequeue.putting import Putting
from airflow_provider_zkmq.filequeue.refusals import refuse, refused
from airflow_provider_zkmq.filequeue.worker import Handler, Worker, worker

Method: TypeAlias = FilterMethod | Mapping[str, FilterMethod]


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
        return deletion.delete(self.folder, self.name, confirm=confirm, force=force)

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
