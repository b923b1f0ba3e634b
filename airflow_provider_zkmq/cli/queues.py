"""The verbs on queues: queues, doctor, configure, status, list, gc, fsck, clear, pause, resume, delete."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from .options import DURATION, STATES, STATUSES, Common, UsageError, attempts, duration, pairs
from .output import brief, facts, moment, say, spread, table, task_record

if TYPE_CHECKING:
    from ..engine import QueueConf

# --- The verb configure, and how a configuration is told.

ORDERS = ("default", "fifo")


def add_configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``configure``."""
    declared = "declare a filter: enum:low,standard,high or integer or string; replaces the whole declaration"
    parser.add_argument("--filter", action="append", metavar="NAME=TYPE", help=declared)
    parser.add_argument("--task-gc-lifetime", help="how long ended tasks are kept", **DURATION)
    parser.add_argument("--task-gc-interval", help="how often clean-up runs", **DURATION)
    held = "how long a claim without a lease holds if not extended; 0: for ever"
    parser.add_argument("--lock", help=held, **DURATION)
    strictly = "fifo: claims strictly in the order of enqueues, at less throughput"
    parser.add_argument("--order", choices=ORDERS, help=strictly)
    archived = "the queue is archived: clean-up keeps what no archive holds, also before the first run of one"
    parser.add_argument("--archive", action=argparse.BooleanOptionalAction, help=archived)
    followed = "streams follow what ends: runs that leave before they were taken are kept for them"
    parser.add_argument("--follow", action=argparse.BooleanOptionalAction, help=followed)
    policy = parser.add_argument_group("retry policy")
    policy.add_argument("--attempts", type=attempts, metavar="N", help="deliveries at the most, or 'unbounded'")
    pauses = "a duration: pauses of at most X, 2X, 4X, …, half of each random; 0: --min-backoff"
    policy.add_argument("--backoff-factor", type=duration, metavar="X", help=pauses)
    policy.add_argument("--min-backoff", help="shortest pause before another attempt", **DURATION)
    policy.add_argument("--max-backoff", help="longest pause before another attempt", **DURATION)
    policy.add_argument(
        "--final",
        action="append",
        metavar="NAME",
        help="an exception of a worker's handler after which there is no other attempt, such as ValueError or "
        "package.module.Error; may be repeated; replaces the whole list, '' empties it",
    )


def configure(args: argparse.Namespace, options: Common) -> int:
    """Create the queue or change what is given."""
    from ..engine import RetryPolicy, parse_type

    types = {name: parse_type(text) for name, text in pairs("--filter", args.filter).items()}
    backoff = {"factor": args.backoff_factor, "min_backoff": args.min_backoff, "max_backoff": args.max_backoff}
    changes: dict[str, Any] = {name: value for name, value in backoff.items() if value is not None}
    if args.attempts is not None:
        changes["attempts"] = None if args.attempts == "unbounded" else args.attempts
    if args.final is not None:
        changes["final"] = tuple(filter(None, args.final))
    with options.connect() as zk:
        queue, policy = zk.queue(args.queue), None
        if changes:
            present = queue.conf().policy if queue.name in zk.queues() else RetryPolicy()
            policy = replace(present, **changes)
        queue.configure(
            filters=types or None,
            task_gc_lifetime=args.task_gc_lifetime,
            task_gc_interval=args.task_gc_interval,
            policy=policy,
            lock=args.lock,
            order=args.order,
            archive=args.archive,
            follow=args.follow,
        )
        conf = queue.conf()
    value = {"queue": args.queue, "conf": conf_record(conf)}
    say(value, facts({"queue": args.queue, **conf_facts(conf)}), as_json=options.as_json)
    return 0


def conf_record(conf: QueueConf) -> dict[str, object]:
    """A configuration for JSON."""
    return {
        "filters": _filters(conf),
        "task_gc_lifetime": conf.task_gc_lifetime,
        "task_gc_interval": conf.task_gc_interval,
        "lock": conf.lock,
        "order": conf.order,
        "archive": conf.archive,
        "archived": conf.archived,
        "follow": conf.follow,
        "policy": asdict(conf.policy),
    }


