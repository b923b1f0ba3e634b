"""The pipeline from a real ZooKeeper to gold, with a real Spark: counts at every stage, and what a crash leaves."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from airflow_provider_zkmq.engine import ConfigError, Message, OrderedEnum, Zkmq
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.spark.history.manifest import GOLD, SILVER, read_manifest
from airflow_provider_zkmq.spark.history.pipeline import PipelineFailed, run_pipeline
from airflow_provider_zkmq.spark.history.reading import (
    read_consumers,
    read_deliveries,
    read_history,
    read_hourly,
    read_runs,
)
from tests.integration.ended import ended_tasks

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other
SCALE = bool(os.environ.get("ZKMQ_SCALE"))
#: Where the pipeline is cut off here; the archive's own steps have a test of their own.
SEAMS = (
    "bronze: published",
    "silver: staged deliveries",
    "silver: adopted",
    "gold: staged hours",
    "gold: adopted",
)


class Crash(BaseException):
    """Ends a run as a crash would."""


@pytest.fixture
def connect(zookeeper: str) -> dict[str, object]:
    return {"hosts": zookeeper, "root": f"/pipeline-{uuid.uuid4().hex[:8]}"}


@pytest.fixture
def queue(connect: dict[str, object]) -> Iterator[Queue]:
    with Zkmq.connect(**connect, gc=False) as client:
        made = client.queue("q")
        made.configure(filters={"size": OrderedEnum("small", "large")}, task_gc_lifetime=0)
        yield made


def finish(queue: Queue, count: int) -> list[str]:
    """Enqueue tasks and end them: most are finished, every fifth at the second delivery, every seventh is dead."""
    sizes = [Message(b"data", {"size": "large" if n % 2 else "small"}) for n in range(count)]
    ids = queue.enqueue_many(sizes)
    seen: set[str] = set()
    while len(seen) < count:
        claim = queue.claim(timeout=5)
        assert claim is not None
        number = ids.index(claim.task.id) if claim.task.id in ids else 0
        if number % 7 == 6:
            claim.fail("no", retry=False)
        elif number % 5 == 4 and claim.task.attempt == 1:
            claim.fail("once", backoff=0)
            continue
        else:
            claim.complete(b"r")
        seen.add(claim.task.id)
    return ids


def check_counts(spark, directory: Path, ids: list[str], deliveries: int) -> None:
    """Each id is one run in bronze and in silver; gold's hours add up to the same, and to the deliveries."""
    bronze = sorted(row.id for row in read_history(spark, directory, "q").select("id").collect())
    assert bronze == sorted(ids)
    assert sorted(row.task_id for row in read_runs(spark, directory, "q").select("task_id").collect()) == bronze
    assert read_deliveries(spark, directory, "q").count() == deliveries
    hours = read_hourly(spark, directory, "q").groupBy().sum("arrivals", "ended", "deliveries", "retries").first()
    assert tuple(hours) == (len(ids), len(ids), deliveries, deliveries - len(ids))
    assert read_consumers(spark, directory, "q").groupBy().sum("deliveries").first()[0] == deliveries


def expected_deliveries(*counts: int) -> int:
    return sum(count + sum(n % 5 == 4 and n % 7 != 6 for n in range(count)) for count in counts)


def test_every_stage_counts_the_same_and_a_second_run_adds_what_is_new(spark, connect, queue, tmp_path) -> None:
    lines: list[str] = []
    ids = finish(queue, 14)
    report = run_pipeline(connect, ["q"], tmp_path, spark, lifetime=0, progress=lines.append)
    (done,) = report.queues
    dead = 2  # dead letters stand until somebody deals with them; clean-up leaves them
    assert (done.steps["bronze"]["rows"], done.steps["gc"]["deleted"]) == (14, 14 - dead)
    assert (done.steps["silver"]["runs"], done.error) == (14, None)
    assert [line.split(": ")[1] for line in lines] == ["mark", "bronze", "gc", "silver", "gold", "compaction"]
    assert all(line.startswith("queue q: ") for line in lines)
    check_counts(spark, tmp_path, ids, expected_deliveries(14))
    again = run_pipeline(connect, ["q"], tmp_path, spark, lifetime=0).queues[0].steps
    assert (again["bronze"]["rows"], again["silver"]["runs"], again["gold"]["days written"]) == (0, 0, 0)
    ids += finish(queue, 3)
    assert run_pipeline(connect, None, tmp_path, spark, lifetime=0).queues[0].steps["silver"]["runs"] == 3
    check_counts(spark, tmp_path, ids, expected_deliveries(14, 3))


