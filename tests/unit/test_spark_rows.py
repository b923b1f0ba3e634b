"""Rows of a DataFrame become messages: which column is what is decided from the schema, and bad values are told."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import DataType, MapType, StructField, StructType

from airflow_provider_zkmq.engine import BadMessage, ConfigError, Integer, Message, NewTasks, OrderedEnum, String, Zkmq
from airflow_provider_zkmq.engine import errors as engine_errors
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.spark.source import writing
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.options import STREAM_WRITE, WRITE, SourceOptions
from airflow_provider_zkmq.spark.source.writing import (
    PartitionReport,
    RowMapping,
    Target,
    TaskWriter,
    WriteReport,
    hashed,
    map_columns,
    rows_of,
)

TYPES = {"size": OrderedEnum("small", "large"), "n": Integer(), "region": String()}
TEXT, INT, LONG = types.StringType(), types.IntegerType(), types.LongType()
DOUBLE, TIME, TEXTS = types.DoubleType(), types.TimestampType(), types.ArrayType(TEXT)
MAP = MapType(TEXT, TEXT)
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
BASE: dict[str, DataType] = {"id": TEXT, "data": TEXT}


def schema(**kinds: DataType) -> StructType:
    return StructType([StructField(name.replace("__", "."), kind) for name, kind in kinds.items()])


def mapped(kinds: dict[str, DataType], **options: str) -> RowMapping:
    return map_columns(schema(**kinds), SourceOptions.of(options), TYPES)


def messages(mapping: RowMapping, rows: list[dict[str, Any]], **types: pa.DataType) -> list[Message]:
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(types.items())) if types else None)
    return [row.message for row in rows_of(iter([batch]), mapping, 3)]


def test_columns_find_their_parts_by_name() -> None:
    """Or by an option that names them; a priority or a delay may be the same for all rows."""
    by_name = mapped({**BASE, "priority": INT, "metadata": TEXT, "not_before": TIME, "filters": MAP})
    assert (by_name.id, by_name.map, by_name.columns["notBefore"]) == ("id", "filters", "not_before")
    named = mapped(
        {"flight": LONG, "payload": TEXT, "size": TEXT, "filter__n": LONG, "meta": MAP},
        id="flight", data="payload", filters="size", metadata="meta", priority="5", delay="1h30m",
    )  # fmt: skip
    assert (named.id, named.columns) == ("flight", {"data": "payload", "metadata": "meta"})
    assert (named.filters, named.constants) == ({"size": "size", "n": "filter.n"}, {"priority": 5, "delay": 5400.0})
    keyed = mapped({"year": INT, "carrier": TEXT, "data": TEXT}, key="year, carrier")
    assert (keyed.id, keyed.key) == (None, ("carrier", "year")), "however they are listed"


REFUSED: dict[str, tuple[dict[str, DataType], dict[str, str], str]] = {
    "no id": ({"data": TEXT}, {}, "nothing says what the tasks' ids are.*option id.*option key"),
    "two ids": ({**BASE, "task_id": TEXT}, {}, "both columns id and task_id"),
    "no data": ({"id": TEXT}, {}, "no column is the tasks' data"),
    "no such column": (BASE, {"id": "idd"}, "no column 'idd' for id; did you mean id"),
    "id of a type": ({"id": DOUBLE, "data": TEXT}, {}, "column 'id' is double; id must be text"),
    "data of a type": ({"id": TEXT, "data": LONG}, {}, r"'data' is bigint.*to_json\(struct"),
    "id and key": (BASE, {"id": "id", "key": "id"}, "exclude each other"),
    "key of a type": ({**BASE, "a": TEXTS}, {"key": "a,id"}, "column 'a' is array<string>; key must be"),
    "priority": ({**BASE, "priority": TEXT}, {}, "priority must be a whole number"),
    "priority nowhere": (BASE, {"priority": "high"}, "no column 'high' for priority"),
    "a moment without a zone": ({**BASE, "not_before": types.TimestampNTZType()}, {}, "a timestamp, with a zone"),
    "two times": ({**BASE, "not_before": TIME}, {"delay": "5"}, "not both"),
    "superfluous": ({**BASE, "extra": TEXT}, {}, "nothing is to become of column 'extra': leave them out with select"),
    "filter not declared": ({**BASE, "filter__colour": TEXT}, {}, "filter 'colour' is not declared.*n, region, size"),
    "filter twice": ({**BASE, "filters": MAP, "filter__size": TEXT}, {}, "filter 'size' is given twice"),
    "filters of a type": ({**BASE, "filters": TEXT}, {}, "filters must be a map"),
    "filters of names": ({**BASE, "filters": MapType(LONG, TEXT)}, {}, "filters must be a map of text to text"),
    "filters of values": ({**BASE, "tags": MapType(TEXT, TEXTS)}, {"filters": "tags"}, "'tags' is map<s"),
    "filter of a type": ({**BASE, "filter__size": DOUBLE}, {}, "column 'filter.size' is double"),
}


def test_what_cannot_be_written_is_refused_where_the_write_is_planned(subtests: pytest.Subtests) -> None:
    """By the schema and the options alone, in one sentence that says what to do."""
    for name, (kinds, options, why) in REFUSED.items():
        with subtests.test(name), pytest.raises(SourceError, match=why):
            mapped(kinds, **options)
    with pytest.raises(SourceError, match="column 'id' stands twice"):
        map_columns(StructType([StructField("id", TEXT)] * 2), SourceOptions.of({}), TYPES)
    for known, use in ((WRITE, "writes"), (STREAM_WRITE, "streams")):
        SourceOptions.of({"QUEUE": "q", "key": "a", "notbefore": "b"}).check(known, use)
        with pytest.raises(SourceError, match="unknown option 'bach' of .*did you mean batch"):
            SourceOptions.of({"bach": "x"}).check(known, use)


def test_values_become_parts() -> None:
    """Each by its type; what is null is left out, but for an id and data.

    An option gives a value to all rows, a filter may have its own column, and a moment is one in UTC.
    """
    mapping = mapped({**BASE, "priority": INT, "delay": types.DayTimeIntervalType(), "metadata": MAP, "filters": MAP})
    kinds = {"id": pa.string(), "data": pa.binary(), "priority": pa.int32(), "delay": pa.duration("us")}
    kinds |= dict.fromkeys(("metadata", "filters"), pa.map_(pa.string(), pa.string()))
    full = {"id": "a", "data": b"\0", "priority": -3, "delay": timedelta(minutes=2), "metadata": {"k": "v"}}
    full["filters"] = {"size": "small", "region": None}
    assert messages(mapping, [full, {"id": "b", "data": b""}], **kinds) == [
        Message(b"\0", {"size": "small"}, -3, 120.0, "a", {"k": "v"}),
        Message(b"", {}, 0, None, "b", None),
    ]
    mapping = mapped({"id": LONG, "data": TEXT, "filter__n": LONG, "not_before": TIME, "metadata": TEXT}, priority="7")
    row = {"id": 12, "data": "d", "filter.n": 4, "metadata": '{"a": [1]}'}
    row["not_before"] = NOW.astimezone(ZoneInfo("Europe/Berlin"))
    assert messages(mapping, [row]) == [Message("d", {"n": 4}, 7, None, "12", {"a": [1]}, not_before=NOW)]


def test_a_bad_value_is_told_by_its_row_and_column() -> None:
    """Before anything of its piece is written; one that Python has not, a year of five digits, by its column."""
    kinds = dict.fromkeys(("id", "data", "metadata"), pa.string())
    row = "row 1 of partition 3"
    for values, why in (
        ({"id": None}, f"{row}, column 'id': the id of a task is null"),
        ({"data": None}, rf"{row} \(id 'b'\), column 'data': the data of a task are null"),
        ({"metadata": "[1]"}, r"\(id 'b'\), column 'metadata': metadata must be a JSON object"),
        ({"metadata": "{"}, r"\(id 'b'\), column 'metadata': metadata must be a JSON object"),
    ):
        rows = [{"id": "a", "data": "x", "metadata": None}, {"id": "b", "data": "x", "metadata": None} | values]
        with pytest.raises(SourceError, match=why):
            messages(mapped({**BASE, "metadata": TEXT}), rows, **kinds)
    far = pa.array([320_000_000_000_000_000], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["x"]), far], names=["id", "data", "not_before"])
    with pytest.raises(SourceError, match="^partition 3, column 'not_before': "):
        list(rows_of(iter([batch]), mapped({**BASE, "not_before": TIME}), 3))


def test_ids_of_a_key_are_the_same_everywhere_and_differ_by_type() -> None:
    """However often, in whichever process and session time zone a row is computed; a text is never its number.

    Each digit of a long decimal counts: Spark's have up to 38.
    """
    berlin, naive = NOW.astimezone(ZoneInfo("Europe/Berlin")), NOW.replace(tzinfo=None)
    assert hashed([2013, "AA", None]) == "fcaf50d3b77409187601cb71ba7d8f55"
    assert hashed([NOW]) == hashed([berlin]) != hashed([naive])
    assert hashed([Decimal("1.10")]) == hashed([Decimal("1.1")])
    values: list[Any] = ["1", 1, 1.0, Decimal(1), b"1", True, None, NOW, naive, date(2026, 11, 22), "null", ["1"]]
    assert len({hashed([value]) for value in values[:-1]}) == len(values) - 1
    assert hashed(["a", "b"]) != hashed(["ab", ""])
    assert hashed([0.0]) == hashed([-0.0])
    with pytest.raises(ConfigError, match="cannot be part of a key"):
        hashed([values[-1]])
    assert hashed([Decimal("9" * 37 + "8")]) != hashed([Decimal("9" * 38)])
    assert hashed([Decimal("1" * 29 + ".1")]) != hashed([Decimal("1" * 29 + ".2")])
    assert hashed([Decimal("1" * 30 + ".10")]) == hashed([Decimal("1" * 30 + ".1")])


def test_rows_go_in_pieces_and_each_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with the same id are one task; the report counts each row, as written or as there already.

    A piece whose outcome is not known is tried again by the same client, which finds out what became of it, three times
    at the most. What the engine refuses is told by row and column, also after rows with the same id.
    """
    options = SourceOptions.of({"hosts": f"textqueue://{tmp_path}"})
    queue, calls, errors = writing.cached(options).queue("q"), [], []
    queue.configure()
    monkeypatch.setattr(writing, "cached", lambda _options: SimpleNamespace(queue=lambda _name: fake))

    def enqueue_new(messages: list[Message], **more: Any) -> NewTasks:
        calls.append(len(messages))
        if errors:
            raise errors.pop(0)
        return internals(queue).enqueue_new(messages, **more)

    def load(*ids: object) -> PartitionReport:
        batch = pa.RecordBatch.from_pylist([{"id": each, "data": "x"} for each in ids])
        return Target(options, "q", mapped(BASE)).load(iter([batch]))

    fake = SimpleNamespace(conf=queue.conf, __internals__=lambda: SimpleNamespace(enqueue_new=enqueue_new))
    monkeypatch.setattr(writing, "PIECE_ROWS", 20)
    ids = [f"t{n}" for n in range(30)]
    assert load(*ids, "t0", ids[-1]) == PartitionReport(0, 0, 32, 30, 2)
    assert calls == [20, 11]

    calls.clear()
    errors += [engine_errors.OutcomeUnknown("?"), engine_errors.Unavailable("?")]
    assert load("a").written == 1
    errors += [engine_errors.Unavailable("?")] * 3
    with pytest.raises(engine_errors.Unavailable):
        load("b")
    assert calls == [1] * 6

    errors.append(BadMessage("priority 99999 is not allowed", position=1, part="task_id"))
    with pytest.raises(SourceError, match=r"row 2 of partition 0 \(id 'b'\), column 'id': priority 99999 is not"):
        load("a", "a", "b")


