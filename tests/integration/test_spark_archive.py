"""The archive, with a real Spark and a real ZooKeeper."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from airflow_provider_zkmq.embedded import fourletter
from airflow_provider_zkmq.engine import ConfigError, CorruptRecord, Message, OrderedEnum, Zkmq
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.spark.history.bronze import STEPS, ArchiveIncomplete, archive_queue
from airflow_provider_zkmq.spark.history.manifest import exclusive, read_manifest
from airflow_provider_zkmq.spark.history.reading import percentiles, read_history
from airflow_provider_zkmq.spark.source.options import Options
from tests.integration.ended import ended_tasks
from tests.support import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other


class Crash(Exception):
    """Ends a run as a crash would."""


@pytest.fixture
def connect(zookeeper: str) -> dict[str, object]:
    """The connection to a root of its own."""
    return {"hosts": zookeeper, "root": f"/archive-{uuid.uuid4().hex[:8]}"}


@pytest.fixture
def queue(connect: dict[str, object]) -> Iterator[Queue]:
    """A queue with one filter."""
    with Zkmq.connect(**connect, gc=False) as client:
        made = client.queue("q")
        made.configure(filters={"size": OrderedEnum("small", "large")}, task_gc_lifetime=0)
        yield made


def finish(queue: Queue, count: int) -> list[str]:
    """Enqueue tasks and complete them."""
    queue.enqueue_many(
        [Message(f"data {n}", {"size": "large" if n % 2 else "small"}, metadata={"n": n}) for n in range(count)]
    )
    done = []
    for _ in range(count):
        claim = queue.claim(timeout=5)
        assert claim is not None
        claim.complete(b"result of " + claim.task.data)
        done.append(claim.task.id)
    return done


def archived(spark: SparkSession, directory: Path) -> list[str]:
    return sorted(row.id for row in read_history(spark, directory, "q").select("id").collect())


def crash_after(wanted: str) -> object:
    def after(step: str) -> None:
        if step == wanted:
            raise Crash(step)

    return after


def watermark(queue: Queue) -> int:
    archive = queue.archive()
    return -1 if archive.version is None else archive.watermark


def test_rows_hold_the_whole_task(spark, connect, queue, tmp_path) -> None:
    (first,) = finish(queue, 1)
    cancelled = queue.enqueue("never", {"size": "large"}, priority=3)
    queue.cancel(cancelled)
    report = archive_queue(connect, "q", tmp_path, spark)
    assert (report.archived, report.total) == (2, 2)
    rows = {row.id: row for row in read_history(spark, tmp_path).collect()}
    assert set(rows) == {first, cancelled}
    row, task = rows[first], queue.task(first)
    assert (row.queue, row.state, row.attempt, row.filters) == ("q", "finished", 1, {"size": "small"})
    assert (bytes(row.data), bytes(row.result)) == (b"data 0", b"result of data 0")
    assert json.loads(row.metadata) == {"n": 0}
    assert row.version == task.version
    assert row.wait_ms == task.claimed_ms - task.enqueued_ms
    assert row.run_ms == task.ended_ms - task.claimed_ms
    assert row.day == datetime.fromtimestamp(task.ended_ms / 1000, UTC).date()
    assert (rows[cancelled].state, rows[cancelled].claimed_at, rows[cancelled].priority) == ("cancelled", None, 3)


def test_collection_deletes_only_what_is_archived(spark, connect, queue, tmp_path) -> None:
    old = finish(queue, 5)
    report = archive_queue(connect, "q", tmp_path, spark)
    new = finish(queue, 3)
    collected = queue.collect_garbage(lifetime=0)
    assert (collected.collected, collected.kept_unarchived) == (5, 3)
    assert sorted(task.id for task in queue.tasks(state="finished")) == sorted(new)
    assert archived(spark, tmp_path) == sorted(old)
    second = archive_queue(connect, "q", tmp_path, spark)
    assert (second.archived, second.total) == (3, 8)
    assert second.watermark > report.watermark
    assert archived(spark, tmp_path) == sorted(old + new)
    assert queue.collect_garbage(lifetime=0).collected == 3


def test_what_ended_before_the_first_run_is_kept_for_it(spark, connect, queue, tmp_path) -> None:
    """The queue is said to be archived: clean-up before the first run, between runs and after them loses nothing."""
    queue.configure(archive=True)
    ids = finish(queue, 4)
    eventually(lambda: queue.collect_garbage(lifetime=0).kept_unarchived == 4)
    assert sorted(queue.ids("finished")) == sorted(ids)
    archive_queue(connect, "q", tmp_path, spark)
    new = finish(queue, 2)
    eventually(lambda: queue.collect_garbage(lifetime=0).kept_unarchived == 2)
    assert sorted(queue.ids("finished")) == sorted(new)
    archive_queue(connect, "q", tmp_path, spark)
    queue.collect_garbage(lifetime=0)
    assert queue.ids() == []
    assert archived(spark, tmp_path) == sorted(ids + new)


def test_a_run_says_first_that_the_queue_is_archived(spark, connect, queue, tmp_path) -> None:
    """Before it touches its folder, which another run holds here: from that moment on clean-up deletes nothing."""
    finish(queue, 2)
    with exclusive(tmp_path / "q"), pytest.raises(ConfigError, match="in use"):
        archive_queue(connect, "q", tmp_path, spark)
    assert queue.conf().archive
    eventually(lambda: queue.collect_garbage(lifetime=0).kept_unarchived == 2)


def attempts(row: object) -> list[tuple[int, str, str | None]]:
    return [(each["number"], each["outcome"], each["error"]) for each in row["history"]]


def test_rows_hold_the_attempts_of_a_run_and_of_those_before(spark, connect, queue, tmp_path) -> None:
    """Failed twice, then finished; run anew before an archive had it: its deliveries are in the next run's history."""
    queue.enqueue(b"one", task_id="a")
    for error in ("first", "second"):
        queue.claim(timeout=5).fail(error, backoff=0)
    queue.claim(timeout=5).complete(b"r")
    queue.enqueue(b"two", task_id="a")
    queue.claim(timeout=5).complete()
    archive_queue(connect, "q", tmp_path, spark)
    (row,) = read_history(spark, tmp_path, "q").collect()
    assert attempts(row) == [(1, "failed", "first"), (2, "failed", "second"), (3, "finished", None)]
    task = queue.task("a")
    for stored, known in zip(row["history"], task.history, strict=True):
        times = [int(stored[name].replace(tzinfo=UTC).timestamp() * 1000) for name in ("claimed_at", "ended_at")]
        assert (times, stored["consumer"]) == ([known.claimed, known.ended], known.consumer)
    assert (bytes(row["data"]), row["attempt"]) == (b"two", 1)


