"""All there is to tasks: what they are, when their leases end, why nobody takes them, and their znodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .records import iso, record
from .wording import facts, printable, table

if TYPE_CHECKING:
    from ..engine import AnyQueue, Task


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
    reasons = "\n".join(map(printable, explained.lines()))
    parts = [facts(page), reasons, table(value["znodes"], "path bytes czxid mzxid")]
    if value["history"]:
        parts.insert(2, table(value["history"], "attempt outcome consumer claimed_at started_at ended_at error"))
    return value, "\n\n".join(parts), reasons
