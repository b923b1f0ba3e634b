"""Census: one queue task per source file of Airflow, measured by workers outside Airflow, reported with Spark.

Workers: ``zkmq worker census --handler zkmq_measure:measure --node performance_class=…`` with this folder on
PYTHONPATH; see ``demo.py``, which runs it all. The last but one task triggers ``zkmq_maintenance``, which archives and
collects what the census made; the last shows the tables of its history.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pendulum
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import dag, task

from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor

QUEUE = "census"
CLASSES = ("low", "standard", "performance", "high_performance")
#: Files up to so many bytes are of the class with the same index.
SIZES = (2_000, 10_000, 40_000)
LARGEST = 10
#: What is shown of the history.
HOURLY = ("hour", "class", "arrivals", "finished", "dead", "depth_max", "wait_p50", "wait_p95", "run_p50", "run_p95")
CONSUMERS = ("hour", "consumer", "deliveries", "finished", "failed", "busy_ms")


def performance_class(size: int) -> str:
    """Return the class of a file of `size` bytes."""
    return CLASSES[sum(size > limit for limit in SIZES)]


def source_files() -> list[Path]:
    """Return every Python file of the installed ``airflow`` packages, at most ``ZKMQ_CENSUS_FILES`` of them."""
    spec = importlib.util.find_spec("airflow")
    roots = (spec.submodule_search_locations if spec else None) or []
    files = sorted({path.resolve() for root in roots for path in Path(root).rglob("*.py")})
    return files[: int(os.environ.get("ZKMQ_CENSUS_FILES", len(files)))]


@dag(
    dag_id="zkmq_census",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    doc_md=__doc__,
)
def zkmq_census() -> None:
    """Enqueue, wait deferred, report, clean up."""

    @task
    def find() -> list[dict[str, Any]]:
        """Configure the queue and return a message per source file."""
        from airflow_provider_zkmq.engine import OrderedEnum
        from airflow_provider_zkmq.hooks.zkmq import ZkmqHook

        with ZkmqHook() as hook:
            hook.queue(QUEUE).configure(filters={"performance_class": OrderedEnum(*CLASSES)})
        return [
            {"data": str(path), "filters": {"performance_class": performance_class(path.stat().st_size)}}
            for path in source_files()
        ]

    @task
    def report(ids: list[str]) -> str:
        """Return the largest modules and the times per class, as JSON; read through the data source `zkmq`."""
        from pyspark.sql import functions as f

        from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
        from airflow_provider_zkmq.spark import register, spark_session

        with ZkmqHook() as hook:
            config = hook.get_conn().config
        spark = spark_session("zkmq-census")
        try:
            register(spark)
            finished = spark.read.format("zkmq").options(hosts=config.hosts, root=config.root, queue=QUEUE)
            frame = finished.options(states="finished", columns="task_id,filters,result,wait_ms,run_ms").load()
            wanted = spark.createDataFrame([(each,) for each in ids], "task_id string")
            frame = frame.join(f.broadcast(wanted), "task_id", "left_semi").cache()
            largest = largest_modules(frame)
            times = times_by_class(frame)
            return json.dumps(
                {
                    "finished": frame.count(),
                    "largest": [row.asDict() for row in largest.collect()],
                    "times": [row.asDict() for row in times.collect()],
                }
            )
        finally:
            spark.stop()

    @task
    def history() -> str:
        """Return what the clean-up has made of the queue's history, hour by hour, as JSON: gold's tables."""
        from airflow_provider_zkmq.history import table

        shown = {"hourly": HOURLY, "consumers": CONSUMERS}
        tables = {
            name: table(name, os.environ["ZKMQ_ARCHIVE_DIR"], QUEUE).to_pyarrow_table(columns=list(columns))
            for name, columns in shown.items()
        }
        order = {name: [(column, "ascending") for column in shown[name][:2]] for name in shown}
        return json.dumps({name: rows.sort_by(order[name]).to_pylist() for name, rows in tables.items()}, default=str)

    enqueue = ZkmqEnqueueOperator(task_id="enqueue", zkmq_queue=QUEUE, messages=find())
    wait = ZkmqTaskSensor(
        task_id="wait",
        zkmq_queue=QUEUE,
        task_ids=enqueue.output,
        event="completion",
        deferrable=True,
        timeout=1_800,
        retries=2,  # Airflow may fail what resumes before its scheduler has heard of the deferral's end
        retry_delay=pendulum.duration(seconds=5),
    )
    clean_up = TriggerDagRunOperator(
        task_id="clean_up",
        trigger_dag_id="zkmq_maintenance",
        trigger_run_id="census__{{ run_id }}",
        conf={"queues": [QUEUE], "lifetime": 0},
        wait_for_completion=True,
        deferrable=True,
        poke_interval=5,
        reset_dag_run=True,
        retries=2,
        retry_delay=pendulum.duration(seconds=5),
    )
    reported = report(enqueue.output)
    wait >> reported >> clean_up >> history()


def largest_modules(frame: Any) -> Any:
    """Return the modules with the most lines, of the results of `measure`."""
    from pyspark.sql import functions as f

    measured = "module string, lines int, functions int, imports int, longest string, longest_lines int"
    results = frame.select(f.from_json(f.col("result").cast("string"), measured).alias("it")).select("it.*")
    return results.orderBy(f.desc("lines"), "module").limit(LARGEST)


def times_by_class(frame: Any) -> Any:
    """Return waiting and running times of each class: p50, p90 and p99 in milliseconds."""
    from pyspark.sql import functions as f

    spans = [
        f.round(f.percentile(f"{span}_ms", f.lit(point)), 1).alias(f"{span}_p{point * 100:.0f}")
        for span in ("wait", "run")
        for point in (0.5, 0.9, 0.99)
    ]
    named = f.col("filters")["performance_class"].alias("performance_class")
    return frame.groupBy(named).agg(f.count("*").alias("tasks"), *spans).orderBy("performance_class")


zkmq_census()
