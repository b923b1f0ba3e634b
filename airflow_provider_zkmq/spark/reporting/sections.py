"""The sections that need no model: queues, waits, consumers, depth, failures; and the tables that all are made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from ..history import reading
from .page import Column, Plot, Row, Section, Series, Table, moment, name, printable, several, span, spell

# --- The tables of the history, cut to the time and the queues that are asked for.

#: What stands for all that is too small for a row of its own. No name of a queue, a class or a consumer has blanks.
OTHERS: Final = "all others"
POINTS: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Frames:
    """Silver's runs and deliveries, and gold's hours and consumers. Times are seconds since 1970 from here on."""

    runs: DataFrame
    deliveries: DataFrame
    hourly: DataFrame
    consumers: DataFrame

    def of(self, queues: Sequence[str]) -> Frames:
        """Those of some queues."""
        wanted = f.col("queue").isin(list(queues))
        return Frames(*(frame.where(wanted) for frame in (self.runs, self.deliveries, self.hourly, self.consumers)))

    def with_seconds(self) -> Frames:
        """The same with its times as numbers, which have no zone that anybody could mistake."""
        return Frames(
            _seconds(self.runs, "enqueued_at", "claimed_at", "ended_at"),
            _seconds(self.deliveries, "claimed_at", "started_at", "ended_at"),
            _seconds(self.hourly, "hour"),
            _seconds(self.consumers, "hour"),
        )

    def with_classes(self, known: Sequence[tuple[str, str]]) -> Frames:
        """The same with every class that is not one of these pairs of queue and class called `OTHERS`."""
        label = f.when(_among(known, "queue", "class"), f.col("class")).otherwise(f.lit(OTHERS))
        runs, deliveries, hourly = (
            each.withColumn("class", label) for each in (self.runs, self.deliveries, self.hourly)
        )
        return replace(self, runs=runs, deliveries=deliveries, hourly=hourly)


def read(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    queues: Sequence[str],
    since: datetime | None,
    until: datetime | None,
) -> Frames:
    """The tables of these queues below a directory; days that are not asked for are not read.

    They hold what ended, or happened in an hour that began, from `since` and before `until`.
    """
    only = queues[0] if len(queues) == 1 else None
    first, last = (None if when is None else when.astimezone(UTC).date() for when in (since, until))

    def table(reader: Callable[..., DataFrame], moment: str) -> DataFrame:
        frame = reader(spark, directory, only, since=first, until=last)
        frame = frame if since is None else frame.where(f.col(moment) >= f.lit(since))
        return frame if until is None else frame.where(f.col(moment) < f.lit(until))

    runs, deliveries = table(reading.read_runs, "ended_at"), table(reading.read_deliveries, "ended_at")
    frames = Frames(runs, deliveries, table(reading.read_hourly, "hour"), table(reading.read_consumers, "hour"))
    return frames if only else frames.of(queues)


def _seconds(frame: DataFrame, *columns: str) -> DataFrame:
    return frame.withColumns({name: f.unix_micros(name) / f.lit(1e6) for name in columns})


def _among(known: Sequence[tuple[str, str]], *columns: str) -> Expression:
    """Whether a row's two names are one of these pairs. No name of a queue or a consumer has line ends."""
    return f.concat_ws("\n", *columns).isin([f"{queue}\n{name}" for queue, name in known])


def percentiles(column: str, name: str, points: Sequence[float] = POINTS) -> list[Expression]:
    """The exact percentiles of a column of milliseconds, in seconds: ``<name>_p50`` and so on."""
    return [(f.percentile(column, f.lit(point)) / 1000).alias(f"{name}_p{point * 100:.0f}") for point in points]


# --- The sections that need no model: queues, who waits longest, the consumers side by side, depth, tries and deaths.

