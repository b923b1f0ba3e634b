"""All there is to tasks: what they are, when their leases end, why nobody takes them, and their znodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .records import iso, payload, record
from .wording import facts, one_line, table, words

if TYPE_CHECKING:
    from ..engine import AnyClaim, AnyQueue, Batch, Task


def task_records(queue: AnyQueue, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Tasks with the ends of their claims' leases; ``lapsed``: it has ended, and so the task is free again."""
    from ..engine.queue_internals import internals

    open_ids = [task.id for task in tasks if task.ended_ms is None or task.state == "dead"]
    held = {each.id: each for each in internals(queue).held_claims(open_ids)} if open_ids else {}
    records = []
    for task in tasks:
        claim = held.get(task.id)
        ends, lapsed = (None, False) if claim is None else (iso(claim.lease_ms), claim.lapsed)
        records.append(record(task) | {"lease_until": ends, "lapsed": lapsed})
    return records


def tasks_page(rows: Sequence[dict[str, Any]], *, ended: bool) -> str:
    """Tasks by their records, a row each. `ended`: with what came of them, and not what they are about."""
    columns = "id status attempt priority enqueued_at"
    columns += " lease_until" if any(each["lease_until"] for each in rows) else ""
    return table(rows, columns + (" result error" if ended else " filters data"))


def claimed_record(queue: str, claim: AnyClaim, lease: float) -> dict[str, Any]:
    """A task that was claimed just now, for whoever is to handle it."""
    task = claim.task
    value = {"queue": queue, "id": task.id, "token": claim.token, "attempt": task.attempt, "lease": lease}
    value |= {"priority": task.priority, "filters": task.filters, "metadata": task.metadata}
    return value | payload("data", task.data)


def batch_story(queue: str, batch: Batch) -> tuple[dict[str, Any], str]:
    """How a batch stands: its record, and a page."""
    value = {"queue": queue, "batch": batch.name, **record(batch)}
    del value["name"]
    refused = [] if batch.refused is None else [{"id": None, "reason": batch.refused}]
    return value | {"refused": refused}, facts(value)


def task_story(queue: AnyQueue, task_id: str) -> tuple[dict[str, Any], str, str]:
    """All there is to a task: its record, the same as a page for people, and why nobody handles it.

    A task in a file has neither znodes nor a reason. Raises `TaskNotFound`, `ConfigError`.
    """
    from ..engine import Unsupported, enqueue_transactions
    from ..engine.queue_internals import internals

    (value,) = task_records(queue, [queue.task(task_id)])
    value = {"queue": queue.name, **value}
    page = {**value, "history": None, "lapsed": value["lapsed"] or None}
    try:
        explained, znodes = queue.explain(task_id), internals(queue).tree(task_id)
    except Unsupported:
        return value, facts(page), ""
    page["enqueue_transactions"] = transactions = enqueue_transactions(znodes)
    why = {name: each for name, each in record(explained).items() if name != "task_id"}
    value |= {"znodes": list(map(record, znodes)), "enqueue_transactions": transactions, "why": why}
    reasons = "\n".join(map(one_line, explained.lines()))
    parts = [facts(page), reasons, table(value["znodes"], "path bytes czxid mzxid")]
    if value["history"]:
        parts.insert(2, table(value["history"], "attempt outcome consumer claimed_at started_at ended_at error"))
    return value, "\n\n".join(parts), reasons


def follow(queue: AnyQueue, task_id: str, say: Callable[[dict[str, Any], str], object]) -> Task:
    """Say each change until the task ends, as a record and as a line for people; returns the task then."""
    said: list[object] = []

    def say_change(task: Task) -> None:
        value, text = _change(queue.name, task)
        compared = value | {"version": None}
        if compared not in said[-1:]:
            said.append(compared)
            say(value, text)

    return queue.follow(task_id, say_change)


def _change(queue: str, task: Task) -> tuple[dict[str, Any], str]:
    """What of a task changes while it is followed: as a record, and as a line for people."""
    known = record(task)
    names = ("id", "state", "status", "attempt", "progress", "note", "error", "version")
    done = None if task.progress is None else words("progress", task.progress)
    ends = [one_line(text) for text in (done, task.note, task.error) if text]
    line = "  ".join([f"{task.status}  attempt {task.attempt}", *ends])
    return {"queue": queue, **{name: known[name] for name in names}}, line
