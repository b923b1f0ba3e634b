"""``zkmq show``: all there is to a task, why nobody takes it, and what becomes of it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from .options import Common
from .output import facts, moment, percent, printable, say, table, task_facts, task_record

if TYPE_CHECKING:
    from ..engine import AnyQueue, Explanation, Task, Znode

FAILED = 5
_LATER = ("claim", "result", "requeue")  # the znodes of a task that its enqueue does not write


def add_show(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``show``."""
    parser.add_argument("queue")
    parser.add_argument("task", metavar="TASK")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--why", action="store_true", help="why it is not being handled, and which consumers accept or refuse it"
    )
    group.add_argument(
        "--watch",
        action="store_true",
        help="follow it until it ends: a line (of JSON with --json) whenever its status, attempt, progress or note "
        "changes; 5 if it ends dead or cancelled",
    )


def show(args: argparse.Namespace, options: Common) -> int:
    """Show all there is to a task, or why it is where it is, or what becomes of it."""
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        if args.watch:
            return _watch(queue, args.task, options)
        why = queue.explain(args.task) if args.why else None
        if why is not None and not options.as_json:
            say(None, "\n".join(map(printable, why.lines())), as_json=False)
            return 0
        task, tree = queue.task(args.task), _tree(queue, args.task)
    explained = {} if why is None else {"why": _why_record(why)}
    say({"queue": args.queue, **_record(task, tree), **explained}, _page(task, tree), as_json=options.as_json)
    return 0


def _tree(queue: AnyQueue, task_id: str) -> list[Znode] | None:
    """The task's znodes; None where it is in a file."""
    from ..engine import Unsupported
    from ..engine.internals import internals

    try:
        return internals(queue).tree(task_id)
    except Unsupported:
        return None


def _record(task: Task, tree: list[Znode] | None) -> dict[str, object]:
    """Everything for JSON."""
    if tree is None:
        return task_record(task)
    znodes = [asdict(node) for node in tree]
    return {**task_record(task), "znodes": znodes, "enqueue_transactions": enqueue_transactions(tree)}


def _why_record(why: Explanation) -> dict[str, object]:
    consumers = [asdict(verdict) for verdict in why.consumers]
    return {"status": why.status, "reasons": why.reasons, "consumers": consumers}


def _page(task: Task, tree: list[Znode] | None) -> str:
    """Everything for people. A file keeps neither a history nor znodes."""
    if tree is None:
        return facts(task_facts(task))
    parts = [
        facts(task_facts(task) | {"enqueue transactions": enqueue_transactions(tree)}),
        table(
            [
                (at.number, at.outcome, at.consumer, moment(at.claimed), moment(at.started), moment(at.ended), at.error)
                for at in task.history
            ],
            ("ATTEMPT", "OUTCOME", "CONSUMER", "CLAIMED", "STARTED", "ENDED", "ERROR"),
        ),
        table([(node.path, node.bytes, node.czxid, node.mzxid) for node in tree], ("ZNODE", "BYTES", "CZXID", "MZXID")),
    ]
    return "\n\n".join(parts)


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
        if shown[-1:] != [seen]:
            shown.append(seen)
            say(_line_record(queue.name, task), _line(task), as_json=options.as_json)

    task = queue.follow(task_id, show_change)
    return FAILED if task.state in {"dead", "cancelled"} else 0


def _line_record(queue: str, task: Task) -> dict[str, object]:
    plain = {name: getattr(task, name) for name in ("id", "attempt", "progress", "note", "error", "version")}
    return {"queue": queue, "state": str(task.state), "status": str(task.status), **plain}


def _line(task: Task) -> str:
    ends = (percent(task.progress), task.note, task.error)
    return "  ".join([f"{task.status}  attempt {task.attempt}", *(printable(text) for text in ends if text)])
