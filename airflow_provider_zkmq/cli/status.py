"""How queues stand: the verbs status and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .configuration import conf_facts, conf_record
from .connection import OPTIONAL_QUEUE, QUEUE, Cli
from .output import facts, table
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import AnyQueue, QueueConf

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
        with suppress(QueueNotFound):  # it was deleted meanwhile
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
    """Name the consumers of a queue: whether they live, what they accept, and what they have in hand."""
    found = cli.queue(queue).consumers()
    rows = []
    for each in found:
        # An empty selector is one that accepts every task.
        selectors = "; ".join(text or "all tasks" for text in each.accepts) or None
        alive = "yes" if each.alive else "no"
        rows.append((each.id, alive, each.name, each.host, each.pid, len(each.in_hand), selectors))
    head = ("CONSUMER", "ALIVE", "NAME", "HOST", "PID", "CLAIMED", "SELECTORS")
    return cli.say({"queue": queue, "consumers": [asdict(each) for each in found]}, table(rows, head))
