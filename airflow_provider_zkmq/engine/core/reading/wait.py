"""Waiting for tasks: watches only, one for each task waited for, shared by all waiters of the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.records import TaskState, load_claim
from airflow_provider_zkmq.engine.core.model.states import ENDED, FAILED, State
from airflow_provider_zkmq.engine.core.model.waits import WaitFor, wait_event
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Signal, Sync, Tell
from airflow_provider_zkmq.engine.core.reading.deadline import Deadline
from airflow_provider_zkmq.engine.core.reading.inspect import Task, read_many
from airflow_provider_zkmq.engine.core.reading.nodes import chunked
from airflow_provider_zkmq.engine.core.reading.watched import shared_nodes, unsubscribe
from airflow_provider_zkmq.engine.errors import ConfigError, TaskNotFound, WaitTimeout

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
    ids = [check_name("task id", task_id) for task_id in dict.fromkeys(_list(task_ids))]
    deadline = yield from Deadline.after(context, timeout)
    mine = context.run.new_signal()
    reported: dict[str, tuple[float, str]] = {}
    open_ids, failed = ids, list[str]()
    try:
        while open_ids:
            seen = mine.count
            open_ids, claimed = yield from _look(context, open_ids, wanted, mine, failed)
            if on_progress is not None:
                yield from _tell_progress(context, claimed, mine, reported, on_progress)
            if open_ids and failed and stop_at_failure:
                tasks = yield from _read(context, ids)
                if any(task.state in FAILED for task in tasks):
                    return tasks
                open_ids = ids  # what had failed was redriven meanwhile: it is waited for again
                failed.clear()
            elif open_ids:
                yield from _pause(context, mine, seen, deadline, open_ids, failed, wanted)
    finally:
        unsubscribe(
            context, [context.paths.task(task_id, part) for task_id in ids for part in ("state", "claim")], mine
        )
    return (yield from _read(context, ids))


def _read(context: Context, ids: Sequence[str]) -> Procedure[list[Task]]:
    tasks = yield from read_many(context, ids, strict=True)
    if len(tasks) < len(ids):
        raise _missing(context, set(ids) - {task.id for task in tasks})
    return tasks


def _list(task_ids: Sequence[str]) -> Sequence[str]:
    if isinstance(task_ids, str):
        msg = f"wait takes a list of task ids, not the text {task_ids!r}"
        raise ConfigError(msg)
    return task_ids


def _look(
    context: Context, ids: Sequence[str], wanted: WaitFor, mine: Signal, failed: list[str]
) -> Procedure[tuple[list[str], list[str]]]:
    """Which of the tasks have not got there yet, and which of these are claimed; `failed` gets those that failed."""
    left: list[str] = []
    claimed: list[str] = []
    for chunk in chunked(ids, WINDOW):
        states = yield from _read_states(context, chunk, mine)
        reached = [task_id for task_id, state in states.items() if _reached(state, wanted)]
        unsubscribe(context, [context.paths.task(task_id, "state") for task_id in reached], mine)
        failed += [task_id for task_id in reached if states[task_id].state in FAILED]
        waiting = [task_id for task_id, state in states.items() if not _reached(state, wanted)]
        claimed += [task_id for task_id in waiting if states[task_id].state is State.CLAIMED]
        left += waiting
    return left, claimed


def _read_states(context: Context, ids: Sequence[str], mine: Signal) -> Procedure[dict[str, TaskState]]:
    """The records of tasks, under watches that fire `mine`. Raises `TaskNotFound`, `CorruptRecord`."""
    paths = [context.paths.task(task_id, "state") for task_id in ids]
    nodes = yield from shared_nodes(context, paths, mine)
    if None in nodes:  # the server that we are connected to may lag behind
        yield Sync(context.paths.at("tasks"))
        nodes = yield from shared_nodes(context, paths, mine)
    states: dict[str, TaskState] = {}
    for task_id, path, node in zip(ids, paths, nodes, strict=True):
        if node is None:
            raise _missing(context, {task_id})
        states[task_id] = TaskState.decode(path, node.data)
    return states


def _tell_progress(
    context: Context, ids: Sequence[str], mine: Signal, reported: dict[str, tuple[float, str]], tell: OnProgress
) -> Procedure[None]:
    """Call `tell` for what is new; a claim's znode comes and goes with the claim, which the record's watch tells."""
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
                yield Tell(partial(tell, task_id, progress, note))


def _reached(state: TaskState, wanted: WaitFor) -> bool:
    if state.state in ENDED:
        return True
    return wanted is WaitFor.CLAIM and (state.state is State.CLAIMED or state.attempt > 0)


def _missing(context: Context, ids: set[str]) -> TaskNotFound:
    return TaskNotFound(f"not in queue {context.queue!r} (never enqueued, or collected): {_first(sorted(ids))}")


def not_reached(queue: str, wanted: WaitFor, limit: object, left: Sequence[str], failed: Sequence[str]) -> WaitTimeout:
    """The error for tasks that did not get there in time, and for those that did but are dead or cancelled."""
    told = f"{len(left)} task(s) of queue {queue!r} did not reach {wanted} within {limit}: {_first(left)}"
    return WaitTimeout(told + failed_too(failed), left=left)


def failed_too(failed: Sequence[str]) -> str:
    """What a time-out adds of those that are dead or cancelled."""
    return f"; {len(failed)} dead or cancelled: {_first(failed)}" if failed else ""


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _pause(
    context: Context,
    mine: Signal,
    seen: int,
    deadline: Deadline,
    left: Sequence[str],
    failed: Sequence[str],
    wanted: WaitFor,
) -> Procedure[None]:
    if deadline.passed:
        raise not_reached(context.queue, wanted, deadline, left, failed)
    yield from deadline.wait(mine, seen)
