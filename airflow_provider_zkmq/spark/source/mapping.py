"""Which column of a DataFrame becomes which part of a task: decided once, where the write is planned."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

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

from airflow_provider_zkmq.engine import ConfigError, FilterType, parse_duration
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.options import Options

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


def map_columns(schema: StructType, options: Options, types: Mapping[str, FilterType]) -> RowMapping:
    """Decide for each column what it is. Raises `SourceError` for what is missing, superfluous or of a wrong type."""
    return _Planning(schema, options, types).mapping()


class _Planning:
    """Columns, less those that have found their part."""

    def __init__(self, schema: StructType, options: Options, types: Mapping[str, FilterType]) -> None:
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
        asked = self.options.text("filters") or "filters"
        if asked not in self.kinds or (asked != "filters" and not isinstance(self.kinds[asked], MapType)):
            return None
        kind = self.kinds[asked]
        if isinstance(kind, MapType) and not _is_filters(kind):
            raise SourceError(f"column {asked!r} is {kind.simpleString()}; filters must be {_TAKES['filters'][1]}")
        return self._take(asked, "filters")

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
