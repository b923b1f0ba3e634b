"""Rescue: what dead consumers and interrupted calls left is put right."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.client.context import Context, Schedule
from airflow_provider_zkmq.engine.core.maintenance.consumers import check_cancellations, release_abandoned_lock
from airflow_provider_zkmq.engine.core.maintenance.contention import unless_damaged
from airflow_provider_zkmq.engine.core.maintenance.promote import promote_due
from airflow_provider_zkmq.engine.core.model.names import lease_task
from airflow_provider_zkmq.engine.core.model.time import Duration, seconds
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Ops, Outcome, Procedure, Wait
from airflow_provider_zkmq.engine.core.read.cache import listing
from airflow_provider_zkmq.engine.core.read.leases import DEADLINES, certainly_past, read_ends
from airflow_provider_zkmq.engine.core.read.nodes import single_flight
from airflow_provider_zkmq.engine.core.tasks.deferred_completions import (
    has_overdue,
    seconds_until_deferred,
    settle_deferred,
)
from airflow_provider_zkmq.engine.core.tasks.holding import begin_again
from airflow_provider_zkmq.engine.core.tasks.recovery import rescue_task
from airflow_provider_zkmq.engine.core.tasks.settle import give_back
from airflow_provider_zkmq.engine.core.write.batch_closing import close_batches, close_pending

# --- What calls of a client left to be put right: it is paid before the client's next claim, and in the background.
#
# A call that was cut off, or lost its connection at its last step, can do nothing more itself. What it leaves is
# remembered: claims that nobody got, rollbacks, batches to be ended, the lock of a clean-up; and of handlers that
# have begun, that this does not stand yet. So is what was handled, and goes with the client's next claim: it waits
# for that no longer than it may.


def has_pending(context: Context) -> bool:
    """Whether anything is owed."""
    return bool(
        context.claims.has_undelivered()
        or context.claims.deferred
        or context.pending.batches
        or context.pending.unmarked_starts
        or (context.maintenance.left and not context.maintenance.busy)
    )


def finish_pending(context: Context) -> Procedure[int]:
    """Put right what can be; returns how many tasks were given back. Raises `TransportError`: then it is owed still."""
    if has_overdue(context):
        yield from settle_deferred(context)
    yield from begin_again(context)
    count = yield from give_back(context)
    yield from close_pending(context)
    yield from release_abandoned_lock(context)
    return count


def until_due(context: Context, most: float) -> float:
    """Seconds until something is to be looked at, at the most `most`; with the client's lock held."""
    return min(most, seconds_until_deferred(context, most))


# --- Giving back what nobody holds any more: the tasks of dead consumers, and of claims whose lease or lock has ended.
#
# All of it is driven by watches and by the clock of the server: where nothing happened, it costs no request. What
# it costs otherwise depends on what is in flight, not on the backlog. What is refused, because somebody else was at
# the same task, is tried again: at once while it changes, then after a pause that is on the schedule of whoever
# looks.

LEASE_LISTING_SECONDS: Final = 0.5


def maintain(context: Context, schedule: Schedule | None = None) -> Procedure[int]:
    """Give back, rescue and promote what is due; returns how many tasks became claimable.

    `schedule` is told when to look again; one look does a bounded amount of work, so that a claim is not kept waiting.
    """
    schedule = schedule or context.schedule()
    count = yield from finish_pending(context)
    yield from check_cancellations(context)
    count += yield from _rescue_lost_claims(context)
    return count + (yield from _give_back_and_promote(context, schedule))


def bring_back(context: Context) -> Procedure[int]:
    """Give back, rescue and promote all that is due, as for a queue that nobody claims from; how many tasks."""
    count, more = 0, True
    while more and not context.maintenance.closing:
        schedule = context.schedule()
        count += yield from _give_back_and_promote(context, schedule)
        more = schedule.more
    return count


def _give_back_and_promote(context: Context, schedule: Schedule) -> Procedure[int]:
    count = yield from rescue_dead(context, schedule)
    count += yield from expire_leases(context, schedule)
    return count + (yield from promote_due(context, schedule))


# --- dead consumers


def _rescue_lost_claims(context: Context) -> Procedure[int]:
    """Give back what this client had in hand and lost since somebody deleted the claim's znode.

    Its session lives, so that nobody else would ever take it away. Elsewhere settled or cancelled, it has no note.
    """
    count = 0
    for note, task_id in list(context.pending.lost_claims.items()):
        if context.pending.lost_claims.pop(note, None) is None:
            continue  # another call is at it
        if (yield Exists(context.paths.task(task_id, "claim"))) is None:
            count += yield from unless_damaged(context, note, rescue_task(context, task_id, note))
    return count


