"""The columns of a scan: what each is made of, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from airflow_provider_zkmq.engine.core.model.records import claimed_before
from airflow_provider_zkmq.engine.core.protocol.ops import Stat
from airflow_provider_zkmq.engine.core.reading.inspect import ended_ms, started_ms, with_success
from airflow_provider_zkmq.engine.core.reading.lapsed import status_at
from airflow_provider_zkmq.engine.errors import ConfigError


@dataclass(slots=True)
class Row:
    """What was read of a task: the fields of its record that were asked for, and what else was.

    ``past``: a time of the server's clock that has certainly come, where it is needed. ``enqueued``: when its present
    run was enqueued.
    """

    id: str
    record: dict[str, Any]
    stat: Stat
    data: bytes = b""
    result: bytes | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    enqueued: int = 0
    past: int = 0
    lapsed: bool = False
    """Its claim has ended by its deadline, and nobody has given it back yet."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's value, the fields of the record that it is made of, and what else of the task's tree."""

    value: Callable[[Row], Any]
    fields: tuple[str, ...] = ()
    part: str | None = None


def _field(name: str) -> Column:
    return Column(lambda row: row.record[name], (name,))


def _ended_ms(row: Row) -> int | None:
    record = row.record
    if row.lapsed:
        return None
    return ended_ms(record["state"], record["started"], record["ended"], record["ended_zxid"], row.stat)


def _claimed_ms(row: Row) -> int | None:
    return claimed_before(row.record["claimed"], _ended_ms(row))


def _started_ms(row: Row) -> int | None:
    return started_ms(row.record["state"], row.record["started"], _claimed_ms(row))


def _history(row: Row) -> object:
    record = row.record
    times = (_claimed_ms(row), record["started"], _ended_ms(row))
    return with_success(record["state"], record["history"], (record["attempt"], record["consumer"], *times))


def _due_ms(row: Row) -> object:
    due = row.record["due"]
    return row.record["was_due"] if due is None else due


def _status(row: Row) -> object:
    record = row.record
    return status_at(row.past, record["state"], record["due"], record["dedupe"], requeue=record["requeue"])


#: What tells when a run ended.
_ENDED: Final = ("state", "started", "ended", "ended_zxid")
#: By the names of what they are in `Task`.
COLUMNS: Final[dict[str, Column]] = {
    "id": Column(lambda row: row.id),
    "state": _field("state"),
    "status": Column(_status, ("state", "due", "dedupe", "requeue")),
    "attempt": _field("attempt"),
    "priority": _field("priority"),
    "filters": Column(lambda row: dict(row.record["filters"]), ("filters",)),
    "metadata": Column(lambda row: row.metadata, part="metadata"),
    "data": Column(lambda row: row.data, part="data"),
    "result": Column(lambda row: row.result, part="result"),
    "error": Column(lambda row: row.record["error"], ("error", "consumer")),
    "consumer": _field("consumer"),
    "enqueued_ms": Column(lambda row: row.enqueued, part="enqueued"),
    "claimed_ms": Column(_claimed_ms, ("claimed", *_ENDED)),
    "started_ms": Column(_started_ms, ("claimed", *_ENDED)),
    "ended_ms": Column(_ended_ms, _ENDED),
    "due_ms": Column(_due_ms, ("due", "was_due")),
    "history": Column(_history, ("history", "attempt", "consumer", "claimed", *_ENDED)),
    "version": Column(lambda row: row.stat.mzxid),
    "dedupe_ms": _field("dedupe"),
    "batch": _field("batch"),
}


def checked_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The names of columns, each once. Raises `ConfigError` naming those that are unknown."""
    if isinstance(names, str) or not names or not COLUMNS.keys() >= set(names):
        raise ConfigError(f"columns {names!r} are not understood: a list of some of {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a scan reads: fields of the records, and parts of the tasks' trees."""

    fields: tuple[str, ...]
    parts: frozenset[str]

    @classmethod
    def of(cls, names: Collection[str]) -> Self:
        """What these columns take. The state is always read, and what may have ended it: what has none is no task's."""
        columns = [COLUMNS[name] for name in names]
        fields = dict.fromkeys(["state", "lease", *(field for column in columns for field in column.fields)])
        return cls(tuple(fields), frozenset(column.part for column in columns if column.part is not None))

    @property
    def znodes(self) -> tuple[str, ...]:
        """The znodes of each task. When it was enqueued is told by its metadata, too, which are seldom large."""
        timed = "enqueued" in self.parts and "data" not in self.parts
        parts = self.parts | {"metadata"} if timed else self.parts
        return ("state", *(name for name in ("data", "metadata", "result") if name in parts))
