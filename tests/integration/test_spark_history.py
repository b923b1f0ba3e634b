"""The archive and the tables that are made of it, with a real Spark, against the queue and what pandas computes."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from airflow_provider_zkmq.delta_tables import FOLDERS, Table
from airflow_provider_zkmq.embedded import node
from airflow_provider_zkmq.engine import ConfigError, Message, Queue, Task, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.history import table
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark.history import stage_and_load
from airflow_provider_zkmq.spark.history.bronze import ArchiveIncomplete, ArchiveReport, archive_queue
from airflow_provider_zkmq.spark.history.gold import HOURLY, summarise
from airflow_provider_zkmq.spark.history.retention import Retention, retain
from airflow_provider_zkmq.spark.history.silver import refine
from airflow_provider_zkmq.spark.history.stage_and_load import load, stage
from airflow_provider_zkmq.spark.history.table_reader import read
from airflow_provider_zkmq.spark.source.options import SourceOptions
from tests.integration import histories as made
from tests.integration.ended import ended_tasks, finish
from tests.integration.histories import DAY, HOUR, START, Histories, write_bronze
from tests.support import eventually

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does what a small run does in its own process: see `test_small_runs`."""
    monkeypatch.setattr(stage_and_load, "FEW", 0)


class Crash(Exception):
    """Ends a run as a crash would."""


def crash_at(wanted: str) -> Callable[[str], None]:
    def after(step: str) -> None:
        if step == wanted:
            raise Crash(step)

    return after


# --- the archive


def archived(spark: SparkSession, directory: Path) -> list[str]:
    return sorted(row.id for row in read(spark, directory, "bronze", "census").select("id").collect())


@pytest.fixture
def archive(spark, where, tmp_path) -> Callable[..., ArchiveReport]:
    """Brings the archive of the test's queue up to date."""
    return lambda folder=tmp_path, to=where, **options: archive_queue(to, "census", folder, spark, **options)


def die(queue: Queue, task_id: str, *errors: str) -> None:
    """A task that has failed with each of these errors is dead."""
    queue.enqueue(f"data of {task_id}", {"performance_class": "low"}, task_id=task_id, metadata={"n": 1})
    for number, error in enumerate(errors, 1):
        queue.claim(timeout=5).fail(error, backoff=0, retry=number < len(errors))


def end_in_all_ways(queue: Queue) -> tuple[list[str], str, dict[str, Task]]:
    """Six finished tasks, one cancelled, three that died, as they were then; some are in other places or run anew."""
    done = finish(queue, 6)
    queue.enqueue_many([Message(b"x", task_id=name) for name in ("night-1", "night-2")], batch="night")
    for _ in range(2):
        queue.claim(timeout=5).complete()
    cancelled = queue.enqueue("never", {"performance_class": "standard"}, priority=3)
    queue.cancel(cancelled)
    for name in ("stays", "dropped", "redriven"):
        die(queue, name, "once", f"no {name}")
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


