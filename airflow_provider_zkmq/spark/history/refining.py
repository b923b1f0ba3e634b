"""Bronze rows as silver rows, and silver rows as numbers for each hour. Columns only: nothing is read here."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

# --- Bronze rows as silver rows: one for each run, one for each delivery. Only columns: nothing is read or written.

RUNS: Final = (
    "queue string, task_id string, version bigint, state string, class string, filters map<string,string>, "
    "priority int, attempt int, consumer string, batch string, enqueued_at timestamp, claimed_at timestamp, "
    "ended_at timestamp, wait_ms bigint, run_ms bigint, error string, started_at timestamp"
)
DELIVERIES: Final = (
    "queue string, task_id string, version bigint, number int, class string, consumer string, "
    "claimed_at timestamp, ended_at timestamp, run_ms bigint, outcome string, error string, "
    "started_at timestamp"
)
#: What tells deliveries apart. When one ended is not of it: a record's time and the server's differ by milliseconds.
KEY: Final = ("task_id", "number", "claimed_at")
DAY_MS: Final = 86_400_000


def milliseconds(name: str) -> Column:
    """A column's moment as milliseconds since 1970, whatever the session's time zone."""
    return f.unix_millis(f.col(name))


def day_of(name: str) -> Column:
    """The day of a moment in UTC, whatever the session's time zone."""
    return f.date_from_unix_date(f.floor(milliseconds(name) / DAY_MS).cast("int"))


def class_of(filters: str) -> Column:
    """The filter class: ``name=value`` in the order of names, joined by ``;``; signs that part them are escaped."""
    pairs = f.transform(f.array_sort(f.map_entries(filters)), lambda pair: f.concat_ws("=", *_spelt(pair)))
    return f.coalesce(f.array_join(pairs, ";"), f.lit(""))


def _spelt(pair: Column) -> list[Column]:
    return [_escaped(pair[name]) for name in ("key", "value")]


def _escaped(text: Column) -> Column:
    for sign in "%;=":
        text = f.replace(text, f.lit(sign), f.lit(f"%{ord(sign):02X}"))
    return text


def runs_of(bronze: DataFrame) -> DataFrame:
    """A row for each bronze row. What a dead or cancelled run's record does not say, its last delivery does."""
    latest = f.try_element_at("history", f.lit(-1))
    own = f.when(latest["number"] == f.col("attempt"), latest)
    known = bronze.withColumn("own", own).withColumn("claimed", f.coalesce("claimed_at", "own.claimed_at"))
    known = known.withColumn("began", f.coalesce("started_at", "claimed_at", "own.started_at", "own.claimed_at"))
    waited = milliseconds("began") - milliseconds("enqueued_at")
    ran = milliseconds("own.ended_at") - milliseconds("began")
    computed = {
        "task_id": f.col("id"),
        "class": class_of("filters"),
        "consumer": f.coalesce("consumer", "own.consumer"),
        "claimed_at": f.col("claimed"),
        "started_at": f.col("began"),
        "wait_ms": f.coalesce("wait_ms", waited),
        "run_ms": f.coalesce("run_ms", ran),
        "day": day_of("ended_at"),
    }
    return known.select(*(computed.get(name, f.col(name)).alias(name) for name in (*names(RUNS), "day")))


