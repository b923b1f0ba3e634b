"""The archive and the pipeline to gold, with a real Spark and a real ZooKeeper, cut off and killed anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("pyspark")

from pyarrow.fs import FileSelector
from pyspark.sql import SparkSession

from airflow_provider_zkmq.delta_tables import FOLDERS, Table, open_for_reading
from airflow_provider_zkmq.engine import ConfigError, Message, Queue, Task, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark.history import stage_and_load
from airflow_provider_zkmq.spark.history.bronze import STEPS, archive_queue
from airflow_provider_zkmq.spark.history.pipeline import PipelineFailed, run_pipeline
from airflow_provider_zkmq.spark.history.table_reader import read
from airflow_provider_zkmq.spark.reporting.report import report
from tests.integration.ended import ended_runs, ended_tasks, finish, produce
from tests.integration.spark_programs import CLUSTER, EXECUTOR, processes, program

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]
SCALE = pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="takes minutes: ZKMQ_SCALE=1")
#: Where the pipeline is cut off here.
SEAMS = [f"bronze: {step}" for step in STEPS]
SEAMS += ["silver: staged runs", "silver: committed deliveries", "gold: staged", "gold: committed consumers"]
#: Processes that are killed: those of Spark by a word of their command line.
DRIVER, WORKER, NOBODY = "driver", "pyspark.daemon", "nobody"


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does what a small run does in its own process."""
    monkeypatch.setattr(stage_and_load, "FEW", 0)


