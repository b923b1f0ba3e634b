"""The verbs on whole queues: how they stand, configure, pause, clean, check, delete; and ``doctor``."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..inspection import diagnosis, queue_status, records, wording
from .connection import OPTIONAL_QUEUE, QUEUE, Cli
from .options import ATTEMPTS, STATES, YES, UsageError, at_most_one, choice, flag, option, pairs, span
from .output import progress
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import Limit

DAMAGED = 7
ORDERS = ("default", "fifo")
_HUNG_AFTER = span("a task in hand is hung when nothing was heard of it for so long (5m)", 300.0)


@verb("status", "queue status", example="zkmq status orders --json", watched=True)
def status(cli: Cli, queue: str | None = OPTIONAL_QUEUE, hung_after: float = _HUNG_AFTER) -> int:
    """Say how a queue stands, or how all stand: what is wrong first, and what to do about it."""
    from ..engine import QueueNotFound

    if queue is not None:
        value = queue_status.queue_status(cli.queue(queue), hung_after)
        conf = queue_status.conf_record(cli.queue(queue).conf())
        plain = {name: value[name] for name in ("queue", "paused", "consumers", "oldest_at", "next_due_at")}
        page = wording.facts(plain | value["counts"] | queue_status.conf_facts(conf))
        return cli.say(value | {"conf": conf}, _with_troubles([value], page))
    found = []
    for name in cli.client().queues():
        with contextlib.suppress(QueueNotFound):  # it was deleted meanwhile
            found.append(queue_status.queue_status(cli.queue(name), hung_after))
    found.sort(key=lambda each: (queue_status.severity(each), each["queue"]))
    rows = []
    for each in found:
        counts, oldest, due = each["counts"], each["oldest_at"], each["next_due_at"]
        pending = counts["inserted"] - counts["scheduled"]
        more = {"pending": pending, "oldest": oldest and wording.since(oldest), "next_due": due and wording.since(due)}
        rows.append(each | counts | more)
    page = wording.table(rows, "queue pending scheduled claimed dead paused consumers oldest next_due")
    return cli.say({"queues": found}, _with_troubles(found, page))


def _with_troubles(found: list[dict[str, object]], page: str) -> str:
    """A page after the troubles of queues, a line each."""
    troubles: list[tuple[object, dict[str, str]]] = [(each["queue"], it) for each in found for it in each["troubles"]]  # type: ignore[attr-defined]
    lines = [f"{queue}: {trouble['text']}  ({trouble['remedy']})" for queue, trouble in troubles]
    return "\n".join([*lines, *([""] if lines else []), page])


@verb("consumers", example="zkmq consumers orders", watched=True)
def consumers(cli: Cli, queue: str = QUEUE, hung_after: float = _HUNG_AFTER) -> int:
    """Name the consumers of a queue: whether they live, what they accept, what they have in hand; hung ones first."""
    value = queue_status.consumer_records(cli.queue(queue), hung_after)
    # An empty selector is one that accepts every task.
    rows = [each | {"accepts": "; ".join(it or "all tasks" for it in each["accepts"]) or None} for each in value]
    return cli.say(
        {"queue": queue, "consumers": value},
        wording.table(rows, "consumer alive host pid in_hand accepts longest_in_hand"),
    )


@verb("doctor", example="zkmq doctor --hosts zk1:2181")
def doctor(cli: Cli) -> int:
    """Say whether the servers answer and let us write, which clock they have, what is open, and what is installed."""
    value = {"hosts": cli.hosts, "root": cli.root, **diagnosis.diagnose(cli.client())}
    page = {**value, "extras": [name for name, there in value["extras"].items() if there]}
    return cli.say(value, "\n".join([wording.facts(page), *diagnosis.warnings(value)]))


# --- What is done with a whole queue.


@verb("queue create", "queue configure", "configure", example="zkmq queue configure orders --filter size=integer")
def configure(
    cli: Cli,
    queue: str = QUEUE,
    filter: list[str] | None = option(  # noqa: A002  the option's name
        "declare a filter: enum:low,standard,high or integer or string; replaces the whole declaration", "NAME=TYPE"
    ),
    task_gc_lifetime: float | None = span("how long ended tasks are kept"),
    task_gc_interval: float | None = span("how often clean-up runs"),
    lock: float | None = span("how long a claim without a lease holds if not extended; 0: for ever"),
    order: str | None = choice(ORDERS, "fifo: claims strictly in the order of enqueues, at less throughput"),
    archive: bool | None = flag(
        "--archive/--no-archive", "clean-up keeps what no archive holds, also before the first run of one", None
    ),
    follow: bool | None = flag(
        "--follow/--no-follow", "streams follow what ends: runs that leave before they were taken are kept", None
    ),
    limit: str | None = option(
        "so many tasks claimed at once, or in a period, for each value of a filter: "
        "concurrency=2,rate=10,per=1m,by=customer; none lifts it",
        "NAME=VALUE,…",
    ),
    attempts: str | None = ATTEMPTS,
    backoff_factor: float | None = span("pauses of at most X, 2X, 4X, …, half of each random; 0: --min-backoff"),
    min_backoff: float | None = span("shortest pause before another attempt"),
    max_backoff: float | None = span("longest pause before another attempt"),
    final: list[str] | None = option(
        "an exception of a worker's handler after which there is no other attempt, such as ValueError or "
        "package.module.Error; may be repeated; replaces the whole list, '' empties it",
        "NAME",
    ),
) -> int:
    """Create a queue or change its configuration."""
    from ..engine import RetryPolicy, parse_type

    types = {name: parse_type(text) for name, text in pairs("--filter", filter).items()}
    backoff = {"factor": backoff_factor, "min_backoff": min_backoff, "max_backoff": max_backoff}
    changes: dict[str, Any] = {name: value for name, value in backoff.items() if value is not None}
    if attempts is not None:
        changes["attempts"] = None if attempts == "unbounded" else attempts
    if final:
        changes["final"] = tuple(name for name in final if name)
    handle, policy = cli.queue(queue), None
    if changes:
        present = handle.conf().policy if queue in cli.client().queues() else RetryPolicy()
        policy = replace(present, **changes)
    gc: dict[str, Any] = {"task_gc_lifetime": task_gc_lifetime, "task_gc_interval": task_gc_interval}
    more: dict[str, Any] = {"lock": lock, "order": order, "archive": archive, "follow": follow, "limit": _limit(limit)}
    handle.configure(filters=types or None, policy=policy, **gc, **more)
    conf = queue_status.conf_record(handle.conf())
    return cli.say({"queue": queue, "conf": conf}, wording.facts({"queue": queue, **queue_status.conf_facts(conf)}))


def _limit(text: str | None) -> Limit | None:
    """The limit that `--limit` names. Raises `UsageError`."""
    from ..engine import Limit

    if text is None or text == "none":
        return None if text is None else Limit()
    given: dict[str, Any] = pairs("--limit", text.split(","))
    if unknown := given.keys() - {"concurrency", "rate", "per", "by"}:
        raise UsageError(f"--limit has no {min(unknown)!r}: concurrency=, rate=, per= and by= are known")
    for name in given.keys() & {"concurrency", "rate"}:
        if not given[name].isdecimal():
            raise UsageError(f"--limit {name}={given[name]!r} is no whole number")
        given[name] = int(given[name])
    return Limit(**given)


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
        value = {"queue": queue, **records.record(cli.queue(queue).collect_garbage(lifetime))}
    return cli.say(value, wording.facts(value))


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
        found = records.record(cli.queue(queue).fsck(repair=repair))
    findings, count = found["findings"], found.pop("tasks")
    left = sum(not each["repaired"] for each in findings)
    summary = f"{count} task(s), {len(findings)} damage(s) found, {len(findings) - left} repaired"
    text = f"{wording.table(findings, 'path what repaired')}\n{summary}" if findings else summary
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
