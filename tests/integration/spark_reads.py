"""A driver of its own that reads a secured queue through the data source, and looks for the password everywhere.

``python -m tests.integration.spark_reads MASTER HOSTS ROOT FOLDER PASSWORD-FILE``: prints what it found as one line of
JSON. ``ZKMQ_AUTH`` and ``AIRFLOW_CONN_SECURED`` are in the environment, which executors inherit.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_zkmq.spark import py_files, read_report, register, spark_session


def processes() -> Iterator[str]:
    """The command lines of this process and of all that it has started, directly or not."""
    commands, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            commands[pid] = (folder / "cmdline").read_bytes().decode(errors="replace")
    for pid, command in commands.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            yield command


def plans(frame: DataFrame) -> str:
    """All that Spark shows of a query."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        frame.explain(True)
        frame.explain("formatted")
    return shown.getvalue() + frame._jdf.queryExecution().toString()


def failure(frame: Any) -> str:
    """What a user sees of an error."""
    try:
        frame()
    except Exception as error:  # noqa: BLE001  whatever it is, it is shown
        return f"{type(error).__name__}: {error}"
    return "no error"


def main(master: str, hosts: str, root: str, folder: str, password_file: str) -> None:
    """Read, and tell."""
    password, events = Path(password_file).read_text(), Path(folder, "events")
    events.mkdir()
    spark = spark_session(
        "secured",
        master,
        **{
            "spark.driver.memory": "700m",
            "spark.executor.memory": "600m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",  # it is searched for the password
            "spark.submit.pyFiles": py_files(folder),
        },
    )
    register(spark)
    reader = spark.read.format("zkmq").options(root=root, columns="task_id,state,data", numPartitions=4)
    by_environment = reader.option("hosts", hosts).option("report", f"{folder}/report").load()
    by_connection = spark.read.format("zkmq").options(conn_id="secured", columns="task_id,state,attempt").load()
    answer = {
        "rows": [by_environment.count(), by_connection.count()],
        "payloads": sum(len(row.data) for row in by_environment.collect()),
        "reported": read_report(f"{folder}/report").rows,
        "pids": len({row.pid for row in _where(by_environment)}),
        "code": sorted({row.code for row in _where(by_environment)}),
        "unknown": failure(spark.read.format("zkmq").options(conn_id="nowhere").load),
        "refused": failure(reader.option("hosts", hosts).option("auth", f"ann:{password}").load),
        "in plans": password in plans(by_environment) + plans(by_connection),
        "in commands": any(password in command for command in processes()),
        "executors": sum("CoarseGrainedExecutorBackend" in command for command in processes()),
    }
    spark.stop()
    written = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    answer["events"] = sum(map(len, written))
    answer["in events"] = any(password.encode() in each for each in written)
    sys.stdout.write(json.dumps(answer) + "\n")


def _where(frame: DataFrame) -> list[Any]:
    """The processes that had the rows, and where each has this package from."""

    def places(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        import airflow_provider_zkmq

        for batch in batches:
            count = batch.num_rows
            place = {"pid": [os.getpid()] * count, "code": [airflow_provider_zkmq.__file__] * count}
            yield pa.RecordBatch.from_pydict(place)

    return frame.select("task_id").mapInArrow(places, "pid long, code string").distinct().collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
