"""The verbs on claims: claim, complete, fail, release, snooze, extend, progress."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..inspection import records, wording
from .connection import QUEUE, Cli
from .options import TASK, UsageError, at_most_one, choice, flag, operand, option, pairs, read_file, span
from .output import warn
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import AnyQueue

NOTHING = 3
_TOKEN, _OPTIONAL_TOKEN = (option("what claim printed", "T", default) for default in (..., None))
_FORCE = flag("--force", "take it from whoever holds it, a hung worker say, which is told and can settle it no more")
_DELAY, _LEASE = span("how long it is not to be handled", ...), span("hold it so long from now", ...)
NODE = option("what the consumer offers for a filter", "K=V")
FILTER_METHOD = choice(("absolute", "at_least"), default="absolute")
WANTED_SELECTOR = option("such as 'region==eu, size<=10'; instead of --node", "TEXT")


def wanted(node: list[str] | None, filter_method: str, selector: str | None) -> dict[str, Any]:
    """The options that say which tasks a consumer takes, as `Queue.claim` and `Worker` take them."""
    return {"node": pairs("--node", node) or None, "filter_method": filter_method, "selector": selector}


@verb("task claim", "claim", example="zkmq task claim orders --lease 10m")
def claim(
    cli: Cli,
    queue: str = QUEUE,
    node: list[str] | None = NODE,
    filter_method: str = FILTER_METHOD,
    selector: str | None = WANTED_SELECTOR,
    timeout: float = span("wait so long for a task (0)", 0.0),
    lease: float = span("hold it so long (5m), whatever its lock", 300.0),
) -> int:
    """Take a task under a lease; 3 if there is none. Its token settles it from another process."""
    claimed = cli.queue(queue).claim(**wanted(node, filter_method, selector), timeout=timeout, lease=lease)
    if claimed is None:
        warn(f"nothing to claim in {queue}")
        return cli.say({"queue": queue, "id": None}, "", NOTHING)
    task = claimed.task
    value = {"queue": queue, "id": task.id, "token": claimed.token, "attempt": task.attempt, "lease": lease}
    value |= {"priority": task.priority, "filters": task.filters, "metadata": task.metadata}
    value |= records.payload("data", task.data)
    try:
        return cli.say(value, wording.facts(value))
    except OSError:
        claimed.release()  # nobody learned the token
        raise


@verb("task complete", "complete", example="zkmq task complete orders invoice-7 --token 42 --result paid")
def complete(
    cli: Cli,
    queue: str = QUEUE,
    task: str = TASK,
    token: int = _TOKEN,
    result: str | None = option("a text to keep", "R"),
    result_file: Path | None = option("take the result from a file", "F"),
    dedupe: float | None = span("refuse its id for so long"),
) -> int:
    """Finish a claimed task."""
    from ..engine import ZkmqError

    at_most_one(result=result, result_file=result_file)
    kept = None if result is None else os.fsencode(result)
    if result_file is not None:
        kept = read_file(result_file)
    handle = cli.queue(queue)
    handle.claim_handle(task, token).complete(kept, dedupe=dedupe)
    try:
        state = str(handle.task(task).state)  # inserted, where another run was held in escrow
    except ZkmqError:  # collected, say; that it was finished is certain
        state = "finished"
    return _say_state(cli, queue, task, token, state)


@verb("task fail", "fail", example="zkmq task fail orders invoice-7 --token 42 --error 'no paper'")
def fail(
    cli: Cli,
    queue: str = QUEUE,
    task: str = TASK,
    token: int | None = _OPTIONAL_TOKEN,
    force: bool = _FORCE,
    error: str = option("what went wrong", "TEXT", ...),
    no_retry: bool = flag("--no-retry", "to the dead letters at once"),
    backoff: float | None = span("try again after so long, not by the policy"),
) -> int:
    """Report that a claimed task failed."""
    at_most_one(token=token, force=force, required=True)
    at_most_one(no_retry=no_retry, backoff=backoff)
    if force and backoff is not None:
        raise UsageError("--backoff does not go with --force: the policy says when it is tried again")
    handle = cli.queue(queue)
    if token is None:
        state = _revoke(handle, task, error=_text(error), retry=not no_retry)
    else:
        state = str(handle.claim_handle(task, token).fail(_text(error), retry=not no_retry, backoff=backoff))
    return _say_state(cli, queue, task, token, state)


@verb("task release", "release", example="zkmq task release orders invoice-7 --token 42")
def release(
    cli: Cli, queue: str = QUEUE, task: str = TASK, token: int | None = _OPTIONAL_TOKEN, force: bool = _FORCE
) -> int:
    """Give a claimed task back."""
    at_most_one(token=token, force=force, required=True)
    if token is None:
        return _say_state(cli, queue, task, token, _revoke(cli.queue(queue), task))
    cli.queue(queue).claim_handle(task, token).release()
    return _say_state(cli, queue, task, token, "inserted")


@verb("task snooze", "snooze", example="zkmq task snooze orders invoice-7 --token 42 --delay 1h")
def snooze(cli: Cli, queue: str = QUEUE, task: str = TASK, token: int = _TOKEN, delay: float = _DELAY) -> int:
    """Give a claimed task back, to be handled later."""
    cli.queue(queue).claim_handle(task, token).snooze(delay)
    return _say_state(cli, queue, task, token, "inserted")


@verb("task extend", "extend", example="zkmq task extend orders invoice-7 --token 42 --lease 10m")
def extend(cli: Cli, queue: str = QUEUE, task: str = TASK, token: int = _TOKEN, lease: float = _LEASE) -> int:
    """Hold a claimed task longer."""
    cli.queue(queue).claim_handle(task, token).extend(lease)
    return _say_state(cli, queue, task, token, "claimed")


@verb("task progress", "progress", example="zkmq task progress orders invoice-7 0.5 --token 42")
def progress(
    cli: Cli,
    queue: str = QUEUE,
    task: str = TASK,
    value: float = operand("VALUE", "from 0 to 1"),
    token: int = _TOKEN,
    note: str = option("what is being done", "TEXT", ""),
) -> int:
    """Report how far a claimed task has come."""
    cli.queue(queue).claim_handle(task, token).progress(value, _text(note))
    return _say_state(cli, queue, task, token, "claimed")


def _revoke(queue: AnyQueue, task: str, **failed: Any) -> str:
    """Take a task from its holder, who is named; a claim that comes meanwhile is left alone."""
    seen = queue.task(task)
    state = str(queue.revoke(task, **failed, version=seen.version))
    warn(f"taken from {seen.consumer or 'a consumer whose claim had ended'}, attempt {seen.attempt}")
    return state


def _say_state(cli: Cli, queue: str, task: str, token: int | None, state: str) -> int:
    return cli.say({"queue": queue, "id": task, "token": token, "state": state}, f"{task} is {state}")


def _text(argument: str) -> str:
    return os.fsencode(argument).decode(errors="replace")
