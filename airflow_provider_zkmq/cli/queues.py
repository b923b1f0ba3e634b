"""The verbs on queues: queues, status, list, gc, pause, resume."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_provider_zkmq.cli.configuration import conf_facts, conf_record
from airflow_provider_zkmq.cli.options import STATES, Common, UsageError, duration
from airflow_provider_zkmq.cli.output import brief, facts, say, spread, table, task_record
from airflow_provider_zkmq.cli.times import moment

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import Task


def queues(_args: argparse.Namespace, options: Common) -> int:
    """Name the queues under the root."""
    with options.connect() as zk:
        names = zk.queues()
    say({"queues": names}, "\n".join(names), as_json=options.as_json)
    return 0


def add_queue(parser: argparse.ArgumentParser) -> None:
    """Add the name of a queue."""
    parser.add_argument("queue")


def status(args: argparse.Namespace, options: Common) -> int:
    """Say how a queue stands."""
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        conf, counts = queue.conf(), queue.counts()
        alive = sum(consumer.alive for consumer in queue.consumers())
    stand = {"paused": conf.paused, "consumers": alive}
    value = {"queue": args.queue, "counts": counts, **stand, "conf": conf_record(conf)}
    say(value, facts({"queue": args.queue, **counts, **stand, **conf_facts(conf)}), as_json=options.as_json)
    return 0


def add_list(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``list``."""
    parser.add_argument("queue")
    parser.add_argument("--state", choices=STATES)
    parser.add_argument("--selector", metavar="TEXT", help="such as 'region==eu, any(1, a==1, b==2)'")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N tasks")


def list_tasks(args: argparse.Namespace, options: Common) -> int:
    """List tasks."""
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit} is not allowed: 0 or more")
    with options.connect() as zk:
        tasks = zk.queue(args.queue).tasks(state=args.state, selector=args.selector, limit=args.limit)
    head = ("ID", "STATUS", "ATTEMPT", "PRIORITY", "ENQUEUED", "FILTERS", "DATA")
    value = {"queue": args.queue, "tasks": [task_record(task) for task in tasks]}
    say(value, table(map(_row, tasks), head), as_json=options.as_json)
    return 0


def _row(task: Task) -> Sequence[object]:
    known = (task.id, task.status, task.attempt, task.priority)
    return (*known, moment(task.enqueued_ms), spread(task.filters), brief(task.data))


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
