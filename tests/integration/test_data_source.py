"""The data source `zkmq` with a real Spark and a real ZooKeeper: queues are read, and rows become tasks, once each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from airflow_provider_zkmq.engine import Message, OrderedEnum, Queue, String, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.spark import enqueue, register
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.options import SourceOptions
from airflow_provider_zkmq.spark.source.writing import PIECE_ROWS, TaskWriter
from tests.integration.spark_programs import CLUSTER, PARTITIONS, TOP, program, shown
from tests.support import eventually

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]
SCALE = pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="starts Spark several times; ZKMQ_SCALE=1")
PASSWORD = "s3cr3t-of-ann"
Load = Callable[..., DataFrame]
TEXT = StructType([StructField("id", StringType()), StructField("data", StringType())])
#: How many days of flights are summed up.
DAYS = 3

# --- queues are read


@pytest.fixture
def load(spark: SparkSession, zk: Zkmq, q: Queue, where: dict[str, str]) -> Load:
    """A queue with tasks in several states, and another one; how they are read."""
    register(spark)
    filters = {"performance_class": "low"}
    q.enqueue_many([Message(f"data {n}", filters, task_id=f"t{n}", metadata={"n": n}) for n in range(9)], batch="b")
    for _ in range(3):
        q.claim(lease=60).complete(b"result")
    q.claim(lease=60).fail("broken", retry=False)
    q.claim(lease=60)
    zk.queue("orders").enqueue("x", task_id="one")
    return lambda **options: spark.read.format("zkmq").options(**where | options).load()


def test_queues_are_dataframes(load: Load, q: Queue) -> None:
    """A row for each task, as the tasks say; two uses of one DataFrame do not disturb each other."""
    rows = {row.task_id: row for row in load(queue="census", numPartitions=3).collect()}
    tasks = {task.id: task for task in q.tasks()}
    assert rows.keys() == tasks.keys()
    for name, task in tasks.items():
        row = rows[name]
        assert (row.queue, row.state, row.status, row.attempt) == ("census", task.state, task.status, task.attempt)
        assert (row.filters, json.loads(row.metadata), row.data) == (task.filters, dict(task.metadata), task.data)
        assert (row.result, row.error, row.consumer) == (task.result, task.error, task.consumer)
        assert (row.batch, row.version, len(row.history)) == ("b", task.version, len(task.history))
        assert row.wait_ms == (None if task.claimed_ms is None else task.claimed_ms - task.enqueued_ms)
        ended = task.ended_ms is not None and task.claimed_ms is not None
        assert row.run_ms == (task.ended_ms - task.claimed_ms if ended else None)  # type: ignore[operator]
    assert len(rows) == 9
    few = load(columns="state,task_id")
    assert few.columns == ["state", "task_id"]
    either = few.where("state = 'dead'").union(few.where("state = 'claimed'"))
    both = either.union(load(columns="state,task_id", states="finished"))
    assert sorted(row.state for row in both.collect()) == ["claimed", "dead", *["finished"] * 3]


@pytest.mark.full
def test_what_is_wrong_is_one_clear_error_of_load(load, spark, where, subtests) -> None:
    """It begins with ours, without Spark's way to it; what Spark writes of a statement holds no password either."""
    nowhere = {"hosts": "127.0.0.1:1", "connectTimeout": "1s"}
    wrong: dict[str, dict[str, object]] = {
        "unknown option 'colums'": {"colums": "state"},
        f"queue 'cencus' does not exist under '{where['root']}' (did you mean 'census'?)": {"queues": "cencus"},
        "option 'password' is refused": {"password": PASSWORD},
        "no ZooKeeper server answered at 127.0.0.1:1 within connect_timeout (1 s)": nowhere,
    }
    for expected, options in wrong.items():
        with subtests.test(expected):
            with pytest.raises(AnalysisException) as caught:
                load(**options)
            text = str(caught.value)
            assert expected in text.splitlines()[0], text
            assert not any(part in text for part in ("Traceback", "\tat ", PASSWORD)), text
    for name in ("auth", "tls_key_password", "url"):
        with subtests.test(plan=name):
            statement = f"CREATE TEMPORARY VIEW v USING zkmq OPTIONS (hosts 'h:1', {name} 'ann:{PASSWORD}')"
            (row,) = spark.sql(f"EXPLAIN {statement}").collect()  # which is in the event log
            assert "h:1" in row[0]
            assert PASSWORD not in row[0]
    assert load(columns="task_id").count() == 10, "and the session goes on"


