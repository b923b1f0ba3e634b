"""The verbs on queues: status, consumers, list, clear, pause, resume, delete, gc, fsck; and doctor."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .configuration import conf_facts, conf_record
from .connection import OPTIONAL_QUEUE, QUEUE, Cli
from .options import STATES, UsageError, at_most_one, choice, flag, span
from .output import facts, iso, moment, percent, table
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import AnyQueue, QueueConf, Task

# --- How queues stand.

_HEAD = ("QUEUE", "PENDING", "SCHEDULED", "CLAIMED", "DEAD", "PAUSED", "CONSUMERS")


@verb("status", "queue status", example="zkmq status orders --json")
def status(cli: Cli, queue: str | None = OPTIONAL_QUEUE) -> int:
    """Say how a queue stands; without a name how all stand, a row for each, those in trouble first."""
    if queue is None:
        return _overview(cli)
    conf, stand = _stand(cli.queue(queue))
    value = {"queue": queue, **stand, "conf": conf_record(conf)}
    counts = stand.pop("counts")
    return cli.say(value, facts({"queue": queue, **counts, **stand, **conf_facts(conf)}))


def _stand(queue: AnyQueue) -> tuple[QueueConf, dict[str, Any]]:
    """A queue's configuration; its counts, whether it is paused, how many consumers live, if that is known."""
    from ..engine import Unsupported

    conf, counts = queue.conf(), queue.counts()
    try:
        alive = sum(consumer.alive for consumer in queue.consumers())
    except Unsupported:  # a file registers none
        alive = None
    return conf, {"counts": counts, "paused": conf.paused, "consumers": alive}


def _overview(cli: Cli) -> int:
    """A row for each queue, those in trouble first."""
    from ..engine import QueueNotFound

    found = {}
    for name in cli.client().queues():
        with contextlib.suppress(QueueNotFound):  # it was deleted meanwhile
            found[name] = _stand(cli.queue(name))[1]
    names = sorted(found, key=lambda name: (*_soundness(found[name]), name))
    rows = []
    for name in names:
        counts, paused, consumers = found[name].values()
        pending = counts["inserted"] - counts["scheduled"]
        paused = "paused" if paused else "-"
        rows.append((name, pending, counts["scheduled"], counts["claimed"], counts["dead"], paused, consumers))
    return cli.say({"queues": [{"queue": name, **found[name]} for name in names]}, table(rows, _HEAD))


def _soundness(stand: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """A key that sorts queues in trouble first: dead letters, paused, tasks that wait and no live consumer."""
    counts = stand["counts"]
    waiting = counts["inserted"] > counts["scheduled"]
    return not counts["dead"], not stand["paused"], not (waiting and stand["consumers"] == 0)


@verb("consumers", example="zkmq consumers orders")
def consumers(cli: Cli, queue: str = QUEUE) -> int:
    """Name the consumers of a queue: whether they live, what they accept, what they have had in hand the longest."""
    handle = cli.queue(queue)
    found = handle.consumers()
    ids = [task for each in found for task in each.in_hand]
    held = {task.id: task for task in handle.tasks(ids=ids, parts=["progress"])} if ids else {}
    rows, value = [], []
    for each in found:
        # An empty selector is one that accepts every task.
        selectors = "; ".join(text or "all tasks" for text in each.accepts) or None
        tasks = sorted((held[task] for task in each.in_hand if task in held), key=_begun)
        longest = (
            " ".join(filter(None, (tasks[0].id, moment(_begun(tasks[0])), percent(tasks[0].progress))))
            if tasks
            else None
        )
        alive = "yes" if each.alive else "no"
        rows.append((each.id, alive, each.name, each.host, each.pid, len(each.in_hand), selectors, longest))
        since = [{"id": task.id, "since": iso(_begun(task)), "progress": task.progress} for task in tasks]
        value.append({**asdict(each), "tasks": since})
    head = ("CONSUMER", "ALIVE", "NAME", "HOST", "PID", "CLAIMED", "SELECTORS", "LONGEST IN HAND")
    return cli.say({"queue": queue, "consumers": value}, table(rows, head))


def _begun(task: Task) -> int:
    """When a task that is in hand was begun, or else claimed."""
    return task.started_ms or task.claimed_ms or 0


# --- What is done with a whole queue.

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
    return _say_paused(cli, queue, cli.queue(queue).pause(), paused=True)


@verb("queue resume", "resume", example="zkmq queue resume orders")
def resume(cli: Cli, queue: str = QUEUE) -> int:
    """Hand out tasks again."""
    return _say_paused(cli, queue, cli.queue(queue).resume(), paused=False)


def _say_paused(cli: Cli, queue: str, changed: bool, *, paused: bool) -> int:
    value = {"queue": queue, "paused": paused, "changed": changed}
    return cli.say(value, f"{queue} {'paused' if paused else 'resumed'}{'' if changed else ' already'}")


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
