"""Silver and gold, made of bronze rows by a real Spark, against what pandas computes from the raw histories."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as f

from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.spark.history import delta
from airflow_provider_zkmq.spark.history.compaction import compact
from airflow_provider_zkmq.spark.history.gold import summarise
from airflow_provider_zkmq.spark.history.manifest import GOLD, SILVER, publish, read_manifest
from airflow_provider_zkmq.spark.history.reading import (
    read_consumers,
    read_deliveries,
    read_history,
    read_hourly,
    read_runs,
)
from airflow_provider_zkmq.spark.history.retention import Retention, retain
from airflow_provider_zkmq.spark.history.silver import refine
from tests.integration.histories import (
    DAY,
    HOUR,
    START,
    Histories,
    consumers_by_pandas,
    deliveries_by_pandas,
    hourly_by_pandas,
    runs_by_pandas,
    write_bronze,
)

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # PySpark and pandas warn of each other


class Crash(Exception):
    """Ends a step as a crash would."""


def crash_at(wanted: str) -> Callable[[str], None]:
    def after(step: str) -> None:
        if step == wanted:
            raise Crash(step)

    return after


def brought_up_to_date(spark, home, rows, watermark) -> None:
    """These rows are in all tables."""
    write_bronze(spark, home, rows, watermark)
    refine(home, spark)
    summarise(home, spark)


def hour_of(moment) -> int:
    return int(moment.timestamp() * 1000) // HOUR


def check_table(frame, keys, expected) -> None:
    """Every row is expected, with these numbers, and none is missing or doubled."""
    rows = frame.collect()
    stored = {(row[keys], hour_of(row["hour"])): row for row in rows}
    assert len(stored) == len(rows)
    assert set(stored) == set(expected)
    for key, numbers in expected.items():
        row = {
            name: math.nan if stored[key][name] is None else stored[key][name]
            for name in numbers
            if name in frame.columns
        }
        assert row == pytest.approx({name: numbers[name] for name in row}, abs=1e-6, rel=1e-6, nan_ok=True), key


def check(spark, directory, histories) -> None:
    """Silver has each run and each delivery once; gold has what pandas computes of all that was written so far."""
    runs, deliveries = runs_by_pandas(histories.rows), deliveries_by_pandas(histories.rows)
    stored = sorted((row.task_id, row.version) for row in read_runs(spark, directory).collect())
    assert stored == sorted(zip(runs["task_id"], runs["version"], strict=True))
    each = read_deliveries(spark, directory).collect()
    keys = sorted((row.task_id, row.number, int(row.claimed_at.timestamp() * 1000), row.version) for row in each)
    columns = ("task_id", "number", "claimed", "version")
    assert keys == sorted(zip(*(deliveries[name] for name in columns), strict=True))
    check_table(read_hourly(spark, directory), "class", hourly_by_pandas(runs, deliveries))
    check_table(read_consumers(spark, directory), "consumer", consumers_by_pandas(deliveries))


def test_gold_equals_what_pandas_computes_of_the_raw_histories(spark, tmp_path) -> None:
    """Bronze comes in windows: the first in order, then what is late, by days and hours that were computed already.

    What looks like a pattern in the name of the directory is none. Tables of others are refused.
    """
    directory, histories = tmp_path / "odd [x] {a,b} %20 *?", Histories(seed=1, days=1.5)
    rows = histories.make(45)
    home, version = directory / "q", 1
    for window in (rows[:50:2] + rows[50:70], rows[1:50:2] + rows[70:]):
        histories.number(window, version)
        version += len(window)
        brought_up_to_date(spark, home, window, version - 1)
    check(spark, directory, histories)
    assert read_history(spark, directory).count() == len(rows)

    publish(home, replace(read_manifest(home), watermark=5))
    with pytest.raises(ConfigError, match="another archive"):
        refine(home, spark)
    home.rename(directory / "p")
    for read in (read_history, read_runs):
        with pytest.raises(ConfigError, match="is the archive of queue 'q', not of 'p'"):
            read(spark, directory, "p")


def cancelled(task_id: str, version: int, enqueued: int, ended: int) -> dict[str, object]:
    """A run that nobody claimed."""
    run = {"state": "cancelled", "attempt": 0, "claimed": None, "history": [], "filters": {}}
    times = {"enqueued": enqueued, "ended": ended}
    return Histories(8).make(1)[0] | run | times | {"id": task_id, "version": version}


def test_a_late_row_changes_its_own_hours_and_no_other(spark, tmp_path) -> None:
    """Numbers of hours that it does not touch are not computed again: what was put there by hand stays."""
    home, histories = tmp_path / "q", Histories(3, days=0.4)
    first = histories.make(12)
    histories.number(first, 1)
    brought_up_to_date(spark, home, first, 100)
    last = max(row["ended"] for row in first)
    late = cancelled("late", 101, last - 5 * HOUR, last - 2 * HOUR)
    before = {(row["class"], row.hour): row for row in read_hourly(spark, tmp_path).collect()}
    mark_everything(spark, home)
    brought_up_to_date(spark, home, [late], 200)
    after = {(row["class"], row.hour): row for row in read_hourly(spark, tmp_path).collect()}
    begin, end = late["enqueued"] // HOUR, late["ended"] // HOUR
    for (name, hour), row in after.items():
        number, old = hour_of(hour), before.get((name, hour))
        written = begin // 24 <= number // 24 <= end // 24
        kept = old is not None and not (name == "" and number in {begin, end}) and (happened(old) or not written)
        assert (row.retries >= 1_000) == bool(kept), (name, hour)
        if name == "" and begin < number < end:
            assert row.depth_start == (old.depth_start if old else 0) + 1
    assert {"", begin} <= {value for name, hour in after for value in (name, hour_of(hour))}


def happened(row) -> int:
    """What was counted in an hour, those who left included."""
    return row.arrivals + row.ended + row.deliveries + row.busy_ms + row.depth_start + row.arrivals - row.depth_end


def mark_everything(spark, home) -> None:
    """Add a thousand retries to each of gold's rows, so that those which are computed again can be told."""
    (part,) = read_manifest(home / GOLD).of("hourly")
    folder = home / GOLD / part.path
    frame = spark.read.parquet(str(folder)).withColumn("retries", f.col("retries") + 1_000)
    frame.write.partitionBy("day").parquet(f"{folder}.marked")
    folder.rename(f"{folder}.plain")
    folder.with_name(f"{folder.name}.marked").rename(folder)


