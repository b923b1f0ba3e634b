"""Maintenance: archive what ended to Parquet with Spark, then collect what is archived and old enough.

From its first step on the queues count as archived: whoever cleans them up keeps what the archive does not hold yet.
Parameters: ``queues`` (none: all), ``directory`` of the archive (none: the Airflow Variable ``zkmq_archive_dir``,
else the environment variable ``ZKMQ_ARCHIVE_DIR``), ``lifetime`` in seconds (none: each queue's task_gc_lifetime).
It runs daily; the environment variable ``ZKMQ_MAINTENANCE_SCHEDULE`` sets another schedule, empty: none.
"""

from __future__ import annotations

import os
from dataclasses import asdict
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
    },
    doc_md=__doc__,
)
def zkmq_maintenance() -> None:
    """Mark as archived, archive, then collect, then report; each step may be repeated."""

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
    def archive(names: list[str]) -> list[dict[str, Any]]:
        """Archive each queue. Returns one report per queue."""
        from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
        from airflow_provider_zkmq.spark import archive_queue, spark_session

        directory = archive_directory(get_current_context()["params"]["directory"])
        with ZkmqHook() as hook:
            connect = connection_arguments(hook.get_conn().config)
        spark = spark_session("zkmq-maintenance")
        try:
            return [asdict(archive_queue(connect, name, directory, spark)) for name in names]
        finally:
            spark.stop()

    @task(retries=2, retry_delay=pendulum.duration(seconds=30))
    def collect(archived: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Delete what is archived and older than the lifetime. Returns one report per queue."""
        from airflow_provider_zkmq.hooks.zkmq import ZkmqHook

        lifetime = get_current_context()["params"]["lifetime"]
        with ZkmqHook() as hook:
            return [
                {"queue": it["queue"]} | asdict(hook.queue(it["queue"]).collect_garbage(lifetime=lifetime))
                for it in archived
            ]

    @task
    def report(archived: list[dict[str, Any]], collected: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
        """Return archived rows, collected and kept tasks by queue."""
        summary = {
            up["queue"]: {
                "archived": up["archived"],
                "archive_rows": up["total"],
                "watermark": up["watermark"],
                "collected": down["collected"],
                "kept": down["kept_unarchived"] + down["kept_changed"],
            }
            for up, down in zip(archived, collected, strict=True)
        }
        for name, numbers in summary.items():
            print(f"queue {name}: {numbers}")  # noqa: T201  the task's log
        return summary

    archived = archive(mark())
    report(archived, collect(archived))


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
