"""DataFrames and streams into queues, with a real Spark and a real ZooKeeper; each row is one task, whatever fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from tests.integration.spark_programs import TOP, program
from tests.support import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other

SCALE = bool(os.environ.get("ZKMQ_SCALE"))
TEXT = StructType([StructField("id", StringType()), StructField("data", StringType())])


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
    df = rows(
        spark,
        60,
        "cast(id % 3 as int) priority",
        "if(id % 2 = 0, 'low', 'standard') as `filter.performance_class`",
        "named_struct('number', id) metadata",
    )
    report = enqueue(df, "census", batch="rows", **where)
    assert (report.rows, report.written, report.existing, report.complete) == (60, 60, 0, True)
    assert [(part.partition, part.rows) for part in report.partitions] == [(0, 30), (1, 30)]
    task = q.task("t5")
    assert (task.data, task.priority, task.metadata, task.batch) == (b"data 5", 2, {"number": 5}, "rows")
    assert (task.filters, q.batch("rows").total) == ({"performance_class": "standard"}, 60)
    assert set(work(q).values()) == {1}
    assert q.wait_batch("rows", timeout=30).done
    place = tmp_path / "report.json"
    df.write.format("zkmq").mode("append").options(queue="census", batch="rows", report=str(place), **where).save()
    told = json.loads(place.read_text())
    assert (told["rows"], told["written"], told["existing"], told["batch"]) == (60, 0, 60, "rows")
    assert (WriteReport.read(place).complete, work(q)) == (True, {})
    keyed, key = df.drop("id"), {"key": "data,priority"}
    assert enqueue(keyed, "census", **key, **where).written == 60
    again = enqueue(keyed.repartition(3).orderBy("data"), "census", **key, **where)  # other partitions, another order
    assert (again.written, again.existing, len(q.ids())) == (0, 60, 120)


@pytest.mark.full
def test_what_cannot_be_is_refused_where_the_write_is_planned(
    spark: SparkSession, q: Queue, where: dict[str, str], subtests: pytest.Subtests
) -> None:
    """By one sentence of ours: a queue that is not there, columns, a mode, ZooKeeper that does not answer."""
    register(spark)
    df = rows(spark, 3)
    wrong: list[tuple[str, DataFrame, str, dict[str, str]]] = [
        ("queue 'cencus' does not exist.*did you mean 'census'", df, "append", {"queue": "cencus"}),
        ("nothing says what the tasks' ids are", df.drop("id"), "append", {}),
        (r'use mode\("append"\)', df, "overwrite", {}),
        ("ErrorIfExists", df, "error", {}),
        ("127.0.0.1:1", df, "append", {"hosts": "127.0.0.1:1", "connectTimeout": "1s"}),
        ("unknown option 'bach'", df, "append", {"bach": "b"}),
    ]
    for why, frame, mode, options in wrong:
        with subtests.test(why):
            write = frame.write.format("zkmq").mode(mode).options(**{"queue": "census"} | where | options)
            with pytest.raises(AnalysisException, match=why) as error:
                write.save()
            assert "Traceback" not in str(error.value)
    assert q.ids() == []


@pytest.mark.full
def test_a_write_that_failed_is_completed_by_the_next_one(
    spark: SparkSession, q: Queue, where: dict[str, str], tmp_path: Path
) -> None:
    """Its batch says that it is not written. What it wrote has been handled meanwhile, and does not run again."""
    place = tmp_path / "report.json"
    broken = rows(spark, 4_000).selectExpr("id", "if(id = 't3999', null, data) payload")
    why = r"^row 1999 of partition 1 \(id 't3999'\), column 'payload': the data .* null"
    with pytest.raises(SourceError, match=why):
        enqueue(broken, "census", data="payload", batch="b", report=place, **where)
    assert not WriteReport.read(place).complete
    assert (q.batch("b").written, q.batch("b").done) == (False, False)
    done = [claim.task.id for _ in range(30) if (claim := q.claim()) is not None and claim.complete() is None]
    there = len(q.ids())
    assert PIECE_ROWS <= there < 4_000
    report = enqueue(rows(spark, 4_000), "census", batch="b", **where)
    assert (report.written + report.existing, report.complete) == (4_000, True)
    assert report.existing >= there  # the other partition's cancelled attempt may have gone on for a moment
    spaced = rows(spark, 4).selectExpr("if(id = 't3', 'a b', id) id", "data")
    with pytest.raises(PySparkException, match=r"\(id 'a b'\), column 'id': task id 'a b' is not allowed"):
        spaced.write.format("zkmq").mode("append").options(queue="census", **where).save()
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
    q: Queue, where: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four partitions, of each an attempt that fails and two at the same time, while consumers handle what is there."""
    monkeypatch.setattr("airflow_provider_zkmq.spark.source.loading.PIECE_ROWS", 30)
    writer = TaskWriter(TEXT, Options.of({"queue": "census", "batch": "b", **where}), overwrite=False)

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
    assert (batch.total, batch.failed) == (800, ())
    assert (len(ran), set(ran.values())) == (800, {1})
    assert [sum(each.written for each in attempts) for attempts in told] == [200 - 60] * 4
    late = writer.write(batches(0, None, None))  # an attempt that nobody waited for
    assert (late.written, late.existing, len(ran)) == (0, 200, 800)


