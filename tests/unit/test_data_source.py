"""The data source `zkmq` without Spark: options, columns and partitions, over a queue in a file."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from airflow_provider_zkmq.engine import AnyQueue, ConfigError, Message, OrderedEnum, QueueNotFound, Scanned, Zkmq
from airflow_provider_zkmq.spark.source import ZkmqDataSource, access, errors, reading
from airflow_provider_zkmq.spark.source.columns import COLUMNS, arrow_schema
from airflow_provider_zkmq.spark.source.counting import read_report
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.listing import list_ids, list_states
from airflow_provider_zkmq.spark.source.options import READ, Options
from airflow_provider_zkmq.spark.source.query import Query
from airflow_provider_zkmq.spark.source.reading import Share, TaskReader, shares

TEXT, TIME = types.StringType(), types.TimestampType()
ATTEMPT = types.StructType(
    [
        types.StructField("number", types.IntegerType()),
        types.StructField("consumer", TEXT),
        types.StructField("claimed_at", TIME),
        types.StructField("ended_at", TIME),
        types.StructField("outcome", TEXT),
        types.StructField("error", TEXT),
    ]
)
#: What Spark makes of the words in which the columns are described to it.
SPARK = {
    "string": TEXT,
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "binary": types.BinaryType(),
    "timestamp": TIME,
    "map<string,string>": types.MapType(TEXT, TEXT),
    COLUMNS["history"].spark: types.ArrayType(ATTEMPT),
}


def spark_schema(*names: str) -> types.StructType:
    return types.StructType([types.StructField(name, SPARK[COLUMNS[name].spark]) for name in names])


@pytest.fixture
def hosts(tmp_path: Path) -> str:
    """A folder of queue files with two queues; a task of `q` has finished, one is dead, one waits."""
    hosts = f"textqueue://{tmp_path}/queues"
    with Zkmq.connect(hosts) as client:
        queue: AnyQueue = client.queue("q")
        queue.configure(filters={"size": OrderedEnum("small", "large")})
        queue.enqueue_many(
            [Message(b"data of " + name.encode(), {"size": "small"}, task_id=name) for name in ("done", "dead")]
        )
        claim = queue.claim(lease=60)
        assert claim is not None
        claim.complete(b"result")
        claim = queue.claim(lease=60)
        assert claim is not None
        claim.fail("broken", retry=False)
        queue.enqueue(b"data of waits", {"size": "large"}, task_id="waits", metadata={"owner": "ann"})
        client.queue("orders").enqueue(b"x", task_id="one")
    return hosts


def options(hosts: str, **more: str) -> Options:
    return Options.of({"hosts": hosts, **more})


def as_shipped(value: Any) -> Any:
    """What arrives in another process."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def rows(hosts: str, *columns: str, **more: str) -> list[dict[str, Any]]:
    """What a read brings, without Spark."""
    asked = options(hosts, **more)
    names = columns or tuple(asked.names("columns") or COLUMNS)
    reader = as_shipped(TaskReader(spark_schema(*names), asked))
    shares = as_shipped(reader.partitions())
    return [row for share in shares for batch in reader.read(share) for row in batch.to_pylist()]


def test_the_columns_are_of_the_same_types_in_spark_and_in_arrow() -> None:
    """Spark takes a batch only if they are equal."""
    assert to_arrow_schema(spark_schema(*COLUMNS), timezone="UTC") == arrow_schema(list(COLUMNS))


def test_a_row_for_each_task_with_all_that_it_says(hosts: str) -> None:
    """Of all queues, unless some are named."""
    read = {row["task_id"]: row for row in rows(hosts)}
    assert {name: row["state"] for name, row in read.items()} == {
        "done": "finished", "dead": "dead", "waits": "inserted", "one": "inserted",
    }  # fmt: skip
    with Zkmq.connect(hosts) as client:
        task = client.queue("q").task("dead")
    row = read["dead"]
    assert (row["queue"], row["status"], row["attempt"], row["priority"]) == ("q", "dead", 1, 0)
    assert (row["filters"], row["data"], row["error"]) == ([("size", "small")], b"data of dead", "broken")
    assert row["enqueued_at"].timestamp() * 1000 == pytest.approx(task.enqueued_ms)
    assert read["done"]["result"] == b"result"
    assert json.loads(read["waits"]["metadata"])["owner"] == "ann"
    assert {row["queue"] for row in rows(hosts, queues="orders")} == {"orders"}


