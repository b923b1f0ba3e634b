"""Silver and gold, made of bronze rows by a real Spark, against what pandas computes from the raw histories."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date, timedelta

import pytest

pytest.importorskip("pyspark")

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
    HOUR,
    START,
    Histories,
    consumers_by_pandas,
    deliveries_by_pandas,
    hourly_by_pandas,
    runs_by_pandas,
    write_bronze,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other


def same(stored, expected) -> bool:
    if expected is None or (isinstance(expected, float) and math.isnan(expected)):
        return stored is None
    return stored == pytest.approx(expected, abs=1e-6)


def check_table(frame, keys, expected) -> None:
    """Every row is expected, with these numbers, and none is missing or doubled."""
    rows = frame.collect()
    stored = {(row[keys], int(row["hour"].timestamp() * 1000) // HOUR): row for row in rows}
    assert len(stored) == len(rows)
    assert set(stored) == set(expected)
    wrong = [
        (key, name, stored[key][name], value)
        for key, numbers in expected.items()
        for name, value in numbers.items()
        if name in frame.columns and not same(stored[key][name], value)
    ]
    assert not wrong


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
    """Bronze comes in windows: the first in order, then what is late, by days and hours that were computed already."""
    histories = Histories(seed=1, days=1.5)
    rows = histories.make(45)
    windows, version = [rows[:50:2] + rows[50:70], rows[1:50:2] + rows[70:]], 1
    for window in windows:
        histories.number(window, version)
        version += len(window)
        write_bronze(spark, tmp_path / "q", window, version - 1)
        refine(tmp_path / "q", spark)
        summarise(tmp_path / "q", spark)
    check(spark, tmp_path, histories)


class Crash(Exception):
    """Ends a step as a crash would."""


def crash_at(wanted: str):
    def after(step: str) -> None:
        if step == wanted:
            raise Crash(step)

    return after


def test_a_late_row_changes_its_own_hours_and_no_other(spark, tmp_path) -> None:
    """Numbers of hours that it does not touch are not computed again: what was put there by hand stays."""
    home, histories = tmp_path / "q", Histories(3, days=0.4)
    first = histories.make(12)
    histories.number(first, 1)
    write_bronze(spark, home, first, 100)
    refine(home, spark)
    summarise(home, spark)
    last = max(row["ended"] for row in first)
    late = {**first[0], "id": "late", "filters": {}, "state": "cancelled", "attempt": 0, "claimed": None, "history": []}
    late |= {"enqueued": last - 5 * HOUR, "ended": last - 2 * HOUR, "version": 101}
    before = {(row["class"], row.hour): row for row in read_hourly(spark, tmp_path).collect()}
    assert mark_everything(spark, home) == 1
    write_bronze(spark, home, [late], 200)
    refine(home, spark)
    summarise(home, spark)
    after = {(row["class"], row.hour): row for row in read_hourly(spark, tmp_path).collect()}
    begin, end = late["enqueued"] // HOUR, late["ended"] // HOUR
    for (name, hour), row in after.items():
        number = int(hour.timestamp() * 1000) // HOUR
        old = before.get((name, hour))
        written = begin // 24 <= number // 24 <= end // 24
        kept = old is not None and not (name == "" and number in {begin, end}) and (happened(old) or not written)
        assert (row.retries >= 1_000) == bool(kept), (name, hour)
        if name == "" and begin < number < end:
            assert row.depth_start == (old.depth_start if old else 0) + 1
    assert {"", begin} <= {value for key in after for value in (key[0], int(key[1].timestamp() * 1000) // HOUR)}


def happened(row) -> int:
    """What was counted in an hour, those who left included."""
    return row.arrivals + row.ended + row.deliveries + row.busy_ms + row.depth_start + row.arrivals - row.depth_end


def mark_everything(spark, home) -> int:
    """Add a thousand retries to each of gold's rows, so that those which are computed again can be told."""
    from pyspark.sql import functions as f

    manifest, marked = read_manifest(home / GOLD), 0
    for part in manifest.of("hourly"):
        folder = home / GOLD / part.path
        frame = spark.read.parquet(str(folder)).withColumn("retries", f.col("retries") + 1_000)
        frame.write.partitionBy("day").parquet(str(folder) + ".marked")
        folder.rename(str(folder) + ".plain")
        (folder.parent / f"{folder.name}.marked").rename(folder)
        marked += 1
    return marked