def test_each_run_is_archived_once_when_it_ended_and_wherever_its_task_is(spark, connect, queue, tmp_path) -> None:
    """Dead at its death; dropped, cleared, redriven with other data, run anew before the archive came: as it ended."""
    queue.configure(archive=True)
    names = ("stays", "dropped", "redriven", "cleared")
    for name in names:
        queue.enqueue(f"data of {name}", {"size": "small"}, task_id=name, metadata={"n": 1})
        queue.claim(timeout=5).fail("once", backoff=0)
        queue.claim(timeout=5).fail(f"no {name}", retry=False)
    before = {task.id: task for task in queue.tasks(state="dead")}
    for number in range(3):
        queue.enqueue(f"run {number}", task_id="again")
        queue.claim(timeout=5).complete(b"result %d" % number)
    queue.drop("dropped")
    queue.redrive("redriven", data=b"mended")
    queue.claim(timeout=5).complete()
    assert archive_queue(connect, "q", tmp_path, spark).archived == 4 + 3 + 1
    rows = {(row.id, row.version): row for row in read_history(spark, tmp_path, "q").collect()}
    for name in names:
        row, task = rows[name, before[name].version], before[name]
        assert (row.state, bytes(row.data), row.error) == ("dead", task.data, f"no {name}")
        assert (row.filters, json.loads(row.metadata), row.result) == ({"size": "small"}, {"n": 1}, None)
        assert [error for _, _, error in attempts(row)] == ["once", f"no {name}"]
        assert (row.day, row.run_ms) == (datetime.fromtimestamp(task.ended_ms / 1000, UTC).date(), None)
    runs = sorted((bytes(row.data), bytes(row.result)) for row in rows.values() if row.id == "again")
    assert runs == [(b"run %d" % n, b"result %d" % n) for n in range(3)]
    assert queue.clear() == 4
    assert archive_queue(connect, "q", tmp_path, spark).archived == 0
    queue.collect_garbage(lifetime=0)
    assert queue.departed_between(0, queue.zxid()) == []
    assert read_history(spark, tmp_path, "q").count() == 8


