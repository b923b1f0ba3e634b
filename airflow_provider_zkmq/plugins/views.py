"""What the page shows of a queue and its tasks, as JSON. Each view has a bound, however deep the queue is."""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..engine import Unsupported, parse_duration
from ..engine.queue_internals import internals
from ..inspection import queue_status, records, task_story
from ..inspection.selection import SCHEDULED, GroupSelection, by_error
from .live import HUNG_SECONDS

if TYPE_CHECKING:
    from ..engine import AnyQueue, Part, Task
    from .live import Live

#: A page has so many tasks; to find them so many are read at the most, and errors are counted in so many.
PAGE, SEARCHED, ERRORS_IN = 50, 2_000, 20_000
#: So many tasks are read together.
_CHUNK: Final = 200
#: So many bytes of a payload are shown.
PREVIEW_BYTES: Final = 65_536
_HEX_BYTES: Final = 4_096
#: The wait is told by so many of the tasks that finished last.
_LATEST, _SAMPLE = 1_000, 200
_HOUR_MS: Final = 3_600_000
_ACCEPTED_BY: Final = 20


def queue_view(live: Live, name: str) -> dict[str, Any]:
    """All there is to a queue besides its tasks. Raises `QueueNotFound`."""
    queue = live.queue(name)
    conf = queue_status.conf_record(queue.conf())
    live.snapshot()
    seen = live.overviews.get(name) or internals(queue).overview()
    lanes = [
        {
            "priority": lane.priority,
            "filters": None if lane.filters is None else dict(lane.filters),
            "count": lane.count,
            "accepted_by": list(lane.accepted_by[:_ACCEPTED_BY]),
            "accepted": len(lane.accepted_by),
        }
        for lane in seen.lanes
    ]
    return {
        "row": live.rows.get(name),
        "lanes": lanes,
        "consumers": [] if seen.consumers is None else queue_status.consumer_records(queue, HUNG_SECONDS),
        "configuration": conf,
        "minutes": list(_minutes(live, name, queue)),
        "wait": _wait(queue),
    }


