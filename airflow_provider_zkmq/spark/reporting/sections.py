"""The sections that need no model: queues, waits, consumers, depth, failures; and the tables that all are made of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..history import table_reader
from ..history.table_reader import Directory
from .rendering import Row, Section, Table, label, moment, printable, several, span, spell

# --- The tables of the history, cut to the time and the queues that are asked for.

#: What stands for all that is too small for a row of its own. No name of a queue, a class or a consumer has blanks.
OTHERS: Final = "all others"
POINTS: Final = (50, 95, 99)
_FAILED: Final = "outcome in ('failed', 'rescued')"


class Frames(NamedTuple):
    """Silver's runs and deliveries, and gold's hours and consumers. Times are seconds since 1970 from here on."""

    runs: DataFrame
    deliveries: DataFrame
    hourly: DataFrame
    consumers: DataFrame

    def of(self, queues: Sequence[str]) -> Frames:
        """Those of some queues."""
        return Frames(*(frame.where(f.col("queue").isin(list(queues))) for frame in self))

    def with_seconds(self) -> Frames:
        """The same with its times as numbers, which have no zone that anybody could mistake."""
        # Clocks of servers may disagree: no time that a task waited or ran is less than none.
        plain = []
        for frame in self:
            times = {name: f.unix_micros(name) / f.lit(1e6) for name, kind in frame.dtypes if kind == "timestamp"}
            spans = [name for name in ("wait_ms", "run_ms") if name in frame.columns]
            plain.append(frame.withColumns(times | {name: f.expr(f"if({name} < 0, 0, {name})") for name in spans}))
        return Frames(*plain)

    def with_classes(self, known: Sequence[Sequence[str]]) -> Frames:
        """The same with every class that is not one of these pairs of queue and class called `OTHERS`."""
        label = f.when(_among(known, ["queue", "class"]), f.col("class")).otherwise(f.lit(OTHERS))
        return Frames(*(each.withColumn("class", label) if "class" in each.columns else each for each in self))


def read(
    spark: SparkSession, directory: Directory, queues: Sequence[str], since: datetime | None, until: datetime | None
) -> Frames:
    """The tables of these queues: what ended, or happened in an hour that began, from `since` and before `until`."""
    only = queues[0] if len(queues) == 1 else None
    first, last = (None if when is None else when.astimezone(UTC).date() for when in (since, until))
    found = []
    for table in (
        table_reader.read_runs,
        table_reader.read_deliveries,
        table_reader.read_hourly,
        table_reader.read_consumers,
    ):
        frame = table(spark, directory, only, since=first, until=last)
        moment = f.col("hour" if "hour" in frame.columns else "ended_at")
        frame = frame if since is None else frame.where(moment >= f.lit(since))
        found.append(frame if until is None else frame.where(moment < f.lit(until)))
    return Frames(*found) if only else Frames(*found).of(queues)


def _among(known: Sequence[Sequence[str]], keys: list[str]) -> Expression:
    """Whether a row's values are among these. None of them has line ends."""
    return f.concat_ws("\n", *keys).isin(["\n".join(each) for each in known])


def largest(frame: DataFrame, keys: list[str], top: int) -> list[tuple[str, ...]]:
    """The values of the keys with the most rows."""
    ranked = frame.groupBy(*keys).count().orderBy(f.desc("count"), *keys)
    return [tuple(row)[:-1] for row in ranked.limit(top).collect()]


def summed(frame: DataFrame, keys: list[str], facts: Sequence[str]) -> list[Row]:
    """A row of facts, spelt in SQL, for each of the keys' values."""
    return [row.asDict() for row in frame.groupBy(*keys).agg(*map(f.expr, facts)).collect()]


def top_rows(frame: DataFrame, keys: list[str], count: str, facts: Sequence[str], top: int) -> list[Row]:
    """The facts of the keys with the most rows, of which `count` says how many, and a row for all others, the last."""
    listed = _among(largest(frame, keys, top), keys)
    merged = frame.withColumns({key: f.when(listed, f.col(key)).otherwise(f.lit(OTHERS)) for key in keys})
    found = summed(merged, keys, [f"count(*) as {count}", *facts])
    return sorted(found, key=lambda row: (row["queue"] == OTHERS, -row[count], *(row[key] for key in keys)))


