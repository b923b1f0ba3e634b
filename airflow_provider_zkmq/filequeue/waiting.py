"""Waiting for tasks of a queue file to be claimed, or to end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..engine.core.model.names import check_name
from ..engine.core.model.states import ENDED, FAILED, State
from ..engine.core.model.values import Duration, WaitFor, optional_seconds, wait_event
from ..engine.core.read.inspect import Task, checked_ids
from ..engine.core.read.wait import OnChange, not_reached
from ..engine.errors import WaitTimeout
from .directory import Directory, end_of, look_until
from .queue_file import QueueFile, TaskLines


def wait(
    directory: Directory,
    queue: str,
    task_ids: Sequence[str],
    event: WaitFor | str,
    timeout: Duration | None,
    *,
    stop_at_failure: bool,
) -> list[Task]:
    """The tasks in order, once each was claimed or has ended, whichever way; or one is dead or cancelled, if asked to.

    Raises `WaitTimeout`, and `TaskNotFound` for a task that does not exist, or whose line was deleted meanwhile.
    """
    ids, wanted, span = checked_ids(task_ids), wait_event(event), optional_seconds("timeout", timeout)
    left: list[str] = []
    failed: list[str] = []

    def look(queue_file: QueueFile) -> tuple[list[Task] | None, float | None]:
        nonlocal left, failed
        all_lines = [queue_file.find(task_id) for task_id in ids]
        left = [lines.id for lines in all_lines if not _reached(queue_file, lines, wanted)]
        failed = [lines.id for lines in all_lines if queue_file.state(lines) in FAILED]
        if not left or (failed and stop_at_failure):
            return [queue_file.task(lines) for lines in all_lines], None
        return None, _next_end(queue_file, all_lines)

    carry_out = partial(directory.carry_out, queue, look, end=end_of(span))
    tasks = look_until(directory.file(queue), carry_out, span, directory.alarms, lambda: False) if ids else []
    if tasks is None:
        raise not_reached(queue, wanted, f"timeout ({span or 0:g} s)", left, failed)
    return tasks


def _reached(queue_file: QueueFile, lines: TaskLines, wanted: WaitFor) -> bool:
    state = queue_file.state(lines)
    return state in ENDED or (wanted is WaitFor.CLAIM and (state is State.CLAIMED or lines.number("attempts") > 0))


def _next_end(queue_file: QueueFile, all_lines: Sequence[TaskLines]) -> float | None:
    ends = (lines.holder[1] for lines in all_lines if lines.holder is not None and lines.holder[1] > queue_file.now)
    return min(ends, default=None)


def follow(directory: Directory, queue: str, task_id: str, on_change: OnChange, timeout: Duration | None) -> Task:
    """Call `on_change` with the task now and whenever it has changed; returns it once it has ended.

    The file is not locked meanwhile. Raises `WaitTimeout`, and `TaskNotFound` for a task that does not exist, or whose
    line was deleted meanwhile.
    """
    name, span = check_name("task id", task_id), optional_seconds("timeout", timeout)
    known: Task | None = None
    end = end_of(span)

    def look() -> tuple[Task | None, float | None]:
        nonlocal known
        task, again = directory.carry_out(
            queue, lambda queue_file: _look_at(queue_file, queue_file.find(name)), end=end
        )
        if task != known:
            known = task
            on_change(task)
        return (task if task.state in ENDED else None), again

    ended = look_until(directory.file(queue), look, span, directory.alarms, lambda: False)
    if ended is None:
        raise WaitTimeout(
            f"task {name!r} of queue {queue!r} has not ended within timeout ({span or 0:g} s)", left=[name]
        )
    return ended


def _look_at(queue_file: QueueFile, lines: TaskLines) -> tuple[Task, float | None]:
    """A task, and when it changes without any change of the file: its claim ends, or it comes due."""
    due = lines.due if lines.due > queue_file.now else None
    ends = [end for end in (_next_end(queue_file, [lines]), due) if end is not None]
    return queue_file.task(lines), min(ends, default=None)
