"""The verbs on queues: queues, configure, status, list, gc, redrive, cancel, clear, pause, resume."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.cli.options import Common, UsageError, attempts, pairs
from airflow_provider_zkmq.cli.output import brief, facts, moment, say, spread, table, task_record

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.core.memory.context import Context
    from airflow_provider_zkmq.engine.core.model.conf import Conf
    from airflow_provider_zkmq.engine.core.model.filters import FilterType
    from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
    from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
    from airflow_provider_zkmq.engine.errors import ZkmqError
    from airflow_provider_zkmq.engine.fronts.client import Zkmq
    from airflow_provider_zkmq.engine.fronts.queue import Queue

STATES = ("inserted", "claimed", "finished", "dead", "cancelled")
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
    parser.add_argument("--task-gc-lifetime", type=float, metavar="S", help="how long ended tasks are kept")
    parser.add_argument("--task-gc-interval", type=float, metavar="S", help="how often clean-up runs")
    parser.add_argument(
        "--lock", type=float, metavar="S", help="a claim without a lease ends after S seconds if not extended; 0: never"
    )
    parser.add_argument(
        "--order", choices=ORDERS, help="fifo: claims strictly in the order of enqueues, at less throughput"
    )
    policy = parser.add_argument_group("retry policy")
    policy.add_argument("--attempts", type=attempts, metavar="N", help="deliveries at the most, or 'unbounded'")
    policy.add_argument(
        "--backoff-factor",
        type=float,
        metavar="X",
        help="pauses of at most X, 2X, 4X, … seconds, half of each random; 0: --min-backoff",
    )
    policy.add_argument("--min-backoff", type=float, metavar="S", help="shortest pause before another attempt")
    policy.add_argument("--max-backoff", type=float, metavar="S", help="longest pause before another attempt")
    policy.add_argument(
        "--final",
        action="append",
        metavar="NAME",
        help="an exception of a worker's handler after which there is no other attempt, such as ValueError or "
        "package.module.Error; may be repeated; replaces the whole list, '' empties it",
    )


def configure(args: argparse.Namespace, given: Common) -> int:
    """Create the queue or change what is given."""
    types = _types(args.filter)
    with given.connect() as zk:
        queue = zk.queue(args.queue)
        queue.configure(
            filters=types,
            task_gc_lifetime=args.task_gc_lifetime,
            task_gc_interval=args.task_gc_interval,
            policy=_policy(zk, queue, args),
            lock=args.lock,
            order=args.order,
        )
        record = _describe(_conf(queue))
    say({"queue": args.queue, "conf": record}, facts({"queue": args.queue, **_flat(record)}), as_json=given.as_json)
    return 0


def _types(given: Iterable[str] | None) -> dict[str, FilterType] | None:
    from airflow_provider_zkmq.engine.core.model.filters import parse_type

    return {name: parse_type(text) for name, text in pairs("--filter", given).items()} or None


def _policy(zk: Zkmq, queue: Queue, args: argparse.Namespace) -> RetryPolicy | None:
    """The policy with the given values changed; None where none is given."""
    from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy

    given = {"factor": args.backoff_factor, "min_backoff": args.min_backoff, "max_backoff": args.max_backoff}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if args.attempts is not None:
        changes["attempts"] = None if args.attempts == "unbounded" else args.attempts
    if args.final is not None:
        changes["final"] = tuple(filter(None, args.final))
    if not changes:
        return None
    present = _conf(queue).policy if queue.name in zk.queues() else RetryPolicy()
    return replace(present, **changes)


def _conf(queue: Queue) -> Conf:
    from airflow_provider_zkmq.engine.core.reading.configure import read_conf
    from airflow_provider_zkmq.engine.fronts.methods import blocking

    return blocking(read_conf)(queue)


def _describe(conf: Conf) -> dict[str, Any]:
    """A configuration for JSON."""
    return {
        "filters": {name: _spell(kind) for name, kind in sorted(conf.types.items())},
        "task_gc_lifetime": conf.gc_lifetime,
        "task_gc_interval": conf.gc_interval,
        "lock": conf.lock,
        "order": conf.order,
        "policy": asdict(conf.policy),
    }


def _spell(kind: FilterType) -> str:
    """A filter type in the form that ``configure --filter`` takes."""
    from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum

    return f"enum:{','.join(kind.values)}" if isinstance(kind, OrderedEnum) else type(kind).__name__.lower()


def _flat(conf: dict[str, Any]) -> dict[str, object]:
    """A configuration for people."""
    return {
        "filters": spread(conf["filters"]),
        "task_gc_lifetime": f"{conf['task_gc_lifetime']:g} s",
        "task_gc_interval": f"{conf['task_gc_interval']:g} s",
        "lock": "none" if conf["lock"] is None else f"{conf['lock']:g} s",
        "order": conf["order"],
        "policy": spread(_flat_policy(conf["policy"])),
    }


def _flat_policy(policy: dict[str, Any]) -> dict[str, object]:
    most, final = policy["attempts"], policy["final"]
    plain = policy | {"attempts": "unbounded" if most is None else most, "final": ",".join(final)}
    return plain if final else {name: value for name, value in plain.items() if name != "final"}


def queues(_args: argparse.Namespace, given: Common) -> int:
    """Name the queues under the root."""
    with given.connect() as zk:
        names = zk.queues()
    say({"queues": names}, "\n".join(names), as_json=given.as_json)
    return 0


def add_queue(parser: argparse.ArgumentParser) -> None:
    """Add the name of a queue."""
    parser.add_argument("queue")


def status(args: argparse.Namespace, given: Common) -> int:
    """Say how a queue stands."""
    with given.connect() as zk:
        queue = zk.queue(args.queue)
        conf, counts, consumers = _conf(queue), queue.counts(), _consumers(queue)
    record = _describe(conf)
    value = {"queue": args.queue, "counts": counts, "paused": conf.paused, "consumers": consumers, "conf": record}
    plain = {"queue": args.queue, **counts, "paused": conf.paused, "consumers": consumers, **_flat(record)}
    say(value, facts(plain), as_json=given.as_json)
    return 0


def _consumers(queue: Queue) -> int:
    """How many consumers are alive."""
    from airflow_provider_zkmq.engine.core.protocol.ops import Children
    from airflow_provider_zkmq.engine.fronts.methods import blocking

    def living(context: Context) -> Procedure[int]:
        return len((yield Children(context.paths.at("live"))) or ())

    return blocking(living)(queue)


def add_list(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``list``."""
    parser.add_argument("queue")
    parser.add_argument("--state", choices=STATES)
    parser.add_argument("--selector", metavar="TEXT", help="such as 'region==eu, any(1, a==1, b==2)'")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N tasks")