@pytest.mark.full
def test_the_page_on_spark_reads(load: Load, where: dict[str, str], tmp_path: Path) -> None:
    """The block that reads runs as it stands."""
    view = f'"census-{where["root"][1:]}"'
    real = {"127.0.0.1:2181": where["hosts"], "/tmp/read-report": str(tmp_path), '"census"': view}
    exec(compile(shown("spark.read.format", real), "docs/spark.md", "exec"), {})  # noqa: S102


@pytest.mark.full
@pytest.mark.parametrize("master", ["local[1]", pytest.param(CLUSTER, marks=SCALE)])
def test_credentials_come_from_where_the_code_runs_and_are_seen_nowhere(master, where, bucket, s3, tmp_path) -> None:
    """From the environment, or by an Airflow connection; not in plans, logs, tables, command lines, output.

    By a driver of its own, and executors that run the code out of the zip that is shipped to them.
    """
    hosts, root, password_file = *where.values(), tmp_path / "password"
    password_file.write_text(PASSWORD)
    with Zkmq.connect(hosts, root, auth=f"ann:{PASSWORD}", gc=False) as zk:
        queue = zk.queue("q")
        queue.enqueue_many([Message(b"x" * 10, task_id=f"t{n}") for n in range(40)])
        for _ in range(9):
            queue.claim(lease=60).complete()
    host, _, port = hosts.rpartition(":")
    connection = {"conn_type": "zkmq", "host": host, "port": int(port), "login": "ann", "password": PASSWORD}
    extra = {"endpoint_url": s3, "region_name": "eu-west-1"}
    store = {"conn_type": "aws", "login": "key", "password": PASSWORD, "extra": extra}
    environment = {
        "ZKMQ_AUTH": f"ann:{PASSWORD}",
        "AIRFLOW_CONN_STORE": json.dumps(store),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",  # which the connection's wins over
        "AIRFLOW_CONN_SECURED": json.dumps(connection | {"extra": {"root": root}}),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
    }
    process = program(
        "reads", master, hosts, root, tmp_path, password_file, bucket.address,
        environment=environment, cwd=tmp_path, stderr=subprocess.PIPE,
    )  # fmt: skip
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert PASSWORD not in output + errors


# --- rows become tasks


def rows(spark: SparkSession, count: int, *more: str) -> DataFrame:
    """So many rows in two partitions, with ids and data."""
    return spark.range(0, count, 1, 2).selectExpr("concat('t', id) id", "concat('data ', id) data", *more)


def work(q: Queue) -> Counter[str]:
    """Handle whatever is there; how often each task ran."""
    ran: Counter[str] = Counter()
    q.worker(lambda task: ran.update([task.id]), threads=1).run(until_empty=True)
    return ran


@contextmanager
def handled(q: Queue, threads: int = 1) -> Iterator[Counter[str]]:
    """How often each task has run so far, which a consumer handles in the block."""
    ran: Counter[str] = Counter()
    worker = q.worker(lambda task: ran.update([task.id]), threads=threads)
    worker.start()
    try:
        yield ran
    finally:
        worker.stop()
        worker.join()


def test_a_data_frame_becomes_tasks(spark: SparkSession, q: Queue, where: dict[str, str], tmp_path: Path) -> None:
    """Its columns are the parts of the tasks; made again, the write finds them all, also those that are done."""
    more = "cast(id % 3 as int) priority", "if(id % 2 = 0, 'low', 'standard') as `filter.performance_class`"
    df = rows(spark, 20, *more, "named_struct('number', id) metadata")
    report = enqueue(df, "census", batch="rows", **where)
    assert (report.rows, report.written, report.existing, report.batch) == (20, 20, 0, "rows")
    assert [(part.partition, part.rows) for part in report.partitions] == [(0, 10), (1, 10)]
    task = q.task("t5")
    assert (task.data, task.priority, task.metadata, task.batch) == (b"data 5", 2, {"number": 5}, "rows")
    assert (task.filters, q.batch("rows").total) == ({"performance_class": "standard"}, 20)
    assert set(work(q).values()) == {1}
    assert q.wait_batch("rows", timeout=30).done
    df.write.format("zkmq").mode("append").options(queues="census", batch="rows", **where).save()
    assert work(q) == {}
    keyed, key = df.drop("id"), {"key": "data,priority"}
    assert enqueue(keyed, "census", **key, **where).written == 20
    again = enqueue(keyed.repartition(3).orderBy("data"), "census", key="priority,data", **where)  # in another order
    assert (again.written, again.existing, len(internals(q).ids())) == (0, 20, 40)