def test_rows_hold_each_run_as_it_ended_and_its_attempts(spark, archive, q, tmp_path) -> None:
    """Wherever its task is: dead at its death; dropped, redriven with other data, run anew before the archive came."""
    q.configure(archive=True)
    done, cancelled, dead = end_in_all_ways(q)
    report = archive()
    assert (report.archived, report.total) == (15, 15)
    history = read(spark, tmp_path, "bronze")
    rows = {(row.id, bytes(row.data)): row for row in history.collect()}
    assert len(rows) == 15
    assert {name for name, _ in rows} == {*done, "night-1", "night-2", cancelled, *dead, "again"}

    row, task = rows[done[0], b"data 0"], q.task(done[0])
    assert (row.queue, row.state, row.attempt, row.filters) == ("census", "finished", 1, {"performance_class": "low"})
    assert (bytes(row.result), json.loads(row.metadata), row.version) == (b"result of data 0", {"n": 0}, task.version)
    assert row.wait_ms == task.claimed_ms - task.enqueued_ms
    assert row.run_ms == task.ended_ms - task.claimed_ms
    row = rows[cancelled, b"never"]
    assert (row.state, row.claimed_at, row.priority) == ("cancelled", None, 3)
    assert {name for name, data in rows if rows[name, data].batch == "night"} == {"night-1", "night-2"}
    assert {row.batch for row in rows.values()} == {"night", None}
    for name, task in dead.items():
        row = rows[name, f"data of {name}".encode()]
        assert (row.state, row.version, row.error) == ("dead", task.version, f"no {name}")
        assert (row.filters, json.loads(row.metadata)) == ({"performance_class": "low"}, {"n": 1})
        assert [each["error"] for each in row["history"]] == ["once", f"no {name}"]
        day = datetime.fromtimestamp(task.ended_ms / 1000, UTC).date()
        assert (row.day, row.run_ms, row.result) == (day, None, None)

    assert bytes(rows["again", b"run 0"].result) == b"result 0"
    row, task = rows["again", b"run 1"], q.task("again")
    assert (row.attempt, bytes(row.result)) == (1, b"result 1")
    attempts = [(each["number"], each["outcome"], each["error"]) for each in row["history"]]
    assert attempts == [(1, "failed", "first"), (2, "failed", "second"), (3, "finished", None), (1, "finished", None)]
    for stored, known in zip(row["history"], task.history, strict=True):
        times = [int(stored[name].replace(tzinfo=UTC).timestamp() * 1000) for name in ("claimed_at", "ended_at")]
        assert (times, stored["consumer"]) == ([known.claimed, known.ended], known.consumer)

    days = sorted({row.day for row in rows.values()})
    assert read(spark, tmp_path, "bronze", "census", since=days[0], until=days[-1]).count() == 15
    assert read(spark, tmp_path, "bronze", "census", until=days[0].replace(year=2000)).count() == 0

    assert q.clear() == 12
    assert archive().archived == 0
    q.collect_garbage(lifetime=0)
    assert [each for each in internals(q).ended_between(0) if each.place is not None] == []
    assert history.count() == 15


def test_clean_up_deletes_only_what_is_archived_and_a_run_costs_by_what_is_new(
    spark, archive, where, q, tmp_path
) -> None:
    """From the moment on at which a run begins, before it has written anything.

    Counted by the server: with 300 archived before, a run with 40 new tasks asks for about as much as those.
    """
    old = ended_tasks(q, 300)
    with pytest.raises(Crash):
        archive(after=crash_at("begun"))
    assert q.conf().archive
    eventually(lambda: q.collect_garbage(lifetime=0).kept_unarchived == 300)
    first = archive(to=SourceOptions.of(where))
    assert (first.archived, first.total) == (300, 300)
    new = finish(q, 40)
    before = received(where["hosts"])
    second = archive(to=partial(Zkmq.connect, **where, gc=False))
    few = received(where["hosts"]) - before
    assert few <= 120
    assert (second.archived, second.total) == (40, 340)
    assert second.watermark > first.watermark
    newest = finish(q, 3)
    collected = q.collect_garbage(lifetime=0)
    assert (collected.collected, collected.kept_unarchived) == (340, 3)
    assert sorted(internals(q).ids()) == sorted(newest)
    assert archived(spark, tmp_path) == sorted(old + new)
    archive()
    before = received(where["hosts"])
    none = archive()
    assert received(where["hosts"]) - before <= few
    assert (none.archived, none.total, none.path) == (0, 343, None)
    assert internals(q).archive().watermark == none.watermark
    assert archived(spark, tmp_path) == sorted(old + new + newest)
    assert q.collect_garbage(lifetime=0).collected == 3
    assert internals(q).ids() == []


def received(hosts: str) -> int:
    """How many packets the server has received."""
    host, _, port = hosts.split(",", maxsplit=1)[0].partition(":")
    return int(node.mntr(host, int(port))["zk_packets_received"])


