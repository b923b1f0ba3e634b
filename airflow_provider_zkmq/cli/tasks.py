"""The verbs on tasks: enqueue, claim, complete, fail, release, extend, show, wait."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.cli.options import Common, UsageError, pairs
from airflow_provider_zkmq.cli.output import brief, facts, payload, say, spread, table, task_facts, task_record

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.core.inspect import Znode
    from airflow_provider_zkmq.engine.core.records import Message
    from airflow_provider_zkmq.engine.queue import Claim, Queue

NOTHING = 3
FAILED = 5
_LATER = ("claim", "result")  # the znodes of a task that its enqueue does not write


def add_enqueue(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``enqueue``."""
    parser.add_argument("queue")
    parser.add_argument("data", nargs="?", metavar="DATA", help="the text itself, or - for standard input")
    parser.add_argument("--data-file", type=Path, metavar="F", help="take the data from a file")
    parser.add_argument("--lines", action="store_true", help="one task for each line of standard input")
    parser.add_argument("--filter", action="append", metavar="K=V", help="a value of a declared filter")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher comes first (0)")
    parser.add_argument("--delay", type=float, metavar="S", help="not to be handled before S seconds")
    parser.add_argument("--task-id", metavar="ID", help="an id of your own; else one is generated")
    parser.add_argument("--metadata", metavar="JSON", help="a JSON object kept with the task")


def enqueue(args: argparse.Namespace, given: Common) -> int:
    """Write one task, or one for each line."""
    messages = _messages(args)
    with given.connect() as zk:
        ids = zk.queue(args.queue).enqueue_many(messages)
    one = {} if args.lines else {"id": ids[0]}
    say({"queue": args.queue, **one, "ids": ids}, "\n".join(ids), as_json=given.as_json)
    return 0


def _messages(args: argparse.Namespace) -> list[Message]:
    from airflow_provider_zkmq.engine.core.records import Message

    options: dict[str, Any] = {
        "filters": pairs("--filter", args.filter),
        "priority": args.priority,
        "delay": args.delay,
        "task_id": args.task_id,
        "metadata": _metadata(args.metadata),
    }
    return [Message(data, **options) for data in _payloads(args)]