def test_a_queue_that_is_deleted_while_it_is_written_to_stays_deleted(zk: Zkmq, where: dict[str, str]) -> None:
    """An executor does not make it anew, where it would be without its filters."""
    for batch in ("", "b"):
        zk.queue("census").configure()
        writer = TaskWriter(TEXT, Options.of({"queue": "census", "batch": batch, **where}), overwrite=False)
        zk.queue("census").delete(confirm=True)
        with pytest.raises(SourceError, match=f"queue 'census' does not exist under '{where['root']}'"):
            writer.write(batches(0, None, None))
        assert zk.queues() == []


def test_the_page_runs(spark: SparkSession, where: dict[str, str]) -> None:
    """What the documentation shows of writes, executed as it stands, but for the addresses."""
    page = (TOP / "docs/spark.md").read_text()
    (code,) = (
        each for each in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if "enqueue(df" in each
    )
    hosts, root = where["hosts"], where["root"]
    code = code.replace('hosts="127.0.0.1:2181"', f'hosts="{hosts}", root="{root}"')
    exec(code.replace('connect("127.0.0.1:2181")', f'connect("{hosts}", root="{root}")'), {})  # noqa: S102
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
def test_a_stream_that_was_killed_after_its_sink_committed_writes_nothing_twice(
    spark: SparkSession, q: Queue, where: dict[str, str], tmp_path: Path
) -> None:
    """The checkpoint does not know of the micro-batch, which is run again; its tasks have been handled by then."""
    register(spark)
    source, checkpoint, place = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "report.json"
    put(source, "1.json", "a", "b")
    for options, why in (({"batch": "b"}, "a stream has no end"), ({"queue": "absent"}, "'absent' does not exist")):
        with pytest.raises(PySparkException, match=why):
            stream(spark, source, where, tmp_path / "refused", **options)
    put(source, "2.json", "c", "d")
    stream(spark, source, where, checkpoint, report=str(place))
    assert (sorted(work(q)), WriteReport.read(place).epoch) == (["a", "b", "c", "d"], 1)
    for left in (checkpoint / "commits").glob("*1*"):
        left.unlink()  # as if the driver had died just before
    put(source, "3.json", "d", "e")
    stream(spark, source, where, checkpoint, report=str(place))
    report = WriteReport.read(place)
    assert (report.epoch, report.written, report.existing) == (2, 1, 1)
    assert work(q) == {"e": 1}


@pytest.mark.full
@pytest.mark.skipif(not SCALE, reason="starts a Spark cluster; ZKMQ_SCALE=1")
def test_failures_speculation_and_a_killed_executor_leave_exactly_the_rows(q: Queue, where: dict[str, str]) -> None:
    """50 000 rows on two executors: each partition's first attempt fails, stragglers are doubled, an executor dies."""
    total = 50_000
    with handled(q, threads=2) as ran:
        process = program("write", *where.values(), total, stderr=subprocess.PIPE)
        output, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors[-3_000:]
        told = json.loads(output.splitlines()[-1])
        batch = q.wait_batch("load", timeout=600)
    assert (batch.total, batch.failed, len(ran), set(ran.values())) == (total, (), total, {1})
    assert sum(q.counts()[state] for state in ("inserted", "claimed", "finished")) == total
    assert (told["rows"], told["killed"], told["complete"]) == (total, 1, True)
    assert told["failures"] > 1
    assert told["doubled"] > 0


@pytest.mark.full
@pytest.mark.skipif(not SCALE, reason="starts Spark several times; ZKMQ_SCALE=1")
def test_a_stream_whose_driver_is_killed_again_and_again_writes_each_row_once(
    q: Queue, where: dict[str, str], tmp_path: Path
) -> None:
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
    assert len(q.ids()) == total
