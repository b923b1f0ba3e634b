"""The verbs that give tasks to people: export, import."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from .options import Common, UsageError
from .output import say

if TYPE_CHECKING:
    from ..bridge import Applied, Imported, Refused

REFUSED = 1
STATES = ("dead", "cancelled", "inserted")
_DONE = {"redrive": "redriven", "replace": "replaced", "drop": "dropped"}


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    parser.add_argument("queue")
    parser.add_argument("file", metavar="FILE.tq")
    parser.add_argument("--state", choices=STATES, default="dead", help="which tasks (dead)")
    parser.add_argument("--selector", metavar="TEXT", help="such as 'region==eu, any(1, a==1, b==2)'")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N tasks")
    parser.add_argument("--force", action="store_true", help="replace a file that is there already")


def export(args: argparse.Namespace, options: Common) -> int:
    """Write tasks to a file."""
    from ..bridge import export_queue

    with options.connect() as zk:
        queue = zk.queue(args.queue)
        try:
            count = export_queue(
                queue, args.file, args.state, selector=args.selector, limit=args.limit, force=args.force
            )
        except FileExistsError as error:
            raise UsageError(f"{error}: add --force to replace it") from error
    value = {"queue": args.queue, "path": args.file, "state": args.state, "tasks": count}
    say(value, f"{count} {args.state} task(s) in {args.file}", as_json=options.as_json)
    return 0


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``import``."""
    parser.add_argument("file", metavar="FILE.tq")
    parser.add_argument("--queue", metavar="NAME", help="into this queue, whichever the file is from")
    parser.add_argument("--dry-run", action="store_true", help="write nothing, say what would be done")


def import_(args: argparse.Namespace, options: Common) -> int:
    """Do what a file asks for; 1 if a message of it was refused."""
    from ..bridge import import_file

    name = args.queue or _queue_of(args.file)
    with options.connect() as zk:
        done = import_file(zk.queue(name), args.file, args.dry_run, elsewhere=args.queue is not None)
    for refused in done.refused:
        print(f"zkmq: {_why(refused)}", file=sys.stderr)
    say(
        done.as_dict(),
        "\n".join([*(_applied_line(line) for line in done.applied), _sum(done)]),
        as_json=options.as_json,
    )
    return REFUSED if done.refused else 0


def _queue_of(path: str) -> str:
    from ..bridge import exported_from

    origin = exported_from(path)
    if origin is None:
        raise UsageError(f"{path} does not say which queue its tasks are from: add --queue NAME")
    return origin.queue


def _why(refused: Refused) -> str:
    task = "" if refused.id is None else f", task {refused.id!r}"
    return f"line {refused.line} (byte {refused.offset}){task}: {refused.reason}"


def _applied_line(applied: Applied) -> str:
    new = ", with new text" if applied.new_data else ""
    return f"{_DONE[applied.action]} {applied.id}{new}"


def _sum(done: Imported) -> str:
    plan = "; a dry run: nothing was written" if done.dry_run else ""
    return f"{len(done.applied)} applied, {len(done.refused)} refused, {done.unchanged} unchanged{plan}"