def _percentiles(what: str) -> list[str]:
    """The exact percentiles of a column of milliseconds, in seconds: ``<what>_p50`` and so on."""
    return [f"percentile({what}_ms, {point / 100}) / 1000 as {what}_p{point}" for point in POINTS]


# --- What ended, who waits longest, what is tried again and what dies.

_COUNTS: Final = (
    *(f"count_if(state = '{state}') as {state}" for state in ("finished", "dead", "cancelled")),
    "sum(greatest(attempt - 1, 0)) as retries",
    "count_if(attempt > 1) as retried",
)


def queues(frames: Frames, top: int) -> list[Row]:
    """A row for each of the queues with the most tasks, and one for all others."""
    facts = [*_COUNTS, *_percentiles("wait"), "min(enqueued_at) as first", "max(ended_at) as last"]
    return top_rows(frames.runs, ["queue"], "runs", facts, top)


def class_waits(runs: DataFrame) -> list[Row]:
    """A row for each class, the longest wait first."""
    spans = [*_percentiles("wait"), *_percentiles("run"), "mean(wait_ms) / 1000 as wait_mean"]
    more = ["count(*) as runs", "count_if(state = 'dead') / count(*) as dead_share", "max(attempt) as most"]
    found = summed(runs, ["queue", "class"], [*_COUNTS, *spans, "max(wait_ms) / 1000 as wait_max", *more])
    return sorted(found, key=lambda row: (-(row["wait_p95"] or 0), row["queue"], row["class"]))


def overview(queue_rows: list[Row]) -> Section:
    """What there was in all."""
    runs = sum(row["runs"] for row in queue_rows)
    said = [f"{several(runs, 'task')} ended."] if runs else ["No task ended in this time."]
    columns = "queue runs finished dead cancelled retries wait_p95 last first"
    return Section("overview", "Queues", said, [Table("queues", "What ended", columns, queue_rows)], level="")


def waiting(class_rows: list[Row]) -> Section:
    """Which class waits longest."""
    said = [
        f"{label(row['class'], row['queue'])} waits longest: 95 of 100 tasks are begun within {span(row['wait_p95'])}, "
        f"half within {span(row['wait_p50'])}."
        for row in class_rows[:1]
        if row["wait_p95"] is not None
    ]
    columns = "queue class runs wait_p50 wait_p95 wait_p99 wait_max wait_mean run_p50 run_p95"
    table = Table("classes", "Waiting and running times, longest wait first", columns, class_rows)
    return Section("waiting", "Who waits longest", said, [table])


def ends(class_rows: list[Row]) -> Section:
    """How often tasks are tried again or die."""
    troubled = [row for row in class_rows if row["retries"] or row["dead"]]
    troubled.sort(key=lambda row: (-row["dead"], -row["retries"], row["queue"], row["class"]))
    dead, retries = (sum(row[key] for row in class_rows) for key in ("dead", "retries"))
    said = [f"{several(dead, 'task')} ended in the dead letters; there were {retries:,} retries."]
    columns = "queue class runs retries dead dead_share retried most cancelled"
    none = "no task was tried again, and none died"
    table = Table("retries", "Tries and dead letters", columns, troubled, none)
    return Section("retries", "Retries and dead letters", said, [table], level="warn" if dead else "good")


def consumers(frames: Frames, top: int) -> list[Row]:
    """A row for each of those with the most deliveries, and one for all others."""
    keys, failed = ["queue", "consumer"], f"count_if({_FAILED})"
    facts = [f"{failed} as failed", f"{failed} / count(*) as failed_share", *_percentiles("run")]
    facts += ["coalesce(sum(run_ms), 0) / 1000 as busy", "min(claimed_at) as first", "max(ended_at) as last"]
    found = top_rows(frames.deliveries, keys, "deliveries", facts, top)
    known = frames.consumers.where(_among([(row["queue"], row["consumer"]) for row in found], keys))
    used = summed(known, keys, ["mean(utilisation) as utilisation"])
    busy = {(row["queue"], row["consumer"]): row["utilisation"] for row in used}
    return [row | {"utilisation": busy.get((row["queue"], row["consumer"]))} for row in found]