def test_damaged_tasks_are_counted_and_left_and_end_no_run(spark, archive, where, q, zk, tmp_path) -> None:
    """A record that cannot be read is told of; clean-up keeps it. Of what else is damaged the rest is archived."""
    broken, torn, odd, good = finish(q, 4)
    client, tasks = zk._session.client, f"{where['root']}/census/tasks"
    whole, _ = client.get(f"{tasks}/{broken}/state")
    client.set(f"{tasks}/{broken}/state", b"[" * 100_000)
    client.set(f"{tasks}/{torn}/metadata", b'{"n":1e999}')
    client.set(f"{tasks}/{odd}/metadata", b'{"n":"a\\ud800"}')
    report = archive()
    assert (report.archived, report.unreadable) == (3, (broken,))
    rows = {row.id: json.loads(row.metadata) for row in read(spark, tmp_path, "bronze").collect()}
    assert rows == {torn: {}, odd: {}, good: {"n": 3}}
    collected = q.collect_garbage(lifetime=0)
    assert (collected.collected, collected.kept_changed) == (3, 1)
    assert internals(q).ids() == [broken]
    again = finish(q, 1)
    assert archive().unreadable == ()
    assert archived(spark, tmp_path) == sorted([torn, odd, good, *again])
    client.set(f"{tasks}/{broken}/state", whole)
    assert archive().archived == 1
    assert archive().archived == 0
    assert archived(spark, tmp_path) == sorted([torn, odd, good, broken, *again])
    assert q.collect_garbage(lifetime=0).collected == 2


def test_a_run_that_is_overtaken_or_misses_tasks_publishes_nothing(spark, archive, where, q, tmp_path) -> None:
    """The next one has what ended."""
    ids = finish(q, 3)

    def overtake(step: str) -> None:
        if step == "listed":  # another run begins elsewhere
            with pytest.raises(Crash):
                archive(tmp_path / "elsewhere", after=crash_at("begun"))

    with pytest.raises(ConfigError, match="another archive run"):
        archive(after=overtake)
    assert Table.open(Location.of(tmp_path / "census"), "bronze").mark.rows == 0
    archive()
    finish(q, 2)

    def collect(step: str) -> None:
        if step == "listed":  # the mark by which clean-up goes is deleted behind the archive's back
            q._session.client.delete(q._context.paths.at("archive"))
            q._context.configuration.watch = None
            assert q.collect_garbage(lifetime=0).collected == 5

    with pytest.raises(ArchiveIncomplete, match="of 2 tasks"):
        archive(after=collect)
    assert archived(spark, tmp_path) == sorted(ids)
    ids += finish(q, 1)
    archive()
    assert archived(spark, tmp_path) == sorted(ids)


def test_the_archive_of_another_queue_or_ensemble_and_another_directory_are_refused(
    spark, archive, where, q, tmp_path
) -> None:
    """What ended here before the other one's archive was made would be passed over, and deleted by clean-up."""
    finish(q, 2)
    with pytest.raises(ConfigError, match="does not exist"):
        archive_queue(where, "absent", tmp_path, spark)
    foreign = tmp_path / "foreign" / "census"
    write_bronze(foreign, [], 1 << 60)
    with pytest.raises(ConfigError, match="another ensemble"):
        archive(foreign.parent)
    assert q.collect_garbage(lifetime=0).collected == 0  # clean-up has not been told of that archive
    elsewhere = {**where, "root": f"{where['root']}-other"}
    with Zkmq.connect(**elsewhere, gc=False) as client:
        client.queue("census").configure(filters=q.conf().filters)
        finish(client.queue("census"), 1)
        archive(to=elsewhere)
        with pytest.raises(ConfigError, match="the archive of another queue 'census'"):
            archive()
        assert q.collect_garbage(lifetime=0).collected == 0
        with pytest.raises(ConfigError, match="archived up to"):
            archive(tmp_path / "two", elsewhere)
        client.delete_queue("census", confirm=True, force=True)
        client.queue("census").configure(filters=q.conf().filters)
        (done,) = finish(client.queue("census"), 1)
        assert archive(to=elsewhere).archived == 1
        assert done in archived(spark, tmp_path)


