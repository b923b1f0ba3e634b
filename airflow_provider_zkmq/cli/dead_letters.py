"""The verbs on dead letters: list them by their errors, redrive or drop them, export them to a file and import it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from ..inspection import terminal, wording
from ..inspection.selection import by_error, one_by_one
from . import selection
from .connection import Cli, QueueName, Watching
from .options import YES, UsageError, flag, operand, option
from .output import warn
from .verbs import verb

_EXAMPLES = 3


@verb("dead list", example="zkmq dead list orders --error 'timed out'")
def list_dead(cli: Watching, queue: QueueName, chosen: selection.Chosen) -> int:
    """Count the dead letters by their errors, whose ids and numbers are masked: the most frequent first."""
    value = by_error(chosen.find(cli.queue(queue), (), "dead"))
    cli.say_where(queue=queue, view="dead")
    rows = [group | {"tasks": group["ids"][: -_EXAMPLES - 1 : -1]} for group in value]
    return cli.say({"queue": queue, "groups": value}, wording.table(rows, "count error latest_at tasks"))


@verb("dead redrive", "redrive", example="zkmq dead redrive orders --error 'timed out'")
def redrive(cli: Cli, queue: QueueName, chosen: selection.Needed) -> int:
    """Put dead letters back, or cancelled tasks that are named or asked for by --state."""
    handle = cli.queue(queue)
    ids = chosen.ids(handle, "dead")
    return selection.do_to_each(cli, handle, "redriven", ids, handle.redrive_many, named=bool(chosen.tasks))


@verb("dead drop", example="zkmq dead drop orders --error 'no such street'")
def drop(cli: Cli, queue: QueueName, chosen: selection.Needed, yes: bool = YES) -> int:
    """Delete dead letters, or other tasks that are named or asked for by --state, but for claimed ones."""
    handle = cli.queue(queue)
    ids = chosen.ids(handle, "dead")
    cli.confirm(f"dropping {len(ids)} task(s) of queue {queue!r}", queue, yes=yes or not ids)
    act = partial(one_by_one, handle.drop)
    return selection.do_to_each(cli, handle, "dropped", ids, act, named=bool(chosen.tasks))


@verb("dead export", "export", example="zkmq dead export orders orders.tq")
def export(
    cli: Cli,
    queue: QueueName,
    file: Annotated[str, operand("FILE.tq")],
    chosen: selection.Chosen,
    force: bool = flag("--force", "replace a file that is there already"),
) -> int:
    """Write dead letters, or tasks that are cancelled or inserted, to a file that people can read and edit."""
    from ..editing import export_queue

    state, handle = chosen.state or "dead", cli.queue(queue)
    found = chosen.tasks or chosen.error is not None or chosen.batch is not None
    ids = [task.id for task in chosen.find(handle, (), "dead")] if found else None
    which: dict[str, Any] = {"selector": chosen.selector, "ids": ids, "limit": chosen.limit}
    try:
        with terminal.progress(f"exporting {queue}"):
            count = export_queue(handle, file, state, **which, force=force)
    except FileExistsError as error:
        raise UsageError(f"{error}: add --force to replace it") from error
    value = {"queue": queue, "path": file, "state": state, "count": count}
    return cli.say(value, f"{count} {state} task(s) in {file}")


@verb("dead import", "import", example="zkmq dead import orders.tq --dry-run")
def import_(
    cli: Cli,
    file: str = operand("FILE.tq"),
    queue: str | None = option("into this queue, whichever the file is from", "NAME"),
    dry_run: bool = flag("--dry-run", "write nothing, say what would be done"),
) -> int:
    """Do what an edited export asks for: redrive, drop, new text; 1 if a message of it was refused."""
    from ..editing import import_file, queue_named_in

    with terminal.progress(f"importing {file}"):
        done = import_file(cli.queue(queue or queue_named_in(file)), file, dry_run, elsewhere=queue is not None)
    for refused in done.refused:
        task = "" if refused.id is None else f", task {refused.id!r}"
        warn(f"line {refused.line} (byte {refused.offset}){task}: {refused.reason}")
    return cli.say(done.as_dict(), done.in_words(), 1 if done.refused else 0)
