"""A run that has left its queue's indexes, as it is kept for who reads what ended: a line of JSON, data, result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from airflow_provider_zkmq.engine.core.model.buckets import bucket_of
from airflow_provider_zkmq.engine.core.model.paths import check_name, entry_name, entry_task
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.stored import dump, load
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

_NUMBERS: Final = ("version", "enqueued", "ended")
_ENTRY: Final = re.compile(r"(\d{15})\+([0-9a-f]{16})~", re.ASCII)


class Ended(NamedTuple):
    """A run that has ended: its task's id, and the transaction in which it ended.

    ``place``: where the run is kept whose task has left what lists it; None of one that stands.
    """

    id: str
    version: int
    place: str | None = None


class Unreadable(Ended):
    """One whose record is damaged, which was reported: it cannot be read, nor archived; clean-up keeps it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Letter:
    """What a run was: the record, the metadata's text, payload and result. Times are the server's, in milliseconds.

    ``version``: the transaction in which it ended; 0: the one in which the letter was written.
    """

    task_id: str
    version: int
    enqueued: int
    ended: int
    state: TaskState
    metadata: str
    data: bytes
    result: bytes | None = None

    def encode(self) -> bytes:
        """The stored bytes; ``size``: of the data, where a result follows them."""
        head: dict[str, Any] = {name: getattr(self, name) for name in ("task_id", *_NUMBERS, "metadata")}
        head["state"] = self.state.encode().decode()
        if self.result is None:
            return dump(head) + b"\n" + self.data
        return dump({**head, "size": len(self.data)}) + b"\n" + self.data + self.result

    @classmethod
    def decode(cls, path: str, raw: bytes) -> Letter:
        """Read what `encode` wrote. Raises `CorruptRecord`."""
        head, _, body = raw.partition(b"\n")
        record = load(path, head)
        size = record.get("size", len(body))
        numbers = [*(record.get(name) for name in _NUMBERS), size]
        texts = [record.get(name) for name in ("state", "metadata")]
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not whole or not all(isinstance(text, str) for text in texts):
            msg = f"{path} does not hold a run of ours"
            raise CorruptRecord(msg)
        try:
            task_id = check_name("task id", record.get("task_id"))
        except ConfigError as error:
            msg = f"{path} does not hold a run of ours: {error}"
            raise CorruptRecord(msg) from error
        state = TaskState.decode(path, record["state"].encode("utf-8", "surrogatepass"))
        times = (record["version"], record["enqueued"], record["ended"])
        result = body[size:] if "size" in record else None
        return cls(task_id, *times, state, record["metadata"], body[:size], result)


def letter_path(when_ms: int, task_id: str, version: int) -> str:
    """Where a letter is kept, relative to the queue; its name tells which run it is, so that nobody need read it."""
    stamp = f"{max(0, when_ms):015d}+{version:016x}"
    return f"unarchived/{bucket_of(when_ms)}/{entry_name(stamp, task_id)}"


class LetterName(NamedTuple):
    """What the name of a letter tells: the task, when it left, and the version."""

    task_id: str
    when: int
    version: int


def parse_letter(entry: str) -> LetterName | None:
    """What the name of a letter tells; None for a foreign name."""
    named, task_id = _ENTRY.match(entry), entry_task(entry)
    if named is None or task_id is None:
        return None
    return LetterName(task_id, int(named[1]), int(named[2], 16))
