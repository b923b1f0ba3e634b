"""The verb configure, and how a configuration is told."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.cli.options import Common, attempts, duration, pairs
from airflow_provider_zkmq.cli.output import facts, say, spread

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyClient, AnyQueue, FilterType, QueueConf, RetryPolicy

ORDERS = ("default", "fifo")


def add_configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``configure``."""
    parser.add_argument("queue")
    parser.add_argument(
        "--filter",
        action="append",
        metavar="NAME=TYPE",
        help="declare a filter: enum:low,standard,high or integer or string; replaces the whole declaration",
    )
    parser.add_argument("--task-gc-lifetime", type=duration, metavar="DURATION", help="how long ended tasks are kept")
    parser.add_argument("--task-gc-interval", type=duration, metavar="DURATION", help="how often clean-up runs")
    parser.add_argument(
        "--lock",
        type=duration,
        metavar="DURATION",
        help="how long a claim without a lease holds if not extended; 0: for ever",
    )
    parser.add_argument(
        "--order", choices=ORDERS, help="fifo: claims strictly in the order of enqueues, at less throughput"
    )
    parser.add_argument(
        "--archive",
        action=argparse.BooleanOptionalAction,
        help="the queue is archived: clean-up keeps what no archive holds, also before the first run of one",
    )
    parser.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        help="streams follow what ends: runs that leave before they were taken are kept for them",
    )
    _add_policy(parser)


def _add_policy(parser: argparse.ArgumentParser) -> None:
    policy = parser.add_argument_group("retry policy")
    policy.add_argument("--attempts", type=attempts, metavar="N", help="deliveries at the most, or 'unbounded'")
    policy.add_argument(
        "--backoff-factor",
        type=duration,
        metavar="X",
        help="a duration: pauses of at most X, 2X, 4X, …, half of each random; 0: --min-backoff",
    )
    policy.add_argument(
        "--min-backoff", type=duration, metavar="DURATION", help="shortest pause before another attempt"
    )
    policy.add_argument("--max-backoff", type=duration, metavar="DURATION", help="longest pause before another attempt")
    policy.add_argument(
        "--final",
        action="append",
        metavar="NAME",
        help="an exception of a worker's handler after which there is no other attempt, such as ValueError or "
        "package.module.Error; may be repeated; replaces the whole list, '' empties it",
    )


def configure(args: argparse.Namespace, options: Common) -> int:
    """Create the queue or change what is given."""
    types = _types(args.filter)
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        queue.configure(
            filters=types,
            task_gc_lifetime=args.task_gc_lifetime,
            task_gc_interval=args.task_gc_interval,
            policy=_policy(zk, queue, args),
            lock=args.lock,
            order=args.order,
            archive=args.archive,
            follow=args.follow,
        )
        conf = queue.conf()
    value = {"queue": args.queue, "conf": conf_record(conf)}
    say(value, facts({"queue": args.queue, **conf_facts(conf)}), as_json=options.as_json)
    return 0


def _types(texts: Iterable[str] | None) -> dict[str, FilterType] | None:
    from airflow_provider_zkmq.engine import parse_type

    return {name: parse_type(text) for name, text in pairs("--filter", texts).items()} or None


def _policy(zk: AnyClient, queue: AnyQueue, args: argparse.Namespace) -> RetryPolicy | None:
    """The policy with the given values changed; None where none is given."""
    changes = _changes(args)
    if not changes:
        return None
    from airflow_provider_zkmq.engine import RetryPolicy

    present = queue.conf().policy if queue.name in zk.queues() else RetryPolicy()
    return replace(present, **changes)


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of a policy say, by the names of its fields."""
    backoff = {"factor": args.backoff_factor, "min_backoff": args.min_backoff, "max_backoff": args.max_backoff}
    changes = {name: value for name, value in backoff.items() if value is not None}
    if args.attempts is not None:
        changes["attempts"] = None if args.attempts == "unbounded" else args.attempts
    if args.final is not None:
        changes["final"] = tuple(filter(None, args.final))
    return changes


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
    return {
        "filters": spread(_filters(conf)),
        "task_gc_lifetime": _seconds(conf.task_gc_lifetime, "for ever"),
        "task_gc_interval": _seconds(conf.task_gc_interval, "never"),
        "lock": _seconds(conf.lock, "none"),
        "order": conf.order,
        "archive": f"up to zxid {conf.archived}" if conf.archive else "none",
        "follow": "yes" if conf.follow else "no",
        "policy": spread(_flat_policy(asdict(conf.policy))),
    }


def _seconds(span: float | None, without: str) -> str:
    from airflow_provider_zkmq.engine import spell_duration

    return without if span is None else spell_duration(span)


def _filters(conf: QueueConf) -> dict[str, str]:
    return {name: _spell(kind) for name, kind in sorted(conf.filters.items())}


def _spell(kind: FilterType) -> str:
    """A filter type in the form that ``configure --filter`` takes."""
    from airflow_provider_zkmq.engine import OrderedEnum

    return f"enum:{','.join(kind.values)}" if isinstance(kind, OrderedEnum) else type(kind).__name__.lower()


def _flat_policy(policy: Mapping[str, Any]) -> dict[str, object]:
    most, final = policy["attempts"], policy["final"]
    plain = {**policy, "attempts": "unbounded" if most is None else most, "final": ",".join(final)}
    return plain if final else {name: value for name, value in plain.items() if name != "final"}