def _minutes(live: Live, name: str, queue: AnyQueue) -> Iterator[dict[str, Any]]:
    """How many tasks finished in each minute of the last hour, and how many were pending then."""
    finished = dict(internals(queue).activity(60).finished)
    trace = live.traces.get(name)
    depths = {} if trace is None else {at // 60: pending for at, pending in list(trace.depth)}
    this = int(time.time() // 60)
    for minute in range(this - 60, this + 1):
        yield {
            "at": records.iso(minute * 60_000),
            "finished": finished.get(minute * 60_000, 0),
            "depth": depths.get(minute),
        }


def _wait(queue: AnyQueue) -> dict[str, Any] | None:
    """How long the tasks waited for a consumer that finished last, within the hour."""
    try:
        latest = [task for _, task in internals(queue).page("finished", most=_LATEST)]
        some = latest[:: max(1, len(latest) // _SAMPLE)]
        read = internals(queue).scan(some, ["enqueued_ms", "claimed_ms", "ended_ms"]) if some else None
    except Unsupported:
        return None
    if read is None:
        return None
    since = time.time() * 1000 - _HOUR_MS
    times = zip(*(read.columns[name] for name in ("enqueued_ms", "claimed_ms", "ended_ms")), strict=True)
    waits = sorted(
        max(0, claimed - enqueued) / 1000
        for enqueued, claimed, ended in times
        if enqueued is not None and claimed is not None and ended is not None and ended >= since
    )
    if not waits:
        return None
    p50, p95 = (waits[min(len(waits) - 1, int(len(waits) * part))] for part in (0.5, 0.95))
    return {"p50": p50, "p95": p95, "sample": len(waits)}


# --- Tasks.


def tasks_view(queue: AnyQueue, wanted: Mapping[str, str | None], cursor: str | None) -> dict[str, Any]:
    """A page of tasks behind a cursor: those in a state that fit, and how many were looked at for them.

    `wanted`: ``state``, and ``selector``, ``error``, ``kind`` (of error, exactly), ``id`` (a part of it), ``batch``,
    ``older`` (enqueued so many seconds ago). Raises `ConfigError`.
    """
    state = wanted.get("state") or "inserted"
    kind = "inserted" if state == SCHEDULED else state
    selector, batch, error, same = (wanted.get(name) for name in ("selector", "batch", "error", "kind"))
    chosen = GroupSelection(selector=selector, batch=batch, error=error, kind=same)
    before = None if not wanted.get("older") else time.time() * 1000 - _seconds(wanted["older"] or "") * 1000
    part, shown, searched = wanted.get("id") or "", list["Task"](), 0
    while len(shown) < PAGE and searched < SEARCHED:
        size = PAGE if not (chosen.conditions or before or part) else _CHUNK
        entries = internals(queue).page(state, cursor, size, selector=chosen.selector)
        stands = {task: at for at, task in entries}
        named = [task for task in stands if part in task]
        found = {task.id: task for task in _read(queue, named, chosen) if task.state == kind}
        for task_id, at in stands.items():
            searched, cursor = searched + 1, at
            task = found.get(task_id)
            if task is not None and (before is None or task.enqueued_ms <= before):
                shown.append(task)
                if len(shown) == PAGE:
                    break
        else:
            if len(entries) < size:
                cursor = None
                break
    if cursor is not None and not internals(queue).page(state, cursor, 1, selector=chosen.selector):
        cursor = None
    return {
        "tasks": [_summary(each) for each in task_story.task_records(queue, shown)],
        "cursor": cursor,
        "searched": searched,
    }


def _read(queue: AnyQueue, ids: list[str], chosen: GroupSelection) -> list[Task]:
    """Those of some tasks that are there and chosen, without what may be large."""
    if not ids:
        return []
    parts: tuple[Part, ...] = ("progress",)
    found = queue.tasks(ids=ids, selector=chosen.selector, parts=parts)
    return [task for task in found if chosen.accepts(task)]


def _seconds(text: str) -> float:
    """A span that somebody typed. Raises `ConfigError`."""
    return float(parse_duration(text))


_NOT_SHOWN: Final = ("data", "data_base64", "result", "result_base64", "metadata", "history", "version", "dedupe_until")


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in _NOT_SHOWN}


class Failed(NamedTuple):
    """What is read of a dead letter to count it."""

    id: str
    error: str | None
    ended_ms: int | None


def errors_view(queue: AnyQueue) -> dict[str, Any]:
    """The dead letters by their errors, the most frequent first."""
    dead = internals(queue).ids("dead")
    columns = internals(queue).scan(dead[:ERRORS_IN], Failed._fields, states=["dead"]).columns if dead else {}
    groups = by_error([Failed(*values) for values in zip(*columns.values(), strict=True)])
    shown = [group | {"ids": group["ids"][-3:]} for group in groups]
    return {"groups": shown, "total": len(dead), "searched": min(len(dead), ERRORS_IN)}


def task_view(queue: AnyQueue, task_id: str) -> dict[str, Any]:
    """A task's story: its times, deliveries and payloads, and why nobody takes it. Raises `TaskNotFound`."""
    task = queue.task(task_id)
    (record,) = task_story.task_records(queue, [task])
    for name in ("data", "result"):
        record.pop(f"{name}_base64", None)
        payload: bytes | None = getattr(task, name)
        record[name] = None if payload is None else preview(payload)
    why = None
    with suppress(Unsupported):
        explained = queue.explain(task_id)
        why = {"reasons": list(explained.reasons), "consumers": [records.record(each) for each in explained.consumers]}
    return {"task": record, "why": why}


def preview(payload: bytes) -> dict[str, Any]:
    """The beginning of a payload as text: as it is, or in hexadecimal digits where it is no text."""
    head, more = payload[:PREVIEW_BYTES], len(payload) > PREVIEW_BYTES
    text: str | None = None
    with suppress(UnicodeDecodeError):
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=not more)  # the cut may be in a character
    if text is None or "\0" in text:
        rows = [payload[at : at + 16] for at in range(0, min(len(payload), _HEX_BYTES), 16)]
        lines = [f"{16 * number:06x}  {row.hex(' '):47}  {_printable(row)}" for number, row in enumerate(rows)]
        return {
            "bytes": len(payload),
            "kind": "binary",
            "text": "\n".join(lines),
            "truncated": len(payload) > _HEX_BYTES,
        }
    kind = "text"
    if not more and text[:1] in "{[":
        with suppress(ValueError, RecursionError):
            json.loads(text)
            kind = "json"
    return {"bytes": len(payload), "kind": kind, "text": text, "truncated": more}


def _printable(row: bytes) -> str:
    return "".join(chr(each) if 32 <= each < 127 else "." for each in row)