def conf_facts(conf: QueueConf) -> dict[str, object]:
    """A configuration for people."""
    policy = asdict(conf.policy)
    policy["attempts"] = "unbounded" if conf.policy.attempts is None else conf.policy.attempts
    policy["final"] = ",".join(conf.policy.final)
    return {
        "filters": spread(_filters(conf)),
        "task_gc_lifetime": _seconds(conf.task_gc_lifetime, "for ever"),
        "task_gc_interval": _seconds(conf.task_gc_interval, "never"),
        "lock": _seconds(conf.lock, "none"),
        "order": conf.order,
        "archive": f"up to zxid {conf.archived}" if conf.archive else "none",
        "follow": "yes" if conf.follow else "no",
        "policy": spread({name: value for name, value in policy.items() if name != "final" or value}),
    }


def _seconds(span: float | None, without: str) -> str:
    from ..engine import spell_duration

    return without if span is None else spell_duration(span)


def _filters(conf: QueueConf) -> dict[str, str]:
    """The filter types in the form that ``configure --filter`` takes."""
    from ..engine import OrderedEnum

    return {
        name: f"enum:{','.join(kind.values)}" if isinstance(kind, OrderedEnum) else type(kind).__name__.lower()
        for name, kind in sorted(conf.filters.items())
    }


# --- The verb that deletes many tasks whatever their consumers do: clear.


def add_clear(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``clear``."""
    parser.add_argument("--state", choices=STATES, help="only tasks in this state")
    parser.add_argument("--yes", action="store_true", help="needed: what is deleted cannot be brought back")


def clear(args: argparse.Namespace, options: Common) -> int:
    """Delete tasks, whatever is being done with them."""
    if not args.yes:
        what = "every task" if args.state is None else f"every {args.state} task"
        raise UsageError(f"clear deletes {what} of queue {args.queue!r} for good: add --yes to do so")
    with options.connect() as zk:
        count = zk.queue(args.queue).clear(args.state)
    say({"queue": args.queue, "cleared": count}, f"{count} cleared", as_json=options.as_json)
    return 0


# --- The verbs on queues: queues, doctor, status, list, gc, pause, resume, delete.

#: The word of ``status`` for a status of ``list``.
SCHEDULED, _BACKOFF = "scheduled", "queued-with-backoff"


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
    found = {"hosts": options.hosts, "root": options.root, "queues": len(names)}
    remedy = f"{', '.join(opened)}: give it an ACL (docs/security.md)" if opened else "nothing"
    text = facts({**found, "open to anyone above the root": remedy})
    say({**found, "open_above": opened}, text, as_json=options.as_json)
    return 0


def status(args: argparse.Namespace, options: Common) -> int:
    """Say how a queue stands."""
    from ..engine import Unsupported

    with options.connect() as zk:
        queue = zk.queue(args.queue)
        conf, counts = queue.conf(), queue.counts()
        try:
            alive = sum(consumer.alive for consumer in queue.consumers())
        except Unsupported:  # a file registers none
            alive = None
    stand = {"paused": conf.paused, "consumers": alive}
    value = {"queue": args.queue, "counts": counts, **stand, "conf": conf_record(conf)}
    say(value, facts({"queue": args.queue, **counts, **stand, **conf_facts(conf)}), as_json=options.as_json)
    return 0


def add_list(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``list``."""
    which = (
        f"a state ({', '.join(STATES)}) or a status ({', '.join(STATUSES)}); scheduled: those of the inserted "
        "that wait for their time, queued-with-backoff"
    )
    parser.add_argument("--state", choices=(*STATES, *STATUSES, SCHEDULED), metavar="WORD", help=which)
    parser.add_argument("--selector", metavar="TEXT", help="such as 'region==eu, any(1, a==1, b==2)'")
    parser.add_argument("--batch", metavar="NAME", help="its members, with their results")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N tasks")


def list_tasks(args: argparse.Namespace, options: Common) -> int:
    """List tasks."""
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit} is not allowed: 0 or more")
    word = _BACKOFF if args.state == SCHEDULED else args.state
    which: dict[str, Any] = {"status": word} if word in STATUSES else {"state": word}
    with options.connect() as zk:
        tasks = zk.queue(args.queue).tasks(**which, selector=args.selector, batch=args.batch, limit=args.limit)
    results = args.batch is not None
    head = ["ID", "STATUS", "ATTEMPT", "PRIORITY", "ENQUEUED"]
    head += ["RESULT", "ERROR"] if results else ["FILTERS", "DATA"]
    rows = []
    for task in tasks:
        more = (brief(task.result), task.error) if results else (spread(task.filters), brief(task.data))
        rows.append((task.id, task.status, task.attempt, task.priority, moment(task.enqueued_ms), *more))
    value = {"queue": args.queue, "tasks": [task_record(task) for task in tasks]}
    say(value, table(rows, head), as_json=options.as_json)
    later = sum(task.status == _BACKOFF for task in tasks)
    if args.state == "inserted" and later:
        print(f"zkmq: {later} of these are scheduled: --state queued leaves them out", file=sys.stderr)
    return 0