def rescue_dead(context: Context, schedule: Schedule | None = None) -> Procedure[int]:
    """Give back what consumers without a live session were working on.

    A watch tells of the next death. A rescue that was refused is on the schedule, since no watch tells of that.
    """
    schedule = schedule or context.schedule()
    if not context.known_consumers.stands:
        yield from single_flight(
            context, "consumers", lambda: context.known_consumers.stands, lambda: _read_consumers(context)
        )
    count = 0
    for consumer in list(context.known_consumers.unrescued):
        if not context.retry_times.waits(context.paths.consumer(consumer), schedule):
            count += yield from _rescue_consumer(context, consumer, schedule)
    return count


def _read_consumers(context: Context) -> Procedure[None]:
    """Learn who lives, under a watch, and who is registered and does not.

    The register is read last. A consumer that joined or died between the two has fired the watch: then nobody is taken
    for dead, and the next look reads both anew.
    """
    known, watch = context.known_consumers, context.new_watch()
    live = yield Children(context.paths.at("live"), watch)
    registered = yield Children(context.paths.at("consumers"))
    known.live = sorted(live or ())
    known.unrescued = [] if watch.fired else sorted(set(registered or ()) - set(known.live))
    known.watch = watch


def _rescue_consumer(context: Context, consumer: str, schedule: Schedule) -> Procedure[int]:
    """Rescue one dead consumer's tasks, then take it off the register; what is refused is put off."""
    count = 0
    path = context.paths.consumer(consumer)
    current = yield Children(context.paths.consumer(consumer, "current"))
    for task_id in current or ():
        note = context.paths.current(consumer, task_id)
        count += yield from unless_damaged(context, note, rescue_task(context, task_id, note))
    if (yield from _deregister(context, consumer, noted=current is not None)):
        context.retry_times.pauses.pop(path, None)
        if consumer in context.known_consumers.unrescued:
            context.known_consumers.unrescued.remove(consumer)
        yield from close_batches(context)
    else:  # something of it is left: a task that somebody else was changing, or a znode that is not ours
        context.retry_times.retry_later(path, schedule)
    return count


def _deregister(context: Context, consumer: str, *, noted: bool) -> Procedure[bool]:
    """Take a dead consumer off the register; `noted`: what lists its tasks goes too. Whether nothing of it is left."""
    path, ops = context.paths.consumer(consumer), Ops()
    if noted:
        ops.delete(context.paths.consumer(consumer, "current"))
    outcome: Outcome = yield ops.delete(path).multi()
    return outcome.committed or (yield Children(path)) is None


# --- leases


def expire_leases(context: Context, schedule: Schedule) -> Procedure[int]:
    """Rescue the claims whose lease or lock has ended, judged by the server's clock."""
    names = yield from _leases(context, schedule)
    if not names:
        context.known_consumers.lease_ends.clear()
        return 0
    now = yield from certainly_past(context)
    yield from read_ends(context, names, now)
    count = 0
    for path in names:
        count += yield from _expire_if_over(context, path, now, schedule)
    return count


def _expire_if_over(context: Context, path: str, now: int, schedule: Schedule) -> Procedure[bool]:
    end = context.known_consumers.lease_ends.get(path)
    if end is not None and end <= now:
        return (yield from _expire(context, path, schedule))
    if end is not None:
        context.retry_times.pauses.pop(path, None)  # it was extended: the next end is a new one
        schedule.no_later_than(context.clock.until(end))
    return False


def _leases(context: Context, schedule: Schedule) -> Procedure[list[str]]:
    names: list[str] = []
    for index in DEADLINES:
        path = context.paths.at(index)
        leases = yield from listing(context, path, max_age=LEASE_LISTING_SECONDS)
        if leases is None:
            continue  # the queue is gone
        listed = context.listings.at(path)
        if not listed.fresh:  # the names are not of this moment: look again when they are as old as they may be
            schedule.no_later_than(listed.read_at + LEASE_LISTING_SECONDS - context.run.monotonic())
        names += [name for name in (f"{path}/{name}" for name in leases or ()) if name not in context.ignored_paths]
    return names


def _expire(context: Context, path: str, schedule: Schedule) -> Procedure[bool]:
    if context.retry_times.waits(path, schedule):
        return False
    task_id = lease_task(path.rpartition("/")[2])
    if task_id is None:
        context.report(path, "no lease of ours; stepped over")
        return False
    if (yield from unless_damaged(context, path, rescue_task(context, task_id, path))):
        context.retry_times.pauses.pop(path, None)
        return True
    context.known_consumers.lease_ends.pop(path, None)
    context.retry_times.retry_later(path, schedule)  # extended, or gone, or somebody is at it: the next look finds out
    return False


# --- What a worker's keeper does for its queue while every slot of the worker is busy: idle ones do it themselves.


def run_maintenance(context: Context) -> Procedure[None]:
    """Rescue and promote what is due, as a claim would; nothing is done by a client that has not claimed yet."""
    if context.registration.consumer is not None:
        yield from maintain(context)


def wait_for_change(context: Context, seen: int, timeout: Duration) -> Procedure[bool]:
    """Wait until the queue has changed since its `changes` were `seen`, at most for `timeout`; whether it has."""
    return bool((yield Wait(context.signal, seen, seconds("timeout", timeout))))