def test_tasks_are_chosen_by_options(hosts: str) -> None:
    """Whatever the columns: what is told by the lists, and what is read."""
    for columns in ("task_id,state", "task_id,state,attempt"):
        names = lambda **more: [row["task_id"] for row in rows(hosts, columns=columns, queues="q", **more)]  # noqa: B023
        assert sorted(names(states="dead, finished")) == ["dead", "done"]
        assert names(selector="size>=large") == ["waits"]
        assert sorted(names(since="1h")) == ["dead", "done", "waits"]
        assert names(since="2100-01-01T00:00:00Z") == []
    assert list(rows(hosts, columns="state,task_id")[0]) == ["state", "task_id"]


def test_options_have_no_case(hosts: str) -> None:
    """As everywhere in Spark."""
    assert [row["task_id"] for row in rows(hosts, "task_id", STATES="dead", NUMPARTITIONS="3")] == ["dead"]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"colums": "state"}, r"unknown option 'colums' of reads.*: did you mean columns\? known are hosts"),
        ({"columns": "task_id,stat"}, r"unknown column 'stat': did you mean state.*known are queue, task_id"),
        ({"states": "finish"}, r"unknown state 'finish': did you mean finished\?"),
        ({"queues": "q,ordres"}, r"queue 'ordres' does not exist under .* \(did you mean 'orders'"),
        ({"selector": "size=="}, "option selector: "),
        ({"selector": "color==red", "queues": "q"}, "'color' is not declared"),
        ({"since": "yesterday"}, "option since: .*'yesterday' is no moment"),
        ({"since": "2026-01-01T00:00:00"}, "option since: .*zone"),
        ({"maxRequestsInFlight": "0"}, "option maxRequestsInFlight must be a whole number of at least 1, not '0'"),
        ({"numPartitions": "many"}, "option numPartitions must be a whole number"),
        ({"auth": "a:b"}, "option 'auth' is refused: .*conn_id.*ZKMQ_AUTH"),
        ({"PASSWORD": "b"}, "option 'password' is refused"),
        ({"tls_key_password": "b"}, "option 'tls_key_password' is refused"),
        ({"connectTimeout": "soon"}, "'soon'"),
        ({"startingOffsets": "newest"}, "newest"),
        ({"maxTasksPerTrigger": "few"}, "maxTasksPerTrigger must be a whole number"),
        ({"failOnDataLoss": "true", "numPartitions": "2", "since": "1h"}, "unknown option 'since' of streams"),
    ],
)
def test_what_is_wrong_is_refused_by_load(hosts: str, more: dict[str, str], match: str) -> None:
    """Before a query is planned, with one error that says what would do; a password is not repeated."""
    with pytest.raises(SourceError, match=match) as caught:
        ZkmqDataSource({"hosts": hosts} | more).schema()
    assert "a:b" not in str(caught.value)


def test_a_schema_that_was_given_chooses_columns(hosts: str) -> None:
    """By the names and types of ours."""
    assert rows(hosts, "state", "task_id", states="dead") == [{"state": "dead", "task_id": "dead"}]
    wrong = types.StructType([types.StructField("attempt", TEXT)])
    with pytest.raises(SourceError, match="column 'attempt' is of type int, not string"):
        TaskReader(wrong, options(hosts))
    never_null = types.StructType([types.StructField("attempt", types.IntegerType(), nullable=False)])
    for strict in (never_null, spark_schema("filters").add("state", TEXT, nullable=False)):
        with pytest.raises(SourceError, match="columns cannot be NOT NULL"):
            TaskReader(strict, options(hosts))


def test_ids_are_shared_out_evenly() -> None:
    """Each once, a queue's among themselves; as many partitions as asked for, else none of them too large or small."""
    listed = [Share("a", [f"a{n}" for n in range(100)]), Share("b", ["b"], ["dead"]), Share("c", ())]
    made = shares(listed, 4)
    assert [share.number for share in made] == list(range(len(made)))
    assert [each for share in made for each in share.ids] == [*listed[0].ids, "b"]
    assert {len(share.ids) for share in made if share.queue == "a"} <= {26, 22}
    assert made[-1].states == ["dead"]
    assert len(shares(listed[:1], 0)) == 1
    assert {len(share.ids) for share in shares([Share("a", range(100_000))], 0)} <= {25_000}  # type: ignore[arg-type]
    assert [share.ids for share in shares([], 0)] == [()]