# --- the tables


def brought_up_to_date(spark, home, rows, watermark) -> None:
    """These rows are in all tables."""
    write_bronze(home, rows, watermark)
    refine(Location.of(home), spark)
    summarise(Location.of(home), spark)


def hour_of(moment) -> int:
    return int(moment.timestamp() * 1000) // HOUR


def check_table(frame, keys, expected) -> None:
    """Every row is expected, with these numbers, and none is missing or doubled."""
    rows = frame.collect()
    stored = {(row[keys], hour_of(row["hour"])): row for row in rows}
    assert len(stored) == len(rows)
    assert set(stored) == set(expected)
    for key, numbers in expected.items():
        row = {name: stored[key][name] for name in numbers if name in frame.columns}
        row = {name: math.nan if number is None else number for name, number in row.items()}
        assert row == pytest.approx({name: numbers[name] for name in row}, abs=1e-6, rel=1e-6, nan_ok=True), key


def check(spark, directory, histories) -> None:
    """Silver has each run and each delivery once; gold has what pandas computes of all that was written so far."""
    runs, deliveries = made.runs_by_pandas(histories.rows), made.deliveries_by_pandas(histories.rows)
    stored = sorted((row.task_id, row.version) for row in read(spark, directory, "runs").collect())
    assert stored == sorted(zip(runs["task_id"], runs["version"], strict=True))
    each = read(spark, directory, "deliveries").collect()
    keys = sorted((row.task_id, row.number, int(row.claimed_at.timestamp() * 1000), row.version) for row in each)
    columns = ("task_id", "number", "claimed", "version")
    assert keys == sorted(zip(*(deliveries[name] for name in columns), strict=True))
    check_table(read(spark, directory, "hourly"), "class", made.hourly_by_pandas(runs, deliveries))
    check_table(read(spark, directory, "consumers"), "consumer", made.consumers_by_pandas(deliveries))


def test_gold_equals_what_pandas_computes_of_the_raw_histories(spark, tmp_path) -> None:
    """Bronze comes in windows: the first in order, then what is late, by days and hours that were computed already.

    What looks like a pattern in the name of the directory is none. Tables of others are refused.
    """
    directory, histories = tmp_path / "odd [x] {a,b} *", Histories(seed=1, days=1.5)
    rows = histories.make(45)
    home, version = directory / "q", 1
    for window in (rows[:50:2] + rows[50:70], rows[1:50:2] + rows[70:]):
        histories.number(window, version)
        version += len(window)
        brought_up_to_date(spark, home, window, version - 1)
    check(spark, directory, histories)
    assert read(spark, directory, "bronze").count() == len(rows)

    shutil.rmtree(home / "bronze")
    write_bronze(home, [], 5)
    with pytest.raises(ConfigError, match="another archive"):
        refine(Location.of(home), spark)
    home.rename(directory / "p")
    for kind in FOLDERS:
        with pytest.raises(ConfigError, match="is the archive of queue 'q', not of 'p'"):
            read(spark, directory, kind, "p")
    for wrong, why in (
        ({"table": "silver"}, "'silver' is no table of a history: it has bronze, runs"),
        ({"queue": "pp"}, r"holds no archive of queue 'pp' \(did you mean 'p'"),
        ({"directory": tmp_path / "nowhere"}, "is no folder"),
        ({"directory": tmp_path}, "holds no archive of any queue"),
        ({"until": datetime.now(UTC)}, "since and until are days"),
    ):
        with pytest.raises(ConfigError, match=why):
            read(spark, **{"directory": directory, "table": "runs", "queue": "p"} | wrong)


