"""Waiting for tasks: until they end, until some fit, and each change of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from ...errors import ConfigError, QueueNotFound, TaskNotFound, WaitTimeout
from ..client_state import Context, Deadline
from ..model.filters import FilterTypes, Selector, as_selector
from ..model.records import TaskState, load_claim
from ..model.states import ENDED, FAILED, State
from ..model.values import Duration, Moment, WaitFor, moment_of, optional_milliseconds, wait_event, whole_number
from ..model.znode_names import check_name
from ..zk_operations import Callback, Children, Procedure, Signal, Sync, Watch
from .bulk_read import SLIM_AT_ONCE, chunked
from .configuration import read_conf
from .inspect import Task, read_task, read_tasks
from .queue_existence import exists
from .watch_cache import shared_nodes, unsubscribe

# --- Waiting for tasks: watches only, one for each task waited for, shared by all waiters of the process.

WINDOW: Final = 256
OnProgress: TypeAlias = Callable[[str, float, str], None]


def wait(
    context: Context,
    task_ids: Sequence[str],
    event: WaitFor | str = WaitFor.COMPLETION,
    timeout: Duration | None = None,
    on_progress: OnProgress | None = None,
    *,
    stop_at_failure: bool = False,
) -> Procedure[list[Task]]:
    """Wait until every task was claimed, or has ended; returns the tasks in order, whichever way they ended.

    ``completion``: finished, dead or cancelled. ``claim``: claimed at least once, or ended. `timeout`: seconds or a
    duration, None without bound. `on_progress` is called with a task's id, its progress (0 to 1) and note whenever its
    handler has reported another. `stop_at_failure`: return as soon as one of them is dead or cancelled; the others may
    be in any state then. Raises `WaitTimeout`, which names what has not got there, and what is dead or cancelled, and
    `TaskNotFound` for a task that does not exist or was collected while it was waited for.
    """
    wanted = wait_event(event)
    if isinstance(task_ids, str):
        raise ConfigError(f"wait takes a list of task ids, not the text {task_ids!r}")
    ids = [check_name("task id", task_id) for task_id in dict.fromkeys(task_ids)]
    deadline = yield from Deadline.after(context, timeout)
    mine = context.run.new_signal()
    reported: dict[str, tuple[float, str]] = {}
    open_ids, failed = ids, list[str]()
    try:
        while open_ids:
            seen = mine.count
            open_ids, claimed = yield from _look(context, open_ids, wanted, mine, failed)
            if on_progress is not None:
                yield from _report_progress(context, claimed, mine, reported, on_progress)
            if open_ids and failed and stop_at_failure:
                tasks = yield from _read(context, ids)
                if any(task.state in FAILED for task in tasks):
                    return tasks
                open_ids = ids  # what had failed was redriven meanwhile: it is waited for again
                failed.clear()
            elif open_ids:
                if deadline.passed:
                    raise not_reached(context.queue, wanted, deadline, open_ids, failed)
                yield from deadline.wait(mine, seen)
    finally:
        watched = [context.paths.task(task_id, part) for task_id in ids for part in ("state", "claim")]
        unsubscribe(context, watched, mine)
    return (yield from _read(context, ids))


def _read(context: Context, ids: Sequence[str]) -> Procedure[list[Task]]:
    tasks = yield from read_tasks(context, ids, strict=True)
    if len(tasks) < len(ids):
        raise _missing(context, set(ids) - {task.id for task in tasks})
    return tasks


def _look(
    context: Context, ids: Sequence[str], wanted: WaitFor, mine: Signal, failed: list[str]
) -> Procedure[tuple[list[str], list[str]]]:
    """Which of the tasks have not got there yet, and which of these are claimed; `failed` gets those that failed."""
    left: list[str] = []
    claimed: list[str] = []
    for chunk in chunked(ids, WINDOW):
        paths = [context.paths.task(task_id, "state") for task_id in chunk]
        nodes = yield from shared_nodes(context, paths, mine)
        if None in nodes:  # the server that we are connected to may lag behind
            yield Sync(context.paths.at("tasks"))
            nodes = yield from shared_nodes(context, paths, mine)
        reached: list[str] = []
        for task_id, path, node in zip(chunk, paths, nodes, strict=True):
            if node is None:
                raise _missing(context, {task_id})
            record = TaskState.decode(path, node.data)
            begun = record.state is State.CLAIMED or record.attempt > 0
            if record.state in ENDED or (begun and wanted is WaitFor.CLAIM):
                reached.append(path)
                failed += [task_id] if record.state in FAILED else []
            else:
                left.append(task_id)
                claimed += [task_id] if record.state is State.CLAIMED else []
        unsubscribe(context, reached, mine)
    return left, claimed


def _report_progress(
    context: Context, ids: Sequence[str], mine: Signal, reported: dict[str, tuple[float, str]], on_progress: OnProgress
) -> Procedure[None]:
    """Call `on_progress` for what is new. A claim's znode comes and goes with it; the record's watch tells of that."""
    for chunk in chunked(ids, WINDOW):
        paths = [context.paths.task(task_id, "claim") for task_id in chunk]
        nodes = yield from shared_nodes(context, paths, mine)
        for task_id, path, node in zip(chunk, paths, nodes, strict=True):
            if node is None:
                unsubscribe(context, [path], mine)  # no watch stands on what does not exist
                continue
            record = load_claim(path, node.data)
            progress, note = record.get("progress"), record.get("note") or ""
            if progress is not None and reported.get(task_id) != (progress, note):
                reported[task_id] = (progress, note)
                yield Callback(partial(on_progress, task_id, progress, note))


def _missing(context: Context, ids: set[str]) -> TaskNotFound:
    return TaskNotFound(f"not in queue {context.queue!r} (never enqueued, or collected): {_first(sorted(ids))}")


def not_reached(queue: str, wanted: WaitFor, limit: object, left: Sequence[str], failed: Sequence[str]) -> WaitTimeout:
    """The error for tasks that did not get there in time, and for those that did but are dead or cancelled."""
    problem = f"{len(left)} task(s) of queue {queue!r} did not reach {wanted} within {limit}: {_first(left)}"
    return WaitTimeout(problem + failed_too(failed), left=left)


def failed_too(failed: Sequence[str]) -> str:
    """What a time-out adds of those that are dead or cancelled."""
    return f"; {len(failed)} dead or cancelled: {_first(failed)}" if failed else ""


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


# --- Following one task until it has ended: by watches, without polling.

#: Called with a task that has changed; what it returns is not looked at.
OnChange: TypeAlias = Callable[[Task], object]


def follow(context: Context, task_id: str, on_change: OnChange, timeout: Duration | None = None) -> Procedure[Task]:
    """Call `on_change` with the task as it is and again whenever it has changed; returns it once it has ended.

    Ended: finished, dead or cancelled; the last call has the task as it is returned. What changes is its record and
    what its handler reports (``progress``, ``note``). Changes that follow each other quickly are told as one, none is
    told twice, and between two calls nothing is asked of the server. `timeout`: seconds or a duration, None without
    bound. `on_change` is called by the waiting thread, or on the event loop, and what it raises ends the call.
    Raises `WaitTimeout`; `TaskNotFound` for a task that does not exist or is collected meanwhile; `ConfigError` for a
    bad id; `CorruptRecord`.
    """
    deadline = yield from Deadline.after(context, timeout)
    yield from read_task(context, task_id)  # before anything is watched: the id may be no id
    mine = context.run.new_signal()
    paths = [context.paths.task(task_id, znode) for znode in ("state", "claim")]
    known: Task | None = None
    try:
        while True:
            seen = mine.count
            record, _ = yield from shared_nodes(context, paths, mine)
            task = yield from read_task(context, task_id)
            if task != known:
                known = task
                yield Callback(partial(on_change, task))
            # A claim that has only lapsed may be completed still: it has no end yet, whatever follows it.
            if task.state in ENDED and task.ended_ms is not None:
                return task
            if record is not None:  # else it was enqueued anew since, and no watch stands on what was not there
                if deadline.passed:
                    why = f"task {task.id!r} of queue {context.queue!r} is {task.status} still after {deadline}"
                    raise WaitTimeout(why, left=[task.id])
                yield from deadline.wait(mine, seen)
    finally:
        unsubscribe(context, paths, mine)


# --- Waiting for tasks that nobody knows by their ids yet: those that a selector accepts.


def find_matching(
    context: Context,
    selector: Selector | str,
    at_least: int = 1,
    timeout: Duration | None = None,
    *,
    since: Moment | None = None,
) -> Procedure[list[str]]:
    """The ids of the tasks that `selector` accepts, as soon as there are `at_least` so many; waits for them.

    A task counts whatever its state, so that what finished long ago and is kept still counts, too: `since` leaves out
    what was enqueued before that moment, by ZooKeeper's clock. An id that is enqueued again counts from then on, at the
    cost of a watch on each task that is left out. A queue that is not there is waited for as well, and logged once, as
    a warning. Raises `WaitTimeout`, and `ConfigError` for an unknown filter, a count below 1 or a moment without a
    zone.
    """
    count, begin = whole_number("at_least", at_least, 1), optional_milliseconds("since", since)
    wanted, deadline, warned = as_selector(selector), (yield from Deadline.after(context, timeout)), False
    while True:
        try:
            conf = yield from read_conf(context)
            search = _Search(context, wanted.bind(conf.types), conf.types, begin)
            return (yield from _found(search, count, deadline))
        except QueueNotFound as error:
            if not warned:
                context.run.report(context.paths.base, f"{error}; tasks that match {str(wanted)!r} are waited for")
            warned = True
            if not (yield from exists(context, deadline.left)):
                why = f"queue {context.queue!r} did not come within {deadline}: {error}"
                raise WaitTimeout(why, left=[str(wanted)]) from None


def _found(search: _Search, count: int, deadline: Deadline) -> Procedure[list[str]]:
    """Look, and again whenever something of it has changed, until there are `count` tasks. Raises `WaitTimeout`."""
    context = search.context
    mine = context.run.new_signal()
    try:
        while True:
            yield from read_conf(context)  # from memory, unless it has changed: the queue may have been deleted
            seen = mine.count
            watch = Watch(mine)  # kept until the wait is over: a watch that nobody holds tells nobody
            names = yield Children(context.paths.at("tasks"), watch)
            matching = yield from search.look(sorted(names or ()), mine)
            if len(matching) >= count:
                return matching
            if deadline.passed:
                later = "" if search.since is None else f", enqueued since {moment_of(search.since)}"
                raise WaitTimeout(
                    f"queue {context.queue!r} has {len(matching)} task(s) that match {search.selector}{later}; {count} "
                    f"did not come within {deadline}",
                    left=[str(search.selector)],
                )
            yield from deadline.wait(mine, seen)
    finally:
        unsubscribe(context, search.paths(search.early), mine)


@dataclass(slots=True)
class _Search:
    """What is looked for, and what is known of the tasks seen so far."""

    context: Context
    selector: Selector
    types: FilterTypes
    since: int | None
    accepted: dict[str, bool] = field(default_factory=dict)
    """Whether a task counts; those that came too early are not here."""
    early: dict[str, int] = field(default_factory=dict)
    """Tasks that would count had they not been enqueued too early, and the zxids of their records."""

    def look(self, names: list[str], mine: Signal) -> Procedure[list[str]]:
        """The tasks among `names` that count; what is known already is not read again."""
        gone = (self.accepted.keys() | self.early.keys()).difference(names)
        unsubscribe(self.context, self.paths(gone & self.early.keys()), mine)
        for name in gone:  # its id may come again
            self.accepted.pop(name, None)
            self.early.pop(name, None)
        yield from self._read([name for name in names if name not in self.accepted and name not in self.early])
        changed = yield from self._changed(mine)
        while changed:
            yield from self._read(changed)
            unsubscribe(self.context, self.paths(name for name in changed if name not in self.early), mine)
            changed = yield from self._changed(mine)
        return [name for name in names if self.accepted.get(name)]

    def _read(self, names: list[str]) -> Procedure[None]:
        for chunk in chunked(names, SLIM_AT_ONCE):
            for task in (yield from read_tasks(self.context, chunk, parts=())):
                matches = self.selector.matches(task.filters, self.types)
                self.early.pop(task.id, None)
                if matches and self.since is not None and task.enqueued_ms < self.since:
                    self.early[task.id] = task.version
                else:
                    self.accepted[task.id] = matches

    def _changed(self, mine: Signal) -> Procedure[list[str]]:
        """The early tasks whose records have changed since they were read; a watch tells `mine` of the next change."""
        changed: list[str] = []
        for chunk in chunked(list(self.early)):
            nodes = yield from shared_nodes(self.context, self.paths(chunk), mine)
            pairs = zip(chunk, nodes, strict=True)
            changed += [name for name, node in pairs if node is not None and node.stat.mzxid > self.early[name]]
        return changed

    def paths(self, names: Iterable[str]) -> list[str]:
        """Where their records are."""
        return [self.context.paths.task(name, "state") for name in names]
