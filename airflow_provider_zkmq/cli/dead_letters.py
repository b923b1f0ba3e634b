"""The verbs on dead letters: list them by their errors, redrive or drop them, export them to a file and import it."""

from __future__ import annotations

from ..inspection.selection import Selection, by_error, one_by_one
from ..inspection.wording import table
from .connection import QUEUE, Cli
from .options import YES, UsageError, flag, operand, option
from .output import progress, warn
from .selection import CHOSEN, check, do_to_each
from .verbs import verb

_EXAMPLES = 3
_DONE = {"redrive": "redriven", "replace": "replaced", "drop": "dropped"}


@verb("dead list", example="zkmq dead list orders --error 'timed out'", watched=True)
def list_dead(cli: Cli, queue: str = QUEUE, chosen: Selection = CHOSEN) -> int:
    """Count the dead letters by their errors, whose ids and numbers are masked: the most frequent first."""
    check(chosen)
    value = by_error(chosen.find(cli.queue(queue), (), "dead"))
    rows = [group | {"tasks": group["ids"][: -_EXAMPLES - 1 : -1]} for group in value]
    return cli.say({"queue": queue, "groups": value}, table(rows, "count error latest_at tasks"))


@verb("dead redrive", "redrive", example="zkmq dead redrive orders --error 'timed out'")
def redrive(cli: Cli, queue: str = QUEUE, chosen: Selection = CHOSEN) -> int:
    """Put dead letters back, or cancelled tasks that are named or asked for by --state."""
    check(chosen, required="redrive")
    handle = cli.queue(queue)
    ids = chosen.ids(handle, "dead")
    return do_to_each(cli, queue, "redriven", ids, handle.redrive_many, named=bool(chosen.tasks))


@verb("dead drop", example="zkmq dead drop orders --error 'no such street'")
def drop(cli: Cli, queue: str = QUEUE, chosen: Selection = CHOSEN, yes: bool = YES) -> int:
    """Delete dead letters, or other tasks that are named or asked for by --state, but for claimed ones."""
    check(chosen, required="drop")
    handle = cli.queue(queue)
    ids = chosen.ids(handle, "dead")
    cli.confirm(f"dropping {len(ids)} task(s) of queue {queue!r}", queue, yes=yes or not ids)
    return do_to_each(cli, queue, "dropped", ids, one_by_one(handle.drop), named=bool(chosen.tasks))


@verb("dead export", "export", example="zkmq dead export orders orders.tq")
def export(
    cli: Cli,
    queue: str = QUEUE,
    file: str = operand("FILE.tq"),
    chosen: Selection = CHOSEN,
    force: bool = flag("--force", "replace a file that is there already"),
) -> int:
    """Write dead letters, or tasks that are cancelled or inserted, to a file that people can read and edit."""
    from ..editing import export_queue

    check(chosen)
    state, handle = chosen.state or "dead", cli.queue(queue)
    found = chosen.tasks or chosen.error is not None or chosen.batch is not None
    ids = [task.id for task in chosen.find(handle, (), "dead")] if found else None
    try:
        with progress(f"exporting {queue}"):
            count = export_queue(
                handle, file, state, selector=chosen.selector, ids=ids, limit=chosen.limit, force=force
            )
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
    from ..editing import exported_from, import_file

    name = queue
    if not name:
        origin = exported_from(file)
        if origin is None:
            raise UsageError(f"{file} does not say which queue its tasks are from: add --queue NAME")
        name = origin.queue
    with progress(f"importing {file}"):
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
