"""The example on flights, without Airflow: Spark hands out, a worker sums up, Spark joins; pandas agrees."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("pyspark")

import pandas as pd
from pyspark.sql import SparkSession

from airflow_provider_zkmq.engine import OrderedEnum, String, Zkmq
from airflow_provider_zkmq.spark import register

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other
DAGS = Path(__file__).parents[2] / "example_dags"
DAYS = 3


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of the DAG, found as Airflow finds it."""
    monkeypatch.syspath_prepend(str(DAGS))
    yield import_module("zkmq_flights")
    for name in ("zkmq_flights", "zkmq_flights_delays"):
        sys.modules.pop(name, None)


def expected(example: ModuleType, spark: SparkSession) -> pd.DataFrame:
    """What pandas makes of the same flights, by carrier."""
    flights = example.read_csv(spark, "flights").toPandas()
    flights = flights[(flights.month == 1) & (flights.day <= DAYS)]
    late = flights.assign(late=flights.arr_delay >= 15, minutes=flights.arr_delay.clip(lower=0))
    return late.groupby("carrier").agg(
        flights=("flight", "size"), flown=("arr_delay", "count"), late=("late", "sum"), minutes=("minutes", "sum")
    )


@pytest.mark.full
def test_who_is_late_is_what_pandas_says(
    example: ModuleType, spark: SparkSession, zk: Zkmq, zookeeper: str, tmp_path: Path
) -> None:
    """Each carrier's day is one task, also where it is written twice; the tables hold each flight once."""
    queue = zk.queue(example.QUEUE)
    queue.configure(filters={"carrier": String(), "size": OrderedEnum("light", "heavy")})
    register(spark)
    rows = example.carrier_days(example.read_csv(spark, "flights"), "run", DAYS).cache()
    reach = {"hosts": zookeeper, "root": zk.config.root}
    for _ in range(2):  # as when the task of the DAG is tried again
        rows.write.format("zkmq").options(**reach, queue=example.QUEUE, batch="run").mode("append").save()
    queue.worker(import_module("zkmq_flights_delays").delays, threads=2).run(until_empty=True)
    assert queue.wait_batch("run", timeout=60).total == rows.count() == queue.counts()["finished"]

    done = spark.read.format("zkmq").options(**reach, queues=example.QUEUE, states="finished")
    answers = example.tables(spark, done.option("columns", "filters,result,batch").load())

    wanted = expected(example, spark)
    assert {row["carrier"]: row["flights"] for row in answers["carriers"]} == wanted.flights.to_dict()
    for row in answers["carriers"]:
        one = wanted.loc[row["carrier"]]
        assert row["late_percent"] == pytest.approx(100 * one.late / one.flown, abs=0.051)
        assert row["mean_delay_minutes"] == pytest.approx(one.minutes / one.flown, abs=0.051)
    assert all(sum(row["flights"] for row in table) == wanted.flights.sum() for table in answers.values())
    assert {row["sky"] for row in answers["weather"]} > {"fair"}
    example.plot(answers, tmp_path / "new" / "flights.svg")
    assert "Late flights by carrier" in (tmp_path / "new" / "flights.svg").read_text()