def deliveries_of(bronze: DataFrame) -> DataFrame:
    """A row for each delivery that these rows tell of, once, as the first of them tells it.

    A finished run's last delivery is in its row, those before in its history, and so are those of earlier runs of the
    same id, also where another row tells of them. A history has the last ten.
    """
    members = ("number", "consumer", "claimed_at", "ended_at", "outcome", "error", "started_at")
    last = {"number": f.col("attempt"), "outcome": f.col("state"), "error": f.lit(None)}
    own = f.struct(*(last.get(name, f.col(name)).alias(name) for name in members))
    finished = (f.col("state") == "finished") & f.col("claimed_at").isNotNull()
    past = f.coalesce("history", f.array())
    each = f.concat(past, f.when(finished, f.array(own)).otherwise(f.array()))
    bronze_runs = bronze.select(
        "queue", f.col("id").alias("task_id"), "version", class_of("filters").alias("class"), f.explode(each).alias("e")
    )
    rows = bronze_runs.select(
        "queue",
        "task_id",
        "version",
        "class",
        *(f.col(f"e.{name}").alias(name) for name in members),
    ).fillna("", ["consumer"])
    rows = rows.withColumn("started_at", f.coalesce("started_at", "claimed_at"))
    rows = rows.withColumn("run_ms", milliseconds("ended_at") - milliseconds("started_at"))
    return _first(rows).withColumn("day", day_of("ended_at"))


def _first(rows: DataFrame) -> DataFrame:
    """Of the rows of a delivery the one with the lowest version."""
    rest = [name for name in names(DELIVERIES) if name not in KEY]
    order = ["version", *(name for name in rest if name != "version")]
    first = rows.groupBy(*KEY).agg(f.min(f.struct(*order)).alias("first"))
    columns = [f.col(name) if name in KEY else f.col(f"first.{name}").alias(name) for name in names(DELIVERIES)]
    return first.select(*columns)


def names(schema: str) -> list[str]:
    """The names of the columns that a schema's text declares."""
    return [column.strip().split(" ")[0] for column in schema.replace("map<string,string>", "map").split(",")]


# --- Silver rows as numbers for each hour: of classes and of consumers. Columns only: nothing is read or written here.
#
# Times are whole milliseconds and hours since 1970, so that neither time zones nor rounding come in.

HOUR_MS: Final = 3_600_000
_TIMES: Final = ", ".join(f"{span}_{of} double" for span in ("wait", "run") for of in ("p50", "p95", "p99", "mean"))
#: A class's hour. The last three are what corrections need, and are not shown: who left, and see `class_hours`.
HOURLY: Final = (
    "queue string, class string, hour timestamp, arrivals bigint, deliveries bigint, ended bigint, finished bigint, "
    "dead bigint, cancelled bigint, retries bigint, throughput_per_s double, depth_start bigint, depth_end bigint, "
    f"depth_max bigint, depth_mean double, {_TIMES}, busy_ms bigint, departures bigint, rise bigint, area_ms bigint"
)
CONSUMERS: Final = (
    "queue string, consumer string, hour timestamp, deliveries bigint, finished bigint, failed bigint, busy_ms bigint, "
    "utilisation double"
)
POINTS: Final = (50, 95, 99)
#: How a delivery ended that did not fail.
_NO_FAILURE: Final = ("finished", "cancelled")


def hour_of(moment: str | Column) -> Column:
    """The hour of a number of milliseconds, counted since 1970."""
    return f.floor((f.col(moment) if isinstance(moment, str) else moment) / HOUR_MS)


def moments_of_runs(runs: DataFrame) -> DataFrame:
    """Runs with when they came, left the queue (claimed the last time, or ended unclaimed) and ended, in this order.

    Clocks of servers may disagree: what they tell is brought into order, so that no run leaves before it came.
    """
    ended, came = milliseconds("ended_at"), milliseconds("enqueued_at")
    claimed = f.coalesce(milliseconds("claimed_at"), ended)
    ordered = runs.withColumn("ended_ms", ended).withColumn("came", f.least(came, ended))
    return ordered.withColumn("gone", f.greatest("came", f.least(claimed, ended)))


