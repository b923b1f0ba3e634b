"""The archive, with a real Spark and a real ZooKeeper."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from airflow_provider_zkmq.embedded import fourletter
from airflow_provider_zkmq.engine import ConfigError, Message, Queue, Task, Zkmq
from airflow_provider_zkmq.spark.history.bronze import STEPS, ArchiveIncomplete, archive_queue
from airflow_provider_zkmq.spark.history.manifest import exclusive, read_manifest
from airflow_provider_zkmq.spark.history.reading import percentiles, read_history
from airflow_provider_zkmq.spark.source.options import Options
from tests.integration.ended import ended_tasks, finish
from tests.support import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other


class Crash(Exception):
    """Ends a run as a crash would."""


def crash_after(wanted: str) -> Callable[[str], None]:
    def after(step: str) -> None:
        if step == wanted:
            raise Crash(step)

    return after


def archived(spark: SparkSession, directory: Path) -> list[str]:
    return sorted(row.id for row in read_history(spark, directory, "census").select("id").collect())


def watermark(queue: Queue) -> int:
    archive = queue.archive()
    return -1 if archive.version is None else archive.watermark


def attempts(row: object) -> list[tuple[int, str, str | None]]:
    return [(each["number"], each["outcome"], each["error"]) for each in row["history"]]


def day_of(task: Task) -> date:
    return datetime.fromtimestamp(task.ended_ms / 1000, UTC).date()


NAMES = ("stays", "dropped", "redriven")


def end_in_all_ways(queue: Queue) -> tuple[list[str], str, dict[str, Task]]:
    """Six finished tasks, one cancelled, three that died, as they were then; some are in other places or run anew."""
    done = finish(queue, 6)
    queue.enqueue_many([Message(b"x", task_id=name) for name in ("night-1", "night-2")], batch="night")
    for _ in range(2):
        queue.claim(timeout=5).complete()
    cancelled = queue.enqueue("never", {"performance_class": "standard"}, priority=3)
    queue.cancel(cancelled)
    for name in NAMES:
        queue.enqueue(f"data of {name}", {"performance_class": "low"}, task_id=name, metadata={"n": 1})
        queue.claim(timeout=5).fail("once", backoff=0)
        queue.claim(timeout=5).fail(f"no {name}", retry=False)
    dead = {task.id: task for task in queue.tasks(state="dead")}
    queue.drop("dropped")
    queue.redrive("redriven", data=b"mended")
    queue.claim(timeout=5).complete()
    queue.enqueue(b"run 0", task_id="again")
    for error in ("first", "second"):
        queue.claim(timeout=5).fail(error, backoff=0)
    queue.claim(timeout=5).complete(b"result 0")
    queue.enqueue(b"run 1", task_id="again")
    queue.claim(timeout=5).complete(b"result 1")
    return done, cancelled, dead


def test_rows_hold_each_run_as_it_ended_and_its_attempts(spark, where, q, tmp_path) -> None:
    """Wherever its task is: dead at its death; dropped, redriven with other data, run anew before the archive came."""
    q.configure(archive=True)
    done, cancelled, dead = end_in_all_ways(q)
    report = archive_queue(where, "census", tmp_path, spark)
    assert (report.archived, report.total) == (15, 15)
    history = read_history(spark, tmp_path)
    rows = {(row.id, bytes(row.data)): row for row in history.collect()}
    assert len(rows) == 15
    assert {name for name, _ in rows} == {*done, "night-1", "night-2", cancelled, *NAMES, "again"}

    row, task = rows[done[0], b"data 0"], q.task(done[0])
    assert (row.queue, row.state, row.attempt, row.filters) == ("census", "finished", 1, {"performance_class": "low"})
    assert (bytes(row.result), json.loads(row.metadata), row.version) == (b"result of data 0", {"n": 0}, task.version)
    assert row.wait_ms == task.claimed_ms - task.enqueued_ms
    assert row.run_ms == task.ended_ms - task.claimed_ms
    assert row.day == day_of(task)
    row = rows[cancelled, b"never"]
    assert (row.state, row.claimed_at, row.priority) == ("cancelled", None, 3)
    assert {name for name, data in rows if rows[name, data].batch == "night"} == {"night-1", "night-2"}
    assert {row.batch for row in rows.values()} == {"night", None}
    for name, task in dead.items():
        row = rows[name, f"data of {name}".encode()]
        assert (row.state, row.version, row.error) == ("dead", task.version, f"no {name}")
        assert (row.filters, json.loads(row.metadata)) == ({"performance_class": "low"}, {"n": 1})
        assert [error for _, _, error in attempts(row)] == ["once", f"no {name}"]
        assert (row.day, row.run_ms, row.result) == (day_of(task), None, None)

    assert bytes(rows["again", b"run 0"].result) == b"result 0"
    row, task = rows["again", b"run 1"], q.task("again")
    assert (row.attempt, bytes(row.result)) == (1, b"result 1")
    assert attempts(row) == [(1, "failed", "first"), (2, "failed", "second"), (3, "finished", None)]
    for stored, known in zip(row["history"], task.history, strict=True):
        times = [int(stored[name].replace(tzinfo=UTC).timestamp() * 1000) for name in ("claimed_at", "ended_at")]
        assert (times, stored["consumer"]) == ([known.claimed, known.ended], known.consumer)

    table = percentiles(history.where("state = 'finished' and metadata != '{}'"), "performance_class").collect()
    assert [(row["performance_class"], row["tasks"]) for row in table] == [("low", 4), ("standard", 3)]
    assert all(0 <= row["wait_p50"] <= row["wait_p90"] <= row["wait_p99"] for row in table)
    days = sorted({row.day for row in rows.values()})
    assert read_history(spark, tmp_path, "census", since=days[0], until=days[-1]).count() == 15
    assert read_history(spark, tmp_path, "census", until=days[0].replace(year=2000)).count() == 0

    assert q.clear() == 12
    assert archive_queue(where, "census", tmp_path, spark).archived == 0
    q.collect_garbage(lifetime=0)
    assert q.departed_between(0, q.zxid()) == []
    assert history.count() == 15


def test_clean_up_deletes_only_what_is_archived_and_a_run_costs_by_what_is_new(spark, where, q, tmp_path) -> None:
    """From the moment on at which a run begins, before it touches its folder, which another run holds at first.

    Counted by the server: with 1 500 archived before, a run with 40 new tasks asks for about as much as those.
    """
    old = ended_tasks(q, 1_500)
    with exclusive(tmp_path / "census"), pytest.raises(ConfigError, match="in use"):
        archive_queue(where, "census", tmp_path, spark)
    assert q.conf().archive
    eventually(lambda: q.collect_garbage(lifetime=0).kept_unarchived == 1_500)
    first = archive_queue(Options.of(where), "census", tmp_path, spark)
    assert (first.archived, first.total) == (1_500, 1_500)
    new = finish(q, 40)
    before = received(where["hosts"])
    second = archive_queue(partial(Zkmq.connect, **where, gc=False), "census", tmp_path, spark)
    few = received(where["hosts"]) - before
    assert few <= 120
    assert (second.archived, second.total) == (40, 1_540)
    assert second.watermark > first.watermark
    newest = finish(q, 3)
    collected = q.collect_garbage(lifetime=0)
    assert (collected.collected, collected.kept_unarchived) == (1_540, 3)
    assert sorted(q.ids()) == sorted(newest)
    assert archived(spark, tmp_path) == sorted(old + new)
    archive_queue(where, "census", tmp_path, spark)
    before = received(where["hosts"])
    none = archive_queue(where, "census", tmp_path, spark)
    assert received(where["hosts"]) - before <= few
    assert (none.archived, none.total, none.path) == (0, 1_543, None)
    assert watermark(q) == none.watermark
    assert archived(spark, tmp_path) == sorted(old + new + newest)
    assert q.collect_garbage(lifetime=0).collected == 3
    assert q.ids() == []


def received(hosts: str) -> int:
    """How many packets the server has received."""
    host, _, port = hosts.split(",", maxsplit=1)[0].partition(":")
    return int(fourletter.mntr(host, int(port))["zk_packets_received"])


@pytest.mark.full
def test_the_archive_of_an_older_version_goes_on(spark, where, q, tmp_path) -> None:
    """It took dead letters only when they left: the next run has those that stand or left since; it had no attempts."""
    q.configure(archive=True)
    for name in ("stands", "leaves", "left"):
        q.enqueue(b"x", task_id=name)
        q.claim(timeout=5).fail("no", retry=False)
    q.drop("left")
    done = finish(q, 1)
    archive_queue(where, "census", tmp_path, spark)
    path = tmp_path / "census" / "MANIFEST.json"
    record = json.loads(path.read_text())
    folder = tmp_path / "census" / record["runs"][0]["path"]
    older = spark.read.parquet(str(folder)).where("id not in ('stands', 'leaves')").drop("history")
    older.write.partitionBy("day").parquet(str(tmp_path / "older"))
    shutil.rmtree(folder)
    (tmp_path / "older").rename(folder)
    run = {**record["runs"][0], "rows": 2}
    path.write_text(json.dumps({"watermark": record["watermark"], "runs": [run]}))
    q.publish_archive(replace(q.archive(), at_death=False))
    q.drop("leaves")
    done += finish(q, 1)
    assert archive_queue(where, "census", tmp_path, spark).archived == 3
    rows = {row.id: (row.state, row.history and len(row.history)) for row in read_history(spark, tmp_path).collect()}
    assert rows == {
        "left": ("dead", None), "leaves": ("dead", 1), "stands": ("dead", 1),
        done[0]: ("finished", None), done[1]: ("finished", []),
    }  # fmt: skip
    assert q.archive().at_death
    assert archive_queue(where, "census", tmp_path, spark).archived == 0
    q.drop("stands")
    assert archive_queue(where, "census", tmp_path, spark).archived == 0


@pytest.mark.full
def test_damaged_tasks_are_counted_and_left_and_end_no_run(spark, where, q, zk, tmp_path) -> None:
    """A record that cannot be read is told of; clean-up keeps it. Of what else is damaged the rest is archived."""
    broken, torn, odd, good = finish(q, 4)
    client, tasks = zk._session.client, f"{where['root']}/census/tasks"
    whole, _ = client.get(f"{tasks}/{broken}/state")
    client.set(f"{tasks}/{broken}/state", b"[" * 100_000)
    client.set(f"{tasks}/{torn}/metadata", b'{"n":1e999}')
    client.set(f"{tasks}/{odd}/metadata", b'{"n":"a\\ud800"}')
    report = archive_queue(where, "census", tmp_path, spark)
    assert (report.archived, report.unreadable) == (3, (broken,))
    rows = {row.id: json.loads(row.metadata) for row in read_history(spark, tmp_path).collect()}
    assert rows == {torn: {}, odd: {"n": "a\ud800"}, good: {"n": 3}}
    collected = q.collect_garbage(lifetime=0)
    assert (collected.collected, collected.kept_changed) == (3, 1)
    assert q.ids() == [broken]
    again = finish(q, 1)
    assert archive_queue(where, "census", tmp_path, spark).unreadable == ()
    assert archived(spark, tmp_path) == sorted([torn, odd, good, *again])
    client.set(f"{tasks}/{broken}/state", whole)
    assert archive_queue(where, "census", tmp_path, spark).archived == 1
    assert archive_queue(where, "census", tmp_path, spark).archived == 0
    assert archived(spark, tmp_path) == sorted([torn, odd, good, broken, *again])
    assert q.collect_garbage(lifetime=0).collected == 2


@pytest.mark.full
def test_a_crash_after_any_step_loses_and_doubles_nothing(spark, where, q, tmp_path, subtests) -> None:
    """Also a dead letter that left before; clean-up deletes only what the archive has, and the znode follows it."""
    q.configure(archive=True)
    ids: list[str] = []
    for step in STEPS:
        with subtests.test(step=step):
            ids += [q.enqueue(b"x", task_id=f"dead-{step}"), *finish_after_death(q)]
            with pytest.raises(Crash):
                archive_queue(where, "census", tmp_path, spark, after=crash_after(step))
            held = read_manifest(tmp_path / "census")
            assert watermark(q) <= held.watermark
            gone = q.collect_garbage(lifetime=0).collected
            assert gone <= held.rows  # whatever was deleted is in the archive
            assert (watermark(q) < held.watermark) == (step == "published")
            with pytest.raises(Crash):
                archive_queue(where, "census", tmp_path, spark, after=crash_after("begun"))
            assert watermark(q) == held.watermark  # the znode is brought up to the manifest first
            ids += finish(q, 1)
            archive_queue(where, "census", tmp_path, spark)
            assert archived(spark, tmp_path) == sorted(ids)
            held = read_manifest(tmp_path / "census")
            assert watermark(q) == held.watermark
            stored = {f"runs/{path.name}" for path in (tmp_path / "census" / "runs").iterdir()}
            assert stored == {run.path for run in held.runs}
            q.collect_garbage(lifetime=0)
            assert (q.ids(), q.departed_between(0, q.zxid())) == ([], [])


def finish_after_death(queue: Queue) -> list[str]:
    """The task that waits dies and is dropped; two others are completed."""
    claim = queue.claim(timeout=5)
    claim.fail("no", retry=False)
    queue.drop(claim.task.id)
    return finish(queue, 2)


@pytest.mark.full
def test_a_run_that_is_overtaken_or_misses_tasks_publishes_nothing(spark, where, q, tmp_path) -> None:
    """The next one has what ended."""
    ids = finish(q, 3)

    def overtake(step: str) -> None:
        if step == "listed":  # elsewhere, where the lock of this machine does not reach, another run begins
            with pytest.raises(Crash):
                archive_queue(where, "census", tmp_path / "elsewhere", spark, after=crash_after("begun"))

    with pytest.raises(ConfigError, match="another archive run"):
        archive_queue(where, "census", tmp_path, spark, after=overtake)
    assert read_manifest(tmp_path / "census").rows == 0
    archive_queue(where, "census", tmp_path, spark)
    finish(q, 2)

    def collect(step: str) -> None:
        if step == "listed":  # the mark by which clean-up goes is deleted behind the archive's back
            q._session.client.delete(q._context.paths.at("archive"))
            q._context.configuration.watch = None
            assert q.collect_garbage(lifetime=0).collected == 5

    with pytest.raises(ArchiveIncomplete, match="of 2 tasks"):
        archive_queue(where, "census", tmp_path, spark, after=collect)
    assert archived(spark, tmp_path) == sorted(ids)
    ids += finish(q, 1)
    archive_queue(where, "census", tmp_path, spark)
    assert archived(spark, tmp_path) == sorted(ids)


@pytest.mark.full
def test_the_archive_of_another_queue_or_ensemble_and_another_directory_are_refused(spark, where, q, tmp_path) -> None:
    """What ended here before the other one's archive was made would be passed over, and deleted by clean-up."""
    finish(q, 2)
    with pytest.raises(ConfigError, match="does not exist"):
        archive_queue(where, "absent", tmp_path, spark)
    foreign = tmp_path / "foreign" / "census"
    foreign.mkdir(parents=True)
    (foreign / "MANIFEST.json").write_text(json.dumps({"watermark": 1 << 60, "runs": []}))
    with pytest.raises(ConfigError, match="another ensemble"):
        archive_queue(where, "census", foreign.parent, spark)
    assert q.collect_garbage(lifetime=0).collected == 0  # clean-up has not been told of that archive
    elsewhere = {**where, "root": f"{where['root']}-other"}
    with Zkmq.connect(**elsewhere, gc=False) as client:
        client.queue("census").configure(filters=q.conf().filters)
        finish(client.queue("census"), 1)
        archive_queue(elsewhere, "census", tmp_path, spark)
        with pytest.raises(ConfigError, match="the archive of another queue 'census'"):
            archive_queue(where, "census", tmp_path, spark)
        assert q.collect_garbage(lifetime=0).collected == 0
        with pytest.raises(ConfigError, match="archived up to"):
            archive_queue(elsewhere, "census", tmp_path / "two", spark)
        client.delete_queue("census", confirm=True, force=True)
        client.queue("census").configure(filters=q.conf().filters)
        (done,) = finish(client.queue("census"), 1)
        assert archive_queue(elsewhere, "census", tmp_path, spark).archived == 1
        assert done in archived(spark, tmp_path)
