"""Programs with a Spark of their own, for tests that kill them, give them a cluster, or look at what they leave behind.

``python -m tests.integration.spark_programs NAME ARGUMENTS``: each function of the last line is one. What they
find is the last line that they print; one that asserts something fails where that is not so.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from airflow_provider_zkmq.engine import Zkmq
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark import enqueue, py_files, read, register, spark_session
from airflow_provider_zkmq.spark.history import stage_and_load
from airflow_provider_zkmq.spark.history.bronze import archive_queue
from airflow_provider_zkmq.spark.history.pipeline import run_pipeline
from airflow_provider_zkmq.spark.source.options import SourceOptions
from tests.integration.conftest import QUICK
from tests.support import eventually

CLUSTER, EXECUTOR = "local-cluster[2,1,700]", "CoarseGrainedExecutorBackend"
#: A write has so many partitions; the last one does not end before an executor was killed.
PARTITIONS = 20
TOP = Path(__file__).parents[2]
#: The pages on Spark.
PAGES = ("docs/spark.md", "docs/spark-history.md")


def program(*arguments: object, environment: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """A program in a process group of its own, together with its Java, Spark's executors and Python workers."""
    words = [sys.executable, "-m", __name__, *map(str, arguments)]
    path = os.pathsep.join([str(TOP), *(each for each in sys.path if each)])
    pipes: Any = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    env = {**os.environ, "PYTHONPATH": path, **(environment or {})}
    return subprocess.Popen(words, text=True, start_new_session=True, env=env, **pipes, **options)


def shown(word: str, real: Mapping[str, str], language: str = "python") -> str:
    """What the pages on Spark show in a language where a word stands, with real addresses and folders."""
    page = "\n".join((TOP / name).read_text() for name in PAGES)
    found = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    code = "".join(block for block in found if word in block)
    assert code, f"the pages on Spark do not show {word}"
    spell = re.compile("|".join(map(re.escape, real)))
    return spell.sub(lambda each: real[each[0]], code)


def processes(top: int) -> dict[int, str]:
    """The command lines of a process and of all that it has started, directly or not."""
    commands, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    family, size = {top}, 0
    while len(family) > size:
        size = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return {pid: commands[pid] for pid in family & commands.keys()}


def peak_kilobytes(pid: int) -> int:
    """The most memory that a process had at once."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1])
    return 0


def session(master: str, **conf: object) -> SparkSession:
    """A Spark whose workers find this checkout."""
    path = os.pathsep.join(each for each in sys.path if each)
    memory = {"spark.driver.memory": "700m", "spark.executor.memory": "700m"}
    return spark_session("zkmq-tests", master, **{**memory, "spark.executorEnv.PYTHONPATH": path, **conf})


def say(line: str) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tables(what: str, hosts: str, root: str, directory: str, master: str) -> None:
    """Bring an archive, or the whole pipeline, up to date for each line of the input; each part of it is told of."""
    where = {"hosts": hosts, "root": root}
    stage_and_load.FEW = 0  # all of it is Spark's

    def step(name: str) -> None:
        if name == os.environ.get("ZKMQ_KILLED_AT"):
            os.kill(os.getpid(), signal.SIGKILL)
        say(f"step {name}")

    quick = QUICK if "ZKMQ_KILLED_AT" in os.environ else {}
    spark = session(master, **{"spark.driver.memory": "1g", "spark.task.maxFailures": "6"} | quick)
    spark.range(10).mapInArrow(lambda batches: batches, "id bigint").count()  # Python workers are there from now on
    say("ready")
    for _ in sys.stdin:
        try:
            if what == "archive":
                told: dict[str, Any] = {
                    "archived": archive_queue(where, "census", directory, spark, after=step).archived
                }
            else:
                (done,) = run_pipeline(where, None, directory, spark, lifetime=0, after=step).queues
                peaks = {pid: peak_kilobytes(pid) for pid in processes(os.getpid())}
                told = {"steps": done.steps, "peak_kb": sum(peaks.values()), "driver_kb": peaks[os.getpid()]}
            say(json.dumps(told))
        except Exception as error:  # noqa: BLE001  whatever the kill of a worker makes of it
            say(f"failed {type(error).__name__}")


def faulty(killed: str, rows: int) -> Any:
    """Makes the first attempt of each partition fail when most of its rows have gone through."""

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context, number = TaskContext.get(), 0
        assert context is not None
        for batch in batches:
            number += batch.num_rows
            if number > rows * 3 // 4 and context.attemptNumber() == 0:
                raise RuntimeError("injected failure")
            yield batch
        if context.partitionId() == PARTITIONS - 1:
            eventually(Path(killed).exists, 300)

    return through


def kill_one(hosts: str, root: str, after: int, killed: Path) -> None:
    """Kill an executor once so many tasks are there."""
    with Zkmq.connect(hosts, root=root, gc=False) as zk:
        queue = zk.queue("census")
        eventually(lambda: sum(queue.counts().values()) >= after, 300)
    running = [pid for pid, command in processes(os.getpid()).items() if EXECUTOR in command]
    os.kill(running[0], signal.SIGKILL)
    killed.touch()


def write(hosts: str, root: str, total: str, folder: str) -> None:
    """Write so many rows by two executors, of which one is killed; the first attempt of each partition fails."""
    conf = {"spark.task.maxFailures": 10, "spark.sql.execution.arrow.maxRecordsPerBatch": 100}
    spark, killed = session(CLUSTER, **conf), Path(folder, "killed")
    threading.Thread(target=kill_one, args=(hosts, root, int(total) // 3, killed), daemon=True).start()
    df = spark.range(0, int(total), 1, PARTITIONS).selectExpr("concat('t', id) id", "concat('data ', id) data")
    broken = df.mapInArrow(faulty(str(killed), int(total) // PARTITIONS), df.schema)
    report = enqueue(broken, "census", hosts=hosts, root=root, batch="load")
    again = sum(part.attempt > 0 for part in report.partitions)
    say(json.dumps({"rows": report.rows, "again": again, "killed": killed.exists()}))
    spark.stop()


def stream(hosts: str, root: str, source: str, checkpoint: str) -> None:
    """Write all files of a folder, one micro-batch for each."""
    spark = session("local[2]")
    register(spark)
    df = spark.readStream.schema("id string, data string").option("maxFilesPerTrigger", 1).json(source)
    sink = df.writeStream.format("zkmq").options(hosts=hosts, root=root, queue="census")
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def follow(spark: SparkSession, told: dict[str, Any]) -> StreamingQuery:
    """Follow queues into a Parquet table.

    `told`: `options` of the data source, `checkpoint` and `table` (folders); `until_empty`: end with what has ended by
    now.
    """
    frame = spark.readStream.format("zkmq").options(**told["options"]).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", told["checkpoint"])
    trigger = {"availableNow": True} if told.get("until_empty") else {"processingTime": "0 seconds"}
    return writer.option("path", told["table"]).trigger(**trigger).start()


def following(text: str) -> None:
    """Follow as this JSON says, and tell of each batch."""
    spark = session("local[2]")
    register(spark)
    query, seen = follow(spark, json.loads(text)), -1
    while query.isActive:
        query.awaitTermination(0.2)
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > seen:
            seen = progress["batchId"]
            say(f"batch {seen}")
    query.awaitTermination()


def plans(frame: DataFrame) -> str:
    """All that Spark shows of a query."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        frame.explain(True)
        frame.explain("formatted")
    return shown.getvalue() + frame._jdf.queryExecution().toString()


