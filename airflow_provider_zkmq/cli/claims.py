"""The verbs on claims: claim, complete, fail, release, snooze, extend, progress."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from ..inspection import task_story, wording
from .connection import Cli, QueueName
from .options import at_most_one, flag, operand, option, pairs, read_value, span
from .output import warn
from .verbs import verb

NOTHING = 3


@dataclass
class Wanted:
    """The options that say which tasks a consumer takes."""

    node: list[str] | None = option("what the consumer offers for a filter", "K=V")
    filter_method: Literal["absolute", "at_least"] = option("how --node is compared", default="absolute")
    selector: str | None = option("such as 'region==eu, size<=10'; instead of --node", "TEXT")

    def arguments(self) -> dict[str, Any]:
        """The same as `Queue.claim` and `Worker` take it. Raises `UsageError`."""
        return vars(self) | {"node": pairs("--node", self.node) or None}


@dataclass
class Held:
    """The words that name a claim, and what is done with it."""

    queue: QueueName
    task: str = operand("TASK")
    token: int | None = option("what claim printed", "T", ...)

    def claim(self, cli: Cli) -> Any:
        """The handle of the claim."""
        return cli.queue(self.queue).claim_handle(self.task, self.token or 0)

    def say(self, cli: Cli, state: str) -> int:
        """Answer how the task stands now."""
        value = {"queue": self.queue, "id": self.task, "token": self.token, "state": state}
        return cli.say(value, f"{self.task} is {state}")


@dataclass
class Taken(Held):
    """The same for a verb that may also take a task from its holder."""

    token: int | None = option("what claim printed", "T")
    force: bool = flag("--force", "take it from whoever holds it, a hung worker say, which can settle it no more")

    def __post_init__(self) -> None:
        at_most_one(token=self.token, force=self.force, required=True)

    def revoke(self, cli: Cli, **failed: Any) -> str:
        """Take the task from its holder, who is named; a claim that comes meanwhile is left alone."""
        queue = cli.queue(self.queue)
        seen = queue.task(self.task)
        state = queue.revoke(self.task, **failed, version=seen.version)
        warn(f"taken from {seen.consumer or 'a consumer whose claim had ended'}, attempt {seen.attempt}")
        return str(state)


@verb("task claim", "claim", example="zkmq task claim orders --lease 10m")
def claim(
    cli: Cli,
    queue: QueueName,
    wanted: Wanted,
    timeout: float = span("wait so long for a task (0)", 0.0),
    lease: float = span("hold it so long (5m), whatever its lock", 300.0),
) -> int:
    """Take a task under a lease; 3 if there is none. Its token settles it from another process."""
    claimed = cli.queue(queue).claim(**wanted.arguments(), timeout=timeout, lease=lease)
    if claimed is None:
        warn(f"nothing to claim in {queue}")
        return cli.say({"queue": queue, "id": None}, "", NOTHING)
    value = task_story.claimed_record(queue, claimed, lease)
    try:
        return cli.say(value, wording.facts(value))
    except OSError:
        claimed.release()  # nobody learned the token
        raise


@verb("task complete", "complete", example="zkmq task complete orders invoice-7 --token 42 --result paid")
def complete(
    cli: Cli,
    held: Held,
    result: str | None = option("a text to keep, or - for standard input", "R"),
    dedupe: float | None = span("refuse its id for so long"),
) -> int:
    """Finish a claimed task."""
    from ..engine import ZkmqError

    held.claim(cli).complete(None if result is None else read_value(result), dedupe=dedupe)
    try:
        state = str(cli.queue(held.queue).task(held.task).state)  # inserted, where another run was held in escrow
    except ZkmqError:  # collected, say; that it was finished is certain
        state = "finished"
    return held.say(cli, state)


@verb("task fail", "fail", example="zkmq task fail orders invoice-7 --token 42 --error 'no paper'")
def fail(
    cli: Cli,
    held: Taken,
    error: str = option("what went wrong", "TEXT", ...),
    no_retry: bool = flag("--no-retry", "to the dead letters at once"),
    backoff: float | None = span("try again after so long, not by the policy"),
) -> int:
    """Report that a claimed task failed."""
    at_most_one(no_retry=no_retry, backoff=backoff)
    at_most_one(force=held.force, backoff=backoff)
    if held.force:
        return held.say(cli, held.revoke(cli, error=_text(error), retry=not no_retry))
    return held.say(cli, str(held.claim(cli).fail(_text(error), retry=not no_retry, backoff=backoff)))


@verb("task release", "release", example="zkmq task release orders invoice-7 --token 42")
def release(cli: Cli, held: Taken) -> int:
    """Give a claimed task back."""
    if held.force:
        return held.say(cli, held.revoke(cli))
    held.claim(cli).release()
    return held.say(cli, "inserted")


@verb("task snooze", "snooze", example="zkmq task snooze orders invoice-7 --token 42 --delay 1h")
def snooze(cli: Cli, held: Held, delay: float = span("how long it is not to be handled", ...)) -> int:
    """Give a claimed task back, to be handled later."""
    held.claim(cli).snooze(delay)
    return held.say(cli, "inserted")


@verb("task extend", "extend", example="zkmq task extend orders invoice-7 --token 42 --lease 10m")
def extend(cli: Cli, held: Held, lease: float = span("hold it so long from now", ...)) -> int:
    """Hold a claimed task longer."""
    held.claim(cli).extend(lease)
    return held.say(cli, "claimed")


@verb("task progress", "progress", example="zkmq task progress orders invoice-7 0.5 --token 42")
def progress(
    cli: Cli,
    held: Held,
    value: float = operand("VALUE", "from 0 to 1"),
    note: str = option("what is being done", "TEXT", ""),
) -> int:
    """Report how far a claimed task has come."""
    held.claim(cli).progress(value, _text(note))
    return held.say(cli, "claimed")


def _text(argument: str) -> str:
    return os.fsencode(argument).decode(errors="replace")
