"""The verbs on whole queues: how they stand, configure, pause, clean, check, delete; and ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ..inspection import queue_status, records, terminal, wording
from .connection import OPTIONAL_QUEUE, Cli, QueueName, Watching
from .options import ATTEMPTS, STATES, YES, State, at_most_one, flag, option, pairs, parse_limit, span
from .verbs import verb

DAMAGED = 7
Order = Literal["default", "fifo"]
_HUNG_AFTER = span("a task in hand is hung when nothing was heard of it for so long (5m)", 300.0)


@verb("status", "queue status", example="zkmq status orders --json")
def status(cli: Watching, queue: str | None = OPTIONAL_QUEUE, hung_after: float = _HUNG_AFTER) -> int:
    """Say how a queue stands, or how all stand: what is wrong first, and what to do about it."""
    if queue is None:
        every = queue_status.all_queues(cli.client(), hung_after)
        return cli.say({"queues": every}, queue_status.overview_page(every))
    conf = queue_status.conf_record(cli.queue(queue).conf())
    value = queue_status.queue_status(cli.queue(queue), hung_after) | {"conf": conf}
    cli.say_where(queue=queue)
    return cli.say(value, queue_status.queue_page(value))


@verb("consumers", example="zkmq consumers orders")
def consumers(cli: Watching, queue: QueueName, hung_after: float = _HUNG_AFTER) -> int:
    """Name the consumers of a queue: whether they live, what they accept, what they have in hand; hung ones first."""
    value = queue_status.consumer_records(cli.queue(queue), hung_after)
    return cli.say({"queue": queue, "consumers": value}, queue_status.consumers_page(value))


@verb("doctor", example="zkmq doctor --hosts zk1:2181")
def doctor(cli: Cli) -> int:
    """Say whether the servers answer and let us write, which clock they have, what is open, and what is installed."""
    from ..inspection import diagnosis

    value = {"hosts": cli.hosts, "root": cli.root, **diagnosis.diagnose(cli.client())}
    return cli.say(value, diagnosis.page(value))


# --- What is done with a whole queue.


_FILTER = "declare a filter: integer, string or enum:low,high; replaces the whole declaration"
_ARCHIVE = "clean-up keeps what no archive holds, also before the first run of one"
_FOLLOW = "streams follow what ends: runs that leave before they were taken are kept"
_LIMIT = "concurrency=N at once, rate=N in per=1m, of each value with by=FILTER; replaces all of it; none lifts it"
_FINAL = "after such an exception, say package.module.Error, no more attempts; replaces the list, '' empties it"


@dataclass
class Policy:
    """What of a queue's retry policy is to be changed."""

    attempts: Any = ATTEMPTS
    factor: float | None = span(
        "pauses of at most X, 2X, 4X, …, half random; 0: --min-backoff", names=("--backoff-factor",)
    )
    min_backoff: float | None = span("shortest pause before another attempt")
    max_backoff: float | None = span("longest pause before another attempt")
    final: list[str] | None = option(_FINAL, "NAME")

    def changes(self) -> dict[str, Any]:
        """The fields of the policy that are given."""
        changes = {name: value for name, value in vars(self).items() if value is not None} | (self.attempts or {})
        return changes if self.final is None else changes | {"final": tuple(filter(None, self.final))}


@verb(
    "queue create",
    "queue configure",
    "configure",
    example="zkmq queue configure orders --limit concurrency=2,rate=10,per=1m",
)
def configure(
    cli: Cli,
    queue: QueueName,
    policy: Policy,
    filter: list[str] | None = option(_FILTER, "NAME=TYPE"),  # noqa: A002  the option's name
    task_gc_lifetime: float | None = span("how long ended tasks are kept"),
    task_gc_interval: float | None = span("how often clean-up runs"),
    lock: float | None = span("how long a claim without a lease holds if not extended; 0: for ever"),
    order: Order | None = option("fifo: claims strictly in the order of enqueues, at less throughput"),
    archive: bool | None = flag("--archive/--no-archive", _ARCHIVE, None),
    follow: bool | None = flag("--follow/--no-follow", _FOLLOW, None),
    limit: Any = option(_LIMIT, "NAME=VALUE,…", parser=parse_limit),
) -> int:
    """Create a queue or change its configuration."""
    from ..engine import RetryPolicy, parse_type

    types = {name: parse_type(text) for name, text in pairs("--filter", filter).items()}
    handle, changed = cli.queue(queue), None
    if changes := policy.changes():
        changed = replace(handle.conf().policy if queue in cli.client().queues() else RetryPolicy(), **changes)
    gc: dict[str, Any] = {"task_gc_lifetime": task_gc_lifetime, "task_gc_interval": task_gc_interval}
    more: dict[str, Any] = {"lock": lock, "order": order, "archive": archive, "follow": follow, "limit": limit}
    handle.configure(filters=types or None, policy=changed, **gc, **more)
    conf = queue_status.conf_record(handle.conf())
    return cli.say({"queue": queue, "conf": conf}, wording.facts({"queue": queue, **queue_status.conf_facts(conf)}))