def test_what_vanished_or_is_corrupt_is_counted_and_told(hosts: str, tmp_path: Path, caplog: Any) -> None:
    """In the log where it was read, and in the folder of the option; a second read replaces what the first one told."""
    asked = options(hosts, queues="q", columns="task_id,attempt", numPartitions="3", report=str(tmp_path / "report"))
    reader = TaskReader(spark_schema("task_id", "attempt"), asked)
    planned = reader.partitions()
    with Zkmq.connect(hosts) as client:
        path = client.queue("q").path
    path.write_text("\n".join(line for line in path.read_text().splitlines() if "data of dead" not in line) + "\n")
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            read = [row for share in planned for batch in reader.read(share) for row in batch.to_pylist()]
        assert sorted(row["task_id"] for row in read) == ["done", "waits"]
        report = read_report(tmp_path / "report")
        assert (report.rows, report.vanished, report.corrupt) == (2, {"q": ["dead"]}, {})
    assert "queue q: 1 task(s) vanished before they were read and are no rows: dead" in caplog.text
    reader.partitions()
    assert read_report(tmp_path / "report").rows == 0


def test_a_report_that_cannot_be_written_is_told_before_anything_is_read(hosts: str, tmp_path: Path) -> None:
    """The path may be a file, or not ours."""
    (tmp_path / "file").touch()
    reader = TaskReader(spark_schema("task_id"), options(hosts, report=str(tmp_path / "file")))
    with pytest.raises(SourceError, match="option report: nothing can be written to '.*/file': File exists"):
        reader.partitions()


def test_a_queue_that_was_deleted_since_the_query_was_planned_ends_nothing(hosts: str, caplog: Any) -> None:
    """All of its tasks have vanished."""
    reader = TaskReader(spark_schema("task_id", "attempt"), options(hosts, queues="orders"))
    planned = reader.partitions()
    with Zkmq.connect(hosts) as client:
        client.queue("orders").delete(confirm=True)
    assert [row for share in planned for row in reader.read(share)] == []
    assert "1 task(s) vanished" in caplog.text


class _Moving:
    """A queue in which tasks move while they are listed."""

    def __init__(self, lists: dict[str | None, list[str]], now: dict[str, str]) -> None:
        self.lists, self.now, self.scanned = lists, now, []

    def ids(self, state: str | None = None) -> list[str]:
        return self.lists.get(None if state is None else str(state), [])

    def scan(self, ids: list[str], _columns: list[str], states: Any = None) -> Scanned:
        self.scanned += ids
        there = [each for each in ids if each in self.now and (not states or self.now[each] in states)]
        return Scanned({"id": there, "state": [self.now[each] for each in there]}, (), ())


def test_a_task_in_transition_is_a_row_once() -> None:
    """One that is in two lists, or in none, is read; one that is gone is no row."""
    lists: dict[str | None, list[str]] = {
        "inserted": ["a", "on"], "claimed": ["on", "b"], "finished": ["c", "gone"],
        None: ["a", "b", "back", "c", "deleted", "on"],
    }  # fmt: skip
    queue: Any = _Moving(lists, {"on": "finished", "back": "inserted"})
    assert list_states(queue, ()) == {
        "a": "inserted", "b": "claimed", "c": "finished", "on": "finished", "back": "inserted",
    }  # fmt: skip
    assert sorted(queue.scanned) == ["back", "deleted", "on"]
    assert list_states(queue, ["inserted", "claimed"]) == {"a": "inserted", "b": "claimed"}
    assert list_ids(queue, ["inserted", "claimed"]) == ["a", "on", "b"]
    assert list_ids(queue, ()) == lists[None]


class _Redriven(_Moving):
    """A dead task is redriven when the first list has been read."""

    def ids(self, state: str | None = None) -> list[str]:
        listed = super().ids(state)
        self.lists = {"inserted": ["d"], None: ["d"]}
        return listed