def test_rows_go_into_queue_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan and the same rows; a batch is refused, as a file has none. No credentials go to executors."""
    monkeypatch.setenv("ZKMQ_AUTH", "digest:alice:sesame")
    sent = pickle.dumps(Target(SourceOptions.of({"hosts": "h:1", "queue": "q"}), "q", mapped(BASE), None, NOW))
    assert not [secret for secret in (b"sesame", b"alice") if secret in sent]
    hosts = f"textqueue://{tmp_path}/queues"
    with Zkmq.connect(hosts) as zk:
        queue = zk.queue("q")
        queue.configure(filters={"size": TYPES["size"]})
        queue.enqueue("x", task_id="b")
        kinds, options = schema(**BASE, filter__size=TEXT), {"hosts": hosts, "queue": "q"}
        writer = TaskWriter(kinds, SourceOptions.of(options), overwrite=False)
        batch = pa.RecordBatch.from_pylist([{"id": each, "data": "x", "filter.size": "small"} for each in ("a", "b")])
        told = writer.write(iter([batch]))
        writer.commit([told])
        assert told == PartitionReport(0, 0, 2, 1, 1)
        assert (sorted(internals(queue).ids()), queue.task("a").filters) == (["a", "b"], {"size": "small"})
    with pytest.raises(engine_errors.Unsupported, match="open_batch"):
        TaskWriter(kinds, SourceOptions.of(options | {"batch": "b"}), overwrite=False)


def test_a_report_is_read_as_it_was_left(tmp_path: Path) -> None:
    """Sums of the partitions that were committed, in order; a message that never came is left out.

    One that could not be left is refused before anything is written.
    """
    place = tmp_path / "report.json"
    parts = [PartitionReport(1, 0, 5, 3, 2), None, PartitionReport(0, 2, 4, 4, 0)]
    report = WriteReport.of("q", parts, "b")
    report.leave(str(place))
    assert WriteReport.read(str(place)) == report
    assert (report.rows, report.written, report.existing) == (9, 7, 2)
    assert [part.partition for part in report.partitions] == [0, 1]
    for named in ({}, {"queue": "p,q"}):
        with pytest.raises(SourceError, match="option queue must name the one queue"):
            TaskWriter(StructType(), SourceOptions.of({"hosts": f"textqueue://{tmp_path}"} | named), overwrite=False)