@pytest.mark.full
def test_what_cannot_be_is_refused_where_the_write_is_planned(spark, q, where, subtests) -> None:
    """By one sentence of ours: a queue that is not there, columns, a mode, ZooKeeper that does not answer."""
    register(spark)
    wrong: list[tuple[str, str, dict[str, str]]] = [
        ("queue 'cencus' does not exist.*did you mean 'census'", "append", {"queue": "cencus"}),
        ("no column 'idd' for id", "append", {"id": "idd"}),
        (r'use mode\("append"\)', "overwrite", {}),
        ("ErrorIfExists", "error", {}),
        ("127.0.0.1:1", "append", {"hosts": "127.0.0.1:1", "connectTimeout": "1s"}),
    ]
    for why, mode, options in wrong:
        with subtests.test(why):
            write = rows(spark, 3).write.format("zkmq").mode(mode).options(**{"queue": "census"} | where | options)
            with pytest.raises(AnalysisException, match=why) as error:
                write.save()
            assert "Traceback" not in str(error.value)
    assert internals(q).ids() == []


@pytest.mark.full
def test_a_write_that_failed_is_completed_by_the_next_one(spark, q, where, tmp_path) -> None:
    """Its batch says that it is not written. What it wrote has been handled meanwhile, and does not run again."""
    count = PIECE_ROWS * 5 // 2
    broken = rows(spark, count).selectExpr("id", f"if(id = 't{count - 1}', null, data) payload")
    why = rf"^row {count // 2 - 1} of partition 1 \(id 't{count - 1}'\), column 'payload': the data .* null"
    with pytest.raises(SourceError, match=why):
        enqueue(broken, "census", data="payload", batch="b", **where)
    assert (q.batch("b").written, q.batch("b").done) == (False, False)
    done = [claim.task.id for _ in range(30) if (claim := q.claim()) is not None and claim.complete() is None]
    there = len(internals(q).ids())
    assert PIECE_ROWS <= there < count
    report = enqueue(rows(spark, count), "census", batch="b", **where)
    assert report.written + report.existing == count
    assert report.existing >= there  # the other partition's cancelled attempt may have gone on for a moment
    spaced = rows(spark, 4).selectExpr("if(id = 't3', 'a b', id) id", "data")
    with pytest.raises(PySparkException, match=r"\(id 'a b'\), column 'id': task id 'a b' is not allowed"):
        spaced.write.format("zkmq").mode("append").options(queue="census", **where).save()
    assert (q.counts()["finished"], q.counts()["inserted"]) == (30, count - 30)
    assert {task.state for task in q.tasks(ids=done)} == {"finished"}
    assert (q.batch("b").total, q.batch("b").open, q.batch("b").written) == (count, count - 30, True)


class Injected(Exception):
    """Ends an attempt."""


def batches(part: int, stop: int | None, gate: threading.Barrier | None) -> Iterator[pa.RecordBatch]:
    """100 rows of a partition in ten batches; `stop`: after so many of them the attempt fails."""
    for at in range(10):
        if at == stop:
            raise Injected
        if gate is not None and at == 5:
            gate.wait(30)  # both attempts are half-way
        ids = [f"p{part}-{n}" for n in range(at * 10, at * 10 + 10)]
        yield pa.RecordBatch.from_pylist([{"id": each, "data": "x"} for each in ids])


