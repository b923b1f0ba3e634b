"""Following one task until it has ended: by watches, without polling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.states import ENDED
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Signal, Tell
from airflow_provider_zkmq.engine.core.reading.deadline import Deadline
from airflow_provider_zkmq.engine.core.reading.inspect import Task, read_task
from airflow_provider_zkmq.engine.core.reading.watched import shared_nodes, unsubscribe
from airflow_provider_zkmq.engine.errors import WaitTimeout

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
                yield Tell(partial(on_change, task))
            # A claim that has only lapsed may be completed still: it has no end yet, whatever follows it.
            if task.state in ENDED and task.ended_ms is not None:
                return task
            if record is not None:  # else it was enqueued anew since, and no watch stands on what was not there
                yield from _wait(context, task, mine, seen, deadline)
    finally:
        unsubscribe(context, paths, mine)


def _wait(context: Context, task: Task, mine: Signal, seen: int, deadline: Deadline) -> Procedure[None]:
    if deadline.passed:
        why = f"task {task.id!r} of queue {context.queue!r} is {task.status} still after {deadline}"
        raise WaitTimeout(why, left=[task.id])
    yield from deadline.wait(mine, seen)
