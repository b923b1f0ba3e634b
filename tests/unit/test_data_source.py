"""The data source `zkmq` without Spark: options, columns and partitions, over a queue in a file."""

from __future__ import annotations

import json
import logging
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_zkmq.engine import AnyQueue, ConfigError, OrderedEnum, QueueNotFound, Scanned, Zkmq
from airflow_provider_zkmq.spark.source import ZkmqDataSource, connecting, errors, reading
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.options import READ, SourceOptions
from airflow_provider_zkmq.spark.source.reading import (
    COLUMNS,
    Query,
    Share,
    TaskReader,
    arrow_schema,
    list_ids,
    list_states,
    shares,
)


def schema(*names: str) -> types.StructType:
    """Spark's types of columns; that they are those of its own words, a read by Spark shows."""
    return from_arrow_schema(arrow_schema(list(names)))


@pytest.fixture
def hosts(tmp_path: Path) -> str:
    """A folder of queue files with two queues; a task of `q` has finished, one is dead, one waits."""
    hosts = f"textqueue://{tmp_path}/queues"
    with Zkmq.connect(hosts) as client:
        queue: AnyQueue = client.queue("q")
        queue.configure(filters={"size": OrderedEnum("small", "large")})
        for name in ("done", "dead"):
            queue.enqueue(f"data of {name}", {"size": "small"}, task_id=name)
            claim = queue.claim(lease=60)
            assert claim is not None
            claim.complete(b"result") if name == "done" else claim.fail("broken", retry=False)
        queue.enqueue(b"data of waits", {"size": "large"}, task_id="waits", metadata={"owner": "ann"})
        client.queue("orders").enqueue(b"x", task_id="one")
    return hosts


def reader(hosts: str, *columns: str, **more: str) -> TaskReader:
    return TaskReader(schema(*columns), SourceOptions.of({"hosts": hosts, **more}))


def rows(hosts: str, *columns: str, **more: str) -> list[dict[str, Any]]:
    """What a read brings, without Spark; reader and shares as they arrive in another process."""
    shipped = pickle.loads(pickle.dumps(reader(hosts, *(columns or COLUMNS), **more)))  # noqa: S301
    planned = pickle.loads(pickle.dumps(shipped.partitions()))  # noqa: S301
    return [row for share in planned for batch in shipped.read(share) for row in batch.to_pylist()]


def test_tasks_are_chosen_by_options(hosts: str) -> None:
    """Of all queues, unless some are named; whatever the columns: what is told by the lists, and what is read.

    Options have no case, as in all of Spark.
    """
    read = {row["task_id"]: row for row in rows(hosts)}
    states = {"done": "finished", "dead": "dead", "waits": "inserted", "one": "inserted"}
    assert {name: row["state"] for name, row in read.items()} == states
    assert (read["dead"]["filters"], read["dead"]["error"]) == ([("size", "small")], "broken")
    assert (read["done"]["result"], json.loads(read["waits"]["metadata"])) == (b"result", {"owner": "ann"})
    assert {row["queue"] for row in rows(hosts, queues="orders")} == {"orders"}
    for columns in (("task_id", "state"), ("task_id", "state", "attempt")):
        names = lambda **more: sorted(row["task_id"] for row in rows(hosts, *columns, queues="q", **more))  # noqa: B023
        assert names(states="dead, finished") == ["dead", "done"]
        assert names(selector="size>=large") == ["waits"]
        assert names(since="1h") == ["dead", "done", "waits"]
        assert names(since="2100-01-01T00:00:00Z") == []
        assert names(STATES="dead", NUMPARTITIONS="3") == ["dead"]
    assert list(rows(hosts, "state", "task_id")[0]) == ["state", "task_id"]
    assert {row["queue"] for row in rows(hosts, queue="orders")} == {"orders"}
    assert rows(hosts, "task_id", **dict.fromkeys(set(READ) - {"hosts"}, "")), "each is taken; an empty one is none"
    assert Query.of(SourceOptions.of({})).columns == tuple(COLUMNS)