def full(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.fixture(params=["few", full("many")])
def either(request: pytest.FixtureRequest) -> SparkSession | None:
    """What works on rows: this process, or Spark."""
    if request.param == "few":
        return None
    request.getfixturevalue("many")
    return request.getfixturevalue("quick")


@pytest.fixture(params=["folder", full("S3")])
def archive(request: pytest.FixtureRequest) -> Location:
    """Where the archive is."""
    if request.param == "S3":
        return request.getfixturevalue("bucket")
    return Location.of(request.getfixturevalue("tmp_path"))


def parquet_files(location: Location) -> set[str]:
    """All files of rows below a location, as its file system calls them."""
    found = location.files().get_file_info(FileSelector(location.path, recursive=True, allow_not_found=True))
    return {each.path for each in found if "/day=" in each.path and each.is_file}


class Crash(BaseException):
    """Ends a run as a crash would."""


def rows_of(kind: str, directory: Path | Location, *columns: str) -> list[tuple[Any, ...]]:
    """A table's rows as all readers have them; that Spark reads them so, other tests show."""
    home = Location.of(directory) / "census"
    if (delta := open_for_reading(home, kind).delta) is None:
        return []
    return [tuple(row.values()) for row in delta.to_pyarrow_table(columns=list(columns)).to_pylist()]


def check_counts(directory: Path | Location, count: int, deliveries: int) -> None:
    """Each run is in bronze and in silver once; gold's hours add up to the same, and to the deliveries."""
    bronze = sorted(rows_of("bronze", directory, "id", "version"))
    assert bronze == sorted(rows_of("runs", directory, "task_id", "version"))
    assert len(bronze) == len(set(bronze)) == count
    assert len(rows_of("deliveries", directory, "version")) == deliveries
    hours = rows_of("hourly", directory, "arrivals", "ended", "deliveries", "retries")
    assert [sum(numbers) for numbers in zip(*hours, strict=True)] == [count, count, deliveries, deliveries - count]
    assert sum(number for (number,) in rows_of("consumers", directory, "deliveries")) == deliveries


def test_every_stage_counts_the_same_and_a_second_run_adds_what_is_new(many, spark, where, q, zk, tmp_path) -> None:
    """Also where a broken table and a missing queue end the turns of two others: they are told of, and raised."""
    lines: list[str] = []
    ids = finish(q, 8, dead=2, retried=3)
    (done,) = run_pipeline(where, None, tmp_path, spark, lifetime=0, progress=lines.append).queues
    # dead letters stand until somebody deals with them; clean-up leaves them
    assert (done.steps["bronze"]["rows"], done.steps["gc"]["deleted"]) == (8, 8 - 2)
    assert (done.steps["silver"]["runs"], done.error) == (8, None)
    assert [line.split(": ")[1] for line in lines] == ["mark", "bronze", "gc", "silver", "gold", "compaction"]
    assert all(line.startswith("queue census: ") for line in lines)
    check_counts(tmp_path, 8, 8 + 3)
    again = run_pipeline(where, ["census"], tmp_path, spark, lifetime=0).queues[0].steps
    assert (again["bronze"]["rows"], again["silver"]["runs"], again["gold"]["days written"]) == (0, 0, 0)

    ids += finish(q, 3)
    zk.queue("a").configure()
    (tmp_path / "a/bronze/_delta_log").mkdir(parents=True)
    (tmp_path / "a/bronze/_delta_log" / f"{0:020d}.json").write_text("[]")
    with pytest.raises(PipelineFailed, match="2 of 3 queues had trouble") as raised:
        run_pipeline(where, ["a", "absent", "census"], tmp_path, spark, lifetime=0, progress=lines.append)
    broken, absent, good = raised.value.report.queues
    assert "CorruptRecord" in broken.error
    assert "does not exist" in absent.error
    assert (good.error, good.steps["silver"]["runs"]) == (None, 3)
    assert any("CorruptRecord" in line for line in lines)
    check_counts(tmp_path, 11, 11 + 3)
    assert {row.id for row in read(spark, tmp_path, "bronze", "census").collect()} == set(ids)
    for kind in ("runs", "deliveries", "hourly", "consumers"):
        frame = read(spark, tmp_path, kind, "census")
        assert frame.count() == len(rows_of(kind, tmp_path, "queue"))
    with pytest.raises(ConfigError):
        run_pipeline(where, ["no/name"], tmp_path, spark)


def test_a_report_agrees_with_what_handlers_measured(many, spark, where, q, tmp_path) -> None:
    """Whatever was prefetched: a run is the handler's time, and no more are busy at once than there are threads."""
    took: dict[str | None, list[float]] = {}

    def handler(task: Task) -> None:
        began = time.monotonic()
        threading.Event().wait(0.01)
        took.setdefault(task.consumer, []).append(time.monotonic() - began)

    for prefetch in (1, 32):
        q.enqueue_many([Message(b"")] * 100)
        with Zkmq.connect(**where) as client:
            client.queue("census").worker(handler, threads=4, prefetch=prefetch).run(until_empty=True)
    run_pipeline(where, None, tmp_path, spark)
    told = report(tmp_path, "census")
    p50 = {row["consumer"]: row["run_p50"] for row in told.section("consumers").tables[0].rows}
    assert p50 == pytest.approx({who: statistics.median(own) for who, own in took.items()}, rel=0.05, abs=0.0015)
    assert 0 < told.section("capacity").tables[0].rows[0]["servers"] <= 4


def crash_at(wanted: str) -> Callable[[str], None]:
    def after(step: str) -> None:
        if step == wanted:
            raise Crash(step)

    return after


def test_a_crash_at_any_seam_loses_and_doubles_nothing(either, archive, where, q, subtests) -> None:
    """Cut off at one seam after the other, with new tasks each time, also a dead letter that left before.

    Readers read whole tables in between; clean-up deletes only what the archive has, and the znode follows it.
    """
    home = archive / "census"
    q.configure(archive=True)
    for seam in SEAMS:
        left, *_ = finish(q, 4, dead=2, retried=1)
        q.drop(left)
        with subtests.test(seam=seam):
            with pytest.raises(Crash):
                run_pipeline(where, ["census"], archive, either, lifetime=0, after=crash_at(seam))
            held = Table.open(home, "bronze").mark
            assert q.collect_garbage(lifetime=0).collected <= held.rows  # whatever was deleted is in the archive
            assert (internals(q).archive().watermark < held.watermark) == (seam == "bronze: published")
            if seam == "bronze: published":  # the znode is brought up to the table first
                with pytest.raises(Crash):
                    archive_queue(where, "census", archive, either, after=crash_at("begun"))
                assert internals(q).archive().watermark == held.watermark
            ended = sum(number for (number,) in rows_of("hourly", archive, "ended"))
            runs = len(rows_of("runs", archive, "version"))
            known = Table.open(home, "runs").mark.watermark
            deliveries = rows_of("deliveries", archive, "version")
            assert all(version <= known for (version,) in deliveries), "deliveries of runs that are not seen yet"
            assert ended <= runs
            assert Table.open(home, "hourly").mark.watermark < known or ended == runs
    run_pipeline(where, ["census"], archive, either, lifetime=0)
    check_counts(archive, 4 * len(SEAMS), 5 * len(SEAMS))
    assert len(internals(q).ids()) == len(SEAMS), "dead letters stand"
    for kind, folder in FOLDERS.items():  # what was staged and never committed is deleted in time
        Table.open(home, kind).sweep(hours=0)
        named = set(Table.open(home, kind).files())
        assert parquet_files(home / folder) == named


@pytest.mark.parametrize(
    ("either", "archive"), [("few", "folder"), full("many", "folder"), full("few", "S3")], indirect=True
)
def test_of_two_pipelines_at_once_one_goes_on_and_one_changes_nothing(either, archive, where, q, subtests) -> None:
    """Wherever the first is when the second comes: it says so in one clear error, and no row is lost or doubled."""
    for number, seam in enumerate(seam for seam in SEAMS if "staged" in seam or "committed" in seam):
        finish(q, 3, retried=1)
        met: list[str] = []

        def another(step: str, seam: str = seam, met: list[str] = met) -> None:
            if step == seam and not met:
                met.append(step)
                run_pipeline(where, ["census"], archive, either, lifetime=0)

        with subtests.test(seam=seam):
            with pytest.raises(PipelineFailed, match="another .*run .* meanwhile"):
                run_pipeline(where, ["census"], archive, either, lifetime=0, after=another)
            check_counts(archive, 3 * (number + 1), 4 * (number + 1))
    assert internals(q).ids() == []


class Tables:
    """A process that brings an archive, or all tables, up to date, again and again."""

    def __init__(self, what: str, where: dict[str, str], directory: Path, master: str, killed_at: str = "") -> None:
        arguments = ("tables", what, where["hosts"], where["root"], directory, master)
        self.process = program(*arguments, environment={"ZKMQ_KILLED_AT": killed_at} if killed_at else {})
        self.ready = False

    def hear(self) -> str:
        """What it says next; empty where it has ended."""
        return self.process.stdout.readline().strip()  # type: ignore[union-attr]

    def begin(self) -> None:
        self.ready = self.ready or self.hear() == "ready"
        assert self.ready
        self.process.stdin.write("go\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]

    def outcome(self) -> str:
        """What becomes of the run that it is in; empty where it was killed."""
        return next(line for line in iter(self.hear, None) if not line.startswith("step "))

    def kill(self, victim: str, rand: random.Random) -> None:
        """Kill one of its processes, as ``kill -9`` does; none where there is none such now."""
        family = {self.process.pid: DRIVER} if victim == DRIVER else processes(self.process.pid)
        if found := [pid for pid, line in family.items() if victim in line]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rand.choice(found), signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.mark.full
def test_a_driver_that_is_killed_before_it_commits_leaves_nothing_to_be_seen(many, quick, where, q, tmp_path) -> None:
    """What it has staged stands beside the table, and no reader sees it; the next run has every row once.

    That of the first driver is the second one, and after that the last.
    """
    seams = {"bronze: staged": "bronze", "silver: staged runs": "runs"}
    with contextlib.ExitStack() as stack:
        drivers = [stack.enter_context(Tables("pipeline", where, tmp_path, "local[2]", killed_at=at)) for at in seams]
        finish(q, 4)
        run_pipeline(where, ["census"], tmp_path, quick, lifetime=0)  # while they start
        for driver, kind in zip(drivers, seams.values(), strict=True):
            finish(q, 4)
            before = Table.open(Location.of(tmp_path / "census"), kind)
            driver.begin()
            assert driver.outcome() == ""
            left = Table.open(Location.of(tmp_path / "census"), kind)
            assert (left.mark, left.pieces) == (before.mark, before.pieces)
            assert {str(path) for path in left.location.folder.rglob("day=*/*.parquet")} > set(left.files())
    assert len(rows_of("bronze", tmp_path, "id")) == 12
    run_pipeline(where, ["census"], tmp_path, quick, lifetime=0)
    check_counts(tmp_path, 12, 12)
    assert internals(q).ids() == []


def endure(
    what: str, where: dict[str, str], queue: Queue, directory: Path, victims: list[str], master: str, count: int
) -> set[tuple[str, int]]:
    """Runs of the tables, each of which loses a process at a random moment; returns what ended meanwhile.

    The moment is a while after one of the steps that are told of: anywhere in a run, however slow the machine is.
    """
    seed, ended = int(os.environ.get("ZKMQ_SEED") or random.randrange(1 << 32)), set()
    sys.stdout.write(f"ZKMQ_SEED={seed}\n")
    rand = random.Random(seed)
    steps = 8 if what == "archive" else 24
    with contextlib.ExitStack() as stack:
        driver = None
        for number, victim in enumerate(victims):
            produce(queue, count, number)
            ended |= ended_runs(queue)
            driver = driver or stack.enter_context(Tables(what, where, directory, master))
            driver.begin()
            after, pause = rand.randrange(steps), rand.uniform(0, 1)
            sys.stdout.write(f"{victim} is killed {pause:.2f} s after step {after}\n")
            told = "step"
            while after and told.startswith("step"):
                told, after = driver.hear(), after - 1
            threading.Event().wait(pause)  # whatever it is doing by then
            driver.kill(victim, rand)
            if victim != DRIVER:
                told = driver.outcome() if told.startswith("step") else told
                assert victim != NOBODY or told.startswith("{"), told
            if victim == DRIVER or not told:
                stack.close()
                driver = None
            held = Table.open(Location.of(directory / "census"), "bronze").mark
            queue.collect_garbage(lifetime=0)
            assert ended_runs(queue) >= {each for each in ended if each[1] > held.watermark}
    return ended


@pytest.mark.full
@pytest.mark.parametrize(
    ("what", "master", "victims", "count"),
    [
        ("archive", "local[2]", [WORKER, DRIVER], 300),
        pytest.param("archive", "local[2]", [DRIVER, WORKER] * 10, 1_500, marks=SCALE),
        pytest.param("pipeline", "local[2]", [DRIVER] * int(os.environ.get("ZKMQ_KILLS", "20")), 10, marks=SCALE),
        pytest.param("pipeline", CLUSTER, [EXECUTOR, WORKER, DRIVER] * 2 + [NOBODY], 1_500, marks=SCALE),
    ],
)
def test_what_is_killed_in_a_run_loses_and_doubles_nothing(
    what, master, victims, count, many, spark, where, q, tmp_path
) -> None:
    """Drivers, Python workers and executors at random moments; one more run has every run that ended, once."""
    q.configure(archive=True)
    ended = endure(what, where, q, tmp_path, victims, master, count)
    archive_queue(where, "census", tmp_path, spark)
    if what == "pipeline":
        run_pipeline(where, ["census"], tmp_path, spark, lifetime=0)
        check_counts(tmp_path, len(ended), len(ended) + len(victims))
    rows = [tuple(row) for row in read(spark, tmp_path, "bronze", "census").select("id", "version").collect()]
    assert len(rows) == len(set(rows)) == len(ended) == len(victims) * (count + 4)
    assert set(rows) == ended
    assert Table.open(Location.of(tmp_path / "census"), "bronze").mark.rows == len(rows)
    q.collect_garbage(lifetime=0)
    assert (internals(q).ids(), internals(q).ended_between(0)) == ([], [])
    finish(q, 1)
    assert archive_queue(where, "census", tmp_path, spark).archived == 1


@pytest.mark.full
@SCALE
def test_a_hundred_thousand_tasks_reach_gold_in_two_gigabytes(spark, where, q, tmp_path) -> None:
    """Every stage counts the same, the driver has less than one of them; a next run is counted by its hundred tasks."""
    count, first = int(os.environ.get("ZKMQ_TASKS", "100000")), 0
    with Tables("pipeline", where, tmp_path, "local[2]") as driver:
        for expected in (count, 100):
            ended_tasks(q, expected, first=first)
            first += expected
            driver.begin()
            told: dict[str, Any] = json.loads(driver.outcome())
            sys.stdout.write(f"{told}\n")
            steps = told["steps"]
            assert (steps["bronze"]["rows"], steps["silver"]["runs"], steps["silver"]["deliveries"]) == (expected,) * 3
            assert steps["gc"]["deleted"] == expected
            assert told["peak_kb"] <= 2 << 20
            assert told["driver_kb"] <= 1 << 20
    assert internals(q).ids() == []
    check_counts(tmp_path, count + 100, count + 100)
