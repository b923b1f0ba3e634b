"""The verbs that say how things stand: ``status`` of queues, ``consumers``, and ``doctor`` of the way to them."""

from __future__ import annotations

import contextlib

from ..inspection import diagnosis, queue_status
from ..inspection.wording import facts, since, table
from .connection import OPTIONAL_QUEUE, QUEUE, Cli
from .options import span
from .verbs import verb

_HUNG_AFTER = span("a task in hand is hung when nothing was heard of it for so long (5m)", 300.0)


@verb("status", "queue status", example="zkmq status orders --json", watched=True)
def status(cli: Cli, queue: str | None = OPTIONAL_QUEUE, hung_after: float = _HUNG_AFTER) -> int:
    """Say how a queue stands, or how all stand: what is wrong first, and what to do about it."""
    from ..engine import QueueNotFound

    if queue is not None:
        value = queue_status.queue_status(cli.queue(queue), hung_after)
        conf = queue_status.conf_record(cli.queue(queue).conf())
        plain = {name: value[name] for name in ("queue", "paused", "consumers", "oldest_at", "next_due_at")}
        page = facts(plain | value["counts"] | queue_status.conf_facts(conf))
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
        more = {"pending": pending, "oldest": oldest and since(oldest), "next_due": due and since(due)}
        rows.append(each | counts | more)
    page = table(rows, "queue pending scheduled claimed dead paused consumers oldest next_due")
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
        {"queue": queue, "consumers": value}, table(rows, "consumer alive host pid in_hand accepts longest_in_hand")
    )


@verb("doctor", example="zkmq doctor --hosts zk1:2181")
def doctor(cli: Cli) -> int:
    """Say whether the servers answer and let us write, which clock they have, what is open, and what is installed."""
    value = {"hosts": cli.hosts, "root": cli.root, **diagnosis.diagnose(cli.client())}
    page = {**value, "extras": [name for name, there in value["extras"].items() if there]}
    return cli.say(value, "\n".join([facts(page), *diagnosis.warnings(value)]))
