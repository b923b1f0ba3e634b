"""``zkmq show``: all there is to a task, why nobody takes it, and what becomes of it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from .options import Common
from .output import facts, moment, percent, printable, say, table, task_facts, task_record

if TYPE_CHECKING:
    from ..engine import AnyQueue, Task, Znode

FAILED = 5
_LATER = ("claim", "result", "requeue")  # the znodes of a task that its enqueue does not write


def add_show(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``show``."""
    parser.add_argument("task", metavar="TASK")
    group = parser.add_mutually_exclusive_group()
    why = "why it is not being handled, and which consumers accept or refuse it"
    group.add_argument("--why", action="store_true", help=why)
    followed = (
        "follow it until it ends: a line (of JSON with --json) whenever its status, attempt, progress or note "
        "changes; 5 if it ends dead or cancelled"
    )
    group.add_argument("--watch", action="store_true", help=followed)


def show(args: argparse.Namespace, options: Common) -> int:
    """Show all there is to a task, or why it is where it is, or what becomes of it."""
    from ..engine import Unsupported
    from ..engine.internals import internals

    with options.connect() as zk:
        queue = zk.queue(args.queue)
        if args.watch:
            return _watch(queue, args.task, options)
        why = queue.explain(args.task) if args.why else None
        if why is not None and not options.as_json:
            say(None, "\n".join(map(printable, why.lines())), as_json=False)
            return 0
        task = queue.task(args.task)
        try:
            tree = internals(queue).tree(args.task)
        except Unsupported:  # it is in a file, which has no znodes
            tree = None
    value = {"queue": args.queue, **task_record(task)}
    page = task_facts(task)
    tables = []
    if tree is not None:
        transactions = enqueue_transactions(tree)
        value |= {"znodes": [asdict(node) for node in tree], "enqueue_transactions": transactions}
        page["enqueue transactions"] = transactions
        attempts = [
            (at.number, at.outcome, at.consumer, moment(at.claimed), moment(at.started), moment(at.ended), at.error)
            for at in task.history
        ]
        tables = [
            table(attempts, ("ATTEMPT", "OUTCOME", "CONSUMER", "CLAIMED", "STARTED", "ENDED", "ERROR")),
            table([(at.path, at.bytes, at.czxid, at.mzxid) for at in tree], ("ZNODE", "BYTES", "CZXID", "MZXID")),
        ]
    if why is not None:
        consumers = [asdict(each) for each in why.consumers]
        value["why"] = {"status": why.status, "reasons": why.reasons, "consumers": consumers}
    say(value, "\n\n".join([facts(page), *tables]), as_json=options.as_json)
    return 0


def enqueue_transactions(tree: list[Znode]) -> int:
    """In how many transactions the znodes of a task were created: 1, as a task is written whole.

    The data of an id that was enqueued again is written anew, in one more transaction.
    """
    base = min((node.path for node in tree), key=len, default="")
    later = {f"{base}/{part}" for part in _LATER}
    return len({node.czxid for node in tree if node.path not in later})


def _watch(queue: AnyQueue, task_id: str, options: Common) -> int:
    """Print a line for each change until the task ends; 5 if it ends dead or cancelled."""
    shown: list[tuple[object, ...]] = []

    def show_change(task: Task) -> None:
        seen = (task.status, task.attempt, task.progress, task.note)
        if shown[-1:] == [seen]:
            return
        shown.append(seen)
        plain = {name: getattr(task, name) for name in ("id", "attempt", "progress", "note", "error", "version")}
        value = {"queue": queue.name, "state": str(task.state), "status": str(task.status), **plain}
        ends = [printable(text) for text in (percent(task.progress), task.note, task.error) if text]
        say(value, "  ".join([f"{task.status}  attempt {task.attempt}", *ends]), as_json=options.as_json)

    task = queue.follow(task_id, show_change)
    return FAILED if task.state in {"dead", "cancelled"} else 0