def test_dead_letters_from_before_an_older_archive_are_taken_once(spark, connect, queue, tmp_path) -> None:
    """It took them only when they left: those that stand now, and those that left since, come with the next run."""
    queue.configure(archive=True)
    for name in ("stands", "leaves", "left"):
        queue.enqueue(b"x", task_id=name)
        queue.claim(timeout=5).fail("no", retry=False)
    finish(queue, 2)
    queue.drop("left")
    archive_queue(connect, "q", tmp_path, spark)
    path = tmp_path / "q" / "MANIFEST.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({"watermark": record["watermark"], "runs": []}))  # it holds what is not told of here
    pointer = queue.archive()
    queue.publish_archive(replace(pointer, at_death=False))
    queue.drop("leaves")
    finish(queue, 1)
    assert archive_queue(connect, "q", tmp_path, spark).archived == 3
    rows = [(row.id, row.state) for row in read_history(spark, tmp_path, "q").collect()]
    assert sorted(row for row in rows if row[1] == "dead") == [("leaves", "dead"), ("stands", "dead")]
    assert queue.archive().at_death
    assert archive_queue(connect, "q", tmp_path, spark).archived == 0
    queue.drop("stands")
    assert archive_queue(connect, "q", tmp_path, spark).archived == 0


def test_a_run_costs_by_what_has_ended_since_the_last_one(spark, connect, queue, tmp_path, zookeeper) -> None:
    """Counted by the server: with 1 500 archived before, a run with 40 new tasks asks for about as much as those."""
    ended_tasks(queue, 1_500)
    archive_queue(connect, "q", tmp_path, spark)
    finish(queue, 40)
    before = received(zookeeper)
    assert archive_queue(connect, "q", tmp_path, spark).archived == 40
    few = received(zookeeper) - before
    assert few <= 120
    before = received(zookeeper)
    assert archive_queue(connect, "q", tmp_path, spark).archived == 0
    assert received(zookeeper) - before <= few


def received(hosts: str) -> int:
    """How many packets the server has received."""
    host, _, port = hosts.split(",", maxsplit=1)[0].partition(":")
    return int(fourletter.mntr(host, int(port))["zk_packets_received"])


def test_the_options_of_the_data_source_lead_to_the_queue(spark, connect, queue, tmp_path) -> None:
    """As arguments and a function that connects do; what names no server is refused by it."""
    (first,) = finish(queue, 1)
    options = Options.of({"hosts": str(connect["hosts"]), "root": str(connect["root"])})
    assert archive_queue(options, "q", tmp_path, spark).archived == 1
    (second,) = finish(queue, 1)
    assert archive_queue(partial(Zkmq.connect, **connect, gc=False), "q", tmp_path, spark).archived == 1
    assert archived(spark, tmp_path) == sorted([first, second])


def test_a_batch_s_name_is_in_its_rows(spark, connect, queue, tmp_path) -> None:
    queue.enqueue_many([Message(b"x", task_id="a"), Message(b"x", task_id="b")], batch="night")
    queue.enqueue(b"x", task_id="c")
    for _ in range(3):
        queue.claim(timeout=5).complete()
    archive_queue(connect, "q", tmp_path, spark)
    rows = read_history(spark, tmp_path, "q").select("id", "batch").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [("a", "night"), ("b", "night"), ("c", None)]


@pytest.mark.parametrize("step", ["listed", "staged", "published"])
def test_a_crash_loses_and_doubles_no_dead_letter(step, spark, connect, queue, tmp_path) -> None:
    """It left before a run that is cut off: the next one has it, once; clean-up waits for the archive."""
    queue.configure(archive=True)
    queue.enqueue(b"x", task_id="a")
    queue.claim(timeout=5).fail("no", retry=False)
    queue.drop("a")
    with pytest.raises(Crash):
        archive_queue(connect, "q", tmp_path, spark, after=crash_after(step))
    queue.collect_garbage(lifetime=0)
    archive_queue(connect, "q", tmp_path, spark)
    assert archived(spark, tmp_path) == ["a"]
    queue.collect_garbage(lifetime=0)
    assert queue.departed_between(0, queue.zxid()) == []


def test_each_run_is_archived_once_although_it_is_requeued_in_its_window(spark, connect, queue, tmp_path) -> None:
    """Archived in its dedupe window, then requeued, and archived again: the run is not archived twice."""
    queue.enqueue(b"one", task_id="a")
    queue.claim(timeout=5).complete(dedupe=3)
    archive_queue(connect, "q", tmp_path, spark)
    queue.enqueue(b"two", task_id="a", requeue=True)
    assert archive_queue(connect, "q", tmp_path, spark).archived == 0
    queue.claim(timeout=20).complete()
    assert archive_queue(connect, "q", tmp_path, spark).archived == 1
    assert sorted(bytes(row.data) for row in read_history(spark, tmp_path, "q").collect()) == [b"one", b"two"]


