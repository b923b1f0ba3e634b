"""The verbs on tasks: enqueue, list, show, wait, batch, cancel."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..inspection import task_story, terminal, wording
from ..inspection.selection import one_by_one
from . import options, selection
from .connection import Cli, QueueName, Watching
from .options import at_most_one, flag, operand, option, refuse, span
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import Task

FAILED = 5
_known = partial(flag, rich_help_panel="A --task-id that is in use (refused otherwise)")
_batch = partial(option, rich_help_panel="A batch (see zkmq batch)")


@verb("task enqueue", "enqueue", example="zkmq task enqueue orders 'invoice 7' --delay 5m")
def enqueue(
    cli: Cli,
    queue: QueueName,
    data: str | None = operand("[DATA]", "the text itself, or - for standard input", None),
    lines: bool = flag("--lines", "one task for each line of standard input"),
    filter: list[str] | None = option("a value of a declared filter", "K=V"),  # noqa: A002  the option's name
    priority: int = option("higher comes first (0)", "N", 0),
    delay: float | None = span("how long it is not to be handled yet"),
    not_before: datetime | None = option("until when it is not to be handled", "MOMENT", parser=options.moment),
    task_id: str | None = option("an id of your own; else one is generated", "ID"),
    idempotency_key: str | None = option("make ids of this text: the same command writes only what is missing", "TEXT"),
    metadata: Any = option("a JSON object kept with the task", "JSON", parser=options.json_object),
    attempts: Any = options.ATTEMPTS,
    lock: float | None = span("how long a claim of it without a lease holds if not extended"),
    create: bool = flag("--create", "create the queue if it does not exist"),
    update: bool = _known("--update", "replace the task while it is queued"),
    requeue: bool = _known("--requeue", "while it is claimed, or in its dedupe window: run this one after that"),
    only_new: bool = _known("--only-new", "leave alone whatever has the id, and be content"),
    batch: str | None = _batch("write the tasks as one batch; they are called NAME.<number>", "NAME"),
    then: str | None = _batch("a task to enqueue when the last of the batch has ended", "DATA"),
) -> int:
    """Write one task, or one for each line."""
    from ..engine import Message, QueueNotFound, RetryPolicy
    from ..engine.queue_internals import internals

    at_most_one(delay=delay, not_before=not_before)
    at_most_one(idempotency_key=idempotency_key, task_id=task_id)
    at_most_one(idempotency_key=idempotency_key, batch=batch)
    at_most_one(only_new=only_new, batch=batch)
    at_most_one(lines=lines, task_id=task_id)
    of_an_id = update or requeue or only_new
    conflict: Any = "-or-".join(["replace"] * update + ["requeue"] * requeue) or "raise"
    refuse(
        (then is not None and batch is None, "--then needs --batch: it follows when the last of a batch has ended"),
        (of_an_id and task_id is None, "--update, --requeue and --only-new need --task-id: they are about its task"),
        (lines == (data is not None), "enqueue needs either DATA, which is - for standard input, or --lines"),
    )
    message = partial(
        Message,
        filters=options.pairs("--filter", filter),
        priority=priority,
        delay=delay,
        task_id=task_id,
        metadata=metadata,
        policy=None if attempts is None else RetryPolicy(**attempts),
        lock=lock,
        on_conflict=conflict,
        not_before=not_before,
    )
    messages = [message(each) for each in _payloads(data)]
    follow_up = None if then is None else Message(os.fsencode(then))
    handle = cli.queue(queue)
    if not create:  # a mistyped name would make a queue that nobody consumes
        try:
            handle.conf()
        except QueueNotFound as error:
            error.add_note("or --create")
            raise
    if only_new:
        written = bool(internals(handle).enqueue_new(messages).written)
        value = {"queue": queue, "id": task_id, "written": written, "ids": [task_id]}
        return cli.say(value, f"{task_id}{'' if written else ' (was there already)'}")
    with terminal.progress(f"enqueueing to {queue}"):
        ids = handle.enqueue_many(messages, batch=batch, then=follow_up, idempotency_key=idempotency_key)
    one = {} if lines else {"id": ids[0]}
    many = {} if batch is None else {"batch": batch}
    return cli.say({"queue": queue, **one, **many, "ids": ids}, "\n".join(ids))


def _payloads(data: str | None) -> list[bytes]:
    """The data that the command line gives, or of each task a line of standard input; no line, no task."""
    if data is not None:
        return [options.read_value(data)]
    given = sys.stdin.buffer.read()
    return given.removesuffix(b"\n").split(b"\n") if given else []


# --- Looking at tasks.


@verb("task list", "list", example="zkmq task list orders --state dead --limit 10")
def list_tasks(cli: Watching, queue: QueueName, chosen: selection.Chosen) -> int:
    """List tasks."""
    handle = cli.queue(queue)
    rows = task_story.task_records(handle, chosen.find(handle, ("data", "metadata", "result", "progress")))
    ended = chosen.batch is not None or chosen.error is not None
    return cli.say({"queue": queue, "tasks": rows}, task_story.tasks_page(rows, ended=ended))


@verb("task show", "show", example="zkmq task show orders invoice-7")
def show(
    cli: Cli,
    queue: QueueName,
    chosen: selection.Needed,
    why: bool = flag("--why", "only why it is not being handled, and which consumers accept or refuse it"),
    watch: bool = flag("--watch", "follow it to its end, a line for each change; 5 if it ends dead or cancelled"),
) -> int:
    """Show all there is to a task, and why nobody takes it; or follow it."""
    at_most_one(why=why, watch=watch)
    handle = cli.queue(queue)
    code = 0
    for task_id in chosen.ids(handle, *options.STATES):
        if watch:
            code = max(code, _code([task_story.follow(handle, task_id, cli.say)]))
            continue
        value, page, reasons = task_story.task_story(handle, task_id)
        if why and not reasons:
            handle.explain(task_id)  # which refuses it
        cli.say(value, reasons if why else page)
        cli.say_where(queue=queue, task=task_id)
    return code


@verb("task wait", "wait", example="zkmq task wait orders invoice-7 --timeout 10m")
def wait(
    cli: Cli,
    queue: QueueName,
    tasks: list[str] = operand("TASK…"),
    event: Literal["completion", "claim"] = option("what is waited for", default="completion"),
    timeout: float | None = span("give up after so long"),
) -> int:
    """Wait until tasks have ended or were claimed; 5 if one ended dead or cancelled."""
    handle = cli.queue(queue)
    with terminal.progress(f"waiting for {len(tasks)} task(s)"):
        ended = handle.wait(tasks, event, timeout=timeout)
    rows = task_story.task_records(handle, ended)
    return cli.say({"queue": queue, "tasks": rows}, wording.table(rows, "id state result error"), _code(ended))


def _code(ended: Sequence[Task]) -> int:
    """The exit code for tasks that have ended."""
    return FAILED if any(task.state in {"dead", "cancelled"} for task in ended) else 0


@verb("batch", example="zkmq batch orders nightly --wait")
def batch(
    cli: Cli,
    queue: QueueName,
    name: str = operand("NAME", "as given to enqueue --batch"),
    wait: bool = flag("--wait", "until each of its tasks has ended; 5 if one failed"),
    timeout: float | None = span("with --wait: give up after so long"),
) -> int:
    """Say how a batch stands, or wait for its end."""
    refuse((timeout is not None and not wait, "--timeout goes with --wait"))
    handle = cli.queue(queue)
    with terminal.progress(f"waiting for batch {name}"):
        seen = handle.wait_batch(name, timeout) if wait else handle.batch(name)
    value, page = task_story.batch_story(queue, seen)
    return cli.say(value, page, FAILED if wait and seen.failed else 0)


@verb("task cancel", "cancel", example="zkmq task cancel orders invoice-7")
def cancel(cli: Cli, queue: QueueName, chosen: selection.Needed) -> int:
    """Withdraw tasks that have not ended. A bad id is refused before anything is done."""
    handle = cli.queue(queue)
    ids = chosen.ids(handle, "inserted", "claimed")
    act = partial(one_by_one, handle.cancel)
    return selection.do_to_each(cli, handle, "cancelled", ids, act, named=bool(chosen.tasks))
