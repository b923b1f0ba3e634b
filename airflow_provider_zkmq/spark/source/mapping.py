"""Which column of a DataFrame becomes which part of a task, and rows as messages."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_provider_zkmq.engine import ConfigError, FilterType, Message, parse_duration
from airflow_provider_zkmq.spark.source.options import SourceError, SourceOptions

# --- Which column of a DataFrame becomes which part of a task: decided once, where the write is planned.

Kind: TypeAlias = type[DataType]
#: What begins the name of a column that is a filter's.
PREFIX: Final = "filter."
_NUMBER: Final[tuple[Kind, ...]] = (IntegralType, FloatType, DoubleType, DecimalType)
#: For each part of a task the types of a column that can become it, and how the others can be made so.
_TAKES: Final[dict[str, tuple[tuple[Kind, ...], str]]] = {
    "id": ((StringType, IntegralType), "text or a whole number"),
    "data": ((BinaryType, StringType), "binary or text; make it so with cast, or with to_json(struct(…))"),
    "priority": ((IntegralType,), "a whole number"),
    "delay": ((*_NUMBER, DayTimeIntervalType), "seconds or an interval of days to seconds"),
    "notBefore": ((TimestampType,), "a timestamp, with a zone"),
    "metadata": ((StringType, StructType, MapType), "JSON text, a struct or a map"),
    "filters": ((MapType,), "a map of text to text or whole numbers"),
    "filter": ((StringType, IntegralType), "text or a whole number"),
    "key": (
        (StringType, BinaryType, BooleanType, DateType, TimestampType, TimestampNTZType, *_NUMBER),
        "text, binary, a number, a boolean, a date or a timestamp",
    ),
}
#: The columns that are taken for a part by their names, where no option says otherwise.
_BY_NAME: Final = {
    "data": ("data",),
    "priority": ("priority",),
    "delay": ("delay",),
    "notBefore": ("not_before",),
    "metadata": ("metadata",),
}


@dataclass(frozen=True, slots=True)
class RowMapping:
    """The columns of a row by the parts of its task.

    ``id``: the column of the id, or None where ``key`` names the columns whose values make it. ``constants``: the
    priority or the delay that an option gives to all rows. ``map``: the column of all filters; ``filters``: the column
    of each filter that has one of its own.
    """

    id: str | None
    key: tuple[str, ...]
    columns: Mapping[str, str]
    constants: Mapping[str, int | float]
    map: str | None
    filters: Mapping[str, str]

    def column(self, part: str | None) -> str | None:
        """The column, or the columns, that a part of a message comes from."""
        match part:
            case "task_id":
                return self.id or ", ".join(self.key)
            case "filters":
                return self.map or ", ".join(self.filters.values())
            case "delay":
                return self.columns.get("delay") or self.columns.get("notBefore")
            case _:
                return None if part is None else self.columns.get(part)


def map_columns(schema: StructType, options: SourceOptions, types: Mapping[str, FilterType]) -> RowMapping:
    """Decide for each column what it is. Raises `SourceError` for what is missing, superfluous or of a wrong type."""
    return _Planning(schema, options, types).mapping()


class _Planning:
    """Columns, less those that have found their part."""

    def __init__(self, schema: StructType, options: SourceOptions, types: Mapping[str, FilterType]) -> None:
        self.kinds = {field.name: field.dataType for field in schema}
        self.options, self.types = options, types
        self.unused = set(self.kinds)
        twice = [name for name, times in Counter(schema.fieldNames()).items() if times > 1]
        if twice:
            raise SourceError(f"column {twice[0]!r} stands twice in the DataFrame")

    def mapping(self) -> RowMapping:
        """Give every column its part."""
        key = self._key()
        column = None if key else self._id()
        columns: dict[str, str] = {}
        constants: dict[str, int | float] = {}
        for part in _BY_NAME:
            constant = self._constant(part)
            name = None if constant is not None else self._named(part)
            if constant is not None:
                constants[part] = constant
            elif name is not None:
                columns[part] = self._take(name, part)
        self._check(columns, constants)
        whole, filters = self._filters()
        self._refuse_the_rest()
        return RowMapping(column, key, columns, constants, whole, filters)

    def _check(self, columns: Mapping[str, str], constants: Mapping[str, object]) -> None:
        if "data" not in columns:
            raise SourceError(f"no column is the tasks' data: name it 'data', or give option data. {self._have()}")
        if "notBefore" in columns and ("delay" in columns or "delay" in constants):
            raise SourceError("a task has a delay or a moment before which it is not to be handled, not both")

    def _have(self) -> str:
        return f"The DataFrame has the columns {', '.join(self.kinds)}"

    def _key(self) -> tuple[str, ...]:
        key = self.options.names("key")
        if key and self.options.text("id"):
            raise SourceError("options id and key exclude each other: a column is the id, or it is made of the key")
        return tuple(self._take(name, "key") for name in key)

    def _id(self) -> str:
        """The column of the id."""
        name = self.options.text("id")
        if name is None:
            named = [each for each in ("id", "task_id") if each in self.kinds]
            if len(named) != 1:
                why = "both columns id and task_id are there" if named else "nothing says what the tasks' ids are"
                raise SourceError(
                    f"{why}: give option id, the column that names each task, or option key, columns whose values "
                    f"tell a row from all others. By its id a row that is tried again is one task. {self._have()}"
                )
            name = named[0]
        return self._take(name, "id")

    def _constant(self, part: str) -> int | float | None:
        """The value that an option gives to all rows, where it names no column."""
        text = self.options.text(part)
        if text is None or text in self.kinds or part not in {"priority", "delay"}:
            return None
        try:
            return int(text) if part == "priority" else parse_duration(text)
        except (ValueError, ConfigError):
            return None

    def _named(self, part: str) -> str | None:
        name = self.options.text(part)
        return name or next((each for each in _BY_NAME[part] if each in self.kinds), None)

    def _take(self, name: str, part: str) -> str:
        """A column becomes a part. Raises `SourceError` for one that is not there, or whose type cannot be that."""
        if name not in self.kinds:
            close = difflib.get_close_matches(name, self.kinds)
            hint = f"; did you mean {' or '.join(close)}?" if close else "."
            raise SourceError(f"there is no column {name!r} for {part}{hint} {self._have()}")
        kinds, takes = _TAKES[part]
        if not isinstance(self.kinds[name], kinds):
            raise SourceError(f"column {name!r} is {self.kinds[name].simpleString()}; {part} must be {takes}")
        self.unused.discard(name)
        return name

    def _filters(self) -> tuple[str | None, dict[str, str]]:
        """The column of all filters, or one column for each."""
        whole, columns = self._map(), {}
        names = [] if whole else [(name, name) for name in self.options.names("filters")]
        names += [(name.removeprefix(PREFIX), name) for name in sorted(self.unused) if name.startswith(PREFIX)]
        for name, column in names:
            if whole or name in columns:
                raise SourceError(f"filter {name!r} is given twice, also by column {column!r}")
            self._declared(name)
            columns[name] = self._take(column, "filter")
        return whole, columns

    def _map(self) -> str | None:
        """The column that holds all filters of a row."""
        requested = self.options.text("filters") or "filters"
        if requested not in self.kinds or (requested != "filters" and not isinstance(self.kinds[requested], MapType)):
            return None
        kind = self.kinds[requested]
        if isinstance(kind, MapType) and not _is_filters(kind):
            raise SourceError(f"column {requested!r} is {kind.simpleString()}; filters must be {_TAKES['filters'][1]}")
        return self._take(requested, "filters")

    def _declared(self, name: str) -> None:
        if name not in self.types:
            declared = ", ".join(sorted(self.types)) or "none"
            raise SourceError(f"filter {name!r} is not declared in the queue; declared are: {declared}")

    def _refuse_the_rest(self) -> None:
        if self.unused:
            raise SourceError(
                f"nothing is to become of {_listed(self.unused)}: leave them out with select, or say by options id, "
                "key, data, priority, delay, notBefore, metadata and filters what they are"
            )


def _is_filters(kind: MapType) -> bool:
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _TAKES["filter"][0])


def _listed(names: Iterable[str]) -> str:
    return "column " + ", ".join(map(repr, sorted(names)))


# --- Rows become messages: each value by its column's part, and a clear error for a value that cannot be that.

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
