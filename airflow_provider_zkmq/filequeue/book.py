"""A queue file, read whole and changed while its lock is held."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from airflow_provider_zkmq.engine.errors import CorruptRecord, TaskNotFound
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.model import State, Task
from airflow_provider_zkmq.filequeue import results
from airflow_provider_zkmq.filequeue.conf import Conf
from airflow_provider_zkmq.filequeue.items import Item
from airflow_provider_zkmq.filequeue.kept import Tasks
from airflow_provider_zkmq.filequeue.variables import (
    ELSEWHERE,
    KEPT,
    MOVED,
    ROOMS,
    bytes_of,
    pad,
    quoted_result,
    spell,
    unquote,
)
from airflow_provider_zkmq.textqueue import HostileFile, Status, TextQueue
from airflow_provider_zkmq.textqueue.file import ALL
from airflow_provider_zkmq.textqueue.parse import BYTE, Record


class Book:
    """The tasks of a file, for as long as its lock is held. `kept`: as they were read before, and still are."""

    def __init__(
        self, file: TextQueue, conf: Conf, tell: Callable[[str], None] = log.warning, kept: Tasks | None = None
    ) -> None:
        self.file = file
        self.conf = conf
        self.tell = tell
        self.now = time.time()
        self.kept = kept or Tasks(file.place)
        if kept is None:
            self._begin()

    @property
    def tasks(self) -> dict[str, Item]:
        """The tasks by their ids, in the order of the lines."""
        return self.kept.by_id

    def _begin(self) -> None:
        self.read()
        copies = [item for item in self.tasks.values() if item.is_copy]
        for item in copies:  # at once: their ids must not depend on what becomes of the tasks they were copied from
            with self.stepping_over():
                self._copy(item)
        if copies:
            self.read()
        for offset, why in self.file.reports.items():
            self.tell(f"{self.file.path}, byte {offset}: {why}")

    @contextlib.contextmanager
    def stepping_over(self) -> Iterator[None]:
        """Inside the block a message that cannot be changed is told of: it must not keep others from being handled."""
        try:
            yield
        except CorruptRecord as error:
            self.tell(f"{error}; stepped over")

    def read(self) -> None:
        """Read the file, after a move that a crash cut off was brought to its end."""
        end, self.file.grown = self.file.size(), None
        items = self._items()
        cut_off = [item for item in items if item.moved]
        for item in cut_off:
            self._end_move(item, {other.message.offset: other for other in items})
        self.kept.replace(name_all(self._items() if cut_off else items), end)

    def read_on(self) -> bool:
        """Read what was appended since; False where that is not ours alone, and all has to be read anew."""
        start, end = self.kept.end, self.file.size()
        return end == start or (self.file.grown == (start, end) and self.kept.add(self._items(start), end))

    def _items(self, start: int = 0) -> list[Item]:
        messages = self.file.messages(ALL, start=start)
        return [Item(message) for message in messages if message.status is not Status.COMMENT]

    def find(self, task_id: str) -> Item:
        """Raises `TaskNotFound`."""
        try:
            return self.tasks[task_id]
        except KeyError:
            msg = f"task {task_id!r} is not in {self.file.path}: never enqueued, or its line was deleted"
            raise TaskNotFound(msg) from None

    def state(self, item: Item) -> State:
        """The state of a task now."""
        return item.state(self.conf, self.now)

    def task(self, item: Item) -> Task:
        """What is known of a task."""
        return item.task(self.conf, self.now, self._result(item))

    def append(self, text: str | bytes, values: Mapping[str, str], more: list[str] | None = None) -> None:
        """Add a message with its variables at the end."""
        self.file.append(text, [*spell(values), *(more or [])])

    # --- moving

    def whole(self, item: Item) -> Item:
        r"""The item with all its variables, each with its room.

        A plain line, or one whose rooms an editor trimmed, is moved to the end, what stood there becoming a comment.
        A copy of another task begins anew. The new message is written first; its ``\moved-from=<offset>`` says that
        the old one does not count any more. Raises `CorruptRecord` where a copy of it would not read back as it is.
        """
        if item.whole:
            return item
        self._copy(item)
        self.read()
        return self.tasks[item.id]

    def _copy(self, item: Item) -> None:
        names = KEPT if item.is_copy else (*ROOMS, *KEPT)
        values = {"id": item.id} | {name: item.value(name) for name in names}
        came = pad(f"{MOVED}={item.message.offset}", len(MOVED) + 16)
        try:
            self.append(item.message.data, values, [*item.foreign, came])
        except (ValueError, HostileFile) as error:
            msg = f"task {item.id!r} cannot be moved to where there is room for its variables: {error}"
            raise CorruptRecord(msg) from error

    def _end_move(self, item: Item, others: Mapping[int, Item]) -> None:
        old = others.get(item.number(MOVED))
        if old is not None and old is not item and old.message.data == item.message.data:
            self._comment_out(old)
        item.set(MOVED, "")

    def _comment_out(self, item: Item) -> None:
        message = item.message
        if message.status is Status.QUEUED:
            head = BYTE[message.status] + message.data.split(b"\n")[0]
            record = Record(message.status, message.offset, message.end, head, [])
            self.file.overwrite(message.offset, head[:1], BYTE[Status.COMMENT], record, message.status)

    # --- results

    def _result(self, item: Item) -> bytes | None:
        if item.message.status is not Status.PROCESSED:
            return None
        value = item.value("result")
        if value != ELSEWHERE:
            return bytes_of(unquote(value))
        try:
            return results.read(self.file.path, item.id)
        except (HostileFile, OSError) as error:
            self.tell(f"the result of task {item.id!r} cannot be read: {error}")
            return None

    def keep_result(self, item: Item, data: bytes) -> None:
        """Keep a result in its variable, or in a file of its own where it is too large or no text."""
        value = quoted_result(data)
        if value == ELSEWHERE:
            results.keep(self.file.path, item.id, data, self.file.mode)
        item.set("result", value)


def name_all(items: list[Item]) -> dict[str, Item]:
    """The tasks by id. The later of two with one id is another run of it if the first has ended, else a copy.

    Copies and lines without an id are named by their place: ``line-<offset>``.
    """
    tasks: dict[str, Item] = {}
    nameless = []
    for item in items:
        name = item.own_id
        if name is None or (name in tasks and tasks[name].message.status is Status.QUEUED):
            nameless.append(item)
            continue
        item.id = name
        tasks.pop(name, None)
        tasks[name] = item
    for item in nameless:
        item.id = _free(f"line-{item.message.offset}", tasks)
        tasks[item.id] = item
    return dict(sorted(tasks.items(), key=lambda pair: pair[1].message.offset))


def _free(name: str, used: Mapping[str, Item]) -> str:
    names = (name if number == 1 else f"{name}-{number}" for number in range(1, len(used) + 2))
    return next(candidate for candidate in names if candidate not in used)
