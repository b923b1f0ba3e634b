"""``zkmq queue configure``, and a queue's configuration for programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..inspection.queue_status import conf_facts, conf_record
from ..inspection.wording import facts
from .connection import QUEUE, Cli
from .options import ATTEMPTS, choice, flag, option, pairs, span
from .verbs import verb

ORDERS = ("default", "fifo")


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
    more: dict[str, Any] = {"lock": lock, "order": order, "archive": archive, "follow": follow}
    handle.configure(filters=types or None, policy=policy, **gc, **more)
    conf = conf_record(handle.conf())
    return cli.say({"queue": queue, "conf": conf}, facts({"queue": queue, **conf_facts(conf)}))
