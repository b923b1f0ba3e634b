"""Waiting for tasks of a file to be claimed, or to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from airflow_provider_zkmq.engine.errors import WaitTimeout
from airflow_provider_zkmq.engine.model import (
    ENDED,
    FAILED,
    Duration,
    OnChange,
    State,
    Task,
    WaitFor,
    check_name,
    checked_ids,
    not_reached,
    optional_seconds,
    wait_event,
)
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.folder import Folder
from airflow_provider_zkmq.filequeue.items import Item
from airflow_provider_zkmq.filequeue.looking import end_of, look_until

#: The tasks, or None while something is to be waited for; and when a claim of one of them ends without any change.
_Seen: TypeAlias = tuple[list[Task] | None, float | None]


def wait(
    folder: Folder,
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
        folder.file(queue),
        lambda: folder.carry_out(queue, waiting.look, end=end),
        span,
        folder.alarms,
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

    def look(self, book: Book) -> _Seen:
        items = [book.find(task_id) for task_id in self.ids]
        self.left = [item.id for item in items if not _reached(book, item, self.wanted)]
        self.failed = [item.id for item in items if book.state(item) in FAILED]
        if not self.left or (self.failed and self.stop_at_failure):
            return [book.task(item) for item in items], None
        return None, _next_end(book, items)


def _reached(book: Book, item: Item, wanted: WaitFor) -> bool:
    state = book.state(item)
    return state in ENDED or (wanted is WaitFor.CLAIM and (state is State.CLAIMED or item.number("attempts") > 0))


def _next_end(book: Book, items: Sequence[Item]) -> float | None:
    ends = (item.holder[1] for item in items if item.holder is not None and item.holder[1] > book.now)
    return min(ends, default=None)


def follow(folder: Folder, queue: str, task_id: str, on_change: OnChange, timeout: Duration | None) -> Task:
    """Call `on_change` with the task now and whenever it has changed; returns it once it has ended.

    The file is not locked meanwhile. Raises `WaitTimeout`, and `TaskNotFound` for a task that does not exist, or whose
    line was deleted meanwhile.
    """
    name, span = check_name("task id", task_id), optional_seconds("timeout", timeout)
    known: Task | None = None
    end = end_of(span)

    def look() -> tuple[Task | None, float | None]:
        nonlocal known
        task, again = folder.carry_out(queue, lambda book: _look_at(book, book.find(name)), end=end)
        if task != known:
            known = task
            on_change(task)
        return (task if task.state in ENDED else None), again

    ended = look_until(folder.file(queue), look, span, folder.alarms, lambda: False)
    if ended is None:
        raise WaitTimeout(
            f"task {name!r} of queue {queue!r} has not ended within timeout ({span or 0:g} s)", left=[name]
        )
    return ended


def _look_at(book: Book, item: Item) -> tuple[Task, float | None]:
    """A task, and when it changes without any change of the file: its claim ends, or it comes due."""
    due = item.due if item.due > book.now else None
    ends = [end for end in (_next_end(book, [item]), due) if end is not None]
    return book.task(item), min(ends, default=None)