def test_runs_of_an_older_version_are_read_without_their_attempts(spark, connect, queue, tmp_path) -> None:
    """Their files have no such column: it is null there, and the rest is as it was."""
    finish(queue, 1)
    archive_queue(connect, "q", tmp_path, spark)
    (run,) = (tmp_path / "q" / "runs").iterdir()
    spark.read.parquet(str(run)).drop("history").write.partitionBy("day").parquet(str(tmp_path / "older"))
    shutil.rmtree(run)
    (tmp_path / "older").rename(run)
    finish(queue, 1)
    archive_queue(connect, "q", tmp_path, spark)
    rows = read_history(spark, tmp_path, "q").orderBy("ended_at").collect()
    assert ([row.history for row in rows], [bytes(row.data) for row in rows]) == ([None, []], [b"data 0", b"data 0"])


def test_damaged_tasks_are_counted_and_left_and_end_no_run(spark, connect, queue, tmp_path) -> None:
    """A record that cannot be read is told of; clean-up keeps it. Of what else is damaged the rest is archived."""
    broken, torn, odd, good = finish(queue, 4)
    with Zkmq.connect(**connect, gc=False) as zk:
        client, tasks = zk._session.client, f"{connect['root']}/q/tasks"
        whole, _ = client.get(f"{tasks}/{broken}/state")
        client.set(f"{tasks}/{broken}/state", b"[" * 100_000)
        client.set(f"{tasks}/{torn}/metadata", b'{"n":1e999}')
        client.set(f"{tasks}/{odd}/metadata", b'{"n":"a\\ud800"}')
    report = archive_queue(connect, "q", tmp_path, spark)
    assert (report.archived, report.unreadable) == (3, (broken,))
    rows = {row.id: json.loads(row.metadata) for row in read_history(spark, tmp_path).collect()}
    assert rows == {torn: {}, odd: {"n": "a\ud800"}, good: {"n": 3}}
    collected = queue.collect_garbage(lifetime=0)
    assert (collected.collected, collected.kept_changed) == (3, 1)
    assert queue.ids() == [broken]
    again = finish(queue, 1)
    assert archive_queue(connect, "q", tmp_path, spark).unreadable == ()
    assert archived(spark, tmp_path) == sorted([torn, odd, good, *again])
    with Zkmq.connect(**connect, gc=False) as zk:
        zk._session.client.set(f"{connect['root']}/q/tasks/{broken}/state", whole)
    assert archive_queue(connect, "q", tmp_path, spark).archived == 1
    assert archive_queue(connect, "q", tmp_path, spark).archived == 0
    assert archived(spark, tmp_path) == sorted([torn, odd, good, broken, *again])
    assert queue.collect_garbage(lifetime=0).collected == 2


def test_a_run_without_news_adds_none(spark, connect, queue, tmp_path) -> None:
    finish(queue, 2)
    archive_queue(connect, "q", tmp_path, spark)
    again = archive_queue(connect, "q", tmp_path, spark)
    assert (again.archived, again.total, again.path) == (0, 2, None)
    assert watermark(queue) == again.watermark


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_after_any_step_loses_and_doubles_nothing(step, spark, connect, queue, tmp_path) -> None:
    ids = finish(queue, 4)
    with pytest.raises(Crash):
        archive_queue(connect, "q", tmp_path, spark, after=crash_after(step))
    assert watermark(queue) <= read_manifest(tmp_path / "q").watermark
    gone = queue.collect_garbage(lifetime=0).collected
    assert gone <= read_manifest(tmp_path / "q").rows  # whatever was deleted is in the archive
    ids += finish(queue, 2)
    archive_queue(connect, "q", tmp_path, spark)
    assert archived(spark, tmp_path) == sorted(ids)
    assert watermark(queue) == read_manifest(tmp_path / "q").watermark
    runs = {run.path for run in read_manifest(tmp_path / "q").runs}
    assert {f"runs/{path.name}" for path in (tmp_path / "q" / "runs").iterdir()} == runs
    queue.collect_garbage(lifetime=0)
    assert queue.counts()["finished"] == 0


def test_the_znode_is_brought_up_to_the_manifest_first(spark, connect, queue, tmp_path) -> None:
    finish(queue, 2)
    with pytest.raises(Crash):
        archive_queue(connect, "q", tmp_path, spark, after=crash_after("published"))
    assert watermark(queue) == 0
    with pytest.raises(Crash):
        archive_queue(connect, "q", tmp_path, spark, after=crash_after("begun"))
    assert watermark(queue) == read_manifest(tmp_path / "q").watermark > 0


