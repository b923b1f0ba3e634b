"""Silver and gold, made of bronze rows by a real Spark, against what pandas computes from the raw histories."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("pyspark")

from airflow_provider_zkmq.spark.history.gold import summarise
from airflow_provider_zkmq.spark.history.reading import read_consumers, read_deliveries, read_hourly, read_runs
from airflow_provider_zkmq.spark.history.silver import refine
from tests.integration.histories import (
    HOUR,
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
