"""Waiting for tasks of a file to be claimed, or to end."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zkmq.engine.core.model.durations import optional_seconds
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.states import ENDED, State
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.core.reading.wait import WaitFor, wait_event
from airflow_provider_zkmq.engine.errors import ConfigError, TaskNotFound, WaitTimeout
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.folder import Folder
from airflow_provider_zkmq.filequeue.follow import follow
from airflow_provider_zkmq.filequeue.items import Item


def wait(folder: Folder, queue: str, task_ids: Sequence[str], event: WaitFor | str, timeout: object) -> list[Task]:
    """The tasks in order, once each was claimed or has ended, whichever way.

    Raises `WaitTimeout`, and `TaskNotFound` for a task that does not exist, or whose line was deleted meanwhile.
    """
    wanted, span = wait_event(event), optional_seconds("timeout", timeout)
    if isinstance(task_ids, str):
        msg = f"wait takes a list of task ids, not the text {task_ids!r}"
        raise ConfigError(msg)
    ids = [check_name("task id", task_id) for task_id in dict.fromkeys(task_ids)]
    left = ids

    def work(book: Book) -> tuple[list[Task] | None, float | None]:
        nonlocal left
        items = [book.find(task_id) for task_id in ids]
        left = [item.id for item in items if not _reached(book, item, wanted)]
        if not left:
            return [book.task(item) for item in items], None
        ends = (item.holder[1] for item in items if item.holder is not None and item.holder[1] > book.now)
        return None, min(ends, default=None)

    def look() -> tuple[list[Task] | None, float | None]:
        return folder.carry_out(queue, work, missing=TaskNotFound)

    found = follow(folder.file(queue), look, span, folder.alarms, lambda: False) if ids else []
    if found is None:
        names = ", ".join(left[:5]) + (", …" if len(left) > 5 else "")
        msg = f"{len(left)} task(s) of queue {queue!r} did not reach {wanted} in time: {names}"
        raise WaitTimeout(msg, left=left)
    return found


def _reached(book: Book, item: Item, wanted: WaitFor) -> bool:
    state = book.state(item)
    return state in ENDED or (wanted is WaitFor.CLAIM and (state is State.CLAIMED or item.number("attempts") > 0))