def _metadata(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--metadata is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError('--metadata must be a JSON object such as \'{"owner": "me"}\'')
    return value


def _payloads(args: argparse.Namespace) -> list[bytes]:
    """The data of each task to write."""
    if sum((args.data is not None, args.data_file is not None, args.lines)) != 1:
        raise UsageError("enqueue needs exactly one of DATA, - for standard input, --data-file and --lines")
    if args.lines:
        if args.task_id is not None:
            raise UsageError("--task-id names one task: it does not go with --lines")
        lines = sys.stdin.buffer.read()
        return lines.removesuffix(b"\n").split(b"\n") if lines else []  # no line is no task, not an empty one
    if args.data_file is not None:
        return [_read(args.data_file)]
    return [sys.stdin.buffer.read() if args.data == "-" else os.fsencode(args.data)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def add_claim(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``claim``."""
    parser.add_argument("queue")
    add_wanted(parser)
    parser.add_argument("--timeout", type=float, default=0.0, metavar="S", help="wait so long for a task (0)")
    parser.add_argument("--lease", type=float, default=300.0, metavar="S", help="hold it so long (300)")


def add_wanted(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which tasks a consumer takes."""
    parser.add_argument("--node", action="append", metavar="K=V", help="what the consumer offers for a filter")
    parser.add_argument("--filter-method", choices=("absolute", "at_least"), default="absolute")
    parser.add_argument("--selector", metavar="TEXT", help="such as 'region==eu, size<=10'; instead of --node")


def wanted(args: argparse.Namespace) -> dict[str, Any]:
    """Those options as `Queue.claim` and `Worker` take them."""
    node = pairs("--node", args.node) or None
    return {"node": node, "filter_method": args.filter_method, "selector": args.selector}


def claim(args: argparse.Namespace, given: Common) -> int:
    """Take a task, under a lease; its token settles it from another process."""
    asked = wanted(args)
    with given.connect() as zk:
        found = zk.queue(args.queue).claim(**asked, timeout=args.timeout, lease=args.lease)
        if found is None:
            say({"queue": args.queue, "id": None}, "", as_json=given.as_json)
            print(f"zkmq: nothing to claim in {args.queue}", file=sys.stderr)
            return NOTHING
        try:
            _say_claim(found, args, given)
        except OSError:
            found.release()  # nobody learned the token
            raise
    return 0


def _say_claim(found: Claim, args: argparse.Namespace, given: Common) -> None:
    task = found.task
    data = payload("data", task.data)
    value = {
        "queue": args.queue,
        "id": task.id,
        "token": found.token,
        "lease": args.lease,
        "attempt": task.attempt,
        "priority": task.priority,
        "filters": task.filters,
        "metadata": task.metadata,
        **data,
    }
    text = facts(
        {"id": task.id, "token": found.token, "attempt": task.attempt, "filters": spread(task.filters), **data}
    )
    say(value, text, as_json=given.as_json)


def add_settle(parser: argparse.ArgumentParser) -> None:
    """Add what every verb on a claim needs."""
    parser.add_argument("queue")
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--token", type=int, required=True, metavar="T", help="what claim printed")


def add_complete(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``complete``."""
    add_settle(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--result", metavar="R", help="a text to keep")
    group.add_argument("--result-file", type=Path, metavar="F", help="take the result from a file")


def complete(args: argparse.Namespace, given: Common) -> int:
    """Finish a task."""
    result = None if args.result is None else os.fsencode(args.result)
    if args.result_file is not None:
        result = _read(args.result_file)
    return _settle(args, given, "finished", lambda queue: queue.complete(args.task, args.token, result))


def add_fail(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fail``."""
    add_settle(parser)
    parser.add_argument("--error", required=True, metavar="TEXT", help="what went wrong")
    parser.add_argument("--no-retry", action="store_true", help="to the dead letters at once")


def fail(args: argparse.Namespace, given: Common) -> int:
    """Report a failure."""
    error = os.fsencode(args.error).decode(errors="replace")
    return _settle(
        args, given, None, lambda queue: str(queue.fail(args.task, args.token, error, retry=not args.no_retry))
    )


def release(args: argparse.Namespace, given: Common) -> int:
    """Give a task back."""
    return _settle(args, given, "inserted", lambda queue: queue.release(args.task, args.token))


def add_extend(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``extend``."""
    add_settle(parser)
    parser.add_argument("--lease", type=float, required=True, metavar="S", help="hold it S seconds from now")


def extend(args: argparse.Namespace, given: Common) -> int:
    """Hold a claim longer."""
    return _settle(args, given, "claimed", lambda queue: queue.extend(args.task, args.token, args.lease))


def _settle(args: argparse.Namespace, given: Common, state: str | None, act: Callable[[Queue], str | None]) -> int:
    """Do something with a claim; `state`: the task's state after it, else what `act` returns."""
    with given.connect() as zk:
        told = act(zk.queue(args.queue))
    state = state or told
    value = {"queue": args.queue, "id": args.task, "token": args.token, "state": state}
    say(value, f"{args.task} is {state}", as_json=given.as_json)
    return 0


def add_show(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``show``."""
    parser.add_argument("queue")
    parser.add_argument("task", metavar="TASK")


def show(args: argparse.Namespace, given: Common) -> int:
    """Show all there is to a task."""
    with given.connect() as zk:
        queue = zk.queue(args.queue)
        task, tree = queue.task(args.task), queue.tree(args.task)
    number = enqueue_transactions(tree)
    value = {"queue": args.queue, **task_record(task), "znodes": [asdict(node) for node in tree]}
    parts = [
        facts(task_facts(task) | {"enqueue transactions": number}),
        table(
            [(at.number, at.outcome, at.consumer, at.claimed, at.ended, at.error) for at in task.history],
            ("ATTEMPT", "OUTCOME", "CONSUMER", "CLAIMED_MS", "ENDED_MS", "ERROR"),
        ),
        table([(node.path, node.bytes, node.czxid, node.mzxid) for node in tree], ("ZNODE", "BYTES", "CZXID", "MZXID")),
    ]
    say(value | {"enqueue_transactions": number}, "\n\n".join(parts), as_json=given.as_json)
    return 0


def enqueue_transactions(tree: list[Znode]) -> int:
    """In how many transactions the znodes of an enqueue were created: 1, as a task is written whole."""
    base = min((node.path for node in tree), key=len, default="")
    later = {f"{base}/{part}" for part in _LATER}
    return len({node.czxid for node in tree if node.path not in later})


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wait``."""
    parser.add_argument("queue")
    parser.add_argument("tasks", metavar="TASK", nargs="+")
    parser.add_argument("--event", choices=("completion", "claim"), default="completion")
    parser.add_argument("--timeout", type=float, metavar="S", help="give up after S seconds")


def wait(args: argparse.Namespace, given: Common) -> int:
    """Wait until every task was claimed or has ended."""
    with given.connect() as zk:
        tasks = zk.queue(args.queue).wait(args.tasks, args.event, timeout=args.timeout)
    rows = [(task.id, task.state, brief(task.result), task.error) for task in tasks]
    value = {"queue": args.queue, "tasks": [task_record(task) for task in tasks]}
    say(value, table(rows, ("ID", "STATE", "RESULT", "ERROR")), as_json=given.as_json)
    return FAILED if any(task.state in {"dead", "cancelled"} for task in tasks) else 0
