"""Writes of a DataFrame or a stream: columns to parts of tasks, rows to messages, messages to the queue."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ... import engine
from ...engine import AnyQueue, ConfigError, FilterType, Message
from ...engine.queue_internals import internals
from . import connecting
from . import options as access
from .connecting import cached
from .errors import SourceError, plainly
from .options import SourceOptions

# --- Which column of a DataFrame becomes which part of a task: decided once, where the write is planned.

Kind: TypeAlias = type[types.DataType]
#: What begins the name of a column that is a filter's.
PREFIX: Final = "filter."
_NUMBER: Final[tuple[Kind, ...]] = (types.IntegralType, types.FloatType, types.DoubleType, types.DecimalType)
_MOMENT: Final[tuple[Kind, ...]] = (types.DateType, types.TimestampType, types.TimestampNTZType)
#: For each part of a task the types of a column that can become it, and how the others can be made so.
_TAKES: Final[dict[str, tuple[tuple[Kind, ...], str]]] = {
    "id": ((types.StringType, types.IntegralType), "text or a whole number"),
    "data": ((types.BinaryType, types.StringType), "binary or text; make it so with cast, or with to_json(struct(…))"),
    "priority": ((types.IntegralType,), "a whole number"),
    "delay": ((*_NUMBER, types.DayTimeIntervalType), "seconds or an interval of days to seconds"),
    "notBefore": ((types.TimestampType,), "a timestamp, with a zone"),
    "metadata": ((types.StringType, types.StructType, types.MapType), "JSON text, a struct or a map"),
    "filters": ((types.MapType,), "a map of text to text or whole numbers"),
    "filter": ((types.StringType, types.IntegralType), "text or a whole number"),
    "key": (
        (types.StringType, types.BinaryType, types.BooleanType, *_MOMENT, *_NUMBER),
        "text, binary, a number, a boolean, a date or a timestamp",
    ),
}
#: Parts, and the columns that are taken for them by their names, where no option says otherwise.
_BY_NAME: Final = {name: name for name in ("data", "priority", "delay", "metadata")} | {"notBefore": "not_before"}


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
        names = {"delay": self.columns.get("notBefore"), **self.columns}
        names["task_id"] = self.id or ", ".join(self.key)
        names["filters"] = self.map or ", ".join(self.filters.values())
        return names.get(part or "")

    def message(self, row: Mapping[str, Any], where: str) -> Message:
        """What is enqueued for a row. Raises `SourceError` for a bad value, which names the row by `where`."""
        task_id = hashed([row[name] for name in self.key]) if self.id is None else row[self.id]
        if task_id is None:
            raise refusal(where, None, self.id, "the id of a task is null")
        task_id = str(task_id)

        def part(name: str, read: Callable[[Any], Any]) -> Any:
            column = self.columns.get(name)
            value = None if column is None else row[column]
            try:
                return self.constants.get(name) if value is None else read(value)
            except ConfigError as error:
                raise refusal(where, task_id, column, error) from None

        data = row[self.columns["data"]]
        if data is None:
            raise refusal(where, task_id, self.columns["data"], "the data of a task are null; give it empty ones")
        filters = {name: row[column] for name, column in self.filters.items()} if self.map is None else row[self.map]
        return Message(
            data,
            {name: value for name, value in (filters or {}).items() if value is not None},
            int(part("priority", int) or 0),
            part("delay", lambda value: float(value.total_seconds() if isinstance(value, timedelta) else value)),
            task_id,
            part("metadata", _metadata),
            not_before=part("notBefore", lambda moment: moment.astimezone(UTC)),
        )


class _Columns:
    """The columns of a DataFrame, and those that have not found their part yet."""

    def __init__(self, schema: types.StructType) -> None:
        self.kinds = {field.name: field.dataType for field in schema}
        self.unused = set(self.kinds)
        self.all = f"The DataFrame has the columns {', '.join(self.kinds)}"
        twice = [name for name, times in Counter(schema.fieldNames()).items() if times > 1]
        if twice:
            raise SourceError(f"column {twice[0]!r} stands twice in the DataFrame")

    def take(self, name: str, part: str) -> str:
        """A column becomes a part. Raises `SourceError` for one that is not there, or whose type cannot be that."""
        if name not in self.kinds:
            close = difflib.get_close_matches(name, self.kinds)
            hint = f"; did you mean {' or '.join(close)}?" if close else "."
            raise SourceError(f"there is no column {name!r} for {part}{hint} {self.all}")
        kinds, takes = _TAKES[part]
        if not isinstance(self.kinds[name], kinds):
            raise SourceError(f"column {name!r} is {self.kinds[name].simpleString()}; {part} must be {takes}")
        self.unused.discard(name)
        return name


def map_columns(schema: types.StructType, options: SourceOptions, declared: Mapping[str, FilterType]) -> RowMapping:
    """Decide for each column what it is, by the filters that a queue has `declared`. Raises `SourceError`."""
    frame = _Columns(schema)
    key = tuple(frame.take(name, "key") for name in sorted(options.names("key")))  # however they are listed
    if key and options.text("id"):
        raise SourceError("options id and key exclude each other: a column is the id, or it is made of the key")
    column = options.text("id")
    if not key and column is None:
        named = [each for each in ("id", "task_id") if each in frame.kinds]
        if len(named) != 1:
            why = "both columns id and task_id are there" if named else "nothing says what the tasks' ids are"
            raise SourceError(
                f"{why}: give option id, the column that names each task, or option key, columns whose values "
                f"tell a row from all others. By its id a row that is tried again is one task. {frame.all}"
            )
        column = named[0]
    if column is not None:
        frame.take(column, "id")
    columns, constants = dict[str, str](), dict[str, int | float]()
    for part, usual in _BY_NAME.items():
        text = options.text(part)
        constant = None
        if text is not None and text not in frame.kinds and part in ("priority", "delay"):
            with contextlib.suppress(ValueError, ConfigError):  # what is no such value is a column that is not there
                constant = int(text) if part == "priority" else engine.parse_duration(text)
        name = text or (usual if usual in frame.kinds else None)
        if constant is not None:
            constants[part] = constant
        elif name is not None:
            columns[part] = frame.take(name, part)
    if "data" not in columns:
        raise SourceError(f"no column is the tasks' data: name it 'data', or give option data. {frame.all}")
    if "notBefore" in columns and ("delay" in columns or "delay" in constants):
        raise SourceError("a task has a delay or a moment before which it is not to be handled, not both")
    whole, filters = _filter_columns(frame, options, declared)
    if frame.unused:
        rest = ", ".join(map(repr, sorted(frame.unused)))
        raise SourceError(
            f"nothing is to become of column {rest}: leave them out with select, or say by options id, "
            "key, data, priority, delay, notBefore, metadata and filters what they are"
        )
    return RowMapping(column, key, columns, constants, whole, filters)


def _filter_columns(
    frame: _Columns, options: SourceOptions, declared: Mapping[str, FilterType]
) -> tuple[str | None, dict[str, str]]:
    """The column that holds all filters of a row, or one column for each filter."""
    wanted, whole = options.text("filters") or "filters", None
    kind = frame.kinds.get(wanted)
    if isinstance(kind, types.MapType):
        if not (isinstance(kind.keyType, types.StringType) and isinstance(kind.valueType, _TAKES["filter"][0])):
            raise SourceError(f"column {wanted!r} is {kind.simpleString()}; filters must be {_TAKES['filters'][1]}")
        whole = frame.take(wanted, "filters")
    elif kind is not None and wanted == "filters":
        whole = frame.take(wanted, "filters")  # says of which type it is
    names = [] if whole else [(name, name) for name in options.names("filters")]
    names += [(name.removeprefix(PREFIX), name) for name in sorted(frame.unused) if name.startswith(PREFIX)]
    columns = dict[str, str]()
    for name, column in names:
        if whole or name in columns:
            raise SourceError(f"filter {name!r} is given twice, also by column {column!r}")
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise SourceError(f"filter {name!r} is not declared in the queue; declared are: {known}")
        columns[name] = frame.take(column, "filter")
    return whole, columns


# --- Rows become messages: each value by its column's part, and a clear error for a value that cannot be that.

#: Takes each digit of Spark's longest decimals, which have 38; what is usual would round them to 28.
_EXACT: Final = Context(prec=38)


@dataclass(frozen=True, slots=True)
class Row:
    """A message, and the number of its row in the partition."""

    number: int
    message: Message


def rows_of(batches: Iterator[pa.RecordBatch], mapping: RowMapping, partition: int) -> Iterator[Row]:
    """The messages of a partition in the order of its rows. Raises `SourceError` for the first bad value."""
    number = 0
    for batch in batches:
        names, columns = batch.schema.names, []
        for name, column in zip(names, batch.columns, strict=True):
            try:
                columns.append(column.to_pylist(maps_as_pydicts="lossy"))
            except (OverflowError, ValueError) as error:  # as a year of five digits, which Spark knows and Python not
                raise refusal(f"partition {partition}", None, name, error) from None
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            yield Row(number, mapping.message(row, f"row {number} of partition {partition}"))
            number += 1


def refusal(where: str, task_id: object, column: str | None, why: object) -> SourceError:
    """The error for a bad value, by its row, its task and its column."""
    named = "" if task_id is None else f" (id {task_id!r})"
    return SourceError(f"{where}{named}{'' if column is None else f', column {column!r}'}: {why}")


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
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


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


# --- What a write did: for each partition and altogether, as an object and as JSON.


@dataclass(frozen=True)
class PartitionReport(WriterCommitMessage):
    """What became of the rows of one partition, in the attempt that Spark took for good.

    ``written``: the tasks that this attempt wrote. ``existing``: rows whose tasks were there: from an earlier attempt
    or an earlier write, of another row with the same id, or of anybody else.
    """

    partition: int
    attempt: int
    rows: int
    written: int
    existing: int


@dataclass(frozen=True)
class WriteReport:
    """What a write did: every row is counted once, as written or as existing."""

    queue: str
    rows: int
    written: int
    existing: int
    partitions: tuple[PartitionReport, ...]
    batch: str | None = None

    @classmethod
    def of(cls, queue: str, parts: Iterable[object], batch: str | None = None) -> Self:
        """The report of what the partitions told."""
        reports = [each for each in parts if isinstance(each, PartitionReport)]
        reports.sort(key=lambda each: each.partition)
        rows, written = sum(each.rows for each in reports), sum(each.written for each in reports)
        return cls(queue, rows, written, rows - written, tuple(reports), batch)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The report that a write left."""
        fields: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        fields["partitions"] = tuple(PartitionReport(**each) for each in fields["partitions"])
        return cls(**fields)

    def leave(self, path: str) -> None:
        """Write it to a file."""
        Path(path).write_text(json.dumps(asdict(self)), encoding="utf-8")