def places(batches: Iterator[Any]) -> Iterator[Any]:
    """The processes that have the rows, and where each has this package from."""
    import airflow_provider_zkmq

    for batch in batches:
        count = batch.num_rows
        place = {"pid": [os.getpid()] * count, "code": [airflow_provider_zkmq.__file__] * count}
        yield pa.RecordBatch.from_pydict(place)


def reads(master: str, hosts: str, root: str, folder: str, password_file: str, bucket: str) -> None:
    """Read, follow and archive a secured queue, the archive in S3, and look for the password everywhere.

    ``ZKMQ_AUTH``, ``AIRFLOW_CONN_SECURED`` and ``AIRFLOW_CONN_STORE`` are in the environment, which executors inherit.
    The key to S3 is the same password.
    """
    password, events = Path(password_file).read_text(), Path(folder, "events")
    events.mkdir()
    conf = {"enabled": True, "dir": events.as_uri(), "compress": False}  # it is searched for the password
    conf = {f"spark.eventLog.{name}": str(value).lower() for name, value in conf.items()}
    conf |= {"spark.driver.memory": "700m", "spark.executor.memory": "600m", "spark.submit.pyFiles": py_files(folder)}
    spark = spark_session("secured", master, **conf)
    register(spark)
    reader = spark.read.format("zkmq").options(root=root, columns="task_id,state,data", numPartitions=4)
    by_environment = reader.option("hosts", hosts).load()
    by_connection = spark.read.format("zkmq").options(connId="secured", columns="task_id,state,attempt").load()
    had = by_environment.select("task_id").mapInArrow(places, "pid long, code string").distinct().collect()
    assert not [row.code for row in had if ".zip/" not in row.code], "what was shipped is what runs"
    assert (by_environment.count(), by_connection.count()) == (40, 40)
    assert sum(len(row.data) for row in by_environment.collect()) == 400
    told = {"options": {"hosts": hosts, "root": root, "numPartitions": "4"}, "until_empty": True}
    follow(spark, told | {each: f"{folder}/{each}" for each in ("checkpoint", "table")}).awaitTermination()
    assert spark.read.parquet(f"{folder}/table").count() == 9
    stage_and_load.FEW, store = 0, Location(bucket, "store")
    (done,) = run_pipeline(SourceOptions.of({"connId": "secured"}), ["q"], store, spark, lifetime=0).queues
    assert (done.steps["bronze"]["rows"], done.steps["gc"]["deleted"], done.steps["silver"]["runs"]) == (9, 9, 9)
    kept = read(spark, store, "bronze", "q")
    assert sum(len(row.data) for row in kept.select("data").collect()) == 90
    for wrong, why in (
        (spark.read.format("zkmq").options(connId="nowhere"), "connection 'nowhere' is not known here"),
        (reader.option("hosts", hosts).option("auth", f"ann:{password}"), "option 'auth' is refused"),
    ):
        with pytest.raises(AnalysisException) as refused:
            wrong.load()
        assert why in str(refused.value).splitlines()[0]
    commands = processes(os.getpid()).values()
    assert not [command for command in commands if password in command]
    if master == CLUSTER:
        assert sum(EXECUTOR in command for command in commands) == 2
        assert len({row.pid for row in had}) >= 2
    assert password not in plans(by_environment) + plans(by_connection) + plans(kept)
    spark.stop()
    files = store.files()
    logs = [
        each.path
        for each in files.get_file_info(FileSelector(store.path, recursive=True))
        if "_delta_log/" in each.path
    ]
    assert logs
    assert not [path for path in logs if password.encode() in files.open_input_file(path).read()]
    assert list(events.rglob("*"))
    written = [path for path in Path(folder).rglob("*") if path.is_file() and path != Path(password_file)]
    assert not [path for path in written if password.encode() in path.read_bytes()]


if __name__ == "__main__":
    {each.__name__: each for each in (tables, write, stream, following, reads)}[sys.argv[1]](*sys.argv[2:])