def moments_of_deliveries(deliveries: DataFrame) -> DataFrame:
    """Deliveries with when they began and ended, and a row for each hour that they touch."""
    ended, began = milliseconds("ended_at"), f.coalesce(milliseconds("started_at"), milliseconds("claimed_at"))
    known = f.when((began > 0) & (began < ended), began).otherwise(ended)
    timed = deliveries.withColumn("ended_ms", ended).withColumn("began", known)
    spread = timed.withColumn("hour", f.explode(f.sequence(hour_of("began"), hour_of("ended_ms"))))
    start = f.col("hour") * HOUR_MS
    busy = f.least("ended_ms", start + HOUR_MS) - f.greatest("began", start)
    return spread.withColumn("busy", busy).withColumn("ends_here", f.col("hour") == hour_of("ended_ms"))


def touched(runs: DataFrame, deliveries: DataFrame) -> DataFrame:
    """The classes and hours whose numbers these rows change, but for the depth in between."""
    each = f.explode(f.array(hour_of("came"), hour_of("gone"), hour_of("ended_ms")))
    return runs.select("class", each.alias("hour")).union(deliveries.select("class", "hour")).distinct()


def class_hours(runs: DataFrame, deliveries: DataFrame, wanted: DataFrame) -> list[DataFrame]:
    """All numbers of the wanted classes and hours but for the depth at their beginning, each in one of these frames.

    ``rise``: the most by which the depth exceeds that; ``area_ms``: the sum of what it differs by, times milliseconds.
    """
    return [_ends(runs, wanted), _flow(runs, wanted), _work(deliveries, wanted)]


def _ends(runs: DataFrame, wanted: DataFrame) -> DataFrame:
    ended = runs.withColumn("hour", hour_of("ended_ms")).join(wanted, ["class", "hour"], "left_semi")
    states = [f.count_if(f.col("state") == state).alias(state) for state in ("finished", "dead", "cancelled")]
    return ended.groupBy("class", "hour").agg(f.count("*").alias("ended"), *states, *_spans("wait"), *_spans("run"))


def _spans(span: str) -> list[Column]:
    exact = [f.percentile(f"{span}_ms", f.lit(point / 100)).alias(f"{span}_p{point}") for point in POINTS]
    return [*exact, f.avg(f"{span}_ms").alias(f"{span}_mean")]


def _flow(runs: DataFrame, wanted: DataFrame) -> DataFrame:
    """Who came and who left, and what became of the depth: all that happens at a moment happens at once."""
    steps = [f.struct(f.col(at).alias("at"), f.lit(by).alias("by")) for at, by in (("came", 1), ("gone", -1))]
    moves = runs.select("class", f.explode(f.array(*steps)).alias("move")).select("class", "move.at", "move.by")
    moves = moves.withColumn("hour", hour_of("at")).join(wanted, ["class", "hour"], "left_semi")
    moments = moves.groupBy("class", "hour", "at").agg(
        f.sum("by").alias("by"), f.count_if(f.col("by") > 0).alias("came"), f.count_if(f.col("by") < 0).alias("gone")
    )
    running = f.sum("by").over(Window.partitionBy("class", "hour").orderBy("at"))
    rest = f.col("by") * ((f.col("hour") + 1) * HOUR_MS - f.col("at"))
    return (
        moments.withColumn("running", running)
        .groupBy("class", "hour")
        .agg(
            f.sum("came").alias("arrivals"),
            f.sum("gone").alias("departures"),
            f.greatest(f.max("running"), f.lit(0)).alias("rise"),
            f.sum(rest).alias("area_ms"),
        )
    )


def _work(deliveries: DataFrame, wanted: DataFrame) -> DataFrame:
    again = f.col("ends_here") & (f.col("number") > 1)
    return (
        deliveries.join(wanted, ["class", "hour"], "left_semi")
        .groupBy("class", "hour")
        .agg(
            f.count_if("ends_here").alias("deliveries"),
            f.count_if(again).alias("retries"),
            f.sum("busy").alias("busy_ms"),
        )
    )


