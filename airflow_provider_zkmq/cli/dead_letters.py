"""The verbs on dead letters: list them by their errors, redrive them, export them to a file and import it."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from ..error_texts import masked
from .connection import QUEUE, Cli
from .options import LIMIT, SELECTOR, UsageError, choice, flag, operand, option
from .output import moment, table, warn
from .tasks import checked, say_done
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import AnyQueue, Task

_EXAMPLES = 3
_EXPORTED = ("dead", "cancelled", "inserted")
_DONE = {"redrive": "redriven", "replace": "replaced", "drop": "dropped"}
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


@verb("dead export", "export", example="zkmq dead export orders orders.tq")
def export(
    cli: Cli,
    queue: str = QUEUE,
    file: str = operand("FILE.tq"),
    state: str = choice(_EXPORTED, "which tasks (dead)", "dead"),
    selector: str | None = SELECTOR,
    limit: int | None = LIMIT,
    force: bool = flag("--force", "replace a file that is there already"),
) -> int:
    """Write dead letters to a file that people can read and edit."""
    from ..editing import export_queue

    try:
        count = export_queue(cli.queue(queue), file, state, selector=selector, limit=limit, force=force)
    except FileExistsError as error:
        raise UsageError(f"{error}: add --force to replace it") from error
    value = {"queue": queue, "path": file, "state": state, "tasks": count}
    return cli.say(value, f"{count} {state} task(s) in {file}")


@verb("dead import", "import", example="zkmq dead import orders.tq --dry-run")
def import_(
    cli: Cli,
    file: str = operand("FILE.tq"),
    queue: str | None = option("into this queue, whichever the file is from", "NAME"),
    dry_run: bool = flag("--dry-run", "write nothing, say what would be done"),
) -> int:
    """Do what an edited export asks for: redrive, drop, new text; 1 if a message of it was refused."""
    from ..editing import exported_from, import_file

    name = queue
    if not name:
        origin = exported_from(file)
        if origin is None:
            raise UsageError(f"{file} does not say which queue its tasks are from: add --queue NAME")
        name = origin.queue
    done = import_file(cli.queue(name), file, dry_run, elsewhere=queue is not None)
    for refused in done.refused:
        task = "" if refused.id is None else f", task {refused.id!r}"
        warn(f"line {refused.line} (byte {refused.offset}){task}: {refused.reason}")
    lines = []
    for applied in done.applied:
        lines.append(f"{_DONE[applied.action]} {applied.id}{', with new text' if applied.new_data else ''}")
    plan = "; a dry run: nothing was written" if done.dry_run else ""
    lines.append(f"{len(done.applied)} applied, {len(done.refused)} refused, {done.unchanged} unchanged{plan}")
    return cli.say(done.as_dict(), "\n".join(lines), 1 if done.refused else 0)