def cancelled(task_id: str, version: int, enqueued: int, ended: int) -> dict[str, object]:
    """A run that nobody claimed."""
    run = {"state": "cancelled", "attempt": 0, "claimed": None, "history": [], "filters": {}}
    times = {"enqueued": enqueued, "ended": ended}
    return Histories(8).make(1)[0] | run | times | {"id": task_id, "version": version}


def test_a_late_row_changes_its_own_hours_and_no_other(spark, tmp_path) -> None:
    """Days that it does not touch are not written again, either: what was put there by hand stays."""
    home, histories = tmp_path / "q", Histories(3, days=1.9)
    first = histories.make(12)
    histories.number(first, 1)
    brought_up_to_date(spark, home, first, 100)
    last = max(row["ended"] for row in first)
    late = cancelled("late", 101, last - 5 * HOUR, last - 2 * HOUR)
    before = {(row["class"], row.hour): row for row in read(spark, tmp_path, "hourly").collect()}
    mark_everything(spark, home)
    brought_up_to_date(spark, home, [late], 200)
    after = {(row["class"], row.hour): row for row in read(spark, tmp_path, "hourly").collect()}
    begin, end, marked = late["enqueued"] // HOUR, late["ended"] // HOUR, 0
    for (name, hour), row in after.items():
        number, old = hour_of(hour), before.get((name, hour))
        if not begin // 24 <= number // 24 <= end // 24:
            assert row.retries == old.retries + 1_000, (name, hour)
            marked += 1
        elif not (name == "" and begin <= number <= end):
            assert row == old
        elif begin < number < end:
            assert row.depth_start == (old.depth_start if old else 0) + 1
    assert marked
    assert {"", begin} <= {value for name, hour in after for value in (name, hour_of(hour))}
    assert before.keys() <= after.keys()


def mark_everything(spark, home) -> None:
    """Add a thousand retries to each of gold's rows, so that those which are written again can be told."""
    hourly = Table.open(Location.of(home), "hourly")
    frame = load(spark, hourly.location, HOURLY, hourly.files(), "hour").withColumn("retries", f.col("retries") + 1_000)
    hourly.commit(stage(hourly, HOURLY, frame), hourly.mark, ("0001-01-01", "9999-12-31"))


def merged(home) -> dict[str, int]:
    """How many files of each table were merged."""
    return {kind: count for kind in FOLDERS if (count := Table.open(Location.of(home), kind).merge(few=2))}


