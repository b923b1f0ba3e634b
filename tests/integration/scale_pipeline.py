"""Runs the pipeline in a process of its own, for tests that kill it or measure its memory.

``python -m tests.integration.scale_pipeline HOSTS ROOT DIRECTORY [MASTER]``: prints progress, then a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from airflow_provider_zkmq.spark.history.pipeline import run_pipeline
from tests.integration.spark_cluster import session


def peak_kilobytes() -> int:
    """The most memory that this process and its children, Java and Python workers, had at once each, in sum."""
    family, added = {os.getpid()}, True
    while added:
        added = False
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in family and int(path.name) not in family:
                family.add(int(path.name))
                added = True
    peaks = {pid: _peak(pid) for pid in family}
    return sum(peaks.values())


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(hosts: str, root: str, directory: str, master: str = "local[2]") -> None:
    spark = session(master, **{"spark.driver.memory": "1g", "spark.executor.memory": "700m"})
    say("READY")
    report = run_pipeline(
        {"hosts": hosts, "root": root},
        None,
        directory,
        spark,
        lifetime=0,
        progress=say,
        after=lambda step: say(f"STEP {step}"),
    )
    steps = [queue.steps | {"seconds": queue.seconds} for queue in report.queues]
    say(json.dumps({"queues": steps, "peak_kb": peak_kilobytes()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