def test_attempts_that_fail_or_run_side_by_side_write_each_task_once(q, where, monkeypatch) -> None:
    """Four partitions, of each an attempt that fails and two at the same time, while consumers handle what is there."""
    monkeypatch.setattr("airflow_provider_zkmq.spark.source.writing.PIECE_ROWS", 15)
    writer = TaskWriter(TEXT, SourceOptions.of({"queue": "census", "batch": "b", **where}), overwrite=False)

    def partition(part: int) -> list[Any]:
        with pytest.raises(Injected):
            writer.write(batches(part, 4, None))
        gate = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            attempts = [pool.submit(writer.write, batches(part, None, gate)) for _ in range(2)]
        return [attempt.result() for attempt in attempts]

    with handled(q) as ran, ThreadPoolExecutor(2) as pool:
        told = list(pool.map(partition, range(4)))
        writer.commit([attempts[part % 2] for part, attempts in enumerate(told)])
        batch = q.wait_batch("b", timeout=120)
    assert (batch.total, batch.failed) == (400, ())
    assert (len(ran), set(ran.values())) == (400, {1})
    assert [sum(each.written for each in attempts) for attempts in told] == [100 - 30] * 4
    late = writer.write(batches(0, None, None))  # an attempt that nobody waited for
    assert (late.written, late.existing, len(ran)) == (0, 100, 400)


def test_a_queue_that_is_deleted_while_it_is_written_to_stays_deleted(zk: Zkmq, where: dict[str, str]) -> None:
    """An executor does not make it anew, where it would be without its filters."""
    for batch in ("", "b"):
        zk.queue("census").configure()
        writer = TaskWriter(TEXT, SourceOptions.of({"queue": "census", "batch": batch, **where}), overwrite=False)
        zk.queue("census").delete(confirm=True)
        with pytest.raises(SourceError, match=f"queue 'census' does not exist under '{where['root']}'"):
            writer.write(batches(0, None, None))
        assert zk.queues() == []


@pytest.mark.full
def test_the_page_writes(spark: SparkSession, where: dict[str, str]) -> None:
    """What the documentation shows of writes, executed as it stands, but for the addresses."""
    reach = '"{hosts}", root="{root}"'.format(**where)
    real = {'hosts="127.0.0.1:2181"': f"hosts={reach}", 'connect("127.0.0.1:2181")': f"connect({reach})"}
    exec(shown("enqueue(df", real), {})  # noqa: S102
    assert spark.active() is spark


def stream(spark: SparkSession, source: Path, where: dict[str, str], checkpoint: Path, **options: str) -> None:
    """Write all files of a folder, one micro-batch for each."""
    df = spark.readStream.schema("id string, data string").option("maxFilesPerTrigger", 1).json(str(source))
    sink = df.writeStream.format("zkmq").options(**{"queue": "census"} | where | options)
    sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def put(source: Path, name: str, *ids: str) -> None:
    source.mkdir(exist_ok=True)
    (source / name).write_text("".join(json.dumps({"id": each, "data": "x"}) + "\n" for each in ids))


@pytest.mark.full
def test_a_stream_that_was_killed_after_its_sink_committed_writes_nothing_twice(spark, q, where, tmp_path) -> None:
    """The checkpoint does not know of the micro-batch, which is run again; its tasks have been handled by then."""
    register(spark)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    put(source, "1.json", "a", "b")
    for options, why in (({"batch": "b"}, "a stream has no end"), ({"queue": "absent"}, "'absent' does not exist")):
        with pytest.raises(PySparkException, match=why):
            stream(spark, source, where, tmp_path / "refused", **options)
    put(source, "2.json", "c", "d")
    stream(spark, source, where, checkpoint)
    assert sorted(work(q)) == ["a", "b", "c", "d"]
    for left in (checkpoint / "commits").glob("*1*"):
        left.unlink()  # as if the driver had died just before
    put(source, "3.json", "d", "e")
    stream(spark, source, where, checkpoint)
    assert work(q) == {"e": 1}


