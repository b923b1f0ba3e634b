"""The sections that need no model: queues, waits, consumers, depth, failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from ...error_texts import masked
from .rendering import Row, Section, Table, label, moment, printable, several, span, spell
from .tables import OTHERS, Tables, or_others, quoted

POINTS: Final = (50, 95, 99)


def largest(tables: Tables, view: str, keys: Sequence[str], top: int) -> list[list[str]]:
    """The values of the keys with the most rows."""
    named = ", ".join(keys)
    query = f"select {named} from {view} group by {named} order by count(*) desc, {named} limit {top}"
    return [list(row.values()) for row in tables.rows(query)]


def top_rows(tables: Tables, view: str, keys: Sequence[str], count: str, facts: Sequence[str], top: int) -> list[Row]:
    """The facts of the keys with the most rows, of which `count` says how many, and a row for all others, the last."""
    merged = ", ".join(or_others(largest(tables, view, keys, top), keys))
    places = ", ".join(str(place + 1) for place in range(len(keys)))
    found = tables.rows(f"select {merged}, count(*) as {count}, {', '.join(facts)} from {view} group by {places}")
    return sorted(found, key=lambda row: (row["queue"] == OTHERS, -row[count], *(row[key] for key in keys)))


def _counted(condition: str) -> str:
    return f"count(*) filter (where {condition})"


def _percentiles(what: str) -> list[str]:
    """The percentiles of a column of milliseconds, in seconds: ``<what>_p50`` and so on."""
    return [f"percentile_cont({what}_ms, {point / 100}) / 1000 as {what}_p{point}" for point in POINTS]


# --- What ended, who waits longest, what is tried again and what dies.

_COUNTS: Final = (
    *(f"{_counted('state = ' + quoted(state))} as {state}" for state in ("finished", "dead", "cancelled")),
    "sum(greatest(attempt - 1, 0)) as retries",
    f"{_counted('attempt > 1')} as retried",
)


def queues(tables: Tables, top: int) -> list[Row]:
    """A row for each of the queues with the most tasks, and one for all others."""
    facts = [*_COUNTS, *_percentiles("wait"), 'min(enqueued_at) as "first"', 'max(ended_at) as "last"']
    return top_rows(tables, "runs", ["queue"], "runs", facts, top)


def class_waits(tables: Tables) -> list[Row]:
    """A row for each class, the longest wait first."""
    facts = [*_COUNTS, *_percentiles("wait"), *_percentiles("run"), "avg(wait_ms) / 1000 as wait_mean"]
    facts += ["max(wait_ms) / 1000.0 as wait_max", "count(*) as runs", "max(attempt) as most"]
    facts.append("avg(case when state = 'dead' then 1.0 else 0.0 end) as dead_share")
    found = tables.rows(f"select queue, class, {', '.join(facts)} from runs group by queue, class")
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


_FAILED: Final = "outcome in ('failed', 'rescued')"


def consumers(tables: Tables, top: int) -> list[Row]:
    """A row for each of those with the most deliveries, and one for all others."""
    keys = ["queue", "consumer"]
    facts = [
        f"{_counted(_FAILED)} as failed",
        f"avg(case when {_FAILED} then 1.0 else 0.0 end) as failed_share",
        *_percentiles("run"),
    ]
    facts += ["coalesce(sum(run_ms), 0) / 1000.0 as busy", 'min(claimed_at) as "first"', 'max(ended_at) as "last"']
    found = top_rows(tables, "deliveries", keys, "deliveries", facts, top)
    known = ", ".join({quoted(row["consumer"]) for row in found}) or "''"
    query = f"select queue, consumer, avg(utilisation) as busy from consumers where consumer in ({known}) group by 1, 2"
    busy = {(row["queue"], row["consumer"]): row["busy"] for row in tables.rows(query)}
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


def depth_rows(tables: Tables, top: int) -> list[Row]:
    """A row for each of the deepest queues and span of some hours, in order of time."""
    ends = tables.rows("select min(hour) as begin, max(hour) as until from hourly")
    if not ends or ends[0]["begin"] is None:
        return []
    begin, until = ends[0]["begin"], ends[0]["until"]
    wide = -(-(int((until - begin) // _HOUR) + 1) // PLACES) * _HOUR
    sums = ", ".join(f"sum({each}) as {each}" for each in _SUMS)
    depths = ", ".join(f"sum({each}) as {each}" for each in ("depth_mean", "depth_max", "depth_end"))
    found = tables.rows(
        f"select queue, {begin} + floor((hour - {begin}) / {wide}) * {wide} as start, {sums}, "
        f"sum(depth_mean) * {_HOUR}.0 / {wide} as depth_mean, coalesce(max(depth_max), 0) as depth_max, "
        "last_value(depth_end order by hour) as depth_end "
        f"from (select queue, hour, {sums}, {depths} from hourly group by queue, hour) group by queue, 2"
    )
    found = [row | {"hour": row.pop("start")} for row in found]
    ranked = sorted(found, key=lambda row: (-row["depth_max"], row["queue"]))
    shown = list(dict.fromkeys(row["queue"] for row in ranked))[:top]
    return sorted((row for row in found if row["queue"] in shown), key=lambda row: (row["queue"], row["hour"]))


def depth_section(hour_rows: list[Row], now_rows: list[Row]) -> Section:
    """The depth over time, and now, where somebody counted."""
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
    if now_rows:
        waits, held = (sum(row[state] for row in now_rows) for state in ("inserted", "claimed"))
        said.insert(0, f"Now {several(waits, 'task')} {'waits' if waits == 1 else 'wait'}, {held:,} are in hand.")
    since = f", from {moment(moments[0])} to {moment(moments[-1])}" if moments else ""
    columns = f"queue hour depth_mean depth_max {' '.join(_SUMS)}"
    tables = [
        Table("trends", f"How many tasks of each queue waited{since}", "queue depth_max worst depth_end trend", trends),
        Table("hours", "Depth and flow over time", columns, hour_rows, folded=True),
    ]
    if now_rows:
        columns = "queue inserted scheduled claimed dead"
        tables.insert(0, Table("now", "How many tasks there are now", columns, now_rows))
    return Section("depth", "Depth over time, of what has ended", said, tables)


# --- Which tasks fail most, and why: the errors of deliveries by their kind and by what their texts have in common.

EXAMPLES: Final = 3
#: Longer texts are cut before they are masked, as only their beginning is looked at.
LOOKED_AT: Final = 500
#: So many failures are looked at, the latest: each text is masked in Python.
LATEST: Final = 50_000


def failed(tables: Tables) -> list[Row]:
    """The latest deliveries that failed, or whose consumer was lost, with the kind and the masked text of the error."""
    columns = f"queue, class, task_id, consumer, ended_at, outcome, substr(error, 1, {LOOKED_AT}) as error"
    latest = f"order by ended_at desc, task_id desc limit {LATEST}"
    lost = tables.rows(f"select {columns} from deliveries where {_FAILED} {latest}")[::-1]
    for row in lost:
        row["error"] = row["error"] if (row["error"] or "").strip() else f"{row['outcome']}, no error told"
        row["kind"], row["text"] = masked(row["error"], row["task_id"])
    return lost


def _grouped(lost: Iterable[Row], keys: Sequence[str]) -> list[list[Row]]:
    """The rows with the same values of the keys, the largest groups first."""
    alike = defaultdict[tuple[str, ...], list[Row]](list)
    for row in lost:
        alike[tuple(row[key] for key in keys)].append(row)
    return [rows for _, rows in sorted(alike.items(), key=lambda group: (-len(group[1]), group[0]))]


def groups(lost: list[Row], top: int) -> list[Row]:
    """A row for each group of errors, the most frequent first, and one for all that are too rare."""
    keys = ("queue", "kind", "text")
    alike = _grouped(lost, keys)
    rare = sorted((row for rows in alike[top:] for row in rows), key=itemgetter("ended_at", "task_id"))
    found = []
    for rows, named in [*((rows, {key: rows[0][key] for key in keys}) for rows in alike[:top]), (rare, _OTHER_GROUPS)]:
        if not rows:
            continue
        facts = {name: len({row[column] for row in rows}) for name, column in _DISTINCT.items()}
        latest = dict.fromkeys(row["task_id"] for row in rows[: -EXAMPLES - 1 : -1])
        times = {"first": rows[0]["ended_at"], "last": rows[-1]["ended_at"], "error": rows[-1]["error"]}
        found.append({**named, "failures": len(rows), **facts, **times, "examples": " ".join(latest)})
    return found


_DISTINCT: Final = {"tasks": "task_id", "consumers": "consumer"}
_OTHER_GROUPS: Final = dict.fromkeys(("queue", "kind", "text"), OTHERS)


def worst(lost: list[Row], top: int) -> list[Row]:
    """The tasks that failed most often, of those that failed as often the latest first."""
    found = []
    for rows in _grouped(lost, ("queue", "task_id")):
        latest = rows[-1]
        known = {name: latest[name] for name in ("queue", "task_id", "class", "error")}
        found.append(known | {"failures": len(rows), "last": latest["ended_at"]})
    return sorted(found, key=lambda row: (-row["failures"], -row["last"]))[:top]


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
    total = sum(row["failures"] for row in group_rows)
    notes = [f"Only the latest {LATEST:,} failures were looked at."] if total >= LATEST else []
    return Section("failures", "What fails, and why", said, tables, notes, level="warn" if known else "good")


def _clip(text: str, length: int = 300) -> str:
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"
