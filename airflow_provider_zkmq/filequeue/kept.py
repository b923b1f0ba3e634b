"""What was read of queue files, kept from one call to the next for as long as nobody else has written to them.

A file of many tasks is read once, and not for each claim. What this process writes it writes through what it keeps,
which stays true; then it gives the file a time of writing of its own, so that whatever another process or an editor
writes is seen by that time, as by the file's identity and size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.filequeue.items import Item
from airflow_provider_zkmq.textqueue import Status, TextQueue
from airflow_provider_zkmq.textqueue.shared import Place

#: So many files are kept at the most, those that were used last.
_MOST: Final = 4
#: A file that was written to so short a time ago, in nanoseconds, may be once more at what is the same time to it.
_TICK: Final = 50_000_000


@dataclass(slots=True)
class Tasks:
    """The tasks of a file by their ids, in the order of the lines; ``end``: how far it was read."""

    place: Place
    by_id: dict[str, Item] = field(default_factory=dict)
    end: int = 0
    _open: dict[str, Item] = field(default_factory=dict)

    def replace(self, by_id: dict[str, Item], end: int) -> None:
        """All of it was read anew."""
        self.by_id, self._open, self.end = by_id, dict(by_id), end

    def add(self, items: list[Item], end: int) -> bool:
        """These were appended; False where they are not simply more tasks, or other runs: all is to be read anew."""
        for item in items:
            name, before = item.own_id, self.by_id.get(item.own_id or "")
            if name is None or item.moved or (before is not None and before.message.status is Status.QUEUED):
                return False
            for tasks in (self.by_id, self._open):
                tasks.pop(name, None)
                tasks[name] = item
            item.id = name
        self.end = end
        return True

    def unended(self) -> Iterator[Item]:
        """The tasks that are not marked as ended, in order; what has ended is passed by once, and forgotten."""
        for name, item in list(self._open.items()):
            if item.message.status is Status.QUEUED:
                yield item
            else:
                self._open.pop(name, None)


class Kept:
    """What is kept of a connection's files. Each is taken, used and put back while the file is locked."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[tuple[int, ...], Tasks]] = {}

    def take(self, file: TextQueue) -> Tasks | None:
        """The tasks of a file, the caller's until it puts them back; None where they have to be read."""
        identity, tasks = self._files.pop(file.path, (None, None))
        file.begun = file.identity()
        if tasks is None or identity != file.begun:
            return None
        file.place = tasks.place
        file.place.file = file
        return tasks

    def put(self, file: TextQueue, tasks: Tasks, *, known: bool) -> None:
        """Keep the tasks of a file, as it is now, unless somebody else has written to it since it was opened.

        `known`: it was told from others by its time of writing before.
        """
        if file.written and (file.disturbed or not file.stamp()):
            return
        identity = file.identity()
        if not file.written and identity != file.begun:
            return
        if identity is None or not (known or file.written or time.time_ns() - identity[-1] > _TICK):
            return
        self._files[file.path] = (identity, tasks)
        for path in list(self._files)[:-_MOST]:
            self._files.pop(path, None)
