"""The verbs on dead letters: list them by their errors, and redrive them."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from ..error_texts import masked
from .connection import QUEUE, Cli
from .options import UsageError, flag, operand, option
from .output import moment, table
from .tasks import checked, say_done
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import AnyQueue, Task

_EXAMPLES = 3
_ERROR = option("those whose error text has this in it; * stands for any text", "PATTERN")


@verb("dead list", example="zkmq dead list orders --error 'timed out'")
def list_dead(cli: Cli, queue: str = QUEUE, error: str | None = _ERROR) -> int:
    """Count the dead letters by their errors, whose ids and numbers are masked: the most frequent first."""
    tasks = _dead_tasks(cli.queue(queue), error)
    groups = defaultdict[str, list["Task"]](list)
    for task in tasks:
        groups[_masked(task)].append(task)
    found = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    value = [
        {"error": text, "count": len(alike), "example": alike[-1].error, "tasks": [task.id for task in alike]}
        for text, alike in found
    ]
    rows = [
        (len(alike), text, moment(alike[-1].ended_ms), " ".join(task.id for task in alike[: -_EXAMPLES - 1 : -1]))
        for text, alike in found
    ]
    return cli.say({"queue": queue, "groups": value}, table(rows, ("COUNT", "ERROR", "LATEST", "TASKS")))


@verb("dead redrive", "redrive", example="zkmq dead redrive orders --error 'timed out'")
def redrive(
    cli: Cli,
    queue: str = QUEUE,
    tasks: list[str] | None = operand("[TASK…]", "dead or cancelled tasks", None),
    every: bool = flag("--all", "every task in the dead letters"),
    error: str | None = _ERROR,
) -> int:
    """Put dead or cancelled tasks back."""
    from ..engine import CorruptRecord
    from ..engine.queue_internals import internals

    if sum((bool(tasks), every, error is not None)) != 1:
        raise UsageError("redrive needs either task ids, --error PATTERN or --all")
    handle = cli.queue(queue)
    if error is not None:
        ids = [task.id for task in _dead_tasks(handle, error)]
    else:
        ids = checked(internals(handle).ids("dead") if every else tasks or ())
    refused = handle.redrive_many(ids)
    done = [task for task in ids if task not in refused]
    if not tasks:  # where somebody else was faster, that is no refusal of what was asked for
        refused = {task: why for task, why in refused.items() if isinstance(why, CorruptRecord)}
    return say_done(cli, queue, "redriven", done, refused)


def _dead_tasks(queue: AnyQueue, pattern: str | None) -> list[Task]:
    """The dead letters whose error, as it is or masked, has the pattern in it; the latest last."""
    wanted = re.compile(".*".join(map(re.escape, (pattern or "").split("*"))), re.DOTALL)
    tasks = queue.tasks(state="dead", parts=())
    found = [task for task in tasks if wanted.search(task.error or "") or wanted.search(_masked(task))]
    return sorted(found, key=lambda task: (task.ended_ms or 0, task.id))


def _masked(task: Task) -> str:
    """The kind of a task's error, and its text without what differs from task to task."""
    kind, text = masked(task.error or "", task.id)
    return ": ".join(filter(None, (kind, text))) or "no error told"