def test_small_parts_become_one_and_retention_drops_nothing_that_the_next_table_lacks(spark, tmp_path) -> None:
    """Cut off anywhere and run again; readers have every row once at any time, also of a frame made before.

    Gold's hours stay as they are where silver, or gold itself, has forgotten the rows or days they came from.
    """
    home, histories = tmp_path / "q", Histories(5, days=1.9)
    rows = histories.make(12)
    latest = max(row["ended"] for row in rows) // DAY
    today = date(1970, 1, 1) + timedelta(days=latest)
    for n in range(3):
        window = rows[n::3]
        histories.number(window, 100 * n + 1)
        write_bronze(spark, home, window, 100 * (n + 1))
        if n == 0:  # which silver has not seen
            assert retain(home, Retention(bronze=1), today=today) == 0
        refine(home, spark)
    assert compact(home, spark, few=2) == 3  # silver's parts wait for gold, bronze's are in silver
    summarise(home, spark)
    old = read_runs(spark, tmp_path, "q")
    for step in ("staged", "adopted", "published"):
        with pytest.raises(Crash):
            compact(home, spark, few=2, after=crash_at(step))
        assert read_runs(spark, tmp_path, "q").count() == read_history(spark, tmp_path, "q").count() == len(rows)
    compact(home, spark, few=2)
    assert old.count() == len(rows)
    days = len({row["ended"] // DAY for row in rows})
    for table in ("", SILVER):
        (part,) = read_manifest(home / table).of("runs")
        assert len(list((home / table / part.path).rglob("*.parquet"))) == days
    compact(home, spark, few=2, grace=0)
    assert len(list((home / SILVER / "runs").iterdir())) == 1
    check(spark, tmp_path, histories)

    recent = sum(row["ended"] // DAY == latest for row in rows)
    assert retain(home, Retention(bronze=1), today=today) == len(rows) - recent
    assert read_history(spark, tmp_path, "q").count() == read_manifest(home).rows == recent
    assert read_runs(spark, tmp_path, "q").count() == len(rows)
    before = read_hourly(spark, tmp_path, "q").groupBy().sum("ended", "deliveries").first()
    retain(home, Retention(silver=1), today=today)
    assert read_runs(spark, tmp_path, "q").count() == recent
    late = {**rows[0], "version": 500, "id": "late"}  # ended on the first day, which silver has forgotten
    brought_up_to_date(spark, home, [late], 500)
    assert read_hourly(spark, tmp_path, "q").groupBy().sum("ended", "deliveries").first() == before

    came, end = START + 20 * DAY, START + 24 * DAY  # who came on a day that gold has forgotten waits still
    for row in (cancelled("a", 600, came, end + 5 * HOUR), cancelled("b", 700, came + 2 * DAY, end + 6 * HOUR)):
        brought_up_to_date(spark, home, [row], row["version"])
        retain(home, Retention(gold=2), today=date(2026, 1, 25))
    hours = sorted(read_hourly(spark, tmp_path).collect(), key=lambda row: row.hour)
    assert [row.depth_start for row in hours] == [2] * 30 + [1]
    assert sum(row.ended for row in hours) == 2


def test_delta_tables_equal_the_others_and_are_written_once(spark, tmp_path) -> None:
    """Appended for each run, replaced by days in gold; what was committed before a crash is not written again.

    They keep what retention has taken from silver, and get what was merged there while they were left out.
    """
    deltalake = pytest.importorskip("deltalake")
    home, histories = tmp_path / "q", Histories(6, days=0.5)
    rows = histories.make(8)
    histories.number(rows, 1)

    def stored(kind: str, names: list[str]) -> list[tuple[object, ...]]:
        table = deltalake.DeltaTable(str(home / "delta" / kind)).to_pyarrow_table().select(names).to_pylist()
        return sorted((tuple(row[name] for name in names) for row in table), key=repr)

    for n, window in enumerate((rows[:1] + rows[2:], rows[1:2])):
        brought_up_to_date(spark, home, window, 100 * (n + 1))
        with pytest.raises(Crash):
            delta.export(home, after=crash_at("deliveries"))
        assert delta.export(home)["runs"] == 0
    assert sum(delta.export(home).values()) == 0
    compared = {"task_id", "number", "version", "class", "consumer", "run_ms", "busy_ms"}
    for kind, read in (
        ("runs", read_runs),
        ("deliveries", read_deliveries),
        ("hourly", read_hourly),
        ("consumers", read_consumers),
    ):
        names = sorted(compared & set(read(spark, tmp_path).columns))
        assert stored(kind, names) == sorted(map(tuple, read(spark, tmp_path).select(names).collect()), key=repr)

    end = START + 9 * DAY
    for version, name, ended in ((300, "merged", end), (400, "new", end + HOUR)):
        brought_up_to_date(spark, home, [cancelled(name, version, ended, ended)], version)
        compact(home, spark, few=2)
        retain(home, Retention(silver=1), today=date(2026, 1, 10))
    assert {row.task_id for row in read_runs(spark, tmp_path).collect()} == {"merged", "new"}
    assert delta.export(home)["runs"] == 2
    assert [name for (name,) in stored("runs", ["task_id"])] == sorted([*(row["id"] for row in rows), "merged", "new"])
