"""`FileQueue`, a queue in a file with the methods of `Queue`, and its claims."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, TypeVar

from ..engine import errors
from ..engine.core.model import values
from ..engine.core.model.filters import FilterMethods, FilterType, Selector, check_types, choose
from ..engine.core.model.new_message import Message, OnConflict, keyed, skips_existing, with_on_conflict
from ..engine.core.model.settings import ORDERS, Limit, RetryPolicy
from ..engine.core.model.states import ENDED, FAILED, State, Status
from ..engine.core.model.znode_names import check_name
from ..engine.core.read.bulk_read import PARTS, Part, checked_parts
from ..engine.core.read.configuration import QueueConf
from ..engine.core.read.inspect import Task, as_state, as_status, checked_ids
from ..engine.core.read.watch_tasks import OnChange, OnProgress, not_reached
from ..engine.working.held_deliveries import Handler
from ..engine.working.worker import Worker
from . import operations, refusals
from .directory import Directory, conf_path
from .file_claim import FileClaim, FileClaims
from .operations import Putting
from .queue_internals import FileQueueInternals
from .refusals import BOUNDS, PROGRESS, TRANSACTIONS, OnlyWhatFilesHave, refuse
from .task_store import FileConf, QueueFile, TaskLines, delete_results, lock_span, write_conf
from .waiting import end_of, look_until

# --- `FileQueue`: the interface of `Queue` over one file.

T = TypeVar("T")
#: Who waits without a bound asks again after so many seconds.
LONG: Final = 600.0


class FileQueue(OnlyWhatFilesHave):
    """A queue in a file, each call blocking until the file is changed. Usable from several threads and processes.

    The methods are those of `Queue` that a file can do, and raise what those raise. An option that a file cannot keep
    raises `Unsupported`, and so does any other verb.
    """

    def __init__(self, directory: Directory, name: str) -> None:
        self.directory = directory
        self.name = name
        self.path = directory.file(name)
        self._internals = FileQueueInternals(directory, name)

    def __internals__(self) -> FileQueueInternals:
        return self._internals

    @property
    def root(self) -> str:
        """The folder of the file."""
        return str(self.directory.path)

    @property
    def consumer(self) -> str:
        """By which name this connection's claims stand in the file."""
        return self.directory.owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def conf(self) -> QueueConf:
        """How the queue is configured. Its order is that of the lines; files are never cleaned up, paused, archived."""
        conf = self._do(lambda queue_file: queue_file.conf)
        return QueueConf(
            filters=dict(conf.types),
            policy=conf.policy,
            task_gc_lifetime=None,
            task_gc_interval=None,
            lock=conf.lock,
            order="fifo",
            paused=False,
            archived=None,
        )

    def task(self, task_id: str) -> Task:
        """One task. Raises `TaskNotFound`."""
        return self._do(lambda queue_file: queue_file.task(queue_file.find(task_id)))

    def tasks(
        self,
        *,
        ids: Sequence[str] | None = None,
        state: State | str | None = None,
        status: Status | str | None = None,
        selector: Selector | str | None = None,
        batch: str | None = None,
        parts: Collection[Part] = PARTS,
        limit: int | None = None,
    ) -> list[Task]:
        """The tasks that every given argument accepts, at most `limit`, all of one moment. See `Queue.tasks`.

        In the order of the lines, or of `ids`. Raises `Unsupported` for a `batch`.
        """
        refuse({refusals.BATCHES: batch is not None})
        named, wanted, exact = None if ids is None else checked_ids(ids), as_state(state), as_status(status)
        chosen, most = checked_parts(parts), values.optional_whole_number("limit", limit)

        def left_out() -> dict[str, Any]:
            absent: dict[str, Any] = {"data": b"", "metadata": {}, "result": None}
            return {part: value for part, value in absent.items() if part not in chosen}

        def look(queue_file: QueueFile) -> list[Task]:
            matching = {lines.id: lines for lines in queue_file.matching(wanted, selector)}
            all_lines = matching.values() if named is None else (matching[each] for each in named if each in matching)
            tasks = (replace(queue_file.task(lines), **left_out()) for lines in all_lines)
            return list(islice((task for task in tasks if exact in {None, task.status}), most))

        return self._do(look)

    def counts(self) -> dict[str, int]:
        """How many tasks are in each state, ``scheduled`` being the part of ``inserted`` that waits for its time."""

        def look(queue_file: QueueFile) -> dict[str, int]:
            states = [(queue_file.state(lines), lines.due > queue_file.now) for lines in queue_file.tasks.values()]
            counted = {str(state): sum(seen is state for seen, _ in states) for state in State}
            return counted | {"scheduled": states.count((State.INSERTED, True))}

        return self._do(look)

    def wait(
        self,
        task_ids: Sequence[str],
        event: values.WaitFor | str = values.WaitFor.COMPLETION,
        timeout: values.Duration | None = None,
        on_progress: OnProgress | None = None,
        *,
        stop_at_failure: bool = False,
    ) -> list[Task]:
        """Wait until every task was claimed, or has ended; returns the tasks in order. See `Queue.wait`.

        Raises `WaitTimeout`, and `TaskNotFound` also for a task whose line was deleted meanwhile.
        """
        refuse({PROGRESS: on_progress})
        ids, wanted, span = checked_ids(task_ids), values.wait_event(event), values.optional_seconds("timeout", timeout)
        left: list[str] = []
        failed: list[str] = []

        def look(queue_file: QueueFile) -> tuple[list[Task] | None, float | None]:
            nonlocal left, failed
            all_lines = [queue_file.find(task_id) for task_id in ids]
            left, failed = [], []
            for lines in all_lines:
                state = queue_file.state(lines)
                begun = state is State.CLAIMED or lines.number("attempts") > 0
                if state not in ENDED and not (begun and wanted is values.WaitFor.CLAIM):
                    left.append(lines.id)
                if state in FAILED:
                    failed.append(lines.id)
            if not left or (failed and stop_at_failure):
                return [queue_file.task(lines) for lines in all_lines], None
            return None, _next_end(queue_file, all_lines)

        carry_out = partial(self.directory.carry_out, self.name, look, end=end_of(span))
        tasks = look_until(self.path, carry_out, span, self.directory.alarms, lambda: False) if ids else []
        if tasks is None:
            raise not_reached(self.name, wanted, f"timeout ({span or 0:g} s)", left, failed)
        return tasks

    def follow(self, task_id: str, on_change: OnChange, timeout: values.Duration | None = None) -> Task:
        """Call `on_change` with the task now and whenever it has changed; returns it once it has ended.

        The file is not locked meanwhile. Raises `WaitTimeout`, `TaskNotFound`. See `Queue.follow`.
        """
        name, span = check_name("task id", task_id), values.optional_seconds("timeout", timeout)
        known: Task | None = None
        end = end_of(span)

        def read(queue_file: QueueFile) -> tuple[Task, float | None]:
            """The task, and when it changes without any change of the file: its claim ends, or it comes due."""
            lines = queue_file.find(name)
            times = [_next_end(queue_file, [lines]), lines.due if lines.due > queue_file.now else None]
            return queue_file.task(lines), min((when for when in times if when is not None), default=None)

        def look() -> tuple[Task | None, float | None]:
            nonlocal known
            task, again = self.directory.carry_out(self.name, read, end=end)
            if task != known:
                known = task
                on_change(task)
            return (task if task.state in ENDED else None), again

        ended = look_until(self.path, look, span, self.directory.alarms, lambda: False)
        if ended is None:
            msg = f"task {name!r} of queue {self.name!r} has not ended within timeout ({span or 0:g} s)"
            raise errors.WaitTimeout(msg, left=[name])
        return ended

    def exists(self, timeout: values.Duration | None = 0, *, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Whether the queue's file is there; waits for it at most `timeout` seconds (None: without bound)."""
        span = values.optional_seconds("timeout", timeout)
        look = lambda: (self.path.is_file() or None, None)  # noqa: E731
        over = lambda: stopping() or self.directory.closed  # noqa: E731
        return bool(look_until(self.path, look, span, self.directory.alarms, over))

    def _do(self, work: Callable[[QueueFile], T], *, create: bool = False) -> T:
        """Do something with the file while it is locked; see `Directory.carry_out`."""
        return self.directory.carry_out(self.name, work, create=create)

    # --- whether there is work, and waiting for it

    def ready(
        self,
        node: Mapping[str, object] | Selector | str | None = None,
        filter_method: FilterMethods = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: values.Duration | None = 0,
        stopping: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Whether there is a task that fits and could be claimed now; nothing is claimed.

        Waits for one at most `timeout` seconds; None: to the end.
        """
        directory, most = self.directory, values.optional_seconds("timeout", timeout)

        def work(queue_file: QueueFile) -> tuple[bool | None, float | None]:
            chosen = choose(queue_file.conf.types, node=node, filter_method=filter_method, selector=selector)
            return operations.find_ready(queue_file, chosen)

        look = partial(directory.carry_out, self.name, work, end=end_of(most))
        return look_until(self.path, look, most, directory.alarms, stopping) is not None

    # --- configure, delete, enqueue

    def configure(
        self,
        *,
        filters: Mapping[str, FilterType] | None = None,
        task_gc_lifetime: values.Duration | None = None,
        task_gc_interval: values.Duration | None = None,
        policy: RetryPolicy | None = None,
        lock: values.Duration | None = None,
        order: str | None = None,
        archive: bool | None = None,
        follow: bool | None = None,
        limit: Limit | None = None,
    ) -> None:
        """Make the file if it is not there and set the given values. ``lock``: how long a claim holds (60 seconds).

        Raises `ConfigError` for values that are refused; then nothing is written.
        """
        collected = task_gc_lifetime is not None or task_gc_interval is not None
        refuse({refusals.COLLECTION: collected, refusals.ARCHIVES: archive or follow, refusals.LIMITS: limit})
        if order is not None and order not in ORDERS:  # either is that of the lines
            msg = f"order {order!r} is unknown: use one of {', '.join(ORDERS)}"
            raise errors.ConfigError(msg)
        types = None if filters is None else check_types(filters)
        span = None if lock is None else lock_span("lock", lock)

        def work(queue_file: QueueFile) -> None:
            path, now = conf_path(self.path), queue_file.conf
            conf = FileConf(now.types if types is None else types, policy or now.policy, span or now.lock)
            if conf != FileConf() or path.exists():
                write_conf(path, conf, queue_file.file.mode)

        self._do(work, create=True)

    def delete(self, *, confirm: bool = False, force: bool = False) -> int:
        """Delete the file with everything in it, its configuration and its results; returns how many tasks that were.

        `confirm`: has to be True, as nothing of it comes back. `force`: also while tasks are claimed. Raises
        `ConfigError` without `confirm`, `QueueNotFound`, and `QueueError` for what takes `force`.
        """

        def work(queue_file: QueueFile) -> int:
            path, count = self.path, len(queue_file.tasks)
            claimed = sum(queue_file.state(lines) is State.CLAIMED for lines in queue_file.tasks.values())
            if claimed and not force:
                in_use = f"{claimed} claimed task(s); stop the workers first, or delete it by force"
                raise errors.QueueError(f"{path} is in use: {in_use}")
            if not confirm:
                msg = f"deleting {path} loses its {count} task(s) for good; nothing was deleted: say confirm=True"
                raise errors.ConfigError(msg)
            delete_results(path)
            conf_path(path).unlink(missing_ok=True)
            path.unlink()  # last: one whose deletion was cut off is still there, to be deleted once more
            return count

        count = self._do(work)
        self.directory.forget(self.name)
        return count

    def enqueue(
        self,
        data: bytes | str,
        filters: Mapping[str, object] | None = None,
        *,
        priority: int = 0,
        delay: values.Duration | None = None,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: RetryPolicy | None = None,
        lock: values.Duration | None = None,
        on_conflict: OnConflict = "raise",
        not_before: values.Moment | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Append one task; returns its id. The arguments are `Message`'s; `idempotency_key` as in `enqueue_many`."""
        message = Message(data, filters, priority, delay, task_id, metadata, policy, lock, on_conflict, not_before)
        return self.enqueue_many([message], idempotency_key=idempotency_key)[0]

    def enqueue_many(
        self,
        messages: Sequence[Message],
        *,
        batch: str | None = None,
        then: Message | None = None,
        on_conflict: OnConflict | None = None,
        idempotency_key: str | None = None,
    ) -> list[str]:
        """Append many tasks, each all or nothing; returns their ids in order. Raises what `Putting.write` does.

        `on_conflict`: for all messages, instead of their own; see `Message`. `idempotency_key`: the ids come from the
        queue's name, this text and each message's position; of the tasks that are there already nothing is changed.
        """
        refuse({refusals.BATCHES: batch is not None or then is not None})
        chosen = with_on_conflict(messages, on_conflict)
        try:
            named = chosen if idempotency_key is None else keyed(self.name, idempotency_key, chosen)
            only_new = idempotency_key is not None or skips_existing(named)
            return self._do(Putting(named, only_new=only_new).write, create=True)
        except errors.BadMessage as error:
            raise error.__cause__ or error from None

    # --- claims

    def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: FilterMethods = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: values.Duration = 0,
        lease: values.Duration | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> FileClaim | None:
        """Take the first task that fits, waiting at most `timeout` seconds; None when there was none.

        It holds for `lease` seconds, else for the task's or the queue's lock, unless it is extended. Without `lease`
        it is given back when the connection is closed.
        """
        directory, span = self.directory, None if lease is None else lock_span("lease", lease)

        def work(queue_file: QueueFile) -> operations.Taken:
            chosen = choose(queue_file.conf.types, node=node, filter_method=filter_method, selector=selector)
            return operations.take(queue_file, directory.owner, chosen, span)

        most = values.seconds("timeout", timeout)
        look, end = partial(directory.carry_out, self.name, work), end_of(most)
        taken = look_until(self.path, partial(look, end=end), most, directory.alarms, stopping)
        return self._handed_out(taken, held=lease is None)

    def claim_task(
        self,
        task_id: str,
        *,
        lease: values.Duration | None = None,
        attempt: int | None = None,
        prefetch: bool = False,  # noqa: ARG002  in a file, each claim counts at once
    ) -> FileClaim | None:
        """Take this task and no other, if it is pending and due; None where it is not. `attempt`: see `Queue`."""
        name, number = check_name("task id", task_id), values.optional_whole_number("attempt", attempt, 1)
        owner, span = self.directory.owner, None if lease is None else lock_span("lease", lease)
        taken, _ = self._do(lambda queue_file: operations.take_one(queue_file, owner, name, span, number))
        return self._handed_out(taken, held=lease is None)

    def _handed_out(self, taken: tuple[Task, float] | None, *, held: bool) -> FileClaim | None:
        """The claim that a caller gets; `held`: it is given back when the connection is closed."""
        claim = None if taken is None else FileClaim(self.directory, self.name, *taken)
        if claim is not None and held:
            self.directory.hold(self.name, claim.task.id, claim.token, held=True)
        return claim

    def worker(self, handler: Handler, **options: Any) -> Worker:
        """A worker that claims, runs `handler` and settles; the options are `Worker`'s, but for ``transactional``.

        Every claim has an end here: while its handler runs, it is extended each time a third of its span has passed,
        unless ``heartbeat`` is False. Nothing is prefetched: in a file, each claim counts as a delivery.
        """
        refuse({TRANSACTIONS: options.pop("transactional", False)})
        return Worker(self, handler, **options | {"prefetch": 0})

    # --- several tasks: each claim locks the file for itself

    def claim_many(
        self,
        n: int,
        node: Mapping[str, object] | None = None,
        filter_method: FilterMethods = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: values.Duration = 0,
        lease: values.Duration | None = None,
        stopping: Callable[[], bool] = lambda: False,
        prefetch: Literal["all"] | bool = False,  # noqa: ARG002  in a file, each claim counts at once
        max_leases: int | None = None,
    ) -> list[FileClaim]:
        """Take the first `n` tasks that fit (1 to 64), or as many as there are; the first is waited for, see `claim`.

        A call that fails or is interrupted gives back what it took.
        """
        refuse({BOUNDS: max_leases is not None})
        most = values.whole_number("n", n, 1, values.MOST_AT_ONCE)
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
        filter_method: FilterMethods = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: values.Duration | None = None,
        lease: values.Duration | None = None,
        prefetch: int = 1,
        stopping: Callable[[], bool] = lambda: False,
    ) -> FileClaims:
        """Loop over the tasks that fit; what the body has not settled when the loop comes back is completed.

        See `Queue.claims`. `prefetch` is checked, and no more: each claim locks the file for itself.
        """
        values.whole_number("prefetch", prefetch, 1, values.MOST_AT_ONCE)
        span = values.optional_seconds("timeout", timeout)

        def take() -> FileClaim | None:
            wait = LONG if span is None else span
            choice: dict[str, Any] = {"selector": selector, "timeout": wait, "lease": lease, "stopping": stopping}
            while True:
                claim = self.claim(node, filter_method, **choice)
                if claim is not None or span is not None or stopping():
                    return claim

        return FileClaims(take)

    def claim_handle(self, task_id: str, token: int, *, lease: values.Duration | None = None) -> FileClaim:
        """Return the current claim of a task by its token, whichever process made it. See `Queue.claim_handle`.

        Without `lease`, its ``span`` is what is left of it, and the task's or the queue's lock at least. It is always
        an object of its own, also where the claim was made through this client. Raises `ClaimLost`, `TaskNotFound`.
        """
        name, span = check_name("task id", task_id), None if lease is None else lock_span("lease", lease)

        def work(queue_file: QueueFile) -> tuple[Task, float]:
            lines, _ = operations.current(queue_file, name, token)
            if span is not None:
                operations.extend(queue_file, name, token, span)
            left = 0.0 if lines.holder is None else lines.holder[1] - queue_file.now
            return queue_file.task(lines), span or max(left, lines.span(queue_file.conf))

        return FileClaim(self.directory, self.name, *self._do(work))


def _next_end(queue_file: QueueFile, all_lines: Sequence[TaskLines]) -> float | None:
    ends = (lines.holder[1] for lines in all_lines if lines.holder is not None and lines.holder[1] > queue_file.now)
    return min(ends, default=None)
