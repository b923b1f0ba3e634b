"""What the tests of writes run in a process of its own: Spark with executors, failures put in, one executor killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from airflow_provider_zkmq.engine import Zkmq
from airflow_provider_zkmq.spark import enqueue, register, spark_session

PARTITIONS, STRAGGLERS = 20, (7, 13)


def session(master: str, **conf: object) -> SparkSession:
    """A Spark whose workers find this checkout."""
    path = os.pathsep.join(each for each in sys.path if each)
    settings = {"spark.driver.memory": "700m", "spark.executorEnv.PYTHONPATH": path, **conf}
    return spark_session("zkmq-test-cluster", master=master, **settings)


def cluster() -> SparkSession:
    """Two executors in processes of their own, of which slow tasks are run twice."""
    return session(
        "local-cluster[2,1,700]",
        **{
            "spark.executor.memory": "700m",
            "spark.task.maxFailures": "10",
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.3",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "250",
        },
    )


def faulty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; its first attempt fails when most of them have gone through, or stands still there."""
    context = TaskContext.get()
    assert context is not None
    number = 0
    for batch in batches:
        number += batch.num_rows
        if number > 2_000 and context.attemptNumber() == 0:
            if context.partitionId() not in STRAGGLERS:
                msg = "injected failure"
                raise RuntimeError(msg)
            time.sleep(20)  # a straggler, which is run a second time meanwhile
        yield batch


def executors() -> list[int]:
    """The executors' processes, which are children of the driver's Java, which is ours."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes()
            mine = os.getpgid(int(folder.name)) == os.getpgid(0)
        except (OSError, ValueError):
            continue
        if mine and b"CoarseGrainedExecutorBackend" in words:
            found.append(int(folder.name))
    return found


def kill_one(hosts: str, root: str, after: int, killed: list[int]) -> None:
    """Kill an executor once so many tasks are there."""
    with Zkmq.connect(hosts, root=root, gc=False) as zk:
        queue = zk.queue("census")
        while sum(queue.counts().values()) < after:
            time.sleep(0.2)  # looks again; whoever runs this has a deadline
    running = executors()
    os.kill(running[0], signal.SIGKILL)
    killed.append(running[0])


def write(hosts: str, root: str, total: int) -> None:
    """Write so many rows under fire; prints the report."""
    spark = cluster()
    killed: list[int] = []
    threading.Thread(target=kill_one, args=(hosts, root, total // 3, killed), daemon=True).start()
    df = spark.range(0, total, 1, PARTITIONS).selectExpr("concat('t', id) id", "concat('data ', id) data")
    began = time.monotonic()
    report = enqueue(df.mapInArrow(faulty, df.schema), "census", hosts=hosts, root=root, batch="load")
    told = {"rows": report.rows, "complete": report.complete, "killed": len(killed)}
    told |= {"written": report.written, "existing": report.existing, "seconds": round(time.monotonic() - began, 1)}
    told["failures"] = sum(part.attempt > 0 for part in report.partitions)
    told["doubled"] = sum(part.attempt > 0 for part in report.partitions if part.partition in STRAGGLERS)
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    spark.stop()


def stream(hosts: str, root: str, source: str, checkpoint: str) -> None:
    """Write all files of a folder, one micro-batch for each."""
    spark = session("local[2]")
    register(spark)
    df = spark.readStream.schema("id string, data string").option("maxFilesPerTrigger", 1).json(source)
    sink = df.writeStream.format("zkmq").options(hosts=hosts, root=root, queue="census")
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        stream(*sys.argv[2:])
