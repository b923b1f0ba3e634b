"""Waiting for tasks of a queue file to be claimed, or to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..engine.core.model.names import check_name
from ..engine.core.model.states import ENDED, FAILED, State
from ..engine.core.model.values import Duration, WaitFor, optional_seconds, wait_event
from ..engine.core.read.inspect import Task, checked_ids
from ..engine.core.read.wait import OnChange, not_reached
from ..engine.errors import WaitTimeout
from .directory import Directory, end_of, look_until
from .queue_file import QueueFile, TaskLines

# --- Waiting for tasks of a file to be claimed, or to end.

#: The tasks, or None while something is to be waited for; and when a claim of one of them ends without any change.
_Seen: TypeAlias = tuple[list[Task] | None, float | None]


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
    wanted, span = wait_event(event), optional_seconds("timeout", timeout)
    waiting = _Waiting(checked_ids(task_ids), wanted, stop_at_failure)
    if not waiting.ids:
        return []
    end = end_of(span)
    tasks = look_until(
        directory.file(queue),
        lambda: directory.carry_out(queue, waiting.look, end=end),
        span,
        directory.alarms,
        lambda: False,
    )
    if tasks is None:
        raise not_reached(queue, wanted, f"timeout ({span or 0:g} s)", waiting.left, waiting.failed)
    return tasks


@dataclass(slots=True)
class _Waiting:
    """What is waited for, and which of it had not got there, or had failed, at the last look."""

    ids: list[str]
    wanted: WaitFor
    stop_at_failure: bool
    left: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def look(self, queue_file: QueueFile) -> _Seen:
        all_lines = [queue_file.find(task_id) for task_id in self.ids]
        self.left = [lines.id for lines in all_lines if not _reached(queue_file, lines, self.wanted)]
        self.failed = [lines.id for lines in all_lines if queue_file.state(lines) in FAILED]
        if not self.left or (self.failed and self.stop_at_failure):
            return [queue_file.task(lines) for lines in all_lines], None
        return None, _next_end(queue_file, all_lines)


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
