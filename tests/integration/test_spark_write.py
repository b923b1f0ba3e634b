"""DataFrames and streams into queues, with a real Spark and a real ZooKeeper; each row is one task, whatever fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from airflow_provider_zkmq.engine import Queue, Zkmq
from airflow_provider_zkmq.spark import WriteReport, enqueue, register
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.loading import PIECE_ROWS
from airflow_provider_zkmq.spark.source.options import Options
from airflow_provider_zkmq.spark.source.writing import TaskWriter
from tests.support import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other

SCALE = bool(os.environ.get("ZKMQ_SCALE"))
TEXT = StructType([StructField("id", StringType()), StructField("data", StringType())])


@pytest.fixture
def to(zookeeper: str, root: str) -> dict[str, str]:
    """The options that say where to."""
    return {"hosts": zookeeper, "root": root}


def rows(spark: SparkSession, count: int, *more: str) -> DataFrame:
    """So many rows in two partitions, with ids and data."""
    return spark.range(0, count, 1, 2).selectExpr("concat('t', id) id", "concat('data ', id) data", *more)


def work(q: Queue) -> Counter[str]:
    """Handle whatever is there; how often each task ran."""
    ran: Counter[str] = Counter()
    lock = threading.Lock()

    def handle(task: Any) -> None:
        with lock:
            ran[task.id] += 1

    q.worker(handle, threads=2).run(until_empty=True)
    return ran


def test_a_data_frame_becomes_tasks(spark: SparkSession, q: Queue, to: dict[str, str], tmp_path: Path) -> None:
    """Its columns are the parts of the tasks; made again, the write finds them all, also those that are done."""
    df = rows(
        spark,
        60,
        "cast(id % 3 as int) priority",
        "if(id % 2 = 0, 'low', 'standard') as `filter.performance_class`",
        "named_struct('number', id) metadata",
    )
    report = enqueue(df, "census", batch="rows", **to)
    assert (report.rows, report.written, report.existing, report.complete) == (60, 60, 0, True)
    assert [(part.partition, part.rows) for part in report.partitions] == [(0, 30), (1, 30)]
    task = q.task("t5")
    assert (task.data, task.priority, task.metadata, task.batch) == (b"data 5", 2, {"number": 5}, "rows")
    assert (task.filters, q.batch("rows").total) == ({"performance_class": "standard"}, 60)
    assert set(work(q).values()) == {1}
    assert q.wait_batch("rows", timeout=30).done
    place = tmp_path / "report.json"
    df.write.format("zkmq").mode("append").options(queue="census", batch="rows", report=str(place), **to).save()
    told = json.loads(place.read_text())
    assert (told["rows"], told["written"], told["existing"], told["batch"]) == (60, 0, 60, "rows")
    assert (WriteReport.read(place).complete, work(q)) == (True, {})


def test_ids_are_made_of_a_key(spark: SparkSession, q: Queue, to: dict[str, str]) -> None:
    """The same rows in other partitions, and in another order, are the same tasks."""
    df = spark.range(0, 40, 1, 2).selectExpr("cast(id as int) day", "concat('c', id % 4) carrier")
    df = df.selectExpr("day", "carrier", "to_json(struct(day, carrier)) data")
    key = {"key": "day,carrier"}
    assert enqueue(df, "census", **key, **to).written == 40
    again = enqueue(df.repartition(3).orderBy("carrier"), "census", **key, **to)
    assert (again.written, again.existing, len(q.ids())) == (0, 40, 40)


def refused(df: DataFrame, **options: str) -> str:
    """What an ordinary write is refused with, where it is planned."""
    mode = options.pop("mode", "append")
    with pytest.raises(AnalysisException) as error:
        df.write.format("zkmq").mode(mode).options(**options).save()
    return str(error.value)


def test_what_cannot_be_is_refused_where_the_write_is_planned(
    spark: SparkSession, q: Queue, to: dict[str, str]
) -> None:
    """By one sentence of ours: a queue that is not there, columns, a mode, ZooKeeper that does not answer."""
    register(spark)
    df = rows(spark, 3)
    assert "queue 'cencus' does not exist" in refused(df, queue="cencus", **to)
    assert "did you mean 'census'" in refused(df, queue="cencus", **to)
    assert "nothing says what the tasks' ids are" in refused(df.drop("id"), queue="census", **to)
    assert 'use mode("append")' in refused(df, queue="census", mode="overwrite", **to)
    assert "ErrorIfExists" in refused(df, queue="census", mode="error", **to)
    gone = refused(df, queue="census", hosts="127.0.0.1:1", connectTimeout="1s")
    assert "127.0.0.1:1" in gone
    for text in (gone, refused(df, queue="census", bach="b", **to)):
        assert "Traceback" not in text
    assert q.ids() == []


def test_a_password_that_is_refused_is_not_in_what_spark_writes_of_the_statement(spark: SparkSession) -> None:
    """It would be in the event log before the data source is asked; what was hidden before is so still."""
    register(spark)
    for name in ("auth", "tls_key_password", "url"):
        statement = f"CREATE TEMPORARY VIEW v USING zkmq OPTIONS (hosts 'h:1', {name} 'ann:sesame')"
        (row,) = spark.sql(f"EXPLAIN {statement}").collect()
        assert "h:1" in row[0]
        assert "sesame" not in row[0]


def test_a_bad_value_is_told_by_its_row_and_its_column(spark: SparkSession, q: Queue, to: dict[str, str]) -> None:
    """By the one call as an error of ours, and by Spark's own write within Spark's error."""
    null = rows(spark, 4).selectExpr("id", "if(id = 't3', null, data) payload")
    with pytest.raises(SourceError, match=r"^row 1 of partition 1 \(id 't3'\), column 'payload': the data .* null"):
        enqueue(null, "census", data="payload", **to)
    spaced = rows(spark, 4).selectExpr("if(id = 't3', 'a b', id) id", "data")
    with pytest.raises(PySparkException, match=r"\(id 'a b'\), column 'id': task id 'a b' is not allowed"):
        spaced.write.format("zkmq").mode("append").options(queue="census", **to).save()
    assert set(q.ids()) <= {"t0", "t1", "t2"}


def test_a_write_that_failed_is_completed_by_the_next_one(
    spark: SparkSession, q: Queue, to: dict[str, str], tmp_path: Path
) -> None:
    """Its batch says that it is not written. What it wrote has been handled meanwhile, and does not run again."""
    place = tmp_path / "report.json"
    broken = rows(spark, 4_000).selectExpr("id", "if(id = 't3999', null, data) data")
    with pytest.raises(SourceError, match=r"row 1999 of partition 1 \(id 't3999'\)"):
        enqueue(broken, "census", batch="b", report=place, **to)
    assert not WriteReport.read(place).complete
    assert (q.batch("b").written, q.batch("b").done) == (False, False)
    done = [claim.task.id for _ in range(30) if (claim := q.claim()) is not None and claim.complete() is None]
    there = len(q.ids())
    assert PIECE_ROWS <= there < 4_000
    report = enqueue(rows(spark, 4_000), "census", batch="b", **to)
    assert (report.written + report.existing, report.complete) == (4_000, True)
    assert report.existing >= there  # the other partition's cancelled attempt may have gone on for a moment
    counts = q.counts()
    assert (counts["finished"], counts["inserted"]) == (30, 3_970)
    assert {task.state for task in q.read_many(done)} == {"finished"}
    assert (q.batch("b").total, q.batch("b").open, q.batch("b").written) == (4_000, 3_970, True)


class Injected(Exception):
    """Ends an attempt."""


def batches(part: int, stop: int | None, gate: threading.Barrier | None) -> Iterator[pa.RecordBatch]:
    """200 rows of a partition in ten batches; `stop`: after so many of them the attempt fails."""
    for at in range(10):
        if at == stop:
            raise Injected
        if gate is not None and at == 5:
            gate.wait(30)  # both attempts are half-way
        ids = [f"p{part}-{n}" for n in range(at * 20, at * 20 + 20)]
        yield pa.RecordBatch.from_pylist([{"id": each, "data": "x"} for each in ids])


def test_attempts_that_fail_or_run_side_by_side_write_each_task_once(
    q: Queue, to: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four partitions, of each an attempt that fails and two at the same time, while consumers handle what is there."""
    monkeypatch.setattr("airflow_provider_zkmq.spark.source.loading.PIECE_ROWS", 30)
    writer = TaskWriter(TEXT, Options.of({"queue": "census", "batch": "b", **to}), overwrite=False)
    ran: Counter[str] = Counter()
    worker = q.worker(lambda task: ran.update([task.id]), threads=1)
    worker.start()

    def partition(part: int) -> list[Any]:
        with pytest.raises(Injected):
            writer.write(batches(part, 4, None))
        gate = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            attempts = [pool.submit(writer.write, batches(part, None, gate)) for _ in range(2)]
        return [attempt.result() for attempt in attempts]

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(partition, range(4)))
    writer.commit([attempts[part % 2] for part, attempts in enumerate(told)])
    batch = q.wait_batch("b", timeout=120)
    worker.stop()
    worker.join()
    assert (batch.total, batch.failed) == (800, ())
    assert (len(ran), set(ran.values())) == (800, {1})
    assert [sum(each.written for each in attempts) for attempts in told] == [200 - 60] * 4
    late = writer.write(batches(0, None, None))  # an attempt that nobody waited for
    assert (late.written, late.existing, len(ran)) == (0, 200, 800)