WRONG: list[tuple[dict[str, str], str]] = [
    ({"colums": "state"}, r"unknown option 'colums' of reads.*: did you mean columns\? known are hosts"),
    ({"columns": "task_id,stat"}, r"unknown column 'stat': did you mean state.*known are queue, task_id"),
    ({"states": "finish"}, r"unknown state 'finish': did you mean finished\?"),
    ({"queues": "q,ordres"}, r"queue 'ordres' does not exist under .* \(did you mean 'orders'"),
    ({"selector": "size=="}, "option selector: "),
    ({"selector": "color==red", "queues": "q"}, "'color' is not declared"),
    ({"since": "yesterday"}, "option since: .*'yesterday' is no moment"),
    ({"since": "2026-01-01T00:00:00"}, "option since: .*zone"),
    ({"numPartitions": "0"}, "option numPartitions must be a whole number of at least 1, not '0'"),
    ({"queue": "q", "queues": "orders"}, "give option queue or option queues, not both"),
    ({"states": "dead", "STATES": "finished"}, "options states and STATES are the same one"),
    ({"report": "/folder"}, "unknown option 'report' of reads"),
    ({"auth": "a:b"}, "option 'auth' is refused: .*connId.*ZKMQ_AUTH"),
    ({"PASSWORD": "b"}, "option 'password' is refused"),
    ({"tls_key_password": "b"}, "option 'tls_key_password' is refused"),
    ({"connectTimeout": "soon"}, "'soon'"),
    ({"startingOffsets": "newest"}, "newest"),
    ({"maxTasksPerTrigger": "few"}, "maxTasksPerTrigger must be a whole number"),
    ({"failOnDataLoss": "true", "numPartitions": "2", "since": "1h"}, "unknown option 'since' of streams"),
]


def test_what_is_wrong_is_refused_by_load(hosts: str, subtests: pytest.Subtests) -> None:
    """Before a query is planned, with one error that says what would do; a password is not repeated."""
    for more, match in WRONG:
        with subtests.test(**more):
            with pytest.raises(SourceError, match=match) as caught:
                ZkmqDataSource({"hosts": hosts} | more).schema()
            assert "a:b" not in str(caught.value)


def test_a_schema_that_was_given_chooses_columns(hosts: str) -> None:
    """By the names and types of ours."""
    assert rows(hosts, "state", "task_id", states="dead") == [{"state": "dead", "task_id": "dead"}]
    text = types.StringType()
    for given, match in (
        (types.StructType().add("attempt", text), "column 'attempt' is of type int, not string"),
        (types.StructType().add("attempt", types.IntegerType(), nullable=False), "columns cannot be NOT NULL"),
        (schema("filters").add("state", text, nullable=False), "columns cannot be NOT NULL"),
    ):
        with pytest.raises(SourceError, match=match):
            TaskReader(given, SourceOptions.of({"hosts": hosts}))


def test_ids_are_shared_out_evenly_and_batches_go_by_the_payloads() -> None:
    """Each once, a queue's among themselves; as many partitions as asked for, else none of them too large or small.

    Large payloads are read a few at a time.
    """
    listed = [Share("a", [f"a{n}" for n in range(100)]), Share("b", ["b"], ["dead"]), Share("c", ())]
    made = shares(listed, 4)
    assert [each for share in made for each in share.ids] == [*listed[0].ids, "b"]
    assert {len(share.ids) for share in made if share.queue == "a"} <= {26, 22}
    assert (made[-1].states, len(shares(listed[:1], 0))) == (["dead"], 1)
    assert {len(share.ids) for share in shares([Share("a", range(100_000))], 0)} <= {25_000}  # type: ignore[arg-type]
    assert [share.ids for share in shares([], 0)] == [()]
    small, large = Scanned({"data": [b"x"] * 256}, (), ()), Scanned({"data": [b"x" * (1 << 20)] * 256}, (), ())
    assert [reading._next_size(now, small) for now in (256, 4_096)] == [512, 4_096]
    assert reading._next_size(256, large) == 8
    assert reading._next_size(1, Scanned({"result": [None, b"x" * (1 << 24)]}, (), ())) == 1


def test_what_vanished_or_is_corrupt_is_counted_and_told(hosts, caplog) -> None:
    """In the log where it was read, with its ids."""
    lossy = reader(hosts, "task_id", "attempt", queues="q", numPartitions="3")
    deleted = reader(hosts, "task_id", "attempt", queues="orders")
    planned, of_deleted = lossy.partitions(), deleted.partitions()
    with Zkmq.connect(hosts) as client:
        path = client.queue("q").path
        client.queue("orders").delete(confirm=True)
    path.write_text("\n".join(line for line in path.read_text().splitlines() if "data of dead" not in line) + "\n")
    read = [row for share in planned for batch in lossy.read(share) for row in batch.to_pylist()]
    assert sorted(row["task_id"] for row in read) == ["done", "waits"]
    assert [row for share in of_deleted for row in deleted.read(share)] == []
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "queue q: 1 task(s) vanished before they were read and are no rows: dead" in told
    assert any("1 task(s) vanished" in line and "orders" in line for line in told)


def test_a_root_without_queues_is_refused(tmp_path) -> None:
    """It is mistyped: what is read of all its queues would be nothing."""
    with pytest.raises(SourceError, match="there is no queue under .*: give another root, or make a queue first"):
        reader(f"textqueue://{tmp_path}", "task_id").partitions()


