"""The steps of a queue's maintenance in Airflow: rescue and promotion, clean-up, the report of dead consumers.

Each may be cut off, repeated and run by several at once: one client cleans up at a time, by a lock in ZooKeeper, and
what is rescued or promoted changes hands in one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..engine import State, Unreadable
from ..engine.queue_internals import internals

if TYPE_CHECKING:
    from ..engine import AnyQueue


def bring_back(queue: AnyQueue) -> dict[str, Any]:
    """Give back what dead consumers and ended leases held, and promote what is due: ``{"queue", "before", "after"}``.

    What others did meanwhile is in the counts, too. Nothing is claimed. One look promotes some hundred tasks; `collect`
    does the rest. Raises `QueueNotFound`.
    """
    before = queue.counts()
    queue.ready(timeout=0)
    return {"queue": queue.name, "before": before, "after": queue.counts()}


def collect(queue: AnyQueue, lifetime: float | None) -> dict[str, Any]:
    """Delete what ended more than `lifetime` seconds ago (None: the queue's own).

    ``{"queue", "ran", "deleted", "kept", "rescued"}``; ``ran`` is False where another one is cleaning up.
    """
    done = queue.collect_garbage(lifetime=lifetime)
    kept = done.kept_unarchived + done.kept_changed + done.kept_for_batches
    return {"queue": queue.name, "ran": done.ran, "deleted": done.collected, "kept": kept, "rescued": done.rescued}


def foresee(queue: AnyQueue, lifetime: float | None) -> dict[str, Any]:
    """Return what maintenance would do now, and change nothing.

    ``counts`` of the queue; ``to_archive``: how many that ended, dead ones too, no archive holds; ``to_delete``: how
    many ended longer ago than `lifetime` seconds; ``held_by_the_dead``: how many tasks would be given back by consumers
    that are gone, without claims whose leases have ended: the counts have them as pending, or as dead.
    """
    conf = queue.conf()
    span = conf.task_gc_lifetime if lifetime is None else lifetime
    read = internals(queue)
    ended = read.scan([*read.ids(State.FINISHED), *read.ids(State.CANCELLED)], ["ended_ms"]).columns
    oldest = 0.0 if span is None else read.now().timestamp() * 1000 - span * 1000
    return {
        "queue": queue.name,
        "counts": queue.counts(),
        "to_archive": sum(not isinstance(each, Unreadable) for each in read.ended_between(conf.archived or 0)),
        "to_delete": sum((moment or 0) <= oldest for moment in ended["ended_ms"]),
        "held_by_the_dead": sum(len(each.in_hand) for each in queue.consumers() if not each.alive),
    }
