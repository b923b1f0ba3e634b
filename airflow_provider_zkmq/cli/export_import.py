"""The verbs that give tasks to people: export, import."""

from __future__ import annotations

import argparse
import sys

from .options import Common, UsageError
from .output import say

REFUSED = 1
STATES = ("dead", "cancelled", "inserted")
_DONE = {"redrive": "redriven", "replace": "replaced", "drop": "dropped"}


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    parser.add_argument("file", metavar="FILE.tq")
    parser.add_argument("--state", choices=STATES, default="dead", help="which tasks (dead)")
    parser.add_argument("--selector", metavar="TEXT", help="such as 'region==eu, any(1, a==1, b==2)'")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N tasks")
    parser.add_argument("--force", action="store_true", help="replace a file that is there already")


def export(args: argparse.Namespace, options: Common) -> int:
    """Write tasks to a file."""
    from ..editing import export_queue

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
    from ..editing import exported_from, import_file

    name = args.queue
    if not name:
        origin = exported_from(args.file)
        if origin is None:
            raise UsageError(f"{args.file} does not say which queue its tasks are from: add --queue NAME")
        name = origin.queue
    with options.connect() as zk:
        done = import_file(zk.queue(name), args.file, args.dry_run, elsewhere=args.queue is not None)
    for refused in done.refused:
        task = "" if refused.id is None else f", task {refused.id!r}"
        print(f"zkmq: line {refused.line} (byte {refused.offset}){task}: {refused.reason}", file=sys.stderr)
    lines = []
    for applied in done.applied:
        lines.append(f"{_DONE[applied.action]} {applied.id}{', with new text' if applied.new_data else ''}")
    plan = "; a dry run: nothing was written" if done.dry_run else ""
    lines.append(f"{len(done.applied)} applied, {len(done.refused)} refused, {done.unchanged} unchanged{plan}")
    say(done.as_dict(), "\n".join(lines), as_json=options.as_json)
    return REFUSED if done.refused else 0
