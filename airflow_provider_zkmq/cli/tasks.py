"""The verbs on tasks: enqueue, show, wait, batch, cancel, redrive; claim, and what ends or extends a claim."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .options import DURATION, OWN_TIMEOUT, Common, UsageError, attempts, pairs, read_file
from .options import moment as parsed_moment
from .output import brief, facts, moment, payload, percent, printable, say, spread, table, task_facts, task_record

if TYPE_CHECKING:
    from ..engine import AnyQueue, Message, OnConflict, Task, ZkmqError, Znode


# --- The verbs on claims: claim, complete, fail, release, snooze, extend, progress.

NOTHING = 3


def add_claim(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``claim``."""
    add_wanted(parser)
    parser.set_defaults(**{OWN_TIMEOUT: True})
    parser.add_argument("--timeout", default=0.0, help="wait so long for a task (0)", **DURATION)
    parser.add_argument("--lease", default=300.0, help="hold it so long (5m), whatever its lock", **DURATION)


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
        task = claimed.task
        data = payload("data", task.data)
        head = {"id": task.id, "token": claimed.token, "attempt": task.attempt}
        more = {"lease": args.lease, "priority": task.priority, "filters": task.filters, "metadata": task.metadata}
        text = facts({**head, "filters": spread(task.filters), **data})
        try:
            say({"queue": args.queue, **head, **more, **data}, text, as_json=options.as_json)
        except OSError:
            claimed.release()  # nobody learned the token
            raise
    return 0


