# ruff: noqa: T201  it talks to whoever runs it
"""Who is late, and when: ZooKeeper, Airflow, two workers, Spark, and the DAG ``zkmq_flights`` from start to end.

``python example_dags/flights.py [--days 14]``: as ``demo.py``, whose folder ``.zkmq/demo`` and whose parts it uses; the
plot is ``.zkmq/flights.svg``. Without ``--days`` it is the whole year, 336 776 flights.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import demo

from airflow_provider_zkmq.engine import Queue

DAG: Final = "zkmq_flights"
RUN: Final = "flights"
QUEUE: Final = "flights"
SIZES: Final = ("light", "heavy")
PLOTS: Final = Path(".zkmq").absolute()
RUN_SECONDS: Final = 3_600.0


def start_workers(processes: demo.Processes, environment: dict[str, str]) -> None:
    """Start a worker that takes light days only, and one that takes them all."""
    for size in SIZES:
        command = [
            *(sys.executable, "-m", "airflow_provider_zkmq", "worker", QUEUE),
            *("--node", f"size={size}", "--filter-method", "at_least"),
            *("--handler", "zkmq_flights_delays:delays", "--threads", "2"),
        ]
        processes.start(f"worker-{size}", command, environment)
    demo.say(f"started two workers: {', '.join(SIZES)}")


def follow(airflow: demo.Airflow, queue: Queue, processes: demo.Processes) -> str:
    """Tell how far the run has come until it ends; returns its state. Raises `DemoFailed` after `RUN_SECONDS`."""
    deadline, said = time.monotonic() + RUN_SECONDS, ""
    while (state := airflow.run_state(DAG, RUN)) not in {"success", "failed"}:
        processes.check()
        counts = {name: count for name, count in queue.counts().items() if count} if queue.exists() else {}
        steps = {name: at for name, at in airflow.task_states(DAG, RUN).items() if at != "none"}
        text = ", ".join(f"{name} {value}" for name, value in (steps | counts).items())
        if text != said:
            demo.say(text)
        said = text
        if time.monotonic() > deadline:
            raise demo.DemoFailed(f"the DAG run did not end in {RUN_SECONDS:.0f} s; see {processes.logs}")
        time.sleep(demo.POLL_SECONDS)
    return state


def flights(days: int) -> int:
    """Run it all; returns the exit code."""
    with contextlib.ExitStack() as stack:
        running = demo.start_all(stack, ZKMQ_FLIGHTS_DAYS=str(days), ZKMQ_FLIGHTS_DIR=str(PLOTS))
        start_workers(running.processes, running.environment)
        return run(running.airflow, running.client.queue(QUEUE), running.processes)


def run(airflow: demo.Airflow, queue: Queue, processes: demo.Processes) -> int:
    """Run the DAG and print what came out; returns the exit code."""
    demo.wait_until(f"the DAG {DAG}", processes, lambda: airflow.knows(DAG))
    airflow.call("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": False})
    airflow.call("POST", f"/api/v2/dags/{DAG}/dagRuns", {"dag_run_id": RUN, "logical_date": None})
    state = follow(airflow, queue, processes)
    demo.say(f"the DAG run ended: {state}")
    if state != "success":
        return 1
    answers: dict[str, list[dict[str, Any]]] = json.loads(airflow.returned(DAG, RUN, "report"))
    for name, rows in answers.items():
        demo.table(f"Late flights by {name}", rows)
    total = sum(row["flights"] for row in answers["carriers"])
    print(f"\n{total} flights in {queue.counts()['finished']} tasks; the plot: {PLOTS / 'flights.svg'}")
    return 0


def main() -> int:
    """Parse the arguments and run; returns the exit code."""
    parser = argparse.ArgumentParser(description="Who was late, and when, of the flights from New York in 2013.")
    parser.add_argument("--days", type=int, default=366, help="so many days of the year only")
    days = parser.parse_args().days
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, demo.interrupt)
    try:
        with demo.fresh_home():
            return flights(days)
    except KeyboardInterrupt:
        return 130
    except demo.DemoFailed as failure:
        print(f"flights: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