def test_only_the_first_run_of_two_is_overtaken(spark, connect, queue, tmp_path) -> None:
    ids = finish(queue, 3)

    def overtake(step: str) -> None:
        if step == "listed":  # elsewhere, where the lock of this machine does not reach, another run begins
            with pytest.raises(Crash):
                archive_queue(connect, "q", tmp_path / "elsewhere", spark, after=crash_after("begun"))

    with pytest.raises(ConfigError, match="another archive run"):
        archive_queue(connect, "q", tmp_path, spark, after=overtake)
    assert read_manifest(tmp_path / "q").rows == 0
    archive_queue(connect, "q", tmp_path, spark)
    assert archived(spark, tmp_path) == sorted(ids)


def test_a_task_that_vanishes_stops_the_run(spark, connect, queue, tmp_path) -> None:
    finish(queue, 2)

    def collect(step: str) -> None:
        if step == "listed":
            assert collect_behind_its_back(queue) == 2

    with pytest.raises(ArchiveIncomplete, match="of 2 tasks"):
        archive_queue(connect, "q", tmp_path, spark, after=collect)
    assert not read_manifest(tmp_path / "q").runs


def collect_behind_its_back(queue: Queue) -> int:
    """Delete the watermark behind the archive's back and collect; returns how many went."""
    queue._session.client.delete(queue._context.paths.at("archive"))
    queue._context.configuration.watch = None
    return queue.collect_garbage(lifetime=0).collected


def test_another_directory_is_refused(spark, connect, queue, tmp_path) -> None:
    finish(queue, 1)
    archive_queue(connect, "q", tmp_path / "one", spark)
    with pytest.raises(ConfigError, match="archived up to"):
        archive_queue(connect, "q", tmp_path / "two", spark)


def test_another_ensemble_is_refused(spark, connect, queue, tmp_path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "MANIFEST.json").write_text(json.dumps({"watermark": 1 << 60, "runs": []}))
    finish(queue, 1)
    with pytest.raises(ConfigError, match="another ensemble"):
        archive_queue(connect, "q", tmp_path, spark)
    assert queue.collect_garbage(lifetime=0).collected == 0  # clean-up has not been told of that archive


def test_the_archive_of_a_queue_of_the_same_name_is_refused(spark, connect, queue, tmp_path) -> None:
    """What ended here before the other one's archive was made would be passed over, and deleted by clean-up."""
    finish(queue, 2)
    other = {**connect, "root": f"{connect['root']}-other"}
    with Zkmq.connect(**other, gc=False) as client:
        client.queue("q").configure(filters={"size": OrderedEnum("small", "large")})
        finish(client.queue("q"), 1)
        archive_queue(other, "q", tmp_path, spark)
        with pytest.raises(ConfigError, match="the archive of another queue 'q'"):
            archive_queue(connect, "q", tmp_path, spark)
        assert queue.collect_garbage(lifetime=0).collected == 0
        client.delete_queue("q", confirm=True, force=True)
        client.queue("q").configure(filters={"size": OrderedEnum("small", "large")})
        done = finish(client.queue("q"), 1)
        assert archive_queue(other, "q", tmp_path, spark).archived == 1
        assert done[0] in archived(spark, tmp_path)


def test_two_runs_at_once_are_refused(spark, connect, queue, tmp_path) -> None:
    with exclusive(tmp_path / "q"), pytest.raises(ConfigError, match="in use"):
        archive_queue(connect, "q", tmp_path, spark)


def test_a_missing_queue_and_a_broken_manifest_are_named(spark, connect, queue, tmp_path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        archive_queue(connect, "absent", tmp_path, spark)
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "MANIFEST.json").write_text("{}")
    with pytest.raises(CorruptRecord, match="MANIFEST.json"):
        read_history(spark, tmp_path, "q")


def test_percentiles_per_filter(spark, connect, queue, tmp_path) -> None:
    finish(queue, 6)
    archive_queue(connect, "q", tmp_path, spark)
    history = read_history(spark, tmp_path, "q")
    table = percentiles(history, "size").collect()
    assert [(row["size"], row["tasks"]) for row in table] == [("large", 3), ("small", 3)]
    assert all(0 <= row["wait_p50"] <= row["wait_p90"] <= row["wait_p99"] for row in table)
    today = history.first()["day"]
    assert read_history(spark, tmp_path, "q", since=today, until=today).count() == 6
    assert read_history(spark, tmp_path, "q", until=today.replace(year=2000)).count() == 0