def consumer_hours(deliveries: DataFrame, wanted: DataFrame) -> DataFrame:
    """What each of the wanted consumers did in each of the wanted hours."""
    ended = f.col("ends_here")
    failed = ~f.col("outcome").isin(*_NO_FAILURE)
    return (
        deliveries.join(wanted, ["consumer", "hour"], "left_semi")
        .groupBy("consumer", "hour")
        .agg(
            f.count_if(ended).alias("deliveries"),
            f.count_if(ended & (f.col("outcome") == "finished")).alias("finished"),
            f.count_if(ended & failed).alias("failed"),
            f.sum("busy").alias("busy_ms"),
        )
        .withColumn("utilisation", f.col("busy_ms") / HOUR_MS)
    )


# --- How many tasks waited, hour by hour: the sum of who came and who left, over rows that tell both.
#
# The depth at the end of an hour is that at its beginning, and arrivals, less departures; so a run that waited for
# a month changes two hours' own numbers, and those between only by addition. An hour in which nothing happened has
# a row where somebody waited.

#: What tells a class's hour, and the depth that is known of its beginning.
_KEY: Final = ("class", "hour")
_BASE: Final = "base"
#: What is no count: null where there was none, as is not the number of rows.
_SPANS: Final = ("wait_", "run_")


def joined(frames: list[DataFrame]) -> DataFrame:
    """One row for each class and hour of the frames, with the numbers of all; each number is in one of them."""
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    numbers = [f.max(name).alias(name) for name in together.columns if name not in {*_KEY, _BASE}]
    return together.groupBy(*_KEY).agg(*numbers, f.sum(_BASE).alias(_BASE))


def with_depth(rows: DataFrame, until: int) -> DataFrame:
    """The rows of classes and hours with their depths, and those between where somebody waited, up to hour `until`.

    The column ``base`` of a class's first row: the depth at its beginning, where somebody waited by then.
    """
    order = Window.partitionBy("class").orderBy("hour")
    net = f.coalesce("arrivals", f.lit(0)) - f.coalesce("departures", f.lit(0))
    end = f.sum(f.coalesce(_BASE, f.lit(0)) + net).over(order)
    following = f.coalesce(f.lead("hour").over(order), f.lit(until))
    summed = rows.withColumn("depth_end", end).withColumn("following", following).drop(_BASE)
    return _numbered(summed.withColumn("depth_start", f.col("depth_end") - net))


def _numbered(summed: DataFrame) -> DataFrame:
    """With the hours of waiting alone: each row stands for itself and for those up to the following one."""
    gap = (f.col("depth_end") > 0) & (f.col("following") > f.col("hour") + 1)
    last = f.when(gap, f.col("following") - 1).otherwise(f.col("hour"))
    spread = summed.withColumn("at", f.explode(f.sequence("hour", last))).drop("following")
    own = f.col("at") == f.col("hour")
    kept = {name: f.when(own, f.col(name)) for name in spread.columns if name not in {*_KEY, "at", "depth_end"}}
    counted = [name for name in kept if not name.startswith(_SPANS) and name != "depth_start"]
    start = f.when(own, f.col("depth_start")).otherwise(f.col("depth_end"))
    rows = spread.select(
        "class",
        f.col("at").alias("hour"),
        "depth_end",
        start.alias("depth_start"),
        *(column.alias(name) for name, column in kept.items() if name != "depth_start"),
    )
    happened = f.greatest(*activity(), "depth_start", "depth_end") > 0
    return rows.fillna(0, counted).where(happened).withColumns(_derived())


def _derived() -> dict[str, Column]:
    return {
        "throughput_per_s": f.col("finished") / (HOUR_MS / 1000),
        "depth_max": f.col("depth_start") + f.col("rise"),
        "depth_mean": f.col("depth_start") + f.col("area_ms") / HOUR_MS,
    }


def activity() -> list[Column]:
    """The numbers of which one is positive in an hour in which something happened."""
    return [f.col(name) for name in ("arrivals", "departures", "ended", "deliveries", "busy_ms")]