def add_settle(parser: argparse.ArgumentParser) -> None:
    """Add what every verb on a claim needs."""
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--token", type=int, required=True, metavar="T", help="what claim printed")


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add what names a claim: its token, or that it is taken from whoever holds it."""
    parser.add_argument("task", metavar="TASK")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--token", type=int, metavar="T", help="what claim printed")
    taken = "take it from whoever holds it, a hung worker say, which is told and can settle it no more"
    group.add_argument("--force", action="store_true", help=taken)


def add_complete(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``complete``."""
    add_settle(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--result", metavar="R", help="a text to keep")
    group.add_argument("--result-file", type=Path, metavar="F", help="take the result from a file")
    parser.add_argument("--dedupe", help="refuse its id for so long", **DURATION)


def add_fail(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fail``."""
    add_force(parser)
    parser.add_argument("--error", required=True, metavar="TEXT", help="what went wrong")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--no-retry", action="store_true", help="to the dead letters at once")
    group.add_argument("--backoff", help="try again after so long, not by the policy", **DURATION)


def add_snooze(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``snooze``."""
    add_settle(parser)
    parser.add_argument("--delay", required=True, help="how long it is not to be handled", **DURATION)


def add_extend(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``extend``."""
    add_settle(parser)
    parser.add_argument("--lease", required=True, help="hold it so long from now", **DURATION)


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``progress``."""
    add_settle(parser)
    parser.add_argument("value", type=float, metavar="VALUE", help="from 0 to 1")
    parser.add_argument("--note", default="", metavar="TEXT", help="what is being done")


def settle(args: argparse.Namespace, options: Common) -> int:
    """Do with a claim what the verb says, and print the task's state after it."""
    force = getattr(args, "force", False)
    if args.verb == "fail" and force and args.backoff is not None:
        raise UsageError("--backoff does not go with --force: the policy says when it is tried again")
    result = os.fsencode(args.result) if getattr(args, "result", None) is not None else None
    if getattr(args, "result_file", None) is not None:
        result = read_file(args.result_file)
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        if force:  # from its holder, who is named; a claim that comes meanwhile is left alone
            seen = queue.task(args.task)
            failed: dict[str, Any] = {}
            if args.verb == "fail":
                failed = {"error": _text(args.error), "retry": not args.no_retry}
            state = str(queue.revoke(args.task, **failed, version=seen.version))
            holder = seen.consumer or "a consumer whose claim had ended"
            print(f"zkmq: taken from {holder}, attempt {seen.attempt}", file=sys.stderr)
        else:
            state = _settled(queue, args, result)
    value = {"queue": args.queue, "id": args.task, "token": args.token, "state": state}
    say(value, f"{args.task} is {state}", as_json=options.as_json)
    return 0


def _settled(queue: AnyQueue, args: argparse.Namespace, result: bytes | None) -> str:
    """Do with a claim what the verb says; the task's state after it."""
    from ..engine import ZkmqError

    claimed = queue.claim_handle(args.task, args.token)
    match args.verb:
        case "complete":
            claimed.complete(result, dedupe=args.dedupe)
            try:
                return str(queue.task(args.task).state)  # inserted, where another run was held in escrow
            except ZkmqError:  # collected, say; that it was finished is certain
                return "finished"
        case "fail":
            return str(claimed.fail(_text(args.error), retry=not args.no_retry, backoff=args.backoff))
        case "release":
            claimed.release()
            return "inserted"
        case "snooze":
            claimed.snooze(args.delay)
            return "inserted"
        case "extend":
            claimed.extend(args.lease)
            return "claimed"
    claimed.progress(args.value, _text(args.note))
    return "claimed"


def _text(argument: str) -> str:
    return os.fsencode(argument).decode(errors="replace")


# --- The verbs on tasks: enqueue, wait, batch.

FAILED = 5


def add_enqueue(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``enqueue``."""
    parser.add_argument("data", nargs="?", metavar="DATA", help="the text itself, or - for standard input")
    parser.add_argument("--data-file", type=Path, metavar="F", help="take the data from a file")
    parser.add_argument("--lines", action="store_true", help="one task for each line of standard input")
    parser.add_argument("--filter", action="append", metavar="K=V", help="a value of a declared filter")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher comes first (0)")
    due = parser.add_mutually_exclusive_group()
    due.add_argument("--delay", help="how long it is not to be handled yet", **DURATION)
    due.add_argument("--not-before", type=parsed_moment, metavar="MOMENT", help="until when it is not to be handled")
    parser.add_argument("--task-id", metavar="ID", help="an id of your own; else one is generated")
    keyed = "make the ids of this text: the same command again writes what is missing, and tells the same ids"
    parser.add_argument("--idempotency-key", metavar="TEXT", help=keyed)
    parser.add_argument("--metadata", metavar="JSON", help="a JSON object kept with the task")
    own = "a retry policy of its own: N deliveries at the most (or 'unbounded'), the backoff as by default"
    parser.add_argument("--attempts", type=attempts, metavar="N", help=own)
    parser.add_argument("--lock", help="how long a claim of it without a lease holds if not extended", **DURATION)
    parser.add_argument("--create", action="store_true", help="create the queue, as by default, if it does not exist")
    known = parser.add_argument_group("a --task-id that is in use (refused otherwise)")
    known.add_argument("--update", action="store_true", help="replace the task while it is queued")
    again = "while it is claimed, or in its dedupe window: run this one when that has ended"
    known.add_argument("--requeue", action="store_true", help=again)
    known.add_argument("--only-new", action="store_true", help="leave alone whatever has the id, and be content")
    batch = parser.add_argument_group("a batch (see zkmq batch)")
    batch.add_argument("--batch", metavar="NAME", help="write the tasks as one batch; they are called NAME.<number>")
    batch.add_argument("--then", metavar="DATA", help="a task to enqueue when the last of the batch has ended")


#: What is said of a task that has the id by --update and --requeue.
_ON_CONFLICT: Final[dict[tuple[bool, bool], OnConflict]] = {
    (False, False): "raise",
    (True, False): "replace",
    (False, True): "requeue",
    (True, True): "replace-or-requeue",
}


def enqueue(args: argparse.Namespace, options: Common) -> int:
    """Write one task, or one for each line."""
    from ..engine import Message, QueueNotFound
    from ..engine.queue_internals import internals

    if args.then is not None and args.batch is None:
        raise UsageError("--then needs --batch: it follows when the last task of a batch has ended")
    if (args.update or args.requeue) and args.task_id is None:
        raise UsageError("--update and --requeue need --task-id: they are about the task that has it")
    if args.idempotency_key is not None and (args.task_id is not None or args.batch is not None):
        raise UsageError("--idempotency-key goes without --task-id and --batch: it names the tasks itself")
    if args.only_new and (args.task_id is None or args.batch is not None):
        raise UsageError("--only-new needs --task-id, and goes without --batch: it is about the task that has the id")
    messages = _messages(args)
    then = None if args.then is None else Message(os.fsencode(args.then))
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        if not args.create:  # a mistyped name would make a queue that nobody consumes
            try:
                queue.conf()
            except QueueNotFound as error:
                msg = f"{error}; nothing was enqueued: --create makes the queue"
                raise QueueNotFound(msg, similar=error.similar) from None
        if args.only_new:
            written = bool(internals(queue).enqueue_new(messages).written)
            written_ids = {"queue": args.queue, "id": args.task_id, "written": written, "ids": [args.task_id]}
            say(written_ids, f"{args.task_id}{'' if written else ' (was there already)'}", as_json=options.as_json)
            return 0
        ids = queue.enqueue_many(messages, batch=args.batch, then=then, idempotency_key=args.idempotency_key)
    one = {} if args.lines else {"id": ids[0]}
    batch = {} if args.batch is None else {"batch": args.batch}
    say({"queue": args.queue, **one, **batch, "ids": ids}, "\n".join(ids), as_json=options.as_json)
    return 0


def _messages(args: argparse.Namespace) -> list[Message]:
    from ..engine import Message, RetryPolicy

    policy = None
    if args.attempts is not None:
        policy = RetryPolicy(attempts=None if args.attempts == "unbounded" else args.attempts)
    try:
        metadata = None if args.metadata is None else json.loads(args.metadata)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--metadata is no JSON: {error}") from error
    if args.metadata is not None and not isinstance(metadata, dict):
        raise UsageError('--metadata must be a JSON object such as \'{"owner": "me"}\'')
    message = partial(
        Message,
        filters=pairs("--filter", args.filter),
        priority=args.priority,
        delay=args.delay,
        task_id=args.task_id,
        metadata=metadata,
        policy=policy,
        lock=args.lock,
        on_conflict=_ON_CONFLICT[args.update, args.requeue],
        not_before=args.not_before,
    )
    if sum((args.data is not None, args.data_file is not None, args.lines)) != 1:
        raise UsageError("enqueue needs exactly one of DATA, - for standard input, --data-file and --lines")
    if args.lines and args.task_id is not None:
        raise UsageError("--task-id names one task: it does not go with --lines")
    if args.lines:
        lines = sys.stdin.buffer.read()
        return [message(line) for line in lines.removesuffix(b"\n").split(b"\n")] if lines else []  # no line, no task
    if args.data_file is not None:
        return [message(read_file(args.data_file))]
    return [message(sys.stdin.buffer.read() if args.data == "-" else os.fsencode(args.data))]


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wait``."""
    parser.add_argument("tasks", metavar="TASK", nargs="+")
    parser.add_argument("--event", choices=("completion", "claim"), default="completion")
    parser.set_defaults(**{OWN_TIMEOUT: True})
    parser.add_argument("--timeout", help="give up after so long", **DURATION)


def wait(args: argparse.Namespace, options: Common) -> int:
    """Wait until every task was claimed or has ended."""
    with options.connect() as zk:
        tasks = zk.queue(args.queue).wait(args.tasks, args.event, timeout=args.timeout)
    rows = [(task.id, task.state, brief(task.result), task.error) for task in tasks]
    value = {"queue": args.queue, "tasks": [task_record(task) for task in tasks]}
    say(value, table(rows, ("ID", "STATE", "RESULT", "ERROR")), as_json=options.as_json)
    return FAILED if any(task.state in {"dead", "cancelled"} for task in tasks) else 0


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``batch``."""
    parser.add_argument("batch", metavar="NAME", help="as given to enqueue --batch")
    parser.add_argument("--wait", action="store_true", help="until each of its tasks has ended; 5 if one failed")
    parser.set_defaults(**{OWN_TIMEOUT: True})
    parser.add_argument("--timeout", help="with --wait: give up after so long", **DURATION)


def batch(args: argparse.Namespace, options: Common) -> int:
    """Say how a batch stands, or wait for its end."""
    if args.timeout is not None and not args.wait:
        raise UsageError("--timeout goes with --wait")
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        progress = queue.wait_batch(args.batch, args.timeout) if args.wait else queue.batch(args.batch)
    record = asdict(progress)
    value = {"queue": args.queue, "batch": record.pop("name"), **record}
    say(value, facts(value | {"failed": " ".join(progress.failed) or None}), as_json=options.as_json)
    return FAILED if args.wait and progress.failed else 0


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
    from ..engine.queue_internals import internals

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


def add_cancel(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``cancel``."""
    parser.add_argument("tasks", metavar="TASK", nargs="+")


def cancel(args: argparse.Namespace, options: Common) -> int:
    """Withdraw tasks that have not ended. A bad id is refused before anything is done."""
    from ..engine import IllegalTransition, TaskNotFound

    done: list[str] = []
    refused: dict[str, ZkmqError] = {}
    with options.connect() as zk:
        cancel_task = zk.queue(args.queue).cancel
        for task in _checked(args.tasks):
            try:
                cancel_task(task)
            except (TaskNotFound, IllegalTransition) as error:
                refused[task] = error
            else:
                done.append(task)
    return _say_done(args.queue, "cancelled", done, refused, options)


def add_redrive(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``redrive``."""
    parser.add_argument("tasks", metavar="TASK", nargs="*", default=[])
    parser.add_argument("--all", action="store_true", help="every task in the dead letters")


def redrive(args: argparse.Namespace, options: Common) -> int:
    """Put dead or cancelled tasks back."""
    from ..engine import CorruptRecord
    from ..engine.queue_internals import internals

    if bool(args.tasks) == args.all:
        raise UsageError("redrive needs either task ids or --all")
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        ids = _checked(internals(queue).ids("dead") if args.all else args.tasks)
        refused = queue.redrive_many(ids)
    done = [task for task in ids if task not in refused]
    if args.all:  # where somebody else was faster, that is no refusal of what was asked for
        refused = {task: why for task, why in refused.items() if isinstance(why, CorruptRecord)}
    return _say_done(args.queue, "redriven", done, refused, options)


def _say_done(queue: str, word: str, tasks: Sequence[str], refused: Mapping[str, ZkmqError], options: Common) -> int:
    """Print with which tasks something was done, and which refused it; 1 if one did."""
    value: dict[str, object] = {"queue": queue, word: tasks}
    for why in refused.values():
        value.setdefault("error", type(why).__name__)
        value.setdefault("message", str(why))
        print(f"zkmq: {why}", file=sys.stderr)
    if refused:
        value["refused"] = {task: str(why) for task, why in refused.items()}
    say(value, "\n".join(f"{word} {task}" for task in tasks) or f"nothing {word}", as_json=options.as_json)
    return 1 if refused else 0


def _checked(tasks: Iterable[str]) -> list[str]:
    """The ids, each once. Raises `ConfigError` for a bad one."""
    from ..engine import check_name

    return [check_name("task id", task) for task in dict.fromkeys(tasks)]
