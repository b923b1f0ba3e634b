"""Which tasks fail most, and why: the errors of deliveries by their kind and by what their texts have in common."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from airflow_provider_zkmq.spark.answers.frames import OTHERS, Frames
from airflow_provider_zkmq.spark.answers.tables import Column, Plot, Row, Section, Series, Table, printable, several

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
_TELLING: Final = r"(?<!code )(?<!status )(?<!HTTP )(?<!rrno )(?<!signal )"
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
        _TELLING + r"(?<![\w<.])[-+]?\d[\d_,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w)%?(?! (?:Client|Server) Error)",
        "<number>",
    ),
    (_TELLING + r"(?<![\w<])(?=[\w.:-]*\d)(?=[\w.:-]*[A-Za-z_:-])[\w]+(?:[.:-]\w+)*+", "<id>"),
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
    told = f.when(f.col("error").rlike(r"\S"), f.col("error"))
    error = f.coalesce(told, f.concat(f.col("outcome"), f.lit(", no error told")))
    lost = deliveries.where(f.col("outcome").isin("failed", "rescued")).withColumn(
        "error", f.substring(error, 1, LOOKED_AT)
    )
    return lost.withColumns({"kind": f.regexp_extract("error", KIND, 1), "text": masked(f.col("error"))})


def masked(error: Expression) -> Expression:
    """A text without its kind, and with all that differs from task to task masked."""
    text = f.regexp_replace(error, HEAD, "")
    for pattern, mask in MASKS:
        text = f.regexp_replace(text, pattern, mask)
    return f.trim(text)


def groups(frames: Frames, top: int) -> list[Row]:
    """A row for each group of errors, the most frequent first, and one for all that are too rare."""
    lost = failed(frames.deliveries)
    keys = ["queue", "kind", "text"]
    latest = Window.partitionBy(*keys).orderBy(f.desc("ended_at"), "task_id")
    numbered = lost.withColumn("place", f.row_number().over(latest))
    example = f.when(f.col("place") <= EXAMPLES, f.struct("place", "task_id"))
    facts = [
        f.count("*").alias("failures"),
        f.countDistinct("task_id").alias("tasks"),
        f.countDistinct("consumer").alias("consumers"),
        f.min("ended_at").alias("first"),
        f.max("ended_at").alias("last"),
        f.sort_array(f.collect_list(example))["task_id"].alias("examples"),
        f.first(f.when(f.col("place") == 1, f.col("error")), ignorenulls=True).alias("error"),
    ]
    grouped = numbered.groupBy(*keys).agg(*facts)
    order = Window.orderBy(f.desc("failures"), *keys)
    ranked = grouped.withColumn("rank", f.row_number().over(order)).withColumn(
        "all", f.count("*").over(Window.partitionBy())
    )
    ranked = ranked.withColumn("sum", f.sum("failures").over(Window.partitionBy()))
    found = [row.asDict() for row in ranked.where(f.col("rank") <= top).orderBy("rank").collect()]
    return [_group(row) for row in found] + _rest(found)


def _group(row: Row) -> Row:
    kept = {name: row[name] for name in (*(column.name for column in _GROUPS), "error")}
    return kept | {"examples": list(dict.fromkeys(row["examples"]))}


def _rest(rows: list[Row]) -> list[Row]:
    """What all the groups have that are not listed."""
    left = rows[0]["sum"] - sum(row["failures"] for row in rows) if rows else 0
    if not left:
        return []
    blank: Row = dict.fromkeys((*(column.name for column in _GROUPS), "error"))
    kinds = several(rows[0]["all"] - len(rows), "more group")
    return [blank | {"queue": OTHERS, "kind": "", "text": kinds, "failures": left, "examples": []}]


def worst(frames: Frames, top: int) -> list[Row]:
    """The tasks that failed most often."""
    lost = failed(frames.deliveries)
    facts = [
        f.max("class").alias("class"),
        f.count("*").alias("failures"),
        f.max("ended_at").alias("last"),
        f.max_by("error", "ended_at").alias("error"),
    ]
    counted = (
        lost.groupBy("queue", "task_id").agg(*facts).orderBy(f.desc("failures"), f.desc("last"), "queue", "task_id")
    )
    return [row.asDict() for row in counted.limit(top).collect()]


def section(group_rows: list[Row], worst_rows: list[Row]) -> Section:
    """Which tasks fail most, and why."""
    known = [row for row in group_rows if row["queue"] != OTHERS]
    said = [_most(group_rows)] if known else ["No delivery failed."]
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
    tables = [
        Table("groups", "Errors by kind and text, the most frequent first", _GROUPS, shown, "no delivery failed"),
        Table(
            "worst",
            "Tasks that failed most often",
            _WORST,
            [row | {"error": _clip(row["error"])} for row in worst_rows],
        ),
        Table("latest", "The last error of each group, as it was told", _EXAMPLES, latest, folded=True),
    ]
    return Section(
        "failures", "What fails, and why", said, tables if known else tables[:1], [_NOTE], [plot] if known else []
    )


def _most(rows: list[Row]) -> str:
    total, first = sum(row["failures"] for row in rows), rows[0]
    often = "once" if first["failures"] == 1 else f"{first['failures']:,} times"
    return (
        f"{several(total, 'delivery') if total == 1 else f'{total:,} deliveries'} failed; most often, "
        f"{often} in {several(first['tasks'], 'task')} of {first['queue']}: {_label(first)}"
    )


def _label(row: Row) -> str:
    return _clip(": ".join(filter(None, (row["kind"], row["text"]))), 90)


def _clip(text: str, length: int = _SHOWN) -> str:
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"
