"""The verbs on tasks: enqueue, list, show, wait, batch, cancel."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import options
from .connection import QUEUE, Cli
from .options import STATES, STATUSES, TASK, TASKS, UsageError, at_most_one, choice, flag, operand, option, span
from .output import brief, facts, moment, percent, printable, spread, table, task_facts, task_record, warn
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import AnyQueue, OnConflict, Task, ZkmqError, Znode

FAILED = 5
_known = partial(flag, rich_help_panel="A --task-id that is in use (refused otherwise)")
_batch = partial(option, rich_help_panel="A batch (see zkmq batch)")


@verb("task enqueue", "enqueue", example="zkmq task enqueue orders 'invoice 7' --delay 5m")
def enqueue(
    cli: Cli,
    queue: str = QUEUE,
    data: str | None = operand("[DATA]", "the text itself, or - for standard input", None),
    data_file: Path | None = option("take the data from a file", "F"),
    lines: bool = flag("--lines", "one task for each line of standard input"),
    filter: list[str] | None = option("a value of a declared filter", "K=V"),  # noqa: A002  the option's name
    priority: int = option("higher comes first (0)", "N", 0),
    delay: float | None = span("how long it is not to be handled yet"),
    not_before: datetime | None = option("until when it is not to be handled", "MOMENT", parser=options.moment),
    task_id: str | None = option("an id of your own; else one is generated", "ID"),
    idempotency_key: str | None = option("make ids of this text: the same command writes only what is missing", "TEXT"),
    metadata: str | None = option("a JSON object kept with the task", "JSON"),
    attempts: str | None = options.ATTEMPTS,
    lock: float | None = span("how long a claim of it without a lease holds if not extended"),
    create: bool = flag("--create", "create the queue, as by default, if it does not exist"),
    update: bool = _known("--update", "replace the task while it is queued"),
    requeue: bool = _known(
        "--requeue", "while it is claimed, or in its dedupe window: run this one when that has ended"
    ),
    only_new: bool = _known("--only-new", "leave alone whatever has the id, and be content"),
    batch: str | None = _batch("write the tasks as one batch; they are called NAME.<number>", "NAME"),
    then: str | None = _batch("a task to enqueue when the last of the batch has ended", "DATA"),
) -> int:
    """Write one task, or one for each line."""
    from ..engine import Message, QueueNotFound, RetryPolicy
    from ..engine.queue_internals import internals

    at_most_one(delay=delay, not_before=not_before)
    if then is not None and batch is None:
        raise UsageError("--then needs --batch: it follows when the last task of a batch has ended")
    if (update or requeue) and task_id is None:
        raise UsageError("--update and --requeue need --task-id: they are about the task that has it")
    if idempotency_key is not None and (task_id is not None or batch is not None):
        raise UsageError("--idempotency-key goes without --task-id and --batch: it names the tasks itself")
    if only_new and (task_id is None or batch is not None):
        raise UsageError("--only-new needs --task-id, and goes without --batch: it is about the task that has the id")
    if lines and task_id is not None:
        raise UsageError("--task-id names one task: it does not go with --lines")
    policy = None
    if attempts is not None:
        policy = RetryPolicy(attempts=None if attempts == "unbounded" else int(attempts))
    message = partial(
        Message,
        filters=options.pairs("--filter", filter),
        priority=priority,
        delay=delay,
        task_id=task_id,
        metadata=_metadata(metadata),
        policy=policy,
        lock=lock,
        on_conflict=_ON_CONFLICT[update, requeue],
        not_before=not_before,
    )
    messages = [message(each) for each in _payloads(data, data_file, lines=lines)]
    follow_up = None if then is None else Message(os.fsencode(then))
    handle = cli.queue(queue)
    if not create:  # a mistyped name would make a queue that nobody consumes
        try:
            handle.conf()
        except QueueNotFound as error:
            msg = f"{error}; nothing was enqueued: --create makes the queue"
            raise QueueNotFound(msg, similar=error.similar) from None
    if only_new:
        written = bool(internals(handle).enqueue_new(messages).written)
        value = {"queue": queue, "id": task_id, "written": written, "ids": [task_id]}
        return cli.say(value, f"{task_id}{'' if written else ' (was there already)'}")
    ids = handle.enqueue_many(messages, batch=batch, then=follow_up, idempotency_key=idempotency_key)
    one = {} if lines else {"id": ids[0]}
    named = {} if batch is None else {"batch": batch}
    return cli.say({"queue": queue, **one, **named, "ids": ids}, "\n".join(ids))


#: What is said of a task that has the id by --update and --requeue.
_ON_CONFLICT: Final[dict[tuple[bool, bool], OnConflict]] = {
    (False, False): "raise",
    (True, False): "replace",
    (False, True): "requeue",
    (True, True): "replace-or-requeue",
}


def _metadata(text: str | None) -> dict[str, Any] | None:
    """The metadata of a task. Raises `UsageError`."""
    if text is None:
        return None
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--metadata is no JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise UsageError('--metadata must be a JSON object such as \'{"owner": "me"}\'')
    return metadata


def _payloads(data: str | None, data_file: Path | None, *, lines: bool) -> list[bytes]:
    """The data of each task that the command line, a file or standard input gives. Raises `UsageError`."""
    if sum((data is not None, data_file is not None, lines)) != 1:
        raise UsageError("enqueue needs exactly one of DATA, - for standard input, --data-file and --lines")
    if lines:
        given = sys.stdin.buffer.read()
        return given.removesuffix(b"\n").split(b"\n") if given else []  # no line, no task
    if data_file is not None:
        return [options.read_file(data_file)]
    return [sys.stdin.buffer.read() if data == "-" else os.fsencode(data or "")]


#: The word of ``status`` for a status of ``list``.
SCHEDULED, _BACKOFF = "scheduled", "queued-with-backoff"


@verb("task list", "list", example="zkmq task list orders --state dead --limit 10")
def list_tasks(
    cli: Cli,
    queue: str = QUEUE,
    state: str | None = choice(
        (*STATES, *STATUSES, SCHEDULED),
        f"a state ({', '.join(STATES)}) or a status ({', '.join(STATUSES)}); scheduled: those of the inserted "
        "that wait for their time, queued-with-backoff",
        metavar="WORD",
    ),
    selector: str | None = options.SELECTOR,
    batch: str | None = option("its members, with their results", "NAME"),
    limit: int | None = options.LIMIT,
) -> int:
    """List tasks."""
    if limit is not None and limit < 0:
        raise UsageError(f"--limit {limit} is not allowed: 0 or more")
    word = _BACKOFF if state == SCHEDULED else state
    which: dict[str, Any] = {"status": word} if word in STATUSES else {"state": word}
    tasks = cli.queue(queue).tasks(**which, selector=selector, batch=batch, limit=limit)
    results = batch is not None
    head = ["ID", "STATUS", "ATTEMPT", "PRIORITY", "ENQUEUED"]
    head += ["RESULT", "ERROR"] if results else ["FILTERS", "DATA"]
    rows = []
    for task in tasks:
        more = (brief(task.result), task.error) if results else (spread(task.filters), brief(task.data))
        rows.append((task.id, task.status, task.attempt, task.priority, moment(task.enqueued_ms), *more))
    code = cli.say({"queue": queue, "tasks": [task_record(task) for task in tasks]}, table(rows, head))
    later = sum(task.status == _BACKOFF for task in tasks)
    if state == "inserted" and later:
        warn(f"{later} of these are scheduled: --state queued leaves them out")
    return code


@verb("task wait", "wait", example="zkmq task wait orders invoice-7 --timeout 10m")
def wait(
    cli: Cli,
    queue: str = QUEUE,
    tasks: list[str] = TASKS,
    event: str = choice(("completion", "claim"), default="completion"),
    timeout: float | None = span("give up after so long"),
) -> int:
    """Wait until tasks have ended or were claimed; 5 if one ended dead or cancelled."""
    ended = cli.queue(queue).wait(tasks, event, timeout=timeout)
    rows = [(task.id, task.state, brief(task.result), task.error) for task in ended]
    value = {"queue": queue, "tasks": [task_record(task) for task in ended]}
    code = FAILED if any(task.state in {"dead", "cancelled"} for task in ended) else 0
    return cli.say(value, table(rows, ("ID", "STATE", "RESULT", "ERROR")), code)


@verb("batch", example="zkmq batch orders nightly --wait")
def batch(
    cli: Cli,
    queue: str = QUEUE,
    name: str = operand("NAME", "as given to enqueue --batch"),
    wait: bool = flag("--wait", "until each of its tasks has ended; 5 if one failed"),
    timeout: float | None = span("with --wait: give up after so long"),
) -> int:
    """Say how a batch stands, or wait for its end."""
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    handle = cli.queue(queue)
    progress = handle.wait_batch(name, timeout) if wait else handle.batch(name)
    record = asdict(progress)
    value = {"queue": queue, "batch": record.pop("name"), **record}
    text = facts(value | {"failed": " ".join(progress.failed) or None})
    return cli.say(value, text, FAILED if wait and progress.failed else 0)


_LATER = ("claim", "result", "requeue")  # the znodes of a task that its enqueue does not write


@verb("task show", "show", example="zkmq task show orders invoice-7 --why")
def show(
    cli: Cli,
    queue: str = QUEUE,
    task: str = TASK,
    why: bool = flag("--why", "why it is not being handled, and which consumers accept or refuse it"),
    watch: bool = flag(
        "--watch",
        "follow it until it ends: a line (of JSON with --json) for each change; 5 if it ends dead or cancelled",
    ),
) -> int:
    """Show all there is to a task, why nobody takes it, or follow it."""
    from ..engine import Unsupported
    from ..engine.queue_internals import internals

    at_most_one(why=why, watch=watch)
    handle = cli.queue(queue)
    if watch:
        return _watch(cli, handle, task)
    explained = handle.explain(task) if why else None
    if explained is not None and not cli.as_json:
        return cli.say(None, "\n".join(map(printable, explained.lines())))
    found = handle.task(task)
    try:
        tree = internals(handle).tree(task)
    except Unsupported:  # it is in a file, which has no znodes
        tree = None
    value = {"queue": queue, **task_record(found)}
    page = task_facts(found)
    tables = []
    if tree is not None:
        transactions = enqueue_transactions(tree)
        value |= {"znodes": [asdict(node) for node in tree], "enqueue_transactions": transactions}
        page["enqueue transactions"] = transactions
        attempts = [
            (at.number, at.outcome, at.consumer, moment(at.claimed), moment(at.started), moment(at.ended), at.error)
            for at in found.history
        ]
        tables = [
            table(attempts, ("ATTEMPT", "OUTCOME", "CONSUMER", "CLAIMED", "STARTED", "ENDED", "ERROR")),
            table([(at.path, at.bytes, at.czxid, at.mzxid) for at in tree], ("ZNODE", "BYTES", "CZXID", "MZXID")),
        ]
    if explained is not None:
        consumers = [asdict(each) for each in explained.consumers]
        value["why"] = {"status": explained.status, "reasons": explained.reasons, "consumers": consumers}
    return cli.say(value, "\n\n".join([facts(page), *tables]))


def enqueue_transactions(tree: list[Znode]) -> int:
    """In how many transactions the znodes of a task were created: 1, as a task is written whole.

    The data of an id that was enqueued again is written anew, in one more transaction.
    """
    base = min((node.path for node in tree), key=len, default="")
    later = {f"{base}/{part}" for part in _LATER}
    return len({node.czxid for node in tree if node.path not in later})


def _watch(cli: Cli, queue: AnyQueue, task_id: str) -> int:
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
        cli.say(value, "  ".join([f"{task.status}  attempt {task.attempt}", *ends]))

    task = queue.follow(task_id, show_change)
    return FAILED if task.state in {"dead", "cancelled"} else 0


@verb("task cancel", "cancel", example="zkmq task cancel orders invoice-7")
def cancel(cli: Cli, queue: str = QUEUE, tasks: list[str] = TASKS) -> int:
    """Withdraw tasks that have not ended. A bad id is refused before anything is done."""
    from ..engine import IllegalTransition, TaskNotFound

    done: list[str] = []
    refused: dict[str, ZkmqError] = {}
    handle = cli.queue(queue)
    for task in checked(tasks):
        try:
            handle.cancel(task)
        except (TaskNotFound, IllegalTransition) as error:
            refused[task] = error
        else:
            done.append(task)
    return say_done(cli, queue, "cancelled", done, refused)


def say_done(cli: Cli, queue: str, word: str, tasks: Sequence[str], refused: Mapping[str, ZkmqError]) -> int:
    """Print with which tasks something was done, and which refused it; 1 if one did."""
    value: dict[str, object] = {"queue": queue, word: tasks}
    for why in refused.values():
        value.setdefault("error", type(why).__name__)
        value.setdefault("message", str(why))
        warn(str(why))
    if refused:
        value["refused"] = {task: str(why) for task, why in refused.items()}
    text = "\n".join(f"{word} {task}" for task in tasks) or f"nothing {word}"
    return cli.say(value, text, 1 if refused else 0)


def checked(tasks: Iterable[str]) -> list[str]:
    """The ids, each once. Raises `ConfigError` for a bad one."""
    from ..engine import check_name

    return [check_name("task id", task) for task in dict.fromkeys(tasks)]