@verb("queue list", "queues", example="zkmq queue list")
def queues(cli: Cli) -> int:
    """Name the queues."""
    names = cli.client().queues()
    return cli.say({"queues": names}, "\n".join(names))


@verb("queue clear", "clear", example="zkmq queue clear orders --state cancelled --yes")
def clear(cli: Cli, queue: QueueName, state: State | None = option("only tasks in this state"), yes: bool = YES) -> int:
    """Delete every task of a queue, or every one in a state, whatever is being done with them."""
    what = "every task" if state is None else f"every {state} task"
    cli.confirm(f"deleting {what} of queue {queue!r}", queue, yes=yes)
    handle, states = cli.queue(queue), STATES if state is None else (state,)

    def left() -> int:
        counts = handle.counts()
        return sum(counts[each] for each in states)

    total = left()
    with terminal.progress(f"clearing {queue}", total, lambda: total - left()):
        count = handle.clear(state)
    return cli.say({"queue": queue, "cleared": count}, f"{count} cleared")


@verb("queue delete", "delete", example="zkmq queue delete orders")
def delete(cli: Cli, queue: QueueName, yes: bool = YES, force: bool = flag("--force", "also while it is used")) -> int:
    """Delete a queue with everything in it."""
    cli.confirm(f"deleting queue {queue!r} with all its tasks", queue, yes=yes)
    with terminal.progress(f"deleting {queue}"):
        count = cli.queue(queue).delete(confirm=True, force=force)
    return cli.say({"queue": queue, "deleted": count}, f"{queue} deleted, {count} task(s)")


@verb("queue gc", "gc", example="zkmq queue gc orders --lifetime 7d")
def collect(cli: Cli, queue: QueueName, lifetime: float | None = span("delete what ended so long ago")) -> int:
    """Delete what ended long ago."""
    with terminal.progress(f"cleaning {queue}"):
        value = {"queue": queue, **records.record(cli.queue(queue).collect_garbage(lifetime))}
    return cli.say(value, wording.facts(value))


@verb("queue fsck", "fsck", example="zkmq fsck orders --repair")
def check(
    cli: Cli,
    queue: QueueName,
    repair: bool = flag("--repair", "repair what is found, each task in one transaction"),
    dry_run: bool = flag("--dry-run", "write nothing, which is the default"),
) -> int:
    """Find what is damaged in a queue's tree, and repair it; 7 if damage is left."""
    from ..inspection import diagnosis

    at_most_one(repair=repair, dry_run=dry_run)
    with terminal.progress(f"checking {queue}"):
        found = cli.queue(queue).fsck(repair=repair)
    value, page = diagnosis.fsck_story(queue, found)
    return cli.say(value, page, 0 if all(each.repaired for each in found.findings) else DAMAGED)


@verb("queue pause", "pause", example="zkmq queue pause orders")
def pause(cli: Cli, queue: QueueName) -> int:
    """Hand out nothing until the queue is resumed."""
    return _say_paused(cli, queue, cli.queue(queue).pause(), paused=True)


@verb("queue resume", "resume", example="zkmq queue resume orders")
def resume(cli: Cli, queue: QueueName) -> int:
    """Hand out tasks again."""
    return _say_paused(cli, queue, cli.queue(queue).resume(), paused=False)


def _say_paused(cli: Cli, queue: str, changed: bool, *, paused: bool) -> int:
    value = {"queue": queue, "paused": paused, "changed": changed}
    return cli.say(value, f"{queue} {'paused' if paused else 'resumed'}{'' if changed else ' already'}")