def consumer_section(consumer_rows: list[Row]) -> Section:
    """The consumers side by side."""
    said, known = [], [row for row in consumer_rows if row["queue"] != OTHERS]
    if known:
        often = max(known, key=lambda row: (row["failed_share"], row["failed"]))
        slow = max(known, key=lambda row: row["run_p50"] or 0)
        half = f"half of its deliveries took {spell(slow['run_p50'], 'run_p50')} or more."
        said = [f"{printable(slow['consumer'])} is the slowest consumer: {half}"]
        if often["failed"]:
            share = f"{often['failed']:,} of {several(often['deliveries'], 'delivery')}"
            said = [f"{said[0]} {printable(often['consumer'])} fails most often: {share}."]
    columns = "queue consumer deliveries failed run_p50 run_p95 utilisation failed_share busy first last"
    table = Table("consumers", "Consumers, those with the most deliveries first", columns, consumer_rows)
    return Section("consumers", "Consumers side by side", said, [table])


#: At most so many places on the axis of time.
PLACES: Final = 96
_HOUR: Final = 3600
_SUMS: Final = ("arrivals", "ended", "retries", "dead")


def depth_rows(frames: Frames, top: int) -> list[Row]:
    """A row for each of the deepest queues and span of some hours, in order of time."""
    ends = frames.hourly.agg(f.min("hour").alias("first"), f.max("hour").alias("last")).collect()[0]
    if ends.first is None:
        return []
    wide = -(-(int((ends.last - ends.first) // _HOUR) + 1) // PLACES) * _HOUR
    start = ends.first + f.floor((f.col("hour") - ends.first) / wide) * wide
    sums = [f"sum({each}) as {each}" for each in _SUMS]
    depths = [f"sum({each}) as {each}" for each in ("depth_mean", "depth_max", "depth_end")]
    of_queue = frames.hourly.groupBy("queue", "hour").agg(*map(f.expr, sums + depths)).withColumn("start", start)
    mean = f"sum(depth_mean) * {_HOUR} / {wide} as depth_mean"
    facts = [*sums, mean, "coalesce(max(depth_max), 0) as depth_max", "max_by(depth_end, hour) as depth_end"]
    found = [row | {"hour": row.pop("start")} for row in summed(of_queue, ["queue", "start"], facts)]
    ranked = sorted(found, key=lambda row: (-row["depth_max"], row["queue"]))
    shown = list(dict.fromkeys(row["queue"] for row in ranked))[:top]
    return sorted((row for row in found if row["queue"] in shown), key=lambda row: (row["queue"], row["hour"]))


def depth_section(hour_rows: list[Row]) -> Section:
    """The depth over time."""
    moments = sorted({row["hour"] for row in hour_rows})
    trends = []
    for queue in dict.fromkeys(row["queue"] for row in hour_rows):
        own = {row["hour"]: row for row in hour_rows if row["queue"] == queue}
        most = max(own.values(), key=lambda row: row["depth_max"])
        line = [own[at]["depth_mean"] or 0.0 if at in own else 0.0 for at in moments]
        trends.append(most | {"worst": most["hour"], "depth_end": own[max(own)]["depth_end"], "trend": line})
    trends.sort(key=lambda row: (-row["depth_max"], row["queue"]))
    said = [
        f"{row['queue']} was deepest: {several(row['depth_max'], 'task')} waited after {moment(row['worst'])} UTC."
        for row in trends[:1]
        if row["depth_max"]
    ]
    since = f", from {moment(moments[0])} to {moment(moments[-1])}" if moments else ""
    columns = f"queue hour depth_mean depth_max {' '.join(_SUMS)}"
    tables = [
        Table("trends", f"How many tasks of each queue waited{since}", "queue depth_max worst depth_end trend", trends),
        Table("hours", "Depth and flow over time", columns, hour_rows, folded=True),
    ]
    return Section("depth", "Depth over time, of what has ended", said, tables)


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
#: What the task's own id is taken out by, before everything else: the id stands between the two.
TASK: Final = "<task>"
OWN_ID: Final = (rf"{_CODE_NUMBER}(?<![A-Za-z0-9_])\Q", r"\E(?![A-Za-z0-9_])")
#: In this order, each with what stands in the place.
MASKS: Final = (
    (r"\s+", " "),
    (rf"[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^\s'\"<>]|{TASK})+", "<url>"),
    (r"(?<![\w\\])'(?:[^'\\]|\\.)*+'(?!\w)", "<quoted>"),
    (r"(?<![\w\\])\"(?:[^\"\\]|\\.)*+\"(?!\w)", "<quoted>"),
    (r"[‘“«][^’”»]*+[’”»]", "<quoted>"),
    (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?(?!\w)", "<time>"),
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<address>"),
    (rf"(?<![\w<>.])(?:~|\.{{1,2}})?(?:/(?:[\w.@%+=,~-]|{TASK})+)+/?", "<path>"),
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


def failed(deliveries: DataFrame) -> DataFrame:
    """The deliveries that failed, or whose consumer was lost, each with the kind and the masked text of its error."""
    with_error = f.when(f.col("error").rlike(r"\S"), f.col("error"))
    error = f.coalesce(with_error, f.concat(f.col("outcome"), f.lit(", no error told")))
    lost = deliveries.where(_FAILED).withColumn("error", f.substring(error, 1, LOOKED_AT))
    own_id = f.concat(f.lit(OWN_ID[0]), f.col("task_id"), f.lit(OWN_ID[1]))
    without_id = f.regexp_replace("error", own_id, f.lit(TASK))
    text = f.regexp_replace(without_id, HEAD, "")
    for pattern, mask in MASKS:
        text = f.regexp_replace(text, pattern, mask)
    return lost.withColumns({"kind": f.regexp_extract(without_id, KIND, 1), "text": f.trim(text)})


def groups(lost: DataFrame, top: int) -> list[Row]:
    """A row for each group of errors, the most frequent first, and one for all that are too rare."""
    facts = [
        *("count(distinct task_id) as tasks", "count(distinct consumer) as consumers"),
        *("min(ended_at) as first", "max(ended_at) as last", "max_by(error, struct(ended_at, task_id)) as error"),
        f"max_by(task_id, struct(ended_at, task_id), {EXAMPLES}) as examples",
    ]
    found = top_rows(lost, ["queue", "kind", "text"], "failures", facts, top)
    return [row | {"examples": " ".join(dict.fromkeys(row["examples"]))} for row in found]


def worst(lost: DataFrame, top: int) -> list[Row]:
    """The tasks that failed most often."""
    facts = ["max(class) as class", "count(*) as failures", "max(ended_at) as last", "max_by(error, ended_at) as error"]
    counted = lost.groupBy("queue", "task_id").agg(*map(f.expr, facts))
    ranked = counted.orderBy(f.desc("failures"), f.desc("last"), "queue", "task_id").limit(top)
    return [row.asDict() for row in ranked.collect()]


def section(group_rows: list[Row], worst_rows: list[Row]) -> Section:
    """Which tasks fail most, and why."""
    known = [row for row in group_rows if row["queue"] != OTHERS]
    said = ["No delivery failed."]
    if known:
        first, total = known[0], sum(row["failures"] for row in group_rows)
        times = "once" if first["failures"] == 1 else f"{first['failures']:,} times"
        where = f"{times} in {several(first['tasks'], 'task')} of {first['queue']}"
        error = _clip(": ".join(filter(None, (first["kind"], first["text"]))), 90)
        said = [f"{several(total, 'delivery')} failed; most often, {where}: {error}"]
    clipped, often = ([row | {"error": _clip(row["error"])} for row in rows] for rows in (group_rows, worst_rows))
    columns = "queue kind text failures tasks last examples consumers first error"
    caption = "Errors by kind and text, the most frequent first"
    tables = [Table("groups", caption, columns, clipped, "no delivery failed")]
    if known:
        tables.append(Table("worst", "Tasks that failed most often", "queue task_id class failures last error", often))
    return Section("failures", "What fails, and why", said, tables, level="warn" if known else "good")


def _clip(text: str, length: int = 300) -> str:
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"
