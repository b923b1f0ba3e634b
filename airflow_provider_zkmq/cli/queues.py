"""The verbs on queues: queues, doctor, status, list, gc, pause, resume, delete."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_provider_zkmq.cli.configuration import conf_facts, conf_record
from airflow_provider_zkmq.cli.options import STATES, STATUSES, Common, UsageError, duration
from airflow_provider_zkmq.cli.output import brief, facts, say, spread, table, task_record
from airflow_provider_zkmq.cli.times import moment

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, Task


#: The word of ``status`` for a status of ``list``.
SCHEDULED, _BACKOFF = "scheduled", "queued-with-backoff"
#: So many tasks are read together.
_AT_ONCE = 64


def queues(_args: argparse.Namespace, options: Common) -> int:
    """Name the queues under the root."""
    with options.connect() as zk:
        names = zk.queues()
    say({"queues": names}, "\n".join(names), as_json=options.as_json)
    return 0


def doctor(_args: argparse.Namespace, options: Common) -> int:
    """Say how many queues there are under the root, and which znodes above it are open to anyone."""
    with options.connect() as zk:
        names, opened = zk.queues(), list(zk.open_above)
    told = {"hosts": options.hosts, "root": options.root, "queues": len(names)}
    remedy = f"{', '.join(opened)}: give it an ACL (docs/security.md)" if opened else "nothing"
    text = facts({**told, "open to anyone above the root": remedy})
    say({**told, "open_above": opened}, text, as_json=options.as_json)
    return 0


def add_queue(parser: argparse.ArgumentParser) -> None:
    """Add the name of a queue."""
    parser.add_argument("queue")


def status(args: argparse.Namespace, options: Common) -> int:
    """Say how a queue stands."""
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        conf, counts, alive = queue.conf(), queue.counts(), _alive(queue)
    stand = {"paused": conf.paused, "consumers": alive}
    value = {"queue": args.queue, "counts": counts, **stand, "conf": conf_record(conf)}
    say(value, facts({"queue": args.queue, **counts, **stand, **conf_facts(conf)}), as_json=options.as_json)
    return 0


def _alive(queue: AnyQueue) -> int | None:
    """How many consumers live; None where none are registered."""
    from airflow_provider_zkmq.engine import Unsupported

    try:
        return sum(consumer.alive for consumer in queue.consumers())
    except Unsupported:
        return None


def add_list(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``list``."""
    parser.add_argument("queue")
    parser.add_argument(
        "--state",
        choices=(*STATES, *STATUSES, SCHEDULED),
        metavar="WORD",
        help=f"a state ({', '.join(STATES)}) or a status ({', '.join(STATUSES)}); scheduled: those of the inserted "
        "that wait for their time, queued-with-backoff",
    )
    parser.add_argument("--selector", metavar="TEXT", help="such as 'region==eu, any(1, a==1, b==2)'")
    parser.add_argument("--batch", metavar="NAME", help="its members, with their results")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N tasks")


def list_tasks(args: argparse.Namespace, options: Common) -> int:
    """List tasks."""
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit} is not allowed: 0 or more")
    with options.connect() as zk:
        tasks = _listed(zk.queue(args.queue), args)
    more = ("FILTERS", "DATA") if args.batch is None else ("RESULT", "ERROR")
    head = ("ID", "STATUS", "ATTEMPT", "PRIORITY", "ENQUEUED", *more)
    value = {"queue": args.queue, "tasks": [task_record(task) for task in tasks]}
    rows = [_row(task, results=args.batch is not None) for task in tasks]
    say(value, table(rows, head), as_json=options.as_json)
    later = sum(task.status == _BACKOFF for task in tasks)
    if args.state == "inserted" and later:
        print(f"zkmq: {later} of these are scheduled: --state queued leaves them out", file=sys.stderr)
    return 0


def _listed(queue: AnyQueue, args: argparse.Namespace) -> list[Task]:
    """The tasks that a command line asks for; those with a status are looked for among those in its state."""
    status = _BACKOFF if args.state == SCHEDULED else args.state
    if status not in STATUSES:
        return queue.tasks(state=status, selector=args.selector, batch=args.batch, limit=args.limit)
    if args.batch is not None:
        members = queue.tasks(selector=args.selector, batch=args.batch)
        return [task for task in members if task.status == status][: args.limit]
    tasks: list[Task] = []
    ids = queue.ids(STATUSES[status], args.selector)
    for start in range(0, len(ids), _AT_ONCE):
        if args.limit is not None and len(tasks) >= args.limit:
            break
        tasks += [task for task in queue.read_many(ids[start : start + _AT_ONCE]) if task.status == status]
    return tasks[: args.limit]


def _row(task: Task, *, results: bool) -> Sequence[object]:
    known = (task.id, task.status, task.attempt, task.priority, moment(task.enqueued_ms))
    return (*known, *((brief(task.result), task.error) if results else (spread(task.filters), brief(task.data))))


def add_gc(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``gc``."""
    parser.add_argument("queue")
    parser.add_argument(
        "--lifetime", type=duration, metavar="DURATION", help="delete what ended so long ago or earlier"
    )


def collect(args: argparse.Namespace, options: Common) -> int:
    """Clean up once."""
    with options.connect() as zk:
        report = asdict(zk.queue(args.queue).collect_garbage(args.lifetime))
    say({"queue": args.queue, **report}, facts(report), as_json=options.as_json)
    return 0


def pause(args: argparse.Namespace, options: Common) -> int:
    """Hand out nothing until resumed."""
    return _set_paused(args, options, paused=True)


def resume(args: argparse.Namespace, options: Common) -> int:
    """Hand out tasks again."""
    return _set_paused(args, options, paused=False)


def _set_paused(args: argparse.Namespace, options: Common, *, paused: bool) -> int:
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        changed = queue.pause() if paused else queue.resume()
    word = "paused" if paused else "resumed"
    value = {"queue": args.queue, "paused": paused, "changed": changed}
    say(value, f"{args.queue} {word}{'' if changed else ' already'}", as_json=options.as_json)
    return 0


def add_delete(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``delete``."""
    parser.add_argument("queue")
    parser.add_argument("--yes", action="store_true", help="do not ask once more")
    parser.add_argument(
        "--force", action="store_true", help="also while others consume from it, or tasks of it are claimed"
    )


def delete(args: argparse.Namespace, options: Common) -> int:
    """Delete a queue with everything in it."""
    if not (args.yes or sys.stdin.isatty()):
        raise UsageError(f"delete loses every task of queue {args.queue!r} for good: add --yes to do so")
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        if not args.yes:
            _ask_once_more(queue)
        count = queue.delete(confirm=True, force=args.force)
    say({"queue": args.queue, "deleted": count}, f"{args.queue} deleted, {count} task(s)", as_json=options.as_json)
    return 0


def _ask_once_more(queue: AnyQueue) -> None:
    """Raise `UsageError` unless whoever sits at the terminal types the queue's name."""
    from airflow_provider_zkmq.engine import QueueNotFound

    try:
        counts = queue.counts()
    except QueueNotFound:
        return  # not there, which the deletion tells; or one whose deletion was confirmed, and then cut off
    known = ", ".join(f"{number} {state}" for state, number in counts.items() if number and state in STATES)
    print(f"queue {queue.name!r} holds {known or 'no task'}; nothing of it comes back.", file=sys.stderr)
    print("Type its name to delete it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != queue.name:
        raise UsageError("that is not its name: nothing was deleted")
