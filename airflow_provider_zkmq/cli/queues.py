"""The verbs on whole queues: list, pause, resume, clear, gc, fsck, delete."""

from __future__ import annotations

import contextlib
import sys

from ..inspection.records import record
from ..inspection.wording import facts, table
from .connection import QUEUE, Cli
from .options import STATES, YES, at_most_one, choice, flag, span
from .output import progress
from .verbs import verb

DAMAGED = 7


@verb("queue list", "queues", example="zkmq queue list")
def queues(cli: Cli) -> int:
    """Name the queues."""
    names = cli.client().queues()
    return cli.say({"queues": names}, "\n".join(names))


@verb("queue clear", "clear", example="zkmq queue clear orders --state cancelled --yes")
def clear(
    cli: Cli, queue: str = QUEUE, state: str | None = choice(STATES, "only tasks in this state"), yes: bool = YES
) -> int:
    """Delete every task of a queue, or every one in a state, whatever is being done with them."""
    what = "every task" if state is None else f"every {state} task"
    cli.confirm(f"deleting {what} of queue {queue!r}", queue, yes=yes)
    handle, states = cli.queue(queue), STATES if state is None else (state,)

    def left() -> int:
        counts = handle.counts()
        return sum(counts[each] for each in states)

    total = left()
    with progress(f"clearing {queue}", total, lambda: total - left()):
        count = handle.clear(state)
    return cli.say({"queue": queue, "cleared": count}, f"{count} cleared")


@verb("queue delete", "delete", example="zkmq queue delete orders")
def delete(
    cli: Cli,
    queue: str = QUEUE,
    yes: bool = YES,
    force: bool = flag("--force", "also while others consume from it, or tasks of it are claimed"),
) -> int:
    """Delete a queue with everything in it."""
    from ..engine import QueueNotFound

    handle, held = cli.queue(queue), ""
    if not yes and sys.stdin.isatty():
        with contextlib.suppress(QueueNotFound):  # which the deletion tells, or goes on with one that was cut off
            counts = {state: number for state, number in handle.counts().items() if number and state in STATES}
            held = ", ".join(f"{number} {state}" for state, number in counts.items()) or "no task"
    cli.confirm(f"deleting queue {queue!r}{held and f', which holds {held},'}", queue, yes=yes)
    with progress(f"deleting {queue}"):
        count = handle.delete(confirm=True, force=force)
    return cli.say({"queue": queue, "deleted": count}, f"{queue} deleted, {count} task(s)")


@verb("queue gc", "gc", example="zkmq queue gc orders --lifetime 7d")
def collect(
    cli: Cli, queue: str = QUEUE, lifetime: float | None = span("delete what ended so long ago or earlier")
) -> int:
    """Delete what ended long ago."""
    with progress(f"cleaning {queue}"):
        value = {"queue": queue, **record(cli.queue(queue).collect_garbage(lifetime))}
    return cli.say(value, facts(value))


@verb("queue fsck", "fsck", example="zkmq fsck orders --repair")
def check(
    cli: Cli,
    queue: str = QUEUE,
    repair: bool = flag("--repair", "repair what is found, each task in one transaction"),
    dry_run: bool = flag("--dry-run", "write nothing, which is the default"),
) -> int:
    """Find what is damaged in a queue's tree, and repair it; 7 if damage is left."""
    at_most_one(repair=repair, dry_run=dry_run)
    with progress(f"checking {queue}"):
        found = record(cli.queue(queue).fsck(repair=repair))
    findings, count = found["findings"], found.pop("tasks")
    left = sum(not each["repaired"] for each in findings)
    summary = f"{count} task(s), {len(findings)} damage(s) found, {len(findings) - left} repaired"
    text = f"{table(findings, 'path what repaired')}\n{summary}" if findings else summary
    return cli.say({"queue": queue, "count": count, **found}, text, DAMAGED if left else 0)


@verb("queue pause", "pause", example="zkmq queue pause orders")
def pause(cli: Cli, queue: str = QUEUE) -> int:
    """Hand out nothing until the queue is resumed."""
    return _say_paused(cli, queue, cli.queue(queue).pause(), paused=True)


@verb("queue resume", "resume", example="zkmq queue resume orders")
def resume(cli: Cli, queue: str = QUEUE) -> int:
    """Hand out tasks again."""
    return _say_paused(cli, queue, cli.queue(queue).resume(), paused=False)


def _say_paused(cli: Cli, queue: str, changed: bool, *, paused: bool) -> int:
    value = {"queue": queue, "paused": paused, "changed": changed}
    return cli.say(value, f"{queue} {'paused' if paused else 'resumed'}{'' if changed else ' already'}")