@pytest.mark.parametrize("batch", ["", "b"])
def test_a_queue_that_is_deleted_while_it_is_written_to_stays_deleted(
    q: Queue, to: dict[str, str], batch: str, root: str
) -> None:
    """An executor does not make it anew, where it would be without its filters."""
    writer = TaskWriter(TEXT, Options.of({"queue": "census", "batch": batch, **to}), overwrite=False)
    q.delete(confirm=True)
    with pytest.raises(SourceError, match=f"queue 'census' does not exist under '{root}'"):
        writer.write(batches(0, None, None))
    with Zkmq.connect(to["hosts"], root=to["root"]) as zk:
        assert zk.queues() == []


def test_the_page_runs(spark: SparkSession, to: dict[str, str]) -> None:
    """What the documentation shows of writes, executed as it stands, but for the addresses."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    (code,) = (
        each for each in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if "enqueue(df" in each
    )
    hosts, root = to["hosts"], to["root"]
    code = code.replace('hosts="127.0.0.1:2181"', f'hosts="{hosts}", root="{root}"')
    exec(code.replace('connect("127.0.0.1:2181")', f'connect("{hosts}", root="{root}")'), {})  # noqa: S102
    assert spark.active() is spark


# --- streams


def stream(spark: SparkSession, source: Path, to: dict[str, str], checkpoint: Path, **options: str) -> None:
    """Write all files of a folder, one micro-batch for each."""
    df = spark.readStream.schema("id string, data string").option("maxFilesPerTrigger", 1).json(str(source))
    sink = df.writeStream.format("zkmq").options(queue="census", **to, **options)
    sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def put(source: Path, name: str, *ids: str) -> None:
    source.mkdir(exist_ok=True)
    (source / name).write_text("".join(json.dumps({"id": each, "data": "x"}) + "\n" for each in ids))


def test_a_stream_that_was_killed_after_its_sink_committed_writes_nothing_twice(
    spark: SparkSession, q: Queue, to: dict[str, str], tmp_path: Path
) -> None:
    """The checkpoint does not know of the micro-batch, which is run again; its tasks have been handled by then."""
    register(spark)
    source, checkpoint, place = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "report.json"
    put(source, "1.json", "a", "b")
    put(source, "2.json", "c", "d")
    stream(spark, source, to, checkpoint, report=str(place))
    assert (sorted(work(q)), WriteReport.read(place).epoch) == (["a", "b", "c", "d"], 1)
    for left in (checkpoint / "commits").glob("*1*"):
        left.unlink()  # as if the driver had died just before
    put(source, "3.json", "d", "e")
    stream(spark, source, to, checkpoint, report=str(place))
    report = WriteReport.read(place)
    assert (report.epoch, report.written, report.existing) == (2, 1, 1)
    assert work(q) == {"e": 1}


def test_a_stream_that_cannot_be_written_is_refused(spark: SparkSession, to: dict[str, str], tmp_path: Path) -> None:
    """A batch that would never be complete; a queue that is not there."""
    register(spark)
    put(tmp_path / "in", "1.json", "a")
    for options, why in (({"batch": "b"}, "a stream has no end"), ({}, "queue 'census' does not exist")):
        with pytest.raises(PySparkException, match=why):
            stream(spark, tmp_path / "in", to, tmp_path / "checkpoint", **options)


# --- a cluster of executors in processes of their own


def script(*arguments: object) -> subprocess.Popen[str]:
    """A process of its own, with Spark's executors below it."""
    words = [sys.executable, "-m", "tests.integration.spark_cluster", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env
    )