_QUEUES: Final = (
    Column("queue", "queue"),
    Column("runs", "tasks ended", "count"),
    *(Column(state, state, "count") for state in ("finished", "dead", "cancelled")),
    Column("retries", "retries", "count"),
    Column("wait_p95", "wait p95", "span"),
    Column("first", "first enqueued", "moment", rank=2),
    Column("last", "last end", "moment"),
)
_WAITS: Final = (
    Column("queue", "queue"),
    Column("class", "class", "name"),
    Column("runs", "tasks", "count"),
    Column("wait_mean", "wait mean", "span", rank=1),
    *(Column(f"wait_p{point}", f"p{point}", "span") for point in (50, 95, 99)),
    Column("wait_max", "longest", "span"),
    Column("run_p50", "run p50", "span", rank=2),
    Column("run_p95", "run p95", "span", rank=2),
)
_ENDS: Final = (
    Column("queue", "queue"),
    Column("class", "class", "name"),
    Column("runs", "tasks", "count"),
    Column("retried", "tried again", "count", rank=1),
    Column("retries", "retries", "count"),
    Column("most", "most tries", "count", rank=1),
    Column("dead", "dead", "count"),
    Column("dead_share", "dead of all", "share"),
    Column("cancelled", "cancelled", "count", rank=2),
)

_WAITING_NOTE: Final = (
    "Waiting is from the enqueue to the beginning of the last try: delays that were asked for, and the pauses and "
    "earlier tries of a task that failed, count as waiting. Tasks that were never claimed have no wait."
)


def _counts() -> list[Expression]:
    states = [f.count_if(f.col("state") == state).alias(state) for state in ("finished", "dead", "cancelled")]
    tried = f.greatest(f.col("attempt") - 1, f.lit(0))
    return [
        f.count("*").alias("runs"),
        *states,
        f.coalesce(f.sum(tried), f.lit(0)).cast("bigint").alias("retries"),
        f.count_if(tried > 0).alias("retried"),
    ]


def queues(frames: Frames, top: int) -> list[Row]:
    """A row for each of the queues with the most tasks, and one for all others."""
    facts = [
        *_counts(),
        (f.percentile("wait_ms", f.lit(0.95)) / 1000).alias("wait_p95"),
        f.min("enqueued_at").alias("first"),
        f.max("ended_at").alias("last"),
    ]
    ranked = frames.runs.groupBy("queue").count().orderBy(f.desc("count"), "queue").limit(top).select("queue")
    largest = [row.queue for row in ranked.collect()]
    label = f.when(f.col("queue").isin(largest), f.col("queue")).otherwise(f.lit(OTHERS))
    rows = frames.runs.withColumn("queue", label).groupBy("queue").agg(*facts).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: (row["queue"] == OTHERS, -row["runs"], row["queue"]))


def classes(frames: Frames, top: int) -> list[tuple[str, str]]:
    """The classes with the most tasks, each with its queue."""
    counted = frames.runs.groupBy("queue", "class").count()
    return [
        (row.queue, row["class"]) for row in counted.orderBy(f.desc("count"), "queue", "class").limit(top).collect()
    ]


def class_waits(runs: DataFrame) -> list[Row]:
    """A row for each class, the longest wait first."""
    facts = [
        *_counts(),
        f.max("attempt").alias("most"),
        (f.mean("wait_ms") / 1000).alias("wait_mean"),
        (f.max("wait_ms") / 1000).alias("wait_max"),
        *percentiles("wait_ms", "wait"),
        *percentiles("run_ms", "run"),
    ]
    found = [row.asDict() for row in runs.groupBy("queue", "class").agg(*facts).collect()]
    for row in found:
        row["dead_share"] = row["dead"] / row["runs"]
    return sorted(found, key=lambda row: (-(row["wait_p95"] or 0), row["queue"], row["class"]))


def overview(queue_rows: list[Row]) -> Section:
    """What there was in all."""
    runs = sum(row["runs"] for row in queue_rows)
    said = [f"{several(runs, 'task')} ended."] if runs else ["No task ended in this time."]
    return Section("overview", "Queues", said, [Table("queues", "What ended", _QUEUES, queue_rows)])


def waiting(class_rows: list[Row]) -> Section:
    """Which class waits longest."""
    waited = [row for row in class_rows if row["wait_p95"] is not None]
    said = [
        f"{label(row)} waits longest: 95 of 100 tasks are begun within {span(row['wait_p95'])}, "
        f"half within {span(row['wait_p50'])}."
        for row in waited[:1]
    ]
    plot = Plot(
        "bars",
        "Wait of each class",
        f"Bars: how long half and 95 of 100 tasks of each class waited. {' '.join(said)}",
        [label(row) for row in waited],
        [Series(title, [row[key] for row in waited]) for title, key in (("p50", "wait_p50"), ("p95", "wait_p95"))],
        "span",
    )
    table = Table("classes", "Waiting and running times, longest wait first", _WAITS, class_rows)
    return Section("waiting", "Who waits longest", said, [table], [_WAITING_NOTE], [plot] if waited else [])