@pytest.mark.full
@SCALE
def test_failures_and_a_killed_executor_leave_exactly_the_rows(q: Queue, where: dict[str, str], tmp_path: Path) -> None:
    """Each partition's first attempt fails, and of two executors one dies, while consumers handle what is there.

    Copies of a slow attempt are not among it: Spark starts them on other machines only. Attempts side by side are
    tried above.
    """
    total = 20_000
    with handled(q, threads=2) as ran:
        process = program("write", *where.values(), total, tmp_path, stderr=subprocess.PIPE)
        output, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors[-3_000:]
        batch = q.wait_batch("load", timeout=600)
    assert (batch.total, batch.failed, len(ran), set(ran.values())) == (total, (), total, {1})
    assert sum(q.counts()[state] for state in ("inserted", "claimed", "finished")) == total
    told = json.loads(output.splitlines()[-1])
    assert told == {"rows": total, "again": PARTITIONS, "killed": True}


@pytest.mark.full
@SCALE
def test_a_stream_whose_driver_is_killed_again_and_again_writes_each_row_once(q, where, tmp_path) -> None:
    """Three times with kill -9 while it writes; the fourth run ends it. Consumers handle what is there meanwhile."""
    total = 12_000
    source = tmp_path / "in"
    for number in range(40):
        put(source, f"{number:02}.json", *(f"s{n}" for n in range(number * 300, number * 300 + 300)))
    with handled(q) as ran:
        for kill in (1_000, 4_000, 8_000, None):
            process = program("stream", *where.values(), source, tmp_path / "checkpoint", stderr=subprocess.PIPE)
            if kill is not None:
                eventually(lambda most=kill, run=process: len(ran) > most or run.poll() is not None, 180)
                os.killpg(process.pid, 9)
            _, errors = process.communicate(timeout=300)
            assert kill is not None or process.returncode == 0, errors[-3_000:]
        eventually(lambda: len(ran) == total, 120)
    assert set(ran.values()) == {1}
    assert len(internals(q).ids()) == total


# --- both, in the example


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of the DAG, found as Airflow finds it."""
    monkeypatch.syspath_prepend(str(TOP / "example_dags"))
    yield import_module("zkmq_flights")
    for name in ("zkmq_flights", "zkmq_flights_delays"):
        sys.modules.pop(name, None)


@pytest.mark.full
def test_who_is_late_is_what_pandas_says(example, spark, zk, where, tmp_path) -> None:
    """The example on flights, without Airflow: each carrier's day is one task, also where it is written twice.

    The tables hold each flight once, and say what pandas says.
    """
    queue = zk.queue(example.QUEUE)
    queue.configure(filters={"carrier": String(), "size": OrderedEnum("light", "heavy")})
    register(spark)
    rows = example.carrier_days(example.read_csv(spark, "flights"), "run", DAYS).cache()
    for _ in range(2):  # as when the task of the DAG is tried again
        rows.write.format("zkmq").options(**where, queue=example.QUEUE, batch="run").mode("append").save()
    queue.worker(import_module("zkmq_flights_delays").delays, threads=2).run(until_empty=True)
    assert queue.wait_batch("run", timeout=60).total == rows.count() == queue.counts()["finished"]

    done = spark.read.format("zkmq").options(**where, queues=example.QUEUE, states="finished")
    answers = example.tables(spark, done.option("columns", "filters,result,batch").load())

    flights = example.read_csv(spark, "flights").toPandas()
    flights = flights[(flights.month == 1) & (flights.day <= DAYS)]
    late = flights.assign(late=flights.arr_delay >= 15, minutes=flights.arr_delay.clip(lower=0))
    wanted = late.groupby("carrier").agg(
        flights=("flight", "size"), flown=("arr_delay", "count"), late=("late", "sum"), minutes=("minutes", "sum")
    )
    assert {row["carrier"]: row["flights"] for row in answers["carriers"]} == wanted.flights.to_dict()
    for row in answers["carriers"]:
        one = wanted.loc[row["carrier"]]
        assert row["late_percent"] == pytest.approx(100 * one.late / one.flown, abs=0.051)
        assert row["mean_delay_minutes"] == pytest.approx(one.minutes / one.flown, abs=0.051)
    assert all(sum(row["flights"] for row in table) == wanted.flights.sum() for table in answers.values())
    assert {row["sky"] for row in answers["weather"]} > {"fair"}
    example.plot(answers, tmp_path / "new" / "flights.svg")
    assert "Late flights by carrier" in (tmp_path / "new" / "flights.svg").read_text()