def list_tasks(args: argparse.Namespace, given: Common) -> int:
    """List tasks."""
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit} is not allowed: 0 or more")
    with given.connect() as zk:
        tasks = zk.queue(args.queue).tasks(state=args.state, selector=args.selector, limit=args.limit)
    rows = [
        (
            task.id,
            task.status,
            task.attempt,
            task.priority,
            moment(task.enqueued_ms),
            spread(task.filters),
            brief(task.data),
        )
        for task in tasks
    ]
    head = ("ID", "STATUS", "ATTEMPT", "PRIORITY", "ENQUEUED", "FILTERS", "DATA")
    value = {"queue": args.queue, "tasks": [task_record(task) for task in tasks]}
    say(value, table(rows, head), as_json=given.as_json)
    return 0


def add_gc(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``gc``."""
    parser.add_argument("queue")
    parser.add_argument("--lifetime", type=float, metavar="S", help="delete what ended S seconds ago or earlier")


def collect(args: argparse.Namespace, given: Common) -> int:
    """Clean up once."""
    with given.connect() as zk:
        report = asdict(zk.queue(args.queue).collect_garbage(args.lifetime))
    say({"queue": args.queue, **report}, facts(report), as_json=given.as_json)
    return 0


def pause(args: argparse.Namespace, given: Common) -> int:
    """Hand out nothing until resumed."""
    return _set_paused(args, given, paused=True)


def resume(args: argparse.Namespace, given: Common) -> int:
    """Hand out tasks again."""
    return _set_paused(args, given, paused=False)


def _set_paused(args: argparse.Namespace, given: Common, *, paused: bool) -> int:
    with given.connect() as zk:
        queue = zk.queue(args.queue)
        changed = queue.pause() if paused else queue.resume()
    word = "paused" if paused else "resumed"
    value = {"queue": args.queue, "paused": paused, "changed": changed}
    say(value, f"{args.queue} {word}{'' if changed else ' already'}", as_json=given.as_json)
    return 0


def add_cancel(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``cancel``."""
    parser.add_argument("queue")
    parser.add_argument("tasks", metavar="TASK", nargs="+")


def cancel(args: argparse.Namespace, given: Common) -> int:
    """Withdraw tasks that have not ended."""
    with given.connect() as zk:
        queue = zk.queue(args.queue)
        return _each(args.queue, args.tasks, queue.cancel, "cancelled", given)


def add_redrive(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``redrive``."""
    parser.add_argument("queue")
    parser.add_argument("tasks", metavar="TASK", nargs="*", default=[])
    parser.add_argument("--all", action="store_true", help="every task in the dead letters")


def redrive(args: argparse.Namespace, given: Common) -> int:
    """Put dead or cancelled tasks back."""
    if bool(args.tasks) == args.all:
        raise UsageError("redrive needs either task ids or --all")
    with given.connect() as zk:
        queue = zk.queue(args.queue)
        if args.all:
            return _each(args.queue, _dead(queue), queue.redrive, "redriven", given, gone_is_fine=True)
        return _each(args.queue, args.tasks, queue.redrive, "redriven", given)


def _dead(queue: Queue) -> list[str]:
    from airflow_provider_zkmq.engine.core.model.states import State
    from airflow_provider_zkmq.engine.core.reading.inspect import task_ids
    from airflow_provider_zkmq.engine.fronts.methods import blocking

    _conf(queue)  # a queue that does not exist is an error, not an empty list
    return blocking(task_ids)(queue, State.DEAD)


def add_clear(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``clear``."""
    parser.add_argument("queue")
    parser.add_argument("--state", choices=STATES, help="only tasks in this state")
    parser.add_argument("--yes", action="store_true", help="needed: what is deleted cannot be brought back")


def clear(args: argparse.Namespace, given: Common) -> int:
    """Delete tasks, whatever is being done with them."""
    if not args.yes:
        what = "every task" if args.state is None else f"every {args.state} task"
        raise UsageError(f"clear deletes {what} of queue {args.queue!r} for good: add --yes to do so")
    with given.connect() as zk:
        count = zk.queue(args.queue).clear(args.state)
    say({"queue": args.queue, "cleared": count}, f"{count} cleared", as_json=given.as_json)
    return 0


def _each(
    queue: str,
    tasks: Iterable[str],
    act: Callable[[str], None],
    word: str,
    given: Common,
    *,
    gone_is_fine: bool = False,
) -> int:
    """Act on one task after the other, passing over those that refuse; 1 if one did."""
    from airflow_provider_zkmq.engine.core.model.paths import check_name
    from airflow_provider_zkmq.engine.errors import IllegalTransition, TaskNotFound

    done: list[str] = []
    refused: dict[str, ZkmqError] = {}
    for task in [check_name("task id", task) for task in dict.fromkeys(tasks)]:
        try:
            act(task)
        except (TaskNotFound, IllegalTransition) as error:
            if not gone_is_fine:  # of all of them: somebody else was faster
                refused[task] = error
        else:
            done.append(task)
    value: dict[str, Any] = {"queue": queue, word: done}
    for why in refused.values():
        value.setdefault("error", type(why).__name__)
        value.setdefault("message", str(why))
        print(f"zkmq: {why}", file=sys.stderr)
    if refused:
        value["refused"] = {task: str(why) for task, why in refused.items()}
    say(value, "\n".join(f"{word} {task}" for task in done) or f"nothing {word}", as_json=given.as_json)
    return 1 if refused else 0