def label(row: Row) -> str:
    """The queue and class of a row for people."""
    return f"{name(row['class'])} of {row['queue']}"


def ends(class_rows: list[Row]) -> Section:
    """How often tasks are tried again or die."""
    troubled = [row for row in class_rows if row["retries"] or row["dead"]]
    troubled.sort(key=lambda row: (-row["dead"], -row["retries"], row["queue"], row["class"]))
    dead, retries = (sum(row[key] for row in class_rows) for key in ("dead", "retries"))
    said = [f"{several(dead, 'task')} ended in the dead letters; there were {retries:,} retries."]
    table = Table("retries", "Tries and dead letters", _ENDS, troubled, "no task was tried again, and none died")
    return Section("retries", "Retries and dead letters", said, [table])


# --- the consumers side by side

_CONSUMERS: Final = (
    Column("queue", "queue"),
    Column("consumer", "consumer"),
    Column("deliveries", "deliveries", "count"),
    Column("failed", "failed", "count"),
    Column("failed_share", "failed of all", "share", rank=1),
    Column("run_p50", "run p50", "span"),
    Column("run_p95", "run p95", "span"),
    Column("busy", "busy in all", "span", rank=1),
    Column("utilisation", "busy of its hours", "share"),
    Column("first", "first claim", "moment", rank=2),
    Column("last", "last end", "moment", rank=2),
)

_CONSUMER_NOTE: Final = (
    "A consumer is a client that claims, one process or one of its connections; each start of a worker is a new one. "
    "One that works on several tasks at once can be busy for more than an hour in an hour."
)


def consumers(frames: Frames, top: int) -> list[Row]:
    """A row for each of those with the most deliveries, and one for all others."""
    keys = ["queue", "consumer"]
    largest = frames.deliveries.groupBy(*keys).count().orderBy(f.desc("count"), *keys).limit(top).collect()
    listed = _among([(row.queue, row.consumer) for row in largest], *keys)
    merged = {name: f.when(listed, f.col(name)).otherwise(f.lit(OTHERS)) for name in keys}
    facts = [
        f.count("*").alias("deliveries"),
        f.count_if(f.col("outcome").isin("failed", "rescued")).alias("failed"),
        *percentiles("run_ms", "run", POINTS[:2]),
        (f.coalesce(f.sum("run_ms"), f.lit(0)) / 1000).alias("busy"),
        f.min("claimed_at").alias("first"),
        f.max("ended_at").alias("last"),
    ]
    found = [row.asDict() for row in frames.deliveries.withColumns(merged).groupBy(*keys).agg(*facts).collect()]
    used = frames.consumers.withColumns(merged).groupBy(*keys).agg(f.mean("utilisation").alias("utilisation"))
    busy = {(row.queue, row.consumer): row.utilisation for row in used.collect()}
    for row in found:
        row["failed_share"] = row["failed"] / row["deliveries"]
        row["utilisation"] = busy.get((row["queue"], row["consumer"]))
    return sorted(found, key=lambda row: (row["queue"] == OTHERS, row["queue"], -row["deliveries"], row["consumer"]))


def consumer_section(consumer_rows: list[Row]) -> Section:
    """The consumers side by side."""
    known = [row for row in consumer_rows if row["queue"] != OTHERS]
    busy = [row for row in known if row["utilisation"] is not None][:20]
    said = []
    if known:
        often = max(known, key=lambda row: (row["failed_share"], row["failed"]))
        slow = max(known, key=lambda row: row["run_p50"] or 0)
        half = f"half of its deliveries took {spell('span', slow['run_p50'])} or more."
        said = [f"{printable(slow['consumer'])} is the slowest: {half}"]
        if often["failed"]:
            share = f"{often['failed']:,} of {often['deliveries']:,} deliveries"
            said = [f"{said[0]} {printable(often['consumer'])} fails most often: {share}."]
    plot = Plot(
        "bars",
        "How busy the consumers were",
        f"Bars: the part of its hours in which each consumer was busy. {' '.join(said)}",
        [f"{printable(row['consumer'])} of {row['queue']}" for row in busy],
        [Series("busy", [row["utilisation"] for row in busy])],
        "share",
    )
    table = Table("consumers", "Consumers, those with the most deliveries first", _CONSUMERS, consumer_rows)
    return Section("consumers", "Consumers side by side", said, [table], [_CONSUMER_NOTE], [plot] if busy else [])


