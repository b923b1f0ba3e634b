"""Small runs of the pipeline: in their own process, without Java, and with the tables that Spark makes."""

from __future__ import annotations

import math
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from deltalake import DeltaTable

from airflow_provider_zkmq.delta_tables import FEW, FOLDERS, Table
from airflow_provider_zkmq.engine import ConfigError, Message
from airflow_provider_zkmq.history import table
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark import py_files, report, session
from airflow_provider_zkmq.spark.history import bronze, gold, parquet_files, silver, stage_and_load
from airflow_provider_zkmq.spark.history.pipeline import PipelineFailed, run_pipeline
from airflow_provider_zkmq.spark.source.errors import SourceError
from tests.integration.conftest import started
from tests.integration.ended import finish
from tests.integration.histories import DAY, Histories, write_bronze


def rows_of(directory: Path, kind: str, queue: str = "census") -> list[dict[str, Any]]:
    """A table's rows, in some order that is always the same; numbers that are none are equal."""
    rows = table(kind, directory, queue).to_pyarrow_table().to_pylist()
    names = ("class", "consumer", "hour", "task_id", "number", "claimed_at", "version", "id")
    keys = [name for name in names if name in rows[0]]
    return sorted(rows, key=lambda row: [str(row[name]) for name in keys])


def no_spark() -> None:
    raise AssertionError("Spark is to be started")


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bronze, silver, gold):
        monkeypatch.setattr(module, "spark_session", no_spark)


def test_a_small_run_starts_no_spark_and_a_second_one_adds_what_is_new(without_spark, where, q, tmp_path) -> None:
    """Also of an id that was run twice."""
    q.configure(archive=True)
    for result in (b"first", b"second"):
        q.enqueue(b"x", task_id="again")
        q.claim(timeout=5).complete(result)
    ended = {"again", *finish(q, 6, dead=1, retried=2)}
    (done,) = run_pipeline(where, None, tmp_path, lifetime=0).queues
    assert (done.steps["bronze"]["rows"], done.steps["silver"]["runs"], done.error) == (8, 8, None)
    assert {row["id"] for row in rows_of(tmp_path, "bronze")} == ended
    finish(q, 2)
    (done,) = run_pipeline(where, None, tmp_path, lifetime=0).queues
    assert (done.steps["bronze"]["in all"], done.steps["silver"]["runs"]) == (10, 2)
    assert sum(row["ended"] for row in rows_of(tmp_path, "hourly")) == 10


@pytest.mark.parametrize(("few", "step"), [(2, "bronze"), (3, "gold")])
def test_a_step_of_many_rows_goes_to_spark(without_spark, where, q, tmp_path, monkeypatch, few, step) -> None:
    """And to nothing else: what was done before stands, and the next run goes on from there."""
    monkeypatch.setattr(stage_and_load, "FEW", few)
    finish(q, 3)
    with pytest.raises(PipelineFailed, match="Spark is to be started") as raised:
        run_pipeline(where, None, tmp_path)
    assert step not in raised.value.report.queues[0].steps
    monkeypatch.undo()
    (done,) = run_pipeline(where, None, tmp_path).queues
    assert done.steps["gold"]["days written"] == 1
    assert len(rows_of(tmp_path, "runs")) == 3


def test_whole_payloads_are_written_in_pieces(without_spark, where, q, tmp_path, monkeypatch) -> None:
    """So that a run needs no more memory than a piece; the rows are all there, each with its own payload."""
    monkeypatch.setattr(parquet_files, "PIECE", 10_000)
    payloads = {f"t{n}": random.Random(n).randbytes(3_000) for n in range(300)}
    q.enqueue_many([Message(data, task_id=name) for name, data in payloads.items()])
    for claim in q.claim_many(64, timeout=5) + [each for _ in range(4) for each in q.claim_many(64)]:
        claim.complete(claim.task.data)
    run_pipeline(where, None, tmp_path)
    rows = {row["id"]: (row["data"], row["result"]) for row in rows_of(tmp_path, "bronze")}
    assert rows == {name: (data, data) for name, data in payloads.items()}


