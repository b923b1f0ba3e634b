"""The verbs on claims: claim, complete, fail, release, snooze, extend, progress."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.cli.options import OWN_TIMEOUT, Common, UsageError, duration, pairs, read_file
from airflow_provider_zkmq.cli.output import facts, payload, say, spread

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyClaim, AnyQueue

NOTHING = 3


def add_claim(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``claim``."""
    parser.add_argument("queue")
    add_wanted(parser)
    parser.set_defaults(**{OWN_TIMEOUT: True})
    parser.add_argument("--timeout", type=duration, default=0.0, metavar="DURATION", help="wait so long for a task (0)")
    parser.add_argument(
        "--lease", type=duration, default=300.0, metavar="DURATION", help="hold it so long (5m), whatever its lock"
    )


def add_wanted(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which tasks a consumer takes."""
    parser.add_argument("--node", action="append", metavar="K=V", help="what the consumer offers for a filter")
    parser.add_argument("--filter-method", choices=("absolute", "at_least"), default="absolute")
    parser.add_argument("--selector", metavar="TEXT", help="such as 'region==eu, size<=10'; instead of --node")


def wanted(args: argparse.Namespace) -> dict[str, Any]:
    """Those options as `Queue.claim` and `Worker` take them."""
    node = pairs("--node", args.node) or None
    return {"node": node, "filter_method": args.filter_method, "selector": args.selector}


def claim(args: argparse.Namespace, options: Common) -> int:
    """Take a task, under a lease; its token settles it from another process."""
    requested = wanted(args)
    with options.connect() as zk:
        claimed = zk.queue(args.queue).claim(**requested, timeout=args.timeout, lease=args.lease)
        if claimed is None:
            say({"queue": args.queue, "id": None}, "", as_json=options.as_json)
            print(f"zkmq: nothing to claim in {args.queue}", file=sys.stderr)
            return NOTHING
        try:
            _say_claim(claimed, args, options)
        except OSError:
            claimed.release()  # nobody learned the token
            raise
    return 0


def _say_claim(claimed: AnyClaim, args: argparse.Namespace, options: Common) -> None:
    task = claimed.task
    data = payload("data", task.data)
    head = {"id": task.id, "token": claimed.token, "attempt": task.attempt}
    more = {"lease": args.lease, "priority": task.priority, "filters": task.filters, "metadata": task.metadata}
    text = facts({**head, "filters": spread(task.filters), **data})
    say({"queue": args.queue, **head, **more, **data}, text, as_json=options.as_json)


def add_settle(parser: argparse.ArgumentParser) -> None:
    """Add what every verb on a claim needs."""
    parser.add_argument("queue")
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--token", type=int, required=True, metavar="T", help="what claim printed")


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add what names a claim: its token, or that it is taken from whoever holds it."""
    parser.add_argument("queue")
    parser.add_argument("task", metavar="TASK")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--token", type=int, metavar="T", help="what claim printed")
    group.add_argument(
        "--force",
        action="store_true",
        help="take it from whoever holds it, a hung worker say, which is told and can settle it no more",
    )


def add_complete(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``complete``."""
    add_settle(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--result", metavar="R", help="a text to keep")
    group.add_argument("--result-file", type=Path, metavar="F", help="take the result from a file")
    parser.add_argument("--dedupe", type=duration, metavar="DURATION", help="refuse its id for so long")


def complete(args: argparse.Namespace, options: Common) -> int:
    """Finish a task."""
    result = None if args.result is None else os.fsencode(args.result)
    if args.result_file is not None:
        result = read_file(args.result_file)
    return _settle(args, options, None, lambda queue: _complete(queue, args, result))


def _complete(queue: AnyQueue, args: argparse.Namespace, result: bytes | None) -> str:
    """Finish the task; its state then, which is not finished where another run of it was held in escrow."""
    from airflow_provider_zkmq.engine import ZkmqError

    queue.complete(args.task, args.token, result, dedupe=args.dedupe)
    try:
        return str(queue.task(args.task).state)
    except ZkmqError:  # collected, say; that it was finished is certain
        return "finished"


def add_fail(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fail``."""
    add_force(parser)
    parser.add_argument("--error", required=True, metavar="TEXT", help="what went wrong")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--no-retry", action="store_true", help="to the dead letters at once")
    group.add_argument(
        "--backoff", type=duration, metavar="DURATION", help="try again after so long, not by the policy"
    )


def fail(args: argparse.Namespace, options: Common) -> int:
    """Report a failure."""
    error = os.fsencode(args.error).decode(errors="replace")
    if args.force and args.backoff is not None:
        raise UsageError("--backoff does not go with --force: the policy says when it is tried again")
    if args.force:
        return _settle(args, options, None, lambda queue: _revoke(queue, args, error, retry=not args.no_retry))
    retry = {"retry": not args.no_retry, "backoff": args.backoff}
    return _settle(args, options, None, lambda queue: str(queue.fail(args.task, args.token, error, **retry)))


add_release = add_force


def release(args: argparse.Namespace, options: Common) -> int:
    """Give a task back."""
    if args.force:
        return _settle(args, options, None, lambda queue: _revoke(queue, args))
    return _settle(args, options, "inserted", lambda queue: queue.release(args.task, args.token))


def _revoke(queue: AnyQueue, args: argparse.Namespace, error: str | None = None, *, retry: bool = True) -> str:
    """Take the claim that stands now from its holder, who is named; one that comes meanwhile is left alone."""
    seen = queue.task(args.task)
    state = str(queue.revoke(args.task, error, retry=retry, version=seen.version))
    holder = seen.consumer or "a consumer whose claim had ended"
    print(f"zkmq: taken from {holder}, attempt {seen.attempt}", file=sys.stderr)
    return state


def add_snooze(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``snooze``."""
    add_settle(parser)
    parser.add_argument(
        "--delay", type=duration, required=True, metavar="DURATION", help="how long it is not to be handled"
    )


def snooze(args: argparse.Namespace, options: Common) -> int:
    """Give a task back for later."""
    return _settle(args, options, "inserted", lambda queue: queue.snooze(args.task, args.token, args.delay))


def add_extend(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``extend``."""
    add_settle(parser)
    parser.add_argument("--lease", type=duration, required=True, metavar="DURATION", help="hold it so long from now")


def extend(args: argparse.Namespace, options: Common) -> int:
    """Hold a claim longer."""
    return _settle(args, options, "claimed", lambda queue: queue.extend(args.task, args.token, args.lease))


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``progress``."""
    add_settle(parser)
    parser.add_argument("value", type=float, metavar="VALUE", help="from 0 to 1")
    parser.add_argument("--note", default="", metavar="TEXT", help="what is being done")


def progress(args: argparse.Namespace, options: Common) -> int:
    """Report how far the handling has come."""
    note = os.fsencode(args.note).decode(errors="replace")
    return _settle(args, options, "claimed", lambda queue: queue.progress(args.task, args.token, args.value, note))


def _settle(args: argparse.Namespace, options: Common, state: str | None, act: Callable[[AnyQueue], str | None]) -> int:
    """Do something with a claim; `state`: the task's state after it, else what `act` returns."""
    with options.connect() as zk:
        settled = act(zk.queue(args.queue))
    state = state or settled
    value = {"queue": args.queue, "id": args.task, "token": args.token, "state": state}
    say(value, f"{args.task} is {state}", as_json=options.as_json)
    return 0