def test_a_task_that_is_redriven_while_tasks_are_listed_is_a_row() -> None:
    """It was in one of the states that are asked for all the time, but in none of the lists when they were read."""
    for states in (["inserted", "dead"], ["dead", "inserted"], ["inserted", "finished"], ()):
        lists: dict[str | None, list[str]] = {"dead": ["d"], "finished": ["d"], None: ["d"]}
        assert list_states(_Redriven(lists, {"d": "inserted"}), states) == {"d": "inserted"}  # type: ignore[arg-type]
        assert list_ids(_Redriven(lists, {}), states) == ["d"]  # type: ignore[arg-type]


def test_batches_grow_and_shrink_with_the_payloads() -> None:
    """Large payloads are read a few at a time."""
    small = Scanned({"data": [b"x"] * 256}, (), ())
    large = Scanned({"data": [b"x" * (1 << 20)] * 256}, (), ())
    assert reading._next_size(256, small) == 512
    assert reading._next_size(4_096, small) == 4_096
    assert reading._next_size(256, large) == 8
    assert reading._next_size(1, Scanned({"result": [None, b"x" * (1 << 24)]}, (), ())) == 1


def test_a_reader_that_is_pickled_holds_no_credentials(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked up where a connection is opened: in the environment of that process."""
    monkeypatch.setenv("ZKMQ_AUTH", "ann:s3cr3t")
    reader = TaskReader(spark_schema("task_id"), Options.of({"hosts": "127.0.0.1:2181"}))
    assert b"s3cr3t" not in pickle.dumps(reader)
    assert access.connection(reader.options)["auth"] == "ann:s3cr3t"
    monkeypatch.delenv("ZKMQ_AUTH")
    assert access.connection(reader.options)["auth"] is None


def test_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts and root; what the environment says of servers is not about queue files."""
    monkeypatch.setenv("ZKMQ_HOSTS", "elsewhere:2181")
    monkeypatch.setenv("ZKMQ_ROOT", "/elsewhere")
    monkeypatch.setenv("ZKMQ_AUTH", "ann:s3cr3t")
    assert access.connection(Options.of({}))["hosts"] == "elsewhere:2181"
    chosen = access.connection(Options.of({"hosts": "here:2181", "connectTimeout": "1m"}))
    assert (chosen["hosts"], chosen["root"], chosen["connect_timeout"]) == ("here:2181", "/elsewhere", 60)
    assert access.connection(Options.of({"hosts": "textqueue:///q"}))["auth"] is None


def test_a_key_s_password_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file's name, as an error of ours."""
    monkeypatch.setenv("ZKMQ_TLS_CA", "ca.pem")
    monkeypatch.setenv("ZKMQ_TLS_KEY_PASSWORD_FILE", "/nowhere/password")
    with pytest.raises(ConfigError, match="/nowhere/password cannot be read"):
        access.connection(Options.of({}))


def test_one_connection_for_each_process_and_for_each_way_to_connect(hosts: str) -> None:
    """It is opened again where it was closed."""
    first = access.cached(options(hosts))
    assert access.cached(options(hosts, queues="q")) is first
    assert access.cached(options(f"{hosts}/others")) is not first
    first.close()
    assert access.cached(options(hosts)) is not first


def test_errors_in_a_worker_are_all_that_spark_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the way to them through Spark's code; elsewhere nothing is set."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(SourceError, match="^queue 'x'"), errors.plainly():
        raise QueueNotFound("queue 'x' does not exist")
    assert "SPARK_HIDE_TRACEBACK" not in errors.os.environ
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")
    with pytest.raises(SourceError), errors.plainly():
        raise SourceError("no")
    assert errors.os.environ["SPARK_HIDE_TRACEBACK"] == "1"
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def test_no_option_of_a_read_is_forgotten(hosts: str) -> None:
    """Each that is listed is taken, and an empty one says nothing."""
    assert rows(hosts, "task_id", **dict.fromkeys(set(READ) - {"hosts"}, ""))
    assert Query.of(Options.of({})).columns == tuple(COLUMNS)
    assert isinstance(arrow_schema(["task_id"]), pa.Schema)