def add_gc(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``gc``."""
    parser.add_argument("--lifetime", help="delete what ended so long ago or earlier", **DURATION)


def collect(args: argparse.Namespace, options: Common) -> int:
    """Clean up once."""
    with options.connect() as zk:
        report = asdict(zk.queue(args.queue).collect_garbage(args.lifetime))
    say({"queue": args.queue, **report}, facts(report), as_json=options.as_json)
    return 0


DAMAGED = 7


def add_fsck(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fsck``."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--repair", action="store_true", help="repair what is found, each task in one transaction")
    how.add_argument("--dry-run", action="store_true", help="write nothing, which is the default")


def check(args: argparse.Namespace, options: Common) -> int:
    """Find what is damaged, and repair it if that is asked for."""
    with options.connect() as zk:
        report = zk.queue(args.queue).fsck(repair=args.repair)
    left = sum(not finding.repaired for finding in report.findings)
    rows = [(each.path, each.what, "repaired" if each.repaired else "-") for each in report.findings]
    summary = f"{report.tasks} task(s), {len(rows)} damage(s) found, {len(rows) - left} repaired"
    text = f"{table(rows, ('PATH', 'WHAT', 'NOW'))}\n{summary}" if rows else summary
    say({"queue": args.queue, **asdict(report)}, text, as_json=options.as_json)
    return DAMAGED if left else 0


def set_paused(args: argparse.Namespace, options: Common) -> int:
    """Hand out nothing until resumed, or hand out tasks again."""
    paused = args.verb == "pause"
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        changed = queue.pause() if paused else queue.resume()
    word = "paused" if paused else "resumed"
    value = {"queue": args.queue, "paused": paused, "changed": changed}
    say(value, f"{args.queue} {word}{'' if changed else ' already'}", as_json=options.as_json)
    return 0


def add_delete(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``delete``."""
    parser.add_argument("--yes", action="store_true", help="do not ask once more")
    forced = "also while others consume from it, or tasks of it are claimed"
    parser.add_argument("--force", action="store_true", help=forced)


def delete(args: argparse.Namespace, options: Common) -> int:
    """Delete a queue with everything in it."""
    from ..engine import QueueNotFound

    if not (args.yes or sys.stdin.isatty()):
        raise UsageError(f"delete loses every task of queue {args.queue!r} for good: add --yes to do so")
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        if not args.yes:
            with contextlib.suppress(QueueNotFound):  # which the deletion tells, or goes on with one that was cut off
                counts = {state: number for state, number in queue.counts().items() if number and state in STATES}
                known = ", ".join(f"{number} {state}" for state, number in counts.items()) or "no task"
                print(f"queue {queue.name!r} holds {known}; nothing of it comes back.", file=sys.stderr)
                print("Type its name to delete it: ", end="", file=sys.stderr, flush=True)
                if sys.stdin.readline().strip() != queue.name:
                    raise UsageError("that is not its name: nothing was deleted")
        count = queue.delete(confirm=True, force=args.force)
    say({"queue": args.queue, "deleted": count}, f"{args.queue} deleted, {count} task(s)", as_json=options.as_json)
    return 0