def test_a_crash_at_any_seam_loses_and_doubles_nothing(spark, connect, queue, tmp_path) -> None:
    """Cut off at one seam after the other, with new tasks each time; readers read whole tables in between."""
    counts, ids = [], []
    for seam in SEAMS:
        ids += finish(queue, 2)
        counts.append(2)

        def crash(step: str, wanted: str = seam) -> None:
            if step == wanted:
                raise Crash(step)

        with contextlib.suppress(Crash):
            run_pipeline(connect, ["q"], tmp_path, spark, lifetime=0, after=crash)
        ended = read_hourly(spark, tmp_path, "q").groupBy().sum("ended").first()[0] or 0
        whole = {read_manifest(tmp_path / "q" / table).watermark for table in (SILVER, GOLD)}
        assert ended <= read_runs(spark, tmp_path, "q").count()
        assert len(whole) == 2 or ended == read_runs(spark, tmp_path, "q").count()
    run_pipeline(connect, ["q"], tmp_path, spark, lifetime=0)
    check_counts(spark, tmp_path, ids, expected_deliveries(*counts))
    for table, kinds in ((".", ["runs"]), (SILVER, ["runs", "deliveries"]), (GOLD, ["hourly", "consumers"])):
        manifest = read_manifest(tmp_path / "q" / table)
        named = {part.path for part in manifest.runs} | {"/".join(path.split("/")[:2]) for path, _ in manifest.retired}
        stored = {f"{kind}/{path.name}" for kind in kinds for path in (tmp_path / "q" / table / kind).glob("*")}
        assert stored == named


def test_one_queue_s_trouble_does_not_end_the_others(spark, connect, queue, tmp_path) -> None:
    """A broken manifest and a missing queue are told of, and raised when the others are done."""
    finish(queue, 2)
    with Zkmq.connect(**connect, gc=False) as client:
        client.queue("a").configure()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "MANIFEST.json").write_text("[]")
    lines: list[str] = []
    with pytest.raises(PipelineFailed, match="2 of 3 queues had trouble") as raised:
        run_pipeline(connect, ["a", "absent", "q"], tmp_path, spark, progress=lines.append)
    broken, absent, good = raised.value.report.queues
    assert "CorruptRecord" in broken.error
    assert "does not exist" in absent.error
    assert (good.error, good.steps["silver"]["runs"]) == (None, 2)
    assert any("CorruptRecord" in line for line in lines)
    with pytest.raises(ConfigError):
        run_pipeline(connect, ["no/name"], tmp_path, spark)


def start(connect: dict[str, object], directory: Path, *master: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.integration.scale_pipeline"]
    command = [*program, connect["hosts"], connect["root"], directory, *master]
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def killed_at(process: subprocess.Popen[str], lines: int, moment: float) -> bool:
    """Kill the driver, its Java and its workers so long after so many lines of its output; False: it was done before.

    Lines tell of the pipeline's seams, so that a moment is anywhere in it, however slow the machine is.
    """
    for _ in range(lines):
        process.stdout.readline()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(moment)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


@pytest.mark.skipif(not SCALE, reason="takes minutes: ZKMQ_SCALE=1")
def test_a_driver_killed_at_random_moments_loses_and_doubles_nothing(spark, connect, queue, tmp_path) -> None:
    """Twenty times, new tasks each time; its small sibling is cut off at the seams."""
    chance, ids, counts, kills = random.Random(7), [], [], 0
    began = time.monotonic()
    while kills < int(os.environ.get("ZKMQ_KILLS", "20")):
        ids += finish(queue, 10)
        counts.append(10)
        lines, moment = chance.randrange(1, 24), chance.uniform(0, 4)
        killed = killed_at(start(connect, tmp_path), lines, moment)
        kills += killed
        sys.stdout.write(f"{'killed' if killed else 'done'} {moment:.1f} s after line {lines}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{kills} kills, {len(counts)} runs, {time.monotonic() - began:.0f} s\n")
    run_pipeline(connect, ["q"], tmp_path, spark, lifetime=0)
    check_counts(spark, tmp_path, ids, expected_deliveries(*counts))


@pytest.mark.skipif(not SCALE, reason="takes minutes: ZKMQ_SCALE=1")
def test_a_hundred_thousand_tasks_reach_gold_in_two_gigabytes(spark, connect, queue, tmp_path) -> None:
    """Every stage counts the same; a second run with a hundred new tasks is counted by them."""
    count = int(os.environ.get("ZKMQ_TASKS", "100000"))
    ended_tasks(queue, count)
    for expected in (count, 100):
        out, _ = start(connect, tmp_path).communicate()
        sys.stdout.write(out)
        result = json.loads(out.splitlines()[-1])
        (steps,) = result["queues"]
        assert (steps["bronze"]["rows"], steps["silver"]["runs"], steps["silver"]["deliveries"]) == (expected,) * 3
        assert steps["gc"]["deleted"] == expected
        assert result["peak_kb"] <= 2 << 20
        if expected == count:
            ended_tasks(queue, 100, first=count)
    ended = read_hourly(spark, tmp_path, "q").groupBy().sum("ended", "deliveries").first()
    assert tuple(ended) == (count + 100, count + 100)


@pytest.mark.skipif(not SCALE, reason="starts a Spark cluster: ZKMQ_SCALE=1")
def test_the_pipeline_runs_on_executors_in_processes_of_their_own(spark, connect, queue, tmp_path) -> None:
    ids = finish(queue, 14)
    out, _ = start(connect, tmp_path, "local-cluster[2,1,700]").communicate()
    (steps,) = json.loads(out.splitlines()[-1])["queues"]
    assert (steps["bronze"]["rows"], steps["silver"]["runs"]) == (14, 14)
    check_counts(spark, tmp_path, ids, expected_deliveries(14))
