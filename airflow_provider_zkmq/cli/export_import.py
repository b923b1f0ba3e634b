"""The verbs that give dead letters to people as a file: export, import."""

from __future__ import annotations

from .connection import QUEUE, Cli
from .options import LIMIT, SELECTOR, UsageError, choice, flag, operand, option
from .output import warn
from .verbs import verb

REFUSED = 1
STATES = ("dead", "cancelled", "inserted")
_DONE = {"redrive": "redriven", "replace": "replaced", "drop": "dropped"}


@verb("dead export", "export", example="zkmq dead export orders orders.tq")
def export(
    cli: Cli,
    queue: str = QUEUE,
    file: str = operand("FILE.tq"),
    state: str = choice(STATES, "which tasks (dead)", "dead"),
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
    return cli.say(done.as_dict(), "\n".join(lines), REFUSED if done.refused else 0)
