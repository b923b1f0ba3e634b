"""The verbs on queues: list, clear, pause, resume, delete, gc, fsck; and doctor."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict

from .connection import QUEUE, Cli
from .options import STATES, UsageError, at_most_one, choice, flag, span
from .output import facts, table
from .verbs import verb

DAMAGED = 7


@verb("queue list", "queues", example="zkmq queue list")
def queues(cli: Cli) -> int:
    """Name the queues."""
    names = cli.client().queues()
    return cli.say({"queues": names}, "\n".join(names))


@verb("doctor", example="zkmq doctor --hosts zk1:2181")
def doctor(cli: Cli) -> int:
    """Say whether the servers answer, and what is open to anyone above the root."""
    names, opened = cli.client().queues(), list(cli.client().open_above)
    found = {"hosts": cli.hosts, "root": cli.root, "queues": len(names)}
    remedy = f"{', '.join(opened)}: give it an ACL (docs/security.md)" if opened else "nothing"
    return cli.say({**found, "open_above": opened}, facts({**found, "open to anyone above the root": remedy}))


@verb("queue clear", "clear", example="zkmq queue clear orders --state cancelled --yes")
def clear(
    cli: Cli,
    queue: str = QUEUE,
    state: str | None = choice(STATES, "only tasks in this state"),
    yes: bool = flag("--yes", "needed: what is deleted cannot be brought back"),
) -> int:
    """Delete every task of a queue, or every one in a state, whatever is being done with them."""
    if not yes:
        what = "every task" if state is None else f"every {state} task"
        raise UsageError(f"clear deletes {what} of queue {queue!r} for good: add --yes to do so")
    count = cli.queue(queue).clear(state)
    return cli.say({"queue": queue, "cleared": count}, f"{count} cleared")


@verb("queue gc", "gc", example="zkmq queue gc orders --lifetime 7d")
def collect(
    cli: Cli, queue: str = QUEUE, lifetime: float | None = span("delete what ended so long ago or earlier")
) -> int:
    """Delete what ended long ago."""
    report = asdict(cli.queue(queue).collect_garbage(lifetime))
    return cli.say({"queue": queue, **report}, facts(report))


@verb("fsck", "queue fsck", example="zkmq fsck orders --repair")
def check(
    cli: Cli,
    queue: str = QUEUE,
    repair: bool = flag("--repair", "repair what is found, each task in one transaction"),
    dry_run: bool = flag("--dry-run", "write nothing, which is the default"),
) -> int:
    """Find what is damaged in a queue's tree, and repair it; 7 if damage is left."""
    at_most_one(repair=repair, dry_run=dry_run)
    report = cli.queue(queue).fsck(repair=repair)
    left = sum(not finding.repaired for finding in report.findings)
    rows = [(each.path, each.what, "repaired" if each.repaired else "-") for each in report.findings]
    summary = f"{report.tasks} task(s), {len(rows)} damage(s) found, {len(rows) - left} repaired"
    text = f"{table(rows, ('PATH', 'WHAT', 'NOW'))}\n{summary}" if rows else summary
    return cli.say({"queue": queue, **asdict(report)}, text, DAMAGED if left else 0)


@verb("queue pause", "pause", example="zkmq queue pause orders")
def pause(cli: Cli, queue: str = QUEUE) -> int:
    """Hand out nothing until the queue is resumed."""
    changed = cli.queue(queue).pause()
    value = {"queue": queue, "paused": True, "changed": changed}
    return cli.say(value, f"{queue} paused{'' if changed else ' already'}")


@verb("queue resume", "resume", example="zkmq queue resume orders")
def resume(cli: Cli, queue: str = QUEUE) -> int:
    """Hand out tasks again."""
    changed = cli.queue(queue).resume()
    value = {"queue": queue, "paused": False, "changed": changed}
    return cli.say(value, f"{queue} resumed{'' if changed else ' already'}")


@verb("queue delete", "delete", example="zkmq queue delete orders")
def delete(
    cli: Cli,
    queue: str = QUEUE,
    yes: bool = flag("--yes", "do not ask once more"),
    force: bool = flag("--force", "also while others consume from it, or tasks of it are claimed"),
) -> int:
    """Delete a queue with everything in it."""
    from ..engine import QueueNotFound

    if not (yes or sys.stdin.isatty()):
        raise UsageError(f"delete loses every task of queue {queue!r} for good: add --yes to do so")
    handle = cli.queue(queue)
    if not yes:
        with contextlib.suppress(QueueNotFound):  # which the deletion tells, or goes on with one that was cut off
            counts = {state: number for state, number in handle.counts().items() if number and state in STATES}
            known = ", ".join(f"{number} {state}" for state, number in counts.items()) or "no task"
            print(f"queue {queue!r} holds {known}; nothing of it comes back.", file=sys.stderr)
            print("Type its name to delete it: ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip() != queue:
                raise UsageError("that is not its name: nothing was deleted")
    count = handle.delete(confirm=True, force=force)
    return cli.say({"queue": queue, "deleted": count}, f"{queue} deleted, {count} task(s)")