def test_a_session_that_the_pipeline_starts_ends_with_it(monkeypatch) -> None:
    """And one that was there before does not."""
    stopped, active = [], []
    builder = SimpleNamespace(getOrCreate=lambda: SimpleNamespace(stop=lambda: stopped.append(1)))
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    for before, during in ((False, False), (False, True), (True, True)):
        monkeypatch.setattr(session, "_is_running", lambda: before)  # noqa: B023
        with session.ending_what_starts():
            monkeypatch.setattr(session, "_is_running", lambda: during)  # noqa: B023
        active.append(len(stopped))
    assert active == [0, 1, 1]


def test_a_run_that_waited_for_years_is_counted_in_every_day(without_spark, tmp_path, monkeypatch) -> None:
    """Its days are as many files, and no more are open than one; where they are too many hours, Spark is asked."""
    home, histories = tmp_path / "q", Histories(seed=3)
    row = next(row for row in histories.make(20) if row["state"] == "cancelled" and row["attempt"] == 0)
    row["enqueued"] = row["ended"] - 1_200 * DAY
    histories.number([row], 1)
    write_bronze(home, [row], 1)
    silver.refine(Location.of(home))
    monkeypatch.setattr(stage_and_load, "FEW", 1_000)
    with pytest.raises(AssertionError, match="Spark is to be started"):
        gold.summarise(Location.of(home))
    monkeypatch.undo()
    assert gold.summarise(Location.of(home))["days written"] == 1_201
    assert {row["depth_start"] for row in rows_of(tmp_path, "hourly", "q")[1:]} == {1}


