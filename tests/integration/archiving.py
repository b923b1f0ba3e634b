"""A process that archives a queue again and again, for tests that kill it: ``HOSTS ROOT DIRECTORY MASTER``.

It says ``ready``, then for each line that it is given what became of an archive run: ``done`` or ``failed``.
"""

from __future__ import annotations

import sys
from pathlib import Path


def say(line: str) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Archive once for each line."""
    from airflow_provider_zkmq.spark import archive_queue, spark_session

    hosts, root, directory, master = sys.argv[1:]
    sources = str(Path(__file__).parents[2])
    settings = {"spark.driver.memory": "1g", "spark.executorEnv.PYTHONPATH": sources, "spark.task.maxFailures": "6"}
    spark = spark_session("zkmq-kills", master=master, **settings)
    spark.range(10).mapInArrow(lambda batches: batches, "id bigint").count()  # Python workers are there from now on
    say("ready")
    for _ in sys.stdin:
        try:
            report = archive_queue({"hosts": hosts, "root": root}, "q", directory, spark)
            say(f"done {report.archived}")
        except Exception as error:  # noqa: BLE001  whatever the kill of a worker makes of it
            say(f"failed {type(error).__name__}")


if __name__ == "__main__":
    main()
