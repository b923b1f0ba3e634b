"""The verbs on tasks: enqueue, list, show, wait, batch, cancel."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..inspection import records, task_story, wording
from ..inspection.selection import BACKOFF, Selection, one_by_one
from . import options
from .connection import QUEUE, Cli
from .options import TASKS, UsageError, at_most_one, choice, flag, operand, option, span
from .output import progress, warn
from .selection import CHOSEN, check, do_to_each
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import AnyQueue, OnConflict, Task

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
    for wrong, why in (
        (then is not None and batch is None, "--then needs --batch: it follows when the last of a batch has ended"),
        ((update or requeue) and task_id is None, "--update and --requeue need --task-id: they are about its task"),
        (
            idempotency_key is not None and (task_id is not None or batch is not None),
            "--idempotency-key goes without --task-id and --batch: it names the tasks itself",
        ),
        (
            only_new and (task_id is None or batch is not None),
            "--only-new needs --task-id, and goes without --batch: it is about the task that has the id",
        ),
        (lines and task_id is not None, "--task-id names one task: it does not go with --lines"),
    ):
        if wrong:
            raise UsageError(why)
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
    with progress(f"enqueueing to {queue}"):
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
    try:
        metadata = None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--metadata is no JSON: {error}") from error
    if not isinstance(metadata, dict | None):
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


# --- Looking at tasks.


@verb("task list", "list", example="zkmq task list orders --state dead --limit 10", watched=True)
def list_tasks(cli: Cli, queue: str = QUEUE, chosen: Selection = CHOSEN) -> int:
    """List tasks."""
    check(chosen)
    handle = cli.queue(queue)
    rows = task_story.task_records(handle, chosen.find(handle, ("data", "metadata", "result", "progress")))
    columns = "id status attempt priority enqueued_at"
    columns += " lease_until" if any(each["lease_until"] for each in rows) else ""
    columns += " filters data" if chosen.batch is None and chosen.error is None else " result error"
    code = cli.say({"queue": queue, "tasks": rows}, wording.table(rows, columns))
    later = sum(each["status"] == BACKOFF for each in rows)
    if chosen.state == "inserted" and later:
        warn(f"{later} of these are scheduled: --state queued leaves them out")
    return code


@verb("task show", "show", example="zkmq task show orders invoice-7")
def show(
    cli: Cli,
    queue: str = QUEUE,
    chosen: Selection = CHOSEN,
    why: bool = flag("--why", "only why it is not being handled, and which consumers accept or refuse it"),
    watch: bool = flag(
        "--watch",
        "follow it until it ends: a line (of JSON with --json) for each change; 5 if it ends dead or cancelled",
    ),
) -> int:
    """Show all there is to a task, and why nobody takes it; or follow it."""
    at_most_one(why=why, watch=watch)
    check(chosen, required="show")
    handle = cli.queue(queue)
    code = 0
    for task_id in chosen.ids(handle, *options.STATES):
        if watch:
            code = max(code, _watch(cli, handle, task_id))
            continue
        value, page, reasons = task_story.task_story(handle, task_id)
        if why and not reasons:
            handle.explain(task_id)  # which refuses it
        cli.say(value, reasons if why else page)
    return code


def _watch(cli: Cli, queue: AnyQueue, task_id: str) -> int:
    """Print a line for each change until the task ends; 5 if it ends dead or cancelled."""
    shown: list[tuple[object, ...]] = []

    def show_change(task: Task) -> None:
        seen = (task.status, task.attempt, task.progress, task.note)
        if shown[-1:] == [seen]:
            return
        shown.append(seen)
        known = records.record(task)
        names = ("id", "state", "status", "attempt", "progress", "note", "error", "version")
        value = {"queue": queue.name, **{name: known[name] for name in names}}
        done = None if task.progress is None else wording.words("progress", task.progress)
        ends = [wording.printable(text) for text in (done, task.note, task.error) if text]
        cli.say(value, "  ".join([f"{task.status}  attempt {task.attempt}", *ends]))

    task = queue.follow(task_id, show_change)
    return FAILED if task.state in {"dead", "cancelled"} else 0


@verb("task wait", "wait", example="zkmq task wait orders invoice-7 --timeout 10m")
def wait(
    cli: Cli,
    queue: str = QUEUE,
    tasks: list[str] = TASKS,
    event: str = choice(("completion", "claim"), default="completion"),
    timeout: float | None = span("give up after so long"),
) -> int:
    """Wait until tasks have ended or were claimed; 5 if one ended dead or cancelled."""
    handle = cli.queue(queue)
    with progress(f"waiting for {len(tasks)} task(s)"):
        ended = handle.wait(tasks, event, timeout=timeout)
    rows = task_story.task_records(handle, ended)
    code = FAILED if any(task.state in {"dead", "cancelled"} for task in ended) else 0
    return cli.say({"queue": queue, "tasks": rows}, wording.table(rows, "id state result error"), code)


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
    with progress(f"waiting for batch {name}"):
        found = records.record(handle.wait_batch(name, timeout) if wait else handle.batch(name))
    value = {"queue": queue, "batch": found.pop("name"), **found}
    return cli.say(value, wording.facts(value), FAILED if wait and value["failed"] else 0)


@verb("task cancel", "cancel", example="zkmq task cancel orders invoice-7")
def cancel(cli: Cli, queue: str = QUEUE, chosen: Selection = CHOSEN) -> int:
    """Withdraw tasks that have not ended. A bad id is refused before anything is done."""
    check(chosen, required="cancel")
    handle = cli.queue(queue)
    ids = chosen.ids(handle, "inserted", "claimed")
    return do_to_each(cli, queue, "cancelled", ids, one_by_one(handle.cancel), named=bool(chosen.tasks))