def test_readers_find_rows_by_conditions(without_spark, where, q, tmp_path) -> None:
    """By pandas, DuckDB, Polars and plain Arrow, in files that were merged and not: each column has its bounds."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    for count in (2, *[1] * FEW):
        finish(q, count, dead=count - 1)
        run_pipeline(where, ["census"], tmp_path)
    every = FEW + 2
    q.enqueue(b"x", task_id="i" * 80)
    q.claim(timeout=5).complete(b"y")
    run_pipeline(where, ["census"], tmp_path)
    for kind, name, condition, wanted in (
        ("runs", "state", "state = 'finished'", every),
        ("runs", "error", "error is null", every),
        ("runs", "task_id", f"task_id = '{'i' * 80}'", 1),
        ("bronze", "id", f"id = '{'i' * 80}'", 1),
        ("deliveries", "outcome", "outcome = 'finished'", every),
        ("runs", "ended_at", "ended_at > timestamptz '2026-01-01 00:00:00+00'", every + 1),
    ):
        found = table(kind, tmp_path, "census")
        for delta in (found, DeltaTable(found.table_uri)):
            rows = duckdb.from_arrow(delta.to_pyarrow_dataset()).filter(condition)
            assert len(rows.project(name).fetchall()) == wanted, condition
    runs = table("runs", tmp_path, "census")
    assert len(runs.to_pandas(filters=[("state", "=", "finished")])) == every
    assert polars.scan_delta(runs).filter(polars.col("state") == "dead").collect().height == 1


@pytest.mark.parametrize("first", ["the table is opened", "the other run"])
def test_a_run_that_another_one_overtakes_as_it_begins_says_so(without_spark, where, q, tmp_path, monkeypatch, first):
    """It changes nothing, and does not say that the archive lags behind: one more run goes on."""
    finish(q, 2)
    run_pipeline(where, ["census"], tmp_path)
    finish(q, 1)
    opened = Table.open

    def overtaken(home: Path, kind: str) -> Table:
        monkeypatch.setattr(bronze, "Table", Table)
        table = opened(home, kind)
        run_pipeline(where, ["census"], tmp_path)
        return table if first == "the table is opened" else opened(home, kind)

    monkeypatch.setattr(bronze, "Table", SimpleNamespace(open=overtaken))
    with pytest.raises(PipelineFailed, match="was changed by another archive run; run this one again"):
        run_pipeline(where, ["census"], tmp_path)
    assert len(rows_of(tmp_path, "bronze")) == 3
    run_pipeline(where, ["census"], tmp_path)
    assert len(rows_of(tmp_path, "runs")) == 3


@pytest.mark.full
def test_of_two_pipelines_at_the_same_time_ten_times_no_row_is_twice(without_spark, where, q, tmp_path) -> None:
    """Each goes on, or says in one line that another run was faster; one more run has what is left."""
    for number in range(10):
        finish(q, 3, retried=1)
        runs = [started(lambda: run_pipeline(where, ["census"], tmp_path, lifetime=0)) for _ in range(2)]
        failed = [str(error) for run in runs if (error := run.exception(60)) is not None]
        assert all(re.search("another (archive )?run", error) for error in failed), failed
        run_pipeline(where, ["census"], tmp_path, lifetime=0)
        rows = sorted((row["id"], row["version"]) for row in rows_of(tmp_path, "bronze"))
        assert len(rows) == len(set(rows)) == 3 * (number + 1)
        assert rows == sorted((row["task_id"], row["version"]) for row in rows_of(tmp_path, "runs"))
        assert sum(row["deliveries"] for row in rows_of(tmp_path, "hourly")) == 4 * (number + 1)


@pytest.mark.full
def test_thirty_runs_leave_few_files(without_spark, where, q, tmp_path) -> None:
    """Readers open no more files of a table after thirty runs than after some; its log is read from a checkpoint."""
    for _ in range(30):
        finish(q, 1)
        run_pipeline(where, ["census"], tmp_path, lifetime=0)
    for kind in FOLDERS:
        opened = Table.open(Location.of(tmp_path / "census"), kind)
        assert len(opened.pieces) <= 2 * FEW
        assert list((opened.location.folder / "_delta_log").glob("*.checkpoint.parquet"))
    assert sum(row["ended"] for row in rows_of(tmp_path, "hourly")) == 30


def test_an_address_that_is_not_of_s3_is_no_folder(where, q, tmp_path) -> None:
    """It would be made here, and what is archived there would be deleted from ZooKeeper; no list is no queue."""
    finish(q, 1)
    for call in (
        lambda: run_pipeline(where, None, "gs://bucket/archive"),
        lambda: report("s3:///archive"),
        lambda: table("runs", "hdfs://host/archive", "census"),
    ):
        with pytest.raises(ConfigError, match="an archive is in a folder or at s3://bucket/prefix"):
            call()
    with pytest.raises(ConfigError, match="no queue is named"):
        run_pipeline(where, [], tmp_path)
    with pytest.raises(SourceError, match="the code for executors goes into a folder, not to s3://bucket"):
        py_files("s3://bucket")


@pytest.mark.full
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore")
def test_few_rows_and_many_make_the_same_tables(spark, tmp_path, monkeypatch, subtests) -> None:
    """Random histories, in two windows of which the second is late; some ids are in both."""
    for way, few in (("few", stage_and_load.FEW), ("many", 0)):
        monkeypatch.setattr(stage_and_load, "FEW", few)
        histories = Histories(seed=5, days=2.5)
        rows, version, home = histories.make(120), 1, tmp_path / way / "q"
        for window in (rows[:150:2] + rows[150:], rows[1:150:2]):
            histories.number(window, version)
            version += len(window)
            write_bronze(home, window, version - 1)
            silver.refine(Location.of(home), spark)
            gold.summarise(Location.of(home), spark)
    for kind in FOLDERS:
        few_rows, many_rows = (rows_of(tmp_path / way, kind, "q") for way in ("few", "many"))
        with subtests.test(kind):
            assert len(few_rows) == len(many_rows) > 0
            for one, other in zip(few_rows, many_rows, strict=True):
                plain = [
                    {name: math.nan if value is None else value for name, value in row.items()} for row in (one, other)
                ]
                numbers = [{name: row[name] for name in row if isinstance(row[name], float)} for row in plain]
                assert numbers[0] == pytest.approx(numbers[1], nan_ok=True)
                assert {name: one[name] for name in one if name not in numbers[0]} == {
                    name: other[name] for name in other if name not in numbers[0]
                }


@pytest.mark.parametrize("removed", ["hourly", "consumers"])
def test_a_table_of_gold_that_was_removed_is_made_anew(without_spark, where, q, tmp_path, removed) -> None:
    """With all its days, whether or not something ended meanwhile; until then a report is refused."""
    for more in (2, 0):
        finish(q, 2 + more)
        run_pipeline(where, ["census"], tmp_path)
        before = rows_of(tmp_path, removed)
        shutil.rmtree(tmp_path / "census" / FOLDERS[removed])
        with pytest.raises(ConfigError, match="its tables were not made yet"):
            report(tmp_path, "census")
        finish(q, more)
        run_pipeline(where, ["census"], tmp_path)
        ended = sum(row["ended" if removed == "hourly" else "deliveries"] for row in rows_of(tmp_path, removed))
        assert ended == sum(row["ended" if removed == "hourly" else "deliveries"] for row in before) + more
