"""A small run of the pipeline into a large archive, in this process and by Spark, and the report: in seconds.

``python -m tests.benchmarks.history [--archived 20000] [--new 50]``: what starts Spark, and its first run, is apart.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import Zkmq
from airflow_provider_zkmq.spark import report, run_pipeline, spark_session
from airflow_provider_zkmq.spark.history import stage_and_load
from tests.integration.ended import ended_tasks


def timed(what: str, call: Callable[[], object]) -> None:
    """Call, and tell how long it took."""
    began = time.monotonic()
    call()
    print(f"{what}: {time.monotonic() - began:.2f} s")  # noqa: T201  a command's output


def main() -> None:
    """Compare both ways on one archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archived", type=int, default=20_000)
    parser.add_argument("--new", type=int, default=50)
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(EmbeddedServer(folder / "zookeeper", force_sync=False))
        where = {"hosts": server.hosts, "root": "/bench"}
        queue = stack.enter_context(Zkmq.connect(**where)).queue("census")
        queue.configure(archive=True)
        count = 0

        def run(new: int, spark: object = None) -> Callable[[], object]:
            nonlocal count
            ended_tasks(queue, new, first=count)
            count += new
            return lambda: run_pipeline(where, ["census"], folder / "archive", spark)  # type: ignore[arg-type]

        timed(f"the first {chosen.archived} in this process", run(chosen.archived))
        for _ in range(3):
            timed(f"{chosen.new} more in this process", run(chosen.new))
        timed("a report", lambda: report(folder / "archive", ["census"]).text())
        stage_and_load.FEW = 0
        with contextlib.redirect_stderr(io.StringIO()):
            spark = spark_session("zkmq-bench", "local[2]")
        for turn in ("first", "second", "third"):
            timed(f"{chosen.new} more by Spark, its {turn} run", run(chosen.new, spark))
        spark.stop()


if __name__ == "__main__":
    main()