# --- depth over time

#: At most so many places on the axis of time.
PLACES: Final = 96
_HOUR: Final = 3600
_SUMS: Final = ("arrivals", "ended", "retries", "dead")
_HOURS: Final = (
    Column("queue", "queue"),
    Column("hour", "from", "moment"),
    Column("depth_mean", "waiting, mean", "real"),
    Column("depth_max", "waiting, most", "count"),
    *(Column(name, name, "count") for name in _SUMS),
)
_TRENDS: Final = (
    Column("queue", "queue"),
    Column("trend", "waiting, from then to now", "trend"),
    Column("depth_max", "most", "count"),
    Column("worst", "at", "moment"),
    Column("depth_end", "at the end", "count"),
)

_DEPTH_NOTE: Final = (
    "Waiting are tasks that were enqueued and not yet claimed the last time. The archive knows a task when it has "
    "ended: what waits or runs now is not in it, so that the last hours look emptier than they were."
)


def depth_rows(frames: Frames, top: int) -> list[Row]:
    """A row for each queue and span of some hours, in order of time."""
    ends = frames.hourly.agg(f.min("hour").alias("first"), f.max("hour").alias("last")).collect()[0]
    if ends.first is None:
        return []
    hours = int((ends.last - ends.first) // _HOUR) + 1
    wide = -(-hours // PLACES) * _HOUR
    per_hour = frames.hourly.groupBy("queue", "hour").agg(
        *(f.sum(name).alias(name) for name in (*_SUMS, "depth_mean", "depth_max", "depth_end"))
    )
    start: Expression = ends.first + f.floor((f.col("hour") - ends.first) / wide) * wide
    spans = (
        per_hour.withColumn("span", start)
        .groupBy("queue", "span")
        .agg(
            *(f.sum(name).alias(name) for name in _SUMS),
            (f.sum("depth_mean") * _HOUR / wide).alias("depth_mean"),
            f.max("depth_max").alias("depth_max"),
            f.max_by("depth_end", "hour").alias("depth_end"),
        )
    )
    found = [row.asDict() for row in spans.withColumnRenamed("span", "hour").orderBy("queue", "hour").collect()]
    deepest = dict[str, int]()
    for row in found:
        deepest[row["queue"]] = max(deepest.get(row["queue"], 0), row["depth_max"] or 0)
    shown = sorted(deepest, key=lambda queue: (-deepest[queue], queue))[:top]
    return [row for row in found if row["queue"] in shown]


def depth_section(hour_rows: list[Row]) -> Section:
    """The depth over time."""
    places = sorted({row["hour"] for row in hour_rows})
    lines, trends = dict[str, list[float | None]](), list[Row]()
    for queue in dict.fromkeys(row["queue"] for row in hour_rows):
        own = {row["hour"]: row for row in hour_rows if row["queue"] == queue}
        lines[queue] = [own[place]["depth_mean"] if place in own else 0.0 for place in places]
        worst, last = max(own.values(), key=lambda row: row["depth_max"] or 0), list(own.values())[-1]
        depths = {"depth_max": worst["depth_max"] or 0, "worst": worst["hour"], "depth_end": last["depth_end"]}
        trends.append({"queue": queue, "trend": lines[queue][-48:], **depths})
    trends.sort(key=lambda row: (-row["depth_max"], row["queue"]))
    said = [
        f"{row['queue']} was deepest: {several(row['depth_max'], 'task')} waited after {moment(row['worst'])} UTC."
        for row in trends[:1]
        if row["depth_max"]
    ]
    series = [Series(printable(row["queue"]), lines[row["queue"]]) for row in trends[:6]]
    for flow in _SUMS:
        sums = dict.fromkeys(places, 0)
        for row in hour_rows:
            sums[row["hour"]] += row[flow] or 0
        series.append(Series(flow, list(sums.values()), beside=True))
    alt = f"Lines: how many tasks of each queue were waiting over time. {' '.join(said)}"
    plot = Plot("lines", "Tasks waiting, and below what came and went meanwhile", alt, places, series, "real")
    tables = [
        Table("trends", "Depth of each queue", _TRENDS, trends),
        Table("hours", "Depth and flow over time", _HOURS, hour_rows, folded=True),
    ]
    return Section("depth", "Depth over time", said, tables, [_DEPTH_NOTE], [plot] if len(places) > 1 else [])


# --- Which tasks fail most, and why: the errors of deliveries by their kind and by what their texts have in common.

EXAMPLES: Final = 3
# What is left of an error's text once all that differs from task to task is masked, so that the same errors meet. The
# patterns are read by Java's and Python's regular expressions alike: Spark masks where the rows are.
#: Longer texts are cut before they are masked, as only their beginning is looked at.
LOOKED_AT: Final = 500
#: What kind of error it is: an exception's name, as the engine writes it before the colon, or how a command ended.
#: Other words before a colon have no digits in them, or else each task might have an error of its own kind; so has the
#: last part of a name with dots.
_NAMED: Final = r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Failed)(?=:\s|\s*$)"
_DOTTED: Final = r"(?:[A-Za-z_]\w*\.)+[A-Z][A-Za-z_]+(?=:\s)"
KIND: Final = rf"^\s*({_NAMED}|{_DOTTED}|[A-Za-z_][A-Za-z_.]+(?=:\s)|exit code \d+|ended by signal \d+)"
#: The kind and the colon, of which the masked text is not to speak again.
HEAD: Final = rf"{KIND}(?::\s*)?"
#: Numbers that tell one error from another stay: of HTTP and the like, of exit codes, of the operating system.
_CODE_NUMBER: Final = r"(?<!code )(?<!status )(?<!HTTP )(?<!rrno )(?<!signal )"
#: In this order, each with what stands in the place.
MASKS: Final = (
    (r"\s+", " "),
    (r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>]+", "<url>"),
    (r"(?<![\w\\])'(?:[^'\\]|\\.)*+'(?!\w)", "<quoted>"),
    (r"(?<![\w\\])\"(?:[^\"\\]|\\.)*+\"(?!\w)", "<quoted>"),
    (r"[‘“«][^’”»]*+[’”»]", "<quoted>"),
    (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?(?!\w)", "<time>"),
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<address>"),
    (r"(?<![\w<>.])(?:~|\.{1,2})?(?:/[\w.@%+=,~-]+)+/?", "<path>"),
    (r"\b[A-Za-z]:\\[^\s'\"<>|]+", "<path>"),
    (r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b", "<address>"),
    (r"\b0[xX][0-9a-fA-F]+\b", "<hex>"),
    (r"\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>"),
    (
        _CODE_NUMBER
        + r"(?<![\w<.])[-+]?\d[\d_,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w)%?(?! (?:Client|Server) Error)",
        "<number>",
    ),
    (_CODE_NUMBER + r"(?<![\w<])(?=[\w.:-]*\d)(?=[\w.:-]*[A-Za-z_:-])[\w]+(?:[.:-]\w+)*+", "<id>"),
)
_SHOWN: Final = 300
_GROUPS: Final = (
    Column("queue", "queue"),
    Column("kind", "kind"),
    Column("text", "text"),
    Column("failures", "failures", "count"),
    Column("tasks", "tasks", "count"),
    Column("consumers", "by consumers", "count", rank=2),
    Column("first", "first", "moment", rank=2),
    Column("last", "last", "moment"),
    Column("examples", "such as task"),
)
_EXAMPLES: Final = (Column("queue", "queue"), Column("task_id", "task"), Column("error", "error"))
_WORST: Final = (
    Column("queue", "queue"),
    Column("task_id", "task"),
    Column("class", "class", "name"),
    Column("failures", "failures", "count"),
    Column("last", "last", "moment"),
    Column("error", "last error"),
)

_NOTE: Final = (
    "Numbers, ids, paths, addresses, times and quoted words are masked, so that errors that differ in nothing else are "
    "one group. A delivery whose consumer was lost counts as a failure."
)


def failed(deliveries: DataFrame) -> DataFrame:
    """The deliveries that failed, or whose consumer was lost, each with the kind and the masked text of its error."""
    with_error = f.when(f.col("error").rlike(r"\S"), f.col("error"))
    error = f.coalesce(with_error, f.concat(f.col("outcome"), f.lit(", no error told")))
    lost = deliveries.where(f.col("outcome").isin("failed", "rescued"))
    text = f.regexp_replace("error", HEAD, "")
    for pattern, mask in MASKS:
        text = f.regexp_replace(text, pattern, mask)
    cut = lost.withColumn("error", f.substring(error, 1, LOOKED_AT))
    return cut.withColumns({"kind": f.regexp_extract("error", KIND, 1), "text": f.trim(text)})


def groups(frames: Frames, top: int) -> list[Row]:
    """A row for each group of errors, the most frequent first, and one for all that are too rare."""
    lost = failed(frames.deliveries)
    keys = ["queue", "kind", "text"]
    facts = [
        f.count("*").alias("failures"),
        f.countDistinct("task_id").alias("tasks"),
        f.countDistinct("consumer").alias("consumers"),
        f.min("ended_at").alias("first"),
        f.max("ended_at").alias("last"),
        f.max_by("task_id", f.struct("ended_at", "task_id"), EXAMPLES).alias("examples"),
        f.max_by("error", f.struct("ended_at", "task_id")).alias("error"),
    ]
    every = Window.partitionBy()
    grouped = lost.groupBy(*keys).agg(*facts)
    summed = grouped.withColumns({"groups": f.count("*").over(every), "sum": f.sum("failures").over(every)})
    found = [row.asDict() for row in summed.orderBy(f.desc("failures"), *keys).limit(top).collect()]
    for row in found:
        number, total = row.pop("groups"), row.pop("sum")
        row["examples"] = list(dict.fromkeys(row["examples"]))
    if found and (rest := total - sum(row["failures"] for row in found)):
        more = {"queue": OTHERS, "kind": "", "text": several(number - top, "more group"), "failures": rest}
        found.append(dict.fromkeys(found[0]) | more | {"examples": []})
    return found


def worst(frames: Frames, top: int) -> list[Row]:
    """The tasks that failed most often."""
    lost = failed(frames.deliveries)
    facts = [
        f.max("class").alias("class"),
        f.count("*").alias("failures"),
        f.max("ended_at").alias("last"),
        f.max_by("error", "ended_at").alias("error"),
    ]
    counted = lost.groupBy("queue", "task_id").agg(*facts)
    ranked = counted.orderBy(f.desc("failures"), f.desc("last"), "queue", "task_id").limit(top)
    return [row.asDict() for row in ranked.collect()]


def section(group_rows: list[Row], worst_rows: list[Row]) -> Section:
    """Which tasks fail most, and why."""
    known = [row for row in group_rows if row["queue"] != OTHERS]
    said = ["No delivery failed."]
    if known:
        first, total = known[0], sum(row["failures"] for row in group_rows)
        every = several(total, "delivery") if total == 1 else f"{total:,} deliveries"
        times = "once" if first["failures"] == 1 else f"{first['failures']:,} times"
        where = f"{times} in {several(first['tasks'], 'task')} of {first['queue']}"
        said = [f"{every} failed; most often, {where}: {_label(first)}"]
    plot = Plot(
        "bars",
        "Failures by their kind",
        f"Bars: how often each group of errors was met. {said[0]}",
        [_label(row) for row in known[:10]],
        [Series("failures", [row["failures"] for row in known[:10]])],
        "count",
    )
    shown = [row | {"examples": " ".join(map(printable, row["examples"]))} for row in group_rows]
    latest = [{"queue": row["queue"], "task_id": row["examples"][0], "error": _clip(row["error"])} for row in known]
    often = [row | {"error": _clip(row["error"])} for row in worst_rows]
    tables = [Table("groups", "Errors by kind and text, the most frequent first", _GROUPS, shown, "no delivery failed")]
    if known:
        tables.append(Table("worst", "Tasks that failed most often", _WORST, often))
        tables.append(Table("latest", "The last error of each group, as it was told", _EXAMPLES, latest, folded=True))
    return Section("failures", "What fails, and why", said, tables, [_NOTE], [plot] if known else [])


def _label(row: Row) -> str:
    return _clip(": ".join(filter(None, (row["kind"], row["text"]))), 90)


def _clip(text: str, length: int = _SHOWN) -> str:
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"