@pytest.mark.skipif(not SCALE, reason="starts a Spark cluster; ZKMQ_SCALE=1")
def test_failures_speculation_and_a_killed_executor_leave_exactly_the_rows(q: Queue, to: dict[str, str]) -> None:
    """50 000 rows on two executors: each partition's first attempt fails, stragglers are doubled, an executor dies."""
    total = 50_000
    ran: Counter[str] = Counter()
    worker = q.worker(lambda task: ran.update([task.id]), threads=2)
    worker.start()
    process = script("write", to["hosts"], to["root"], total)
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors[-3_000:]
    told = json.loads(output.splitlines()[-1])
    batch = q.wait_batch("load", timeout=600)
    worker.stop()
    worker.join()
    assert (batch.total, batch.failed, len(ran), set(ran.values())) == (total, (), total, {1})
    assert sum(q.counts()[state] for state in ("inserted", "claimed", "finished")) == total
    assert (told["rows"], told["killed"], told["complete"]) == (total, 1, True)
    assert told["failures"] > 1
    assert told["doubled"] > 0


def _wrote(process: subprocess.Popen[str], ran: Counter[str], most: int) -> bool:
    """Whether so many tasks have run, or the process has ended by itself."""
    return len(ran) > most or process.poll() is not None


@pytest.mark.skipif(not SCALE, reason="starts Spark several times; ZKMQ_SCALE=1")
def test_a_stream_whose_driver_is_killed_again_and_again_writes_each_row_once(
    q: Queue, to: dict[str, str], tmp_path: Path
) -> None:
    """Three times with kill -9 while it writes; the fourth run ends it. Consumers handle what is there meanwhile."""
    total = 12_000
    source = tmp_path / "in"
    for number in range(40):
        put(source, f"{number:02}.json", *(f"s{n}" for n in range(number * 300, number * 300 + 300)))
    ran: Counter[str] = Counter()
    worker = q.worker(lambda task: ran.update([task.id]), threads=1)
    worker.start()
    for kill in (1_000, 4_000, 8_000, None):
        process = script("stream", to["hosts"], to["root"], source, tmp_path / "checkpoint")
        if kill is not None:
            eventually(partial(_wrote, process, ran, kill), 180)
            os.killpg(process.pid, 9)
        _, errors = process.communicate(timeout=300)
        assert kill is not None or process.returncode == 0, errors[-3_000:]
    eventually(lambda: len(ran) == total, 120)
    worker.stop()
    worker.join()
    assert set(ran.values()) == {1}
    assert len(q.ids()) == total
