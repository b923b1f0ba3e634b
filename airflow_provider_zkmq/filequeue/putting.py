"""Enqueue: what a message becomes in the file."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from airflow_provider_zkmq.engine.errors import BadMessage, ConfigError, DuplicateTask, TaskTooLarge
from airflow_provider_zkmq.engine.model import (
    MAX_PAYLOAD,
    Message,
    NewTasks,
    State,
    check_name,
    dump,
    encode_data,
    encode_metadata,
    lock_seconds,
    parse_filters,
)
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.conf import Conf, lock_span
from airflow_provider_zkmq.filequeue.refusals import check_message
from airflow_provider_zkmq.filequeue.variables import body_of, spell_time

T = TypeVar("T")


@dataclass(slots=True)
class Putting:
    """Messages on their way into a file; carried on with, where the file is replaced meanwhile."""

    messages: Sequence[Message]
    only_new: bool = False
    """What is there stays as it is: no id is refused, and none runs again."""
    ids: list[str] = field(init=False)
    written: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ids = [
            self._at(position, "task_id", partial(self._id, each)) for position, each in enumerate(self.messages)
        ]
        twin, most = Counter(self.ids).most_common(1)[0] if self.ids else ("", 0)
        if most > 1:
            msg = f"task id {twin!r} stands twice in the same call; nothing was written"
            raise ConfigError(msg)

    def _id(self, message: Message) -> str:
        if check_message(message).task_id is None and self.only_new:
            msg = "task id None is not allowed: only by an id of its own can be told whether a task is there"
            raise ConfigError(msg)
        return new_id() if message.task_id is None else check_name("task id", message.task_id)

    def _at(self, position: int, part: str | None, check: Callable[[], T]) -> T:
        """What a check of one message returns; where only what is new is written, its error says which one it is."""
        try:
            return check()
        except (ConfigError, TaskTooLarge) as error:
            if not self.only_new:
                raise
            raise BadMessage(str(error), position=position, part=part) from error

    def write(self, book: Book) -> list[str]:
        """Validate every message, then append those whose ids are free; returns the ids in order.

        Raises `ConfigError`, `TaskTooLarge`, and `DuplicateTask`, which tells what was refused and what was written.
        """
        pairs = enumerate(zip(self.messages, self.ids, strict=True))
        spelled = [self._at(position, None, partial(spell_message, book.conf, *pair)) for position, pair in pairs]
        if self.only_new:
            return self._write_new(book, spelled)
        used = {name: book.task(book.tasks[name]) for name in self.ids if name in book.tasks}
        taken = {name: task for name, task in used.items() if name not in self.written}
        refused = [name for name, task in taken.items() if task.state is not State.FINISHED]
        for name, (text, values) in zip(self.ids, spelled, strict=True):
            if name in taken and name not in refused:  # another run: its tokens go on, so that a late owner has none
                values["claims"] = str(taken[name].version)
            if name not in refused and (name in taken or name not in used):
                book.append(text, values)
                self.written.add(name)
        if refused:
            raise _duplicates(refused, str(used[refused[0]].status), [name for name in self.ids if name not in refused])
        return self.ids

    def _write_new(self, book: Book, spelled: Sequence[tuple[str, dict[str, str]]]) -> list[str]:
        for name, (text, values) in zip(self.ids, spelled, strict=True):
            if name not in book.tasks:
                book.append(text, values)
                self.written.add(name)
        return self.ids

    def new_tasks(self) -> NewTasks:
        """Which were written, and which were there already."""
        written = tuple(name for name in self.ids if name in self.written)
        return NewTasks(written, tuple(name for name in self.ids if name not in self.written))


def _duplicates(refused: list[str], status: str, enqueued: list[str]) -> DuplicateTask:
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    msg = f"task id {refused[0]!r}{more} is in use (status: {status}); choose another or delete its lines"
    return DuplicateTask(msg, status=status, duplicates=refused, enqueued=enqueued)


def new_id() -> str:
    """An id that no other task has; later ones sort after earlier ones."""
    return f"{time.time_ns():016x}-{os.urandom(4).hex()}"


def _due(message: Message, now: float) -> str:
    """Before when it is not to be handled; blank: at once. Raises `ConfigError`."""
    delay, moment = message.times()
    when = now + (delay or 0.0) if moment is None else moment / 1000
    return spell_time(when) if when > now else ""


def spell_message(conf: Conf, message: Message, task_id: str) -> tuple[str, dict[str, str]]:
    """A message's text and variables. Raises `ConfigError`, `TaskTooLarge`."""
    data, metadata = encode_data("data", message.data), encode_metadata(message.metadata)
    if (size := len(data) + len(metadata)) > MAX_PAYLOAD:
        msg = f"task {task_id!r} has {size:,} bytes; as in ZooKeeper, {MAX_PAYLOAD:,} are taken"
        raise TaskTooLarge(msg)
    filters = parse_filters(conf.types, message.filters)
    lock = lock_seconds(message.lock)
    now = time.time()
    body, encoding = body_of(data)
    return body, {
        "id": task_id,
        "attempts": "0",
        "claims": "0",
        "due": _due(message, now),
        "enqueued": spell_time(now),
        "filters": dump(filters).decode() if filters else "",
        "metadata": metadata.decode() if message.metadata else "",
        "policy": "" if message.policy is None else message.policy.encode().decode(),
        "lock": "" if lock is None else repr(lock_span("lock", lock)),
        "encoding": encoding,
    }
