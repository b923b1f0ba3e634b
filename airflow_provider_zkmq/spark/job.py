"""The pipeline and the report as a program, for this machine or for ``spark-submit``.

``python -m airflow_provider_zkmq.spark.job pipeline --directory /archive --conn-id zkmq_default --queues census``

It takes no passwords: credentials are looked up where the code runs, by ``--conn-id`` (an Airflow connection) or in the
environment (``ZKMQ_AUTH``, ``ZKMQ_TLS_*``), on the driver and on each executor.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from airflow_provider_zkmq.engine import ZkmqError
from airflow_provider_zkmq.location import Location


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job; 0 where it is done, 1 where it is not, and says why."""
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_zkmq.spark.job", description=__doc__)
    jobs = parser.add_subparsers(dest="job", required=True)
    pipeline = jobs.add_parser("pipeline", help="mark, archive, collect, silver, gold, compaction")
    report = jobs.add_parser("report", help="what the tables tell, as one HTML file")
    for job in (pipeline, report):
        job.add_argument("--directory", required=True, help="the archive: a folder, or s3://bucket/prefix")
        job.add_argument("--directory-conn-id", help="an Airflow connection with the keys to s3://…")
        job.add_argument("--queues", help="comma list; default: all")
    for name, text in (("conn-id", "an Airflow connection"), ("hosts", "ZooKeeper's"), ("root", "the queues' root")):
        pipeline.add_argument(f"--{name}", help=f"{text}; default: what the environment says")
    pipeline.add_argument("--master", help="Spark master; default ZKMQ_SPARK_MASTER or what spark-submit says")
    pipeline.add_argument("--lifetime", type=float, help="seconds until collection; default: each queue's own")
    for table in ("bronze", "silver", "gold"):
        pipeline.add_argument(f"--keep-{table}", type=int, metavar="DAYS", help=f"how long {table} keeps what ended")
    report.add_argument("--html", help="the file to write; default: the terminal alone")
    chosen = parser.parse_args(arguments)
    queues = [name for part in (chosen.queues or "").split(",") if (name := part.strip())] or None
    try:
        location = Location(chosen.directory, chosen.directory_conn_id)
        if chosen.job == "pipeline":
            location.check_writable()
            _pipeline(chosen, location, queues)
            return 0
        from airflow_provider_zkmq.spark import report as make

        made = make(location, queues)
        if chosen.html:
            made.write_html(chosen.html)
        print(made.text())  # noqa: T201  a program's output
    except (ZkmqError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  a program's output
        return 1
    return 0


def _pipeline(chosen: argparse.Namespace, location: Location, queues: list[str] | None) -> None:
    from airflow_provider_zkmq.spark import Retention, run_pipeline, spark_session
    from airflow_provider_zkmq.spark.session import submitted
    from airflow_provider_zkmq.spark.source.options import SourceOptions

    named = {"connId": chosen.conn_id, "hosts": chosen.hosts, "root": chosen.root}
    run_pipeline(
        SourceOptions.of({name: text for name, text in named.items() if text is not None}),
        queues,
        location,
        spark_session("zkmq-pipeline", chosen.master) if chosen.master or submitted() else None,
        lifetime=chosen.lifetime,
        keep=Retention(chosen.keep_bronze, chosen.keep_silver, chosen.keep_gold),
        progress=partial(print, flush=True),
    )


if __name__ == "__main__":
    sys.exit(main())
