"""Rows become messages: each value by its column's part, and a clear error for a value that cannot be that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

from airflow_provider_zkmq.engine import ConfigError, Message
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.mapping import RowMapping

#: So many hexadecimal digits of the hash of a key are a task's id.
DIGITS: Final = 32
#: Takes each digit of Spark's longest decimals, which have 38; what is usual would round them to 28.
_EXACT: Final = Context(prec=38)


@dataclass(frozen=True, slots=True)
class Row:
    """A message, and where it comes from."""

    number: int
    message: Message

    @property
    def id(self) -> str:
        """The id of its task."""
        return self.message.task_id or ""


def rows_of(batches: Iterator[pa.RecordBatch], mapping: RowMapping, partition: int) -> Iterator[Row]:
    """The messages of a partition in the order of its rows. Raises `SourceError` for the first bad value."""
    number = 0
    for batch in batches:
        for values in _records(batch, partition):
            yield Row(number, _Reading(mapping, values, f"row {number} of partition {partition}").message())
            number += 1


def _records(batch: pa.RecordBatch, partition: int) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    columns = []
    for name, column in zip(names, batch.columns, strict=True):
        try:
            columns.append(column.to_pylist(maps_as_pydicts="lossy"))
        except (OverflowError, ValueError) as error:  # such as a year of five digits, which Spark knows and Python not
            raise refusal(f"partition {partition}", None, name, error) from None
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def refusal(where: str, task_id: object, column: str | None, why: object) -> SourceError:
    """The error for a bad value, by its row, its task and its column."""
    named = "" if task_id is None else f" (id {task_id!r})"
    return SourceError(f"{where}{named}{'' if column is None else f', column {column!r}'}: {why}")


class _Reading:
    """One row on its way."""

    def __init__(self, mapping: RowMapping, values: Mapping[str, Any], where: str) -> None:
        self.mapping, self.values, self.where = mapping, values, where
        self.id: str | None = None

    def message(self) -> Message:
        """What is enqueued for this row."""
        self.id = self._identity()
        constants = self.mapping.constants
        priority, delay = self._part("priority", int), self._part("delay", _seconds)
        return Message(
            self._data(),
            self._filters(),
            int(constants.get("priority", 0)) if priority is None else priority,
            constants.get("delay") if delay is None else delay,
            self.id,
            self._part("metadata", _metadata),
            not_before=self._part("notBefore", _moment),
        )

    def _identity(self) -> str:
        mapping = self.mapping
        if mapping.id is None:
            return hashed([self.values[name] for name in mapping.key])
        value = self.values[mapping.id]
        if value is None:
            raise refusal(self.where, None, mapping.id, "the id of a task is null")
        return str(value)

    def _data(self) -> bytes | str:
        column = self.mapping.columns["data"]
        value: bytes | str | None = self.values[column]
        if value is None:
            raise refusal(self.where, self.id, column, "the data of a task are null; give it empty ones")
        return value

    def _part(self, part: str, read: Callable[[Any], Any]) -> Any:
        """The value of a part, None where there is none."""
        column = self.mapping.columns.get(part)
        value = None if column is None else self.values[column]
        try:
            return None if value is None else read(value)
        except ConfigError as error:
            raise refusal(self.where, self.id, column, error) from None

    def _filters(self) -> dict[str, object]:
        """The filters of a row: one that is null is one that the task has not."""
        mapping = self.mapping
        given = {name: self.values[column] for name, column in mapping.filters.items()}
        if mapping.map is not None:
            given = self.values[mapping.map] or {}
        return {name: value for name, value in given.items() if value is not None}


def _seconds(value: object) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)  # type: ignore[arg-type]


def _moment(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _metadata(value: object) -> dict[str, Any]:
    """The metadata of a task: JSON text, or a struct or a map. Raises `ConfigError` for what is no object."""
    if isinstance(value, dict):
        return value
    try:
        loaded = json.loads(str(value))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"metadata must be a JSON object: {error}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"metadata must be a JSON object, not {value!r}")
    return loaded


def hashed(values: list[object]) -> str:
    """The id that the values of a key make: the same for the same values, however and wherever they are computed."""
    text = json.dumps([_spelled(value) for value in values], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def _spelled(value: object) -> object:
    """A value as JSON that no value of another type has."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return ["float", repr(value + 0.0)]  # -0.0 is equal to 0.0, and so has its id
        case Decimal():
            return ["decimal", format(value.normalize(_EXACT), "f")]
        case bytes():
            return ["bytes", value.hex()]
        case datetime() if value.tzinfo is not None:
            return ["timestamp", value.astimezone(UTC).isoformat()]
        case datetime() | date():
            return [type(value).__name__, value.isoformat()]
        case _:
            raise ConfigError(f"{value!r} cannot be part of a key")
