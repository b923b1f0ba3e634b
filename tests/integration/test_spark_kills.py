"""The archive while its driver, Python workers and executors are killed at random moments: nothing lost or doubled."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from airflow_provider_zkmq.engine import Queue, Zkmq
from airflow_provider_zkmq.spark import archive_queue, read_history
from airflow_provider_zkmq.spark.history.manifest import read_manifest
from tests.integration.ended import ended_tasks

pytestmark = pytest.mark.filterwarnings("ignore")

SCALE = bool(os.environ.get("ZKMQ_SCALE"))
#: Within so many seconds after the start of a run its victim is killed.
SPAN = 6.0


@pytest.fixture
def connect(zookeeper: str) -> dict[str, str]:
    return {"hosts": zookeeper, "root": f"/kills-{uuid.uuid4().hex[:8]}"}


@pytest.fixture
def queue(connect: dict[str, str]) -> Iterator[Queue]:
    with Zkmq.connect(**connect, gc=False) as client:
        made = client.queue("q")
        made.configure(archive=True)
        yield made


class Driver:
    """A process that archives, with its Java and its workers in a process group of their own."""

    def __init__(self, connect: dict[str, str], directory: Path, master: str) -> None:
        command = [sys.executable, "-m", "tests.integration.archiving", connect["hosts"], connect["root"]]
        self.process = subprocess.Popen(
            [*command, str(directory), master],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hear(self) -> str:
        """What it says next; empty where it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begin(self) -> None:
        """Have it begin a run."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self, victim: str, rand: random.Random) -> None:
        """Kill one of its processes, as ``kill -9`` does; none where there is none such now."""
        if victim == "driver":
            os.kill(self.process.pid, signal.SIGKILL)
            return
        found = [pid for pid, line in processes(self.process.pid) if victim in line]
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rand.choice(found), signal.SIGKILL)

    def end(self) -> None:
        """Nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def processes(group: int) -> Iterator[tuple[int, str]]:
    """The processes of a group, with their command lines."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            if os.getpgid(pid) == group or os.getsid(pid) == group:
                yield pid, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def produce(queue: Queue, count: int, number: int) -> None:
    """Tasks that finish, one that dies and is redriven, one whose id is run again."""
    ended_tasks(queue, count, first=number * count)
    queue.enqueue(b"x", task_id=f"dead{number}")
    queue.claim(timeout=20).fail("no", retry=False)
    for _ in range(2):
        queue.enqueue(b"x", task_id="again")
        queue.claim(timeout=20).complete(b"r")
    queue.drop(f"dead{number}")


def endure(
    connect: dict[str, str], queue: Queue, directory: Path, victims: list[str], master: str, count: int
) -> set[tuple[str, int]]:
    """Runs of the archive, each of which loses a process at a random moment; returns what ended meanwhile."""
    rand, driver, ended = random.Random(), None, set()
    try:
        for number, victim in enumerate(victims):
            produce(queue, count, number)
            ended |= {each[:2] for each in queue.ended_between(0)}
            if driver is None:
                driver = Driver(connect, directory, master)
                assert driver.hear().startswith("ready")
            driver.begin()
            threading.Event().wait(rand.uniform(0, SPAN))  # whatever it is doing by then
            driver.kill(victim, rand)
            if victim == "driver" or not driver.hear():
                driver.end()
                driver = None
            held = read_manifest(directory / "q")
            queue.collect_garbage(lifetime=0)
            assert {each[:2] for each in queue.ended_between(0)} >= {each for each in ended if each[1] > held.watermark}
    finally:
        if driver is not None:
            driver.end()
    return ended


def judge(
    spark: SparkSession, connect: dict[str, str], queue: Queue, directory: Path, ended: set[tuple[str, int]]
) -> None:
    """One more run: every run that ended is in the archive once, clean-up deletes it, and everybody can go on."""
    archive_queue(connect, "q", directory, spark)
    rows = [tuple(row) for row in read_history(spark, str(directory), "q").select("id", "version").collect()]
    assert len(rows) == len(set(rows)) == len(ended)
    assert set(rows) == ended
    assert read_manifest(directory / "q").rows == len(rows)
    queue.collect_garbage(lifetime=0)
    assert (queue.ids(), queue.ended_between(0)) == ([], [])
    queue.enqueue(b"x", task_id="next")
    queue.claim(timeout=20).complete()
    assert archive_queue(connect, "q", directory, spark).archived == 1


def test_what_is_killed_in_a_run_loses_and_doubles_nothing(spark, connect, queue, tmp_path) -> None:
    """Two Python workers and then the driver, at random moments; with many tasks, departures and clean-up between."""
    victims = ["pyspark.daemon", "pyspark.daemon", "driver"]
    judge(spark, connect, queue, tmp_path, endure(connect, queue, tmp_path, victims, "local[2]", 600))


@pytest.mark.skipif(not SCALE, reason="ZKMQ_SCALE=1: twenty kills")
@pytest.mark.parametrize(
    ("master", "victims"),
    [
        ("local[2]", ["driver", "pyspark.daemon"] * 10),
        ("local-cluster[2,1,700]", ["CoarseGrainedExecutorBackend", "pyspark.daemon", "driver"] * 2),
    ],
)
def test_twenty_kills_lose_and_double_nothing(master, victims, spark, connect, queue, tmp_path) -> None:
    """Drivers and Python workers, and executors in processes of their own."""
    judge(spark, connect, queue, tmp_path, endure(connect, queue, tmp_path, victims, master, 1_500))


@pytest.mark.skipif(not SCALE, reason="ZKMQ_SCALE=1: a hundred thousand tasks")
def test_a_hundred_thousand_tasks_are_archived(spark, connect, queue, tmp_path) -> None:
    """With a driver of one gigabyte, and as much for Python; the next run, with a hundred more, is about them."""
    ended_tasks(queue, 100_000)
    assert archive_queue(connect, "q", tmp_path, spark).archived == 100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20  # kilobytes
    rows = read_history(spark, str(tmp_path), "q")
    assert (rows.count(), rows.select("id").distinct().count()) == (100_000, 100_000)
    ended_tasks(queue, 100, first=100_000)
    assert archive_queue(connect, "q", tmp_path, spark).archived == 100
    assert queue.collect_garbage(lifetime=0).collected == 100_100
    assert queue.ids() == []