def test_small_files_become_one_and_retention_drops_nothing_that_the_next_table_lacks(spark, tmp_path) -> None:
    """Whenever they are merged, also before the next table has seen them; a frame made before has every row once.

    Gold's hours stay as they are where silver, or gold itself, has forgotten the rows or days they came from.
    """
    home, histories = tmp_path / "q", Histories(5, days=1.9)
    rows = histories.make(12)
    latest = max(row["ended"] for row in rows) // DAY
    today = date(1970, 1, 1) + timedelta(days=latest)
    for n in range(3):
        window = rows[n::3]
        histories.number(window, 100 * n + 1)
        write_bronze(home, window, 100 * (n + 1))
        if n == 0:  # which silver has not seen
            assert retain(Location.of(home), Retention(bronze=1), today=today) == 0
        if n == 1:  # nor has it seen these
            assert set(merged(home)) == {"bronze"}
        refine(Location.of(home), spark)
    old = read(spark, tmp_path, "runs", "q")
    assert merged(home).keys() >= {"bronze", "runs", "deliveries"}
    summarise(Location.of(home), spark)
    assert old.count() == len(rows)
    for kind, moment in (("bronze", "ended"), ("runs", "ended")):
        pieces = Table.open(Location.of(home), kind).pieces
        assert len(pieces) == len({row[moment] // DAY for row in rows})
    for kind in FOLDERS:
        Table.open(Location.of(home), kind).sweep(hours=0)
        named = set(Table.open(Location.of(home), kind).files())
        assert {str(path) for path in (home / FOLDERS[kind]).rglob("day=*/*.parquet")} == named
    check(spark, tmp_path, histories)

    recent = sum(row["ended"] // DAY == latest for row in rows)
    assert retain(Location.of(home), Retention(bronze=1), today=today) == len(rows) - recent
    assert read(spark, tmp_path, "bronze", "q").count() == Table.open(Location.of(home), "bronze").mark.rows == recent
    assert read(spark, tmp_path, "runs", "q").count() == len(rows)
    before = read(spark, tmp_path, "hourly", "q").groupBy().sum("ended", "deliveries").first()
    retain(Location.of(home), Retention(silver=1), today=today)
    assert read(spark, tmp_path, "runs", "q").count() == recent
    late = {**rows[0], "version": 500, "id": "late"}  # ended on the first day, which silver has forgotten
    brought_up_to_date(spark, home, [late], 500)
    assert read(spark, tmp_path, "hourly", "q").groupBy().sum("ended", "deliveries").first() == before

    came, end = START + 20 * DAY, START + 24 * DAY  # who came on a day that gold has forgotten waits still
    for row in (cancelled("a", 600, came, end + 5 * HOUR), cancelled("b", 700, came + 2 * DAY, end + 6 * HOUR)):
        brought_up_to_date(spark, home, [row], row["version"])
        retain(Location.of(home), Retention(gold=2), today=date(2026, 1, 25))
    hours = sorted(read(spark, tmp_path, "hourly").collect(), key=lambda row: row.hour)
    assert [row.depth_start for row in hours] == [2] * 30 + [1]
    assert sum(row.ended for row in hours) == 2


def rows_in_order(rows: Iterable[Sequence[object]]) -> list[tuple[object, ...]]:
    """Rows that can be compared, whoever has read them."""
    plain = (tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in rows)
    return sorted(plain, key=repr)


def by_arrow(delta: DeltaTable, names: list[str]) -> Iterable[Sequence[object]]:
    return [list(row.values()) for row in delta.to_pyarrow_table(columns=names).to_pylist()]


def by_polars(delta: DeltaTable, names: list[str]) -> Iterable[Sequence[object]]:
    return pytest.importorskip("polars").read_delta(delta, columns=names).rows()


def by_duckdb(delta: DeltaTable, names: list[str]) -> Iterable[Sequence[object]]:
    rows = pytest.importorskip("duckdb").from_arrow(delta.to_pyarrow_dataset())
    return rows.project(", ".join(names)).fetchall()


def test_others_read_each_table_as_spark_does(spark, tmp_path, subtests) -> None:
    """Arrow and pandas, and Polars and DuckDB where they are installed: the same rows, with times and days as such."""
    histories = Histories(6, days=0.5)
    rows = histories.make(8)
    histories.number(rows, 1)
    brought_up_to_date(spark, tmp_path / "q", rows, 100)
    compared = {"id", "task_id", "number", "version", "class", "consumer", "run_ms", "busy_ms", "data", "day"}
    for kind in FOLDERS:
        frame = read(spark, tmp_path, kind, "q")
        names = sorted(compared & set(frame.columns))
        expected = rows_in_order(frame.select(names).collect())
        for other in (by_arrow, by_polars, by_duckdb):
            with subtests.test(kind=kind, read=other.__name__):
                assert rows_in_order(other(table(kind, tmp_path, "q"), names)) == expected
        pandas = table(kind, tmp_path, "q").to_pandas()
        assert (len(pandas), pandas["queue"].unique().tolist()) == (len(expected), ["q"])
        times = [name for name in pandas.columns if name.endswith("_at") or name == "hour"]
        assert times == [] or {str(pandas[name].dtype) for name in times} == {"datetime64[us, UTC]"}
