"""The data source beside blocking reads with kazoo, in one run: ``python -m tests.benchmarks.reads [--tasks 100000]``.

Both read the same finished tasks of the same server. kazoo reads a sample of them, one request after the other; each
round measures all ways in turn, so that what else the machine does meets all of them; the median of the rounds counts.
On a machine that is busy otherwise the ratios say little: what waits for replies one by one needs less of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import OrderedEnum, Zkmq
from airflow_provider_zkmq.spark import register, spark_session
from tests.integration.clients import kazoo
from tests.integration.ended import ended_tasks

ROOT, QUEUE = "/reads", "q"
#: What a row of all columns is made of.
PARTS = ("state", "data", "metadata", "result")


@dataclass(frozen=True)
class Way:
    """A way to read: how many tasks, and the call that reads them."""

    name: str
    tasks: int
    read: Callable[[], Any]

    def rate(self) -> float:
        """Tasks in a second."""
        begin = time.perf_counter()
        self.read()
        return self.tasks / (time.perf_counter() - begin)


def by_kazoo(client: KazooClient, ids: list[str], parts: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """A blocking read of each znode, the record decoded."""
    rows = []
    for task_id in ids:
        record, *others = (client.get(f"{ROOT}/{QUEUE}/tasks/{task_id}/{part}")[0] for part in parts)
        rows.append((task_id, json.loads(record)["state"], *others))
    return rows


def ways(spark: Any, client: KazooClient, hosts: str, ids: list[str], sample: int) -> list[Way]:
    """All that are compared."""

    def by_spark(**options: object) -> Callable[[], None]:
        def read() -> None:
            frame = spark.read.format("zkmq").options(hosts=hosts, root=ROOT, queues=QUEUE, **options).load()
            frame.write.format("noop").mode("overwrite").save()

        return read

    few, total = ids[:sample], len(ids)
    return [
        Way("kazoo, all columns", sample, lambda: by_kazoo(client, few, PARTS)),
        Way("kazoo, id + state", sample, lambda: by_kazoo(client, few, PARTS[:1])),
        Way("all columns, 1 partition", total, by_spark(numPartitions=1)),
        Way("all columns, 2 partitions", total, by_spark(numPartitions=2)),
        Way("id + state, 1 partition", total, by_spark(columns="task_id,state", numPartitions=1)),
        Way("id + state, 2 partitions", total, by_spark(columns="task_id,state", numPartitions=2)),
        Way("records only, 1 partition", total, by_spark(columns="task_id,state,attempt", numPartitions=1)),
        Way("records only, 2 partitions", total, by_spark(columns="task_id,state,attempt", numPartitions=2)),
    ]


def measure(tasks: int, sample: int, rounds: int, out: Callable[[str], object]) -> dict[str, float]:
    """The median rate of each way, printed with its ratio to kazoo's."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder), force_sync=False) as server:
        with Zkmq.connect(server.hosts, ROOT, gc=False) as client:
            client.queue(QUEUE).configure(filters={"size": OrderedEnum("small", "large")})
            ids = ended_tasks(client.queue(QUEUE), tasks, data=b"x" * 200)  # type: ignore[arg-type]
        out(f"{tasks} tasks; kazoo reads {sample} of them")
        spark = spark_session("reads", master="local[2]", **{"spark.driver.memory": "1g"})
        register(spark)
        rates: dict[str, list[float]] = {}
        with kazoo(server.hosts) as client:
            compared = ways(spark, client, server.hosts, ids, sample)
            for way in compared[2:]:
                way.read()  # Python workers and compilers warm up
            for _ in range(rounds):
                for way in compared:
                    rates.setdefault(way.name, []).append(way.rate())
        spark.stop()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, rate in medians.items():
        base = medians["kazoo, all columns" if name.startswith("all") else "kazoo, id + state"]
        out(f"{name:28} {rate:10,.0f} tasks/s" + ("" if name.startswith("kazoo") else f"  {rate / base:6.1f} × kazoo"))
    return medians


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks in the queue")
    parser.add_argument("--sample", type=int, default=2_000, help="tasks that kazoo reads in each round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    measure(args.tasks, args.sample, args.rounds, lambda line: sys.stdout.write(line + "\n") and sys.stdout.flush())


if __name__ == "__main__":
    main()