@dataclass
class _Moving:
    """A queue in which tasks move while they are listed, and to `later` when the first list has been read."""

    lists: dict[str | None, list[str]]
    now: dict[str, str]
    later: dict[str | None, list[str]]
    scanned: list[str] = field(default_factory=list)

    def __internals__(self) -> Any:
        return self

    def ids(self, state: str | None = None) -> list[str]:
        listed = self.lists.get(None if state is None else str(state), [])
        self.lists = self.later
        return listed

    def scan(self, ids: list[str], _columns: list[str], states: Any = None) -> Scanned:
        self.scanned += ids
        there = [each for each in ids if each in self.now and (not states or self.now[each] in states)]
        return Scanned({"id": there, "state": [self.now[each] for each in there]}, (), ())


def test_a_task_in_transition_is_a_row_once() -> None:
    """One that is in two lists, or in none, is read; one that is gone is no row.

    One that is redriven meanwhile is a row: it was in one of the states all the time, but in none of the lists.
    """
    lists: dict[str | None, list[str]] = {
        "inserted": ["a", "on"], "claimed": ["on", "b"], "finished": ["c", "gone"],
        None: ["a", "b", "back", "c", "deleted", "on"],
    }  # fmt: skip
    queue: Any = _Moving(lists, {"on": "finished", "back": "inserted"}, lists)
    known = {"a": "inserted", "b": "claimed", "c": "finished", "on": "finished", "back": "inserted"}
    assert list_states(queue, ()) == known
    assert sorted(queue.scanned) == ["back", "deleted", "on"]
    assert list_states(queue, ["inserted", "claimed"]) == {"a": "inserted", "b": "claimed"}
    assert list_ids(queue, ["inserted", "claimed"]) == ["a", "on", "b"]
    assert list_ids(queue, ()) == lists[None]
    first, later = {"dead": ["d"], "finished": ["d"], None: ["d"]}, {"inserted": ["d"], None: ["d"]}
    for states in (["inserted", "dead"], ["dead", "inserted"], ["inserted", "finished"], ()):
        redriven: list[Any] = [_Moving(first, now, later) for now in ({"d": "inserted"}, {})]
        assert list_states(redriven[0], states) == {"d": "inserted"}
        assert list_ids(redriven[1], states) == ["d"]


def test_a_process_has_one_connection_for_each_way_to_connect(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened again where it was closed. Credentials are looked up there, in that process's environment.

    A reader that is pickled holds none. Options win over hosts and root of the environment.
    """
    first = connecting.cached(SourceOptions.of({"hosts": hosts}))
    assert connecting.cached(SourceOptions.of({"hosts": hosts, "queues": "q"})) is first
    assert connecting.cached(SourceOptions.of({"hosts": f"{hosts}/others"})) is not first
    first.close()
    assert connecting.cached(SourceOptions.of({"hosts": hosts})) is not first
    for name, value in (("AUTH", "ann:s3cr3t"), ("HOSTS", "elsewhere:2181"), ("ROOT", "/elsewhere")):
        monkeypatch.setenv(f"ZKMQ_{name}", value)
    shipped = reader("127.0.0.1:2181", "task_id")
    assert b"s3cr3t" not in pickle.dumps(shipped)
    assert connecting.connection(shipped.options)["auth"] == "ann:s3cr3t"
    assert connecting.connection(SourceOptions.of({}))["hosts"] == "elsewhere:2181"
    chosen = connecting.connection(SourceOptions.of({"hosts": "here:2181", "connectTimeout": "1m"}))
    assert (chosen["hosts"], chosen["root"], chosen["connect_timeout"]) == ("here:2181", "/elsewhere", 60)
    assert connecting.connection(SourceOptions.of({"hosts": "textqueue:///q"}))["auth"] is None
    monkeypatch.delenv("ZKMQ_AUTH")
    assert connecting.connection(shipped.options)["auth"] is None
    monkeypatch.setenv("ZKMQ_TLS_CA", "ca.pem")
    monkeypatch.setenv("ZKMQ_TLS_KEY_PASSWORD_FILE", "/nowhere/password")
    with pytest.raises(ConfigError, match="/nowhere/password cannot be read"):
        connecting.connection(SourceOptions.of({}))


def test_errors_in_a_worker_are_all_that_spark_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the way to them through Spark's code; elsewhere nothing is set."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(SourceError, match="^queue 'x'"), errors.plainly():
        raise QueueNotFound("queue 'x' does not exist")
    assert "SPARK_HIDE_TRACEBACK" not in connecting.os.environ
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")
    with pytest.raises(SourceError), errors.plainly():
        raise SourceError("no")
    assert connecting.os.environ["SPARK_HIDE_TRACEBACK"] == "1"
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