# --- One partition's rows into the queue: in pieces, each of which is tried again until it is known what became of it.

#: A piece has at most so many rows, and no more once its data have so many bytes.
PIECE_ROWS: Final = 1_600
PIECE_BYTES: Final = 4_000_000
#: How often a piece is tried where ZooKeeper does not answer; each try waits for as long as a request may take.
TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go, and how: what the driver found out, for the executors."""

    options: SourceOptions
    queue: str
    mapping: RowMapping
    batch: str | None = None
    since: datetime | None = None

    def load(self, batches: Iterator[pa.RecordBatch]) -> PartitionReport:
        """Enqueue the rows of a partition that are not there yet. Raises `SourceError` for the first bad one."""
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        queue = cached(self.options).queue(self.queue)
        rows = written = 0
        for piece in _pieces(rows_of(batches, self.mapping, partition)):
            rows += len(piece)
            written += len(self._enqueue(queue, piece, partition).written)
        return PartitionReport(partition, attempt, rows, written, rows - written)

    def _enqueue(self, queue: AnyQueue, rows: Sequence[Row], partition: int) -> engine.NewTasks:
        """Enqueue a piece, again where the connection failed: the second call of a client says what the first wrote."""
        # Of rows with the same id the first one is taken.
        first = dict[str | None, Row]()
        for row in rows:
            first.setdefault(row.message.task_id, row)
        distinct = list(first.values())
        messages = [row.message for row in distinct]
        queue.conf()  # one that was deleted meanwhile is refused, and not made anew without its filters
        tries = 1
        while True:
            try:
                return internals(queue).enqueue_new(messages, batch=self.batch, since=self.since)
            except engine.BadMessage as error:
                bad = distinct[error.position]
                part = "data" if isinstance(error.__cause__, engine.TaskTooLarge) else error.part
                where = f"row {bad.number} of partition {partition}"
                raise refusal(where, bad.message.task_id, self.mapping.column(part), error) from None
            except engine.TransportError:
                if tries == TRIES:
                    raise
                tries += 1


def _pieces(rows: Iterator[Row]) -> Iterator[list[Row]]:
    piece: list[Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row.message.data)
        if len(piece) >= PIECE_ROWS or size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


# --- The writers: planned on the driver, written by the executors, completed or given up by the driver.


class _Writer:
    """What writes of a DataFrame and of a stream have in common. It is pickled into Spark's plan."""

    stream = False

    def __init__(self, schema: types.StructType, options: SourceOptions, overwrite: bool) -> None:
        options.check(*((access.STREAM_WRITE, "streams that are written") if self.stream else (access.WRITE, "writes")))
        names, batch = options.queues(), options.text("batch")
        if len(names) != 1:
            raise SourceError("option queue must name the one queue to write to")
        (name,) = names
        if overwrite:
            raise SourceError('tasks can only be added: use mode("append"), or outputMode("append") for a stream')
        if self.stream and batch is not None:
            raise SourceError("option batch is for writes of a DataFrame: a stream has no end at which it is complete")
        with connecting.connect(options) as zk:
            queue = zk.queue(name)
            mapping = map_columns(schema, options, queue.conf().filters)
            since = internals(queue).now() if batch is None and not self.stream else None
            if batch is not None:
                queue.open_batch(batch)
        self.target = Target(options, name, mapping, batch, since)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Enqueue the rows of a partition."""
        with plainly():
            return self.target.load(iterator)


class TaskWriter(_Writer, DataSourceArrowWriter):
    """Enqueues rows whose ids no task has, each once, whatever is tried again."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All partitions are written: the batch is complete, and `enqueue` is told."""
        target = self.target
        with plainly():
            if target.batch is not None:
                with connecting.connect(target.options) as zk:
                    zk.queue(target.queue).seal_batch(target.batch)
            place = target.options.text(access.REPORT)
            if place is not None:
                WriteReport.of(target.queue, messages, target.batch).leave(place)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The write failed: what it wrote stays, and its batch says that it is not written."""


class TaskStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Enqueues rows whose ids no task has.

    A micro-batch that is run again after a restart has the same rows, which find their tasks: exactly once, as long as
    finished tasks are kept (`task_gc_lifetime`) until the restart.
    """

    stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """A micro-batch is written."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """A micro-batch failed; it is run again."""