def test_small_parts_become_one_with_a_file_for_each_day(spark, tmp_path) -> None:
    """Cut off anywhere and run again; readers have every row once at any time, also of a frame made before."""
    home, histories = tmp_path / "q", Histories(4, days=0.5)
    rows = histories.make(9)
    for n in range(3):
        window = rows[n::3]
        histories.number(window, 100 * n + 1)
        write_bronze(spark, home, window, 100 * (n + 1))
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
    days = len({row["ended"] // (24 * HOUR) for row in rows})
    assert [len(read_manifest(home / table).of("runs")) for table in ("", SILVER)] == [1, 1]
    for table in ("", SILVER):
        (part,) = read_manifest(home / table).of("runs")
        assert len(list((home / table / part.path).rglob("*.parquet"))) == days
    compact(home, spark, few=2, grace=0)
    assert len(list((home / SILVER / "runs").iterdir())) == 1
    check(spark, tmp_path, histories)


def test_retention_drops_days_and_never_what_the_next_table_lacks(spark, tmp_path) -> None:
    """Bronze goes first; gold's hours stay as they are where silver has forgotten the rows they came from."""
    home, histories = tmp_path / "q", Histories(5, days=1.9)
    rows = histories.make(12)
    histories.number(rows, 1)
    write_bronze(spark, home, rows, 100)
    last = date(2026, 1, 1) + timedelta(days=max(row["ended"] for row in rows) // (24 * HOUR) - 20_454)
    assert retain(home, Retention(bronze=1), today=last) == 0
    refine(home, spark)
    summarise(home, spark)
    recent = sum(row["ended"] // (24 * HOUR) == max(each["ended"] for each in rows) // (24 * HOUR) for row in rows)
    assert retain(home, Retention(bronze=1), today=last) == len(rows) - recent
    assert read_history(spark, tmp_path, "q").count() == read_manifest(home).rows == recent
    assert read_runs(spark, tmp_path, "q").count() == len(rows)
    before = read_hourly(spark, tmp_path, "q").groupBy().sum("ended", "deliveries").first()
    retain(home, Retention(silver=1), today=last)
    assert read_runs(spark, tmp_path, "q").count() == recent
    late = {**rows[0], "version": 200, "id": "late"}  # ended on the first day, which silver has forgotten
    write_bronze(spark, home, [late], 300)
    refine(home, spark)
    summarise(home, spark)
    assert read_hourly(spark, tmp_path, "q").groupBy().sum("ended", "deliveries").first() == before
    with pytest.raises(ConfigError, match="no number of days"):
        Retention(bronze=0)


def test_rows_of_days_that_gold_has_forgotten_leave_its_other_hours_right(spark, tmp_path) -> None:
    """Who came then and waits still is known only by gold's own depth: the days are not made anew without it."""
    home, day = tmp_path / "q", 24 * HOUR
    template = Histories(8).make(1)[0] | {"state": "cancelled", "attempt": 0, "claimed": None, "history": []}
    early = template | {"filters": {}, "enqueued": START + HOUR, "ended": START + 4 * day + 5 * HOUR}
    late = early | {"id": "late", "enqueued": START + 2 * day, "ended": START + 4 * day + 6 * HOUR}
    for version, row in enumerate((early, late), 1):
        write_bronze(spark, home, [row | {"version": version}], version)
        refine(home, spark)
        summarise(home, spark)
        retain(home, Retention(gold=2), today=date(2026, 1, 5))
    rows = {row.hour: row for row in read_hourly(spark, tmp_path).collect()}
    depths = [rows[hour].depth_start for hour in sorted(rows)]
    assert depths == [2] * 30 + [1]
    assert sum(row.ended for row in rows.values()) == 2


def test_a_directory_may_have_any_name(spark, tmp_path) -> None:
    """What looks like a pattern in it is none."""
    directory, histories = tmp_path / "odd [x] {a,b} %20 *?", Histories(9, days=0.1)
    rows = histories.make(2)
    histories.number(rows, 1)
    write_bronze(spark, directory / "q", rows, 10)
    refine(directory / "q", spark)
    assert read_history(spark, directory).count() == read_runs(spark, directory).count() == len(rows)


def test_delta_tables_equal_the_others_and_are_written_once(spark, tmp_path) -> None:
    """Appended for each run, replaced by days in gold; what was committed before a crash is not written again."""
    deltalake = pytest.importorskip("deltalake")
    home, histories = tmp_path / "q", Histories(6, days=0.5)
    rows = histories.make(8)
    histories.number(rows, 1)
    for n, window in enumerate((rows[::2], rows[1::2])):
        write_bronze(spark, home, window, 10 * (n + 1))
        refine(home, spark)
        summarise(home, spark)
        with pytest.raises(Crash):
            delta.export(home, after=crash_at("deliveries"))
        assert delta.export(home)["runs"] == 0
    assert sum(delta.export(home).values()) == 0
    for kind, frame in (
        ("runs", read_runs(spark, tmp_path)),
        ("deliveries", read_deliveries(spark, tmp_path)),
        ("hourly", read_hourly(spark, tmp_path)),
        ("consumers", read_consumers(spark, tmp_path)),
    ):
        table = deltalake.DeltaTable(str(home / "delta" / kind)).to_pyarrow_table()
        names = [
            name
            for name in ("task_id", "number", "version", "class", "consumer", "run_ms", "busy_ms")
            if name in frame.columns
        ]
        expected = sorted(map(repr, (tuple(row[name] for name in names) for row in frame.collect())))
        stored = table.select(names).to_pylist()
        assert sorted(repr(tuple(row[name] for name in names)) for row in stored) == expected


def test_delta_keeps_what_retention_and_compaction_have_taken_from_silver(spark, tmp_path) -> None:
    """Also where it was left out for a run, and silver's parts were merged meanwhile: what is new is appended."""
    deltalake = pytest.importorskip("deltalake")
    home, day = tmp_path / "q", 24 * HOUR
    template = Histories(10).make(1)[0] | {"state": "cancelled", "attempt": 0, "claimed": None, "history": []}
    for version, name, ended in ((1, "old", START), (2, "merged", START + day), (3, "new", START + day + HOUR)):
        write_bronze(
            spark, home, [template | {"id": name, "version": version, "enqueued": ended, "ended": ended}], version
        )
        refine(home, spark)
        summarise(home, spark)
        if name != "merged":
            assert delta.export(home)["runs"] == (1 if name == "old" else 2)
        compact(home, spark, few=2)
        retain(home, Retention(silver=1), today=date(2026, 1, 2 if name == "merged" else 1))
    assert {row.task_id for row in read_runs(spark, tmp_path).collect()} == {"merged", "new"}
    table = deltalake.DeltaTable(str(home / "delta" / "runs")).to_pyarrow_table()
    assert sorted(table["task_id"].to_pylist()) == ["merged", "new", "old"]


def test_delta_without_its_package_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"airflow-provider-zkmq\[delta\]"):
        delta.export(tmp_path)


def test_tables_of_others_and_of_newer_versions_are_refused(spark, tmp_path) -> None:
    """Another queue's folder, a newer version's manifest, and silver of another archive: one clear error each."""
    home, histories = tmp_path / "q", Histories(7, days=0.1)
    rows = histories.make(2)
    histories.number(rows, 1)
    write_bronze(spark, home, rows, 10)
    refine(home, spark)
    publish(home, replace(read_manifest(home), watermark=5))
    with pytest.raises(ConfigError, match="another archive"):
        refine(home, spark)
    home.rename(tmp_path / "p")
    with pytest.raises(ConfigError, match="is the archive of queue 'q', not of 'p'"):
        read_history(spark, tmp_path, "p")
    with pytest.raises(ConfigError, match="is the archive of queue 'q', not of 'p'"):
        read_runs(spark, tmp_path, "p")
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "MANIFEST.json").write_text(json.dumps({"version": 99, "watermark": 1, "runs": []}))
    with pytest.raises(ConfigError, match="newer version"):
        read_history(spark, tmp_path, "n")
