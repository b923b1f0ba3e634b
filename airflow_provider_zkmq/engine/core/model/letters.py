"""A dead letter that has left an archived queue, as it is kept for the archive: a line of JSON, then its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.records import TaskState, dump, load
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

_NUMBERS: Final = ("version", "enqueued", "ended")


@dataclass(frozen=True, slots=True)
class Letter:
    """What its task was: the record, the metadata's text, the payload. Times are the server's, in milliseconds.

    ``version``: the transaction in which it died; ``result``: that of an earlier run is not kept.
    """

    task_id: str
    version: int
    enqueued: int
    ended: int
    state: TaskState
    metadata: str
    data: bytes

    def encode(self) -> bytes:
        """The stored bytes."""
        head = {name: getattr(self, name) for name in ("task_id", *_NUMBERS, "metadata")}
        return dump({"v": 1, **head, "state": self.state.encode().decode()}) + b"\n" + self.data

    @classmethod
    def decode(cls, path: str, raw: bytes) -> Letter:
        """Read what `encode` wrote. Raises `CorruptRecord`."""
        head, _, data = raw.partition(b"\n")
        record = load(path, head)
        numbers, texts = [record.get(name) for name in _NUMBERS], [record.get(name) for name in ("state", "metadata")]
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if record.get("v") != 1 or not whole or not all(isinstance(text, str) for text in texts):
            msg = f"{path} does not hold a dead letter of ours"
            raise CorruptRecord(msg)
        try:
            task_id = check_name("task id", record.get("task_id"))
        except ConfigError as error:
            msg = f"{path} does not hold a dead letter of ours: {error}"
            raise CorruptRecord(msg) from error
        state = TaskState.decode(path, record["state"].encode("utf-8", "surrogatepass"))
        return cls(task_id, record["version"], record["enqueued"], record["ended"], state, record["metadata"], data)
