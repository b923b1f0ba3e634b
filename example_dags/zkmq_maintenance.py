"""Maintenance: what ended into the archive with Spark, collected, and made into tables of runs, deliveries and hours.

From its first step on the queues count as archived: whoever cleans them up keeps what the archive does not hold yet.
Parameters: ``queues`` (none: all), ``directory`` of the archive (none: the Airflow Variable ``zkmq_archive_dir``,
else the environment variable ``ZKMQ_ARCHIVE_DIR``), ``lifetime`` in seconds (none: each queue's task_gc_lifetime),
``keep_bronze``, ``keep_silver``, ``keep_gold``: for how many days the tables keep what ended (none: for ever),
``delta``: silver and gold are kept as Delta tables, too. Its log shows each step with counts and seconds, and the path
of a page on what the tables tell. On a cluster the same job is ``python -m airflow_provider_zkmq.spark.job pipeline``.
It runs daily; the environment variable ``ZKMQ_MAINTENANCE_SCHEDULE`` sets another schedule, empty: none.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pendulum
from airflow.sdk import Param, Variable, dag, get_current_context, task


def archive_directory(given: str | None) -> str:
    """Where the archive is. Raises ValueError where nobody says it."""
    directory = given or Variable.get("zkmq_archive_dir", default=None) or os.environ.get("ZKMQ_ARCHIVE_DIR")
    if not directory:
        message = "say where the archive is: param directory, Variable zkmq_archive_dir or ZKMQ_ARCHIVE_DIR"
        raise ValueError(message)
    return directory


@dag(
    dag_id="zkmq_maintenance",
    schedule=os.environ.get("ZKMQ_MAINTENANCE_SCHEDULE", "@daily") or None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    params={
        "queues": Param(None, type=["null", "array"], description="names of queues; none: all"),
        "directory": Param(None, type=["null", "string"], description="folder of the archive"),
        "lifetime": Param(None, type=["null", "number"], minimum=0, description="seconds; none: the queue's own"),
        "keep_bronze": Param(None, type=["null", "integer"], minimum=1, description="days; none: for ever"),
        "keep_silver": Param(None, type=["null", "integer"], minimum=1, description="days; none: for ever"),
        "keep_gold": Param(None, type=["null", "integer"], minimum=1, description="days; none: for ever"),
        "delta": Param(False, type="boolean", description="silver and gold as Delta tables, too"),
    },
    doc_md=__doc__,
)
def zkmq_maintenance() -> None:
    """Mark as archived, run the pipeline, then report; each step may be repeated."""

    @task(retries=2, retry_delay=pendulum.duration(seconds=30))
    def mark() -> list[str]:
        """Have clean-up keep what is not archived. Returns the names of the queues."""
        from airflow_provider_zkmq.hooks.zkmq import ZkmqHook

        names = get_current_context()["params"]["queues"]
        with ZkmqHook() as hook:
            client = hook.get_conn()
            queues = [client.queue(name) for name in (names or client.queues())]
            for queue in queues:
                queue.conf()  # refuses a queue that does not exist, which configure() would create
                queue.configure(archive=True)
        return [queue.name for queue in queues]

    @task(retries=2, retry_delay=pendulum.duration(seconds=30))
    def pipeline(names: list[str]) -> list[dict[str, Any]]:
        """Archive, collect, and bring the tables up to date, queue by queue. Returns one report per queue."""
        from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
        from airflow_provider_zkmq.spark import Retention, run_pipeline, spark_session

        context = get_current_context()
        params = context["params"]
        directory = archive_directory(params["directory"])
        keep = Retention(*(params[f"keep_{table}"] for table in ("bronze", "silver", "gold")))
        with ZkmqHook() as hook:
            connect = connection_arguments(hook.get_conn().config)
        spark = spark_session("zkmq-maintenance")
        try:
            try:
                done = run_pipeline(
                    connect,
                    names,
                    directory,
                    spark,
                    lifetime=params["lifetime"],
                    keep=keep,
                    delta=params["delta"],
                    progress=partial(print, flush=True),
                )
            finally:
                tell(directory, names, spark, context["run_id"])  # also of the others, where one queue failed
        finally:
            spark.stop()
        return [asdict(queue) for queue in done.queues]

    @task
    def report(queues: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
        """Return archived rows, collected and kept tasks, runs and deliveries by queue."""
        summary = {queue["queue"]: _numbers(queue["steps"]) for queue in queues}
        for name, numbers in summary.items():
            print(f"queue {name}: {numbers}")  # noqa: T201  the task's log
        return summary

    report(pipeline(mark()))


def _numbers(steps: dict[str, dict[str, int]]) -> dict[str, int]:
    bronze, collected, silver = (steps[name] for name in ("bronze", "gc", "silver"))
    return {
        "archived": bronze["rows"],
        "archive_rows": bronze["in all"],
        "collected": collected["deleted"],
        "kept": collected["kept"],
        "runs": silver["runs"],
        "deliveries": silver["deliveries"],
    }


def tell(directory: str, names: list[str], spark: Any, run_id: str) -> None:
    """Write a page on what the tables tell, beside them, and its path into the log."""
    from airflow_provider_zkmq.engine import ZkmqError
    from airflow_provider_zkmq.spark import report

    page = Path(directory).absolute() / f"report-{re.sub(r'[^A-Za-z0-9_.-]', '-', run_id)}.html"
    try:
        report(directory, names, spark=spark).write_html(page)
    except ZkmqError as error:  # nothing has ended yet, say
        print(f"no report: {error}")  # noqa: T201  the task's log
    else:
        print(f"report: {page.as_uri()}")  # noqa: T201  the task's log


def connection_arguments(config: Any) -> dict[str, Any]:
    """What Spark's Python workers need to connect as the hook does."""
    return {
        "hosts": config.hosts,
        "root": config.root,
        "auth": config.auth,
        "tls": config.tls,
        "session_timeout": config.session_timeout,
        "connect_timeout": config.connect_timeout,
        "request_timeout": config.request_timeout,
        "allow_open": config.allow_open,
    }


zkmq_maintenance()
