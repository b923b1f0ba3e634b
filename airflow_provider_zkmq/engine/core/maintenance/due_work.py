"""What is due: scheduled tasks are promoted, tasks of dead consumers and of ended leases are given back."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from ... import errors
from ...errors import ConfigError, TransportError, ZkmqError
from .. import zk_operations as zk
from ..client_state import Claimed, Context, Handover, Schedule, Sending, standing
from ..model.states import State
from ..model.values import Duration, dump, seconds
from ..model.znode_names import BUCKET_MS, bucket_start, entry_task, entry_time, lease_task
from ..read import bulk_read, claim_status, server_clock, watch_cache
from ..tasks.interventions import rescue_task
from ..tasks.settle import begin_again, has_overdue, release, seconds_until_deferred, settle_deferred
from ..transaction_retries import Holds, damaged, proven, transact
from ..write import next_run, transitions
from ..write.batch_end import close_batches, close_pending
from ..write.commit import Plan, Sent, Why, commit, mending, send_together
from ..write.transitions import Current
from ..zk_operations import Procedure
from .consumer_registry import check_cancellations, share

# --- Scheduled tasks whose time has come go to their lanes; runs in escrow whose dedupe window has ended are inserted.
#
# One look promotes a bounded number, several transactions in flight, and says when the next one is due. What is
# refused, because somebody changed the task at the same moment, is tried again soon: no watch would tell of it.


#: Consumers promote due tasks of their own share first; after this long, anybody's.
GRACE_MS: Final = 250
#: How many one look promotes; a claim that looks after the queue is not kept waiting for more.
MOST: Final = 128


def promote_due(context: Context, schedule: Schedule) -> Procedure[int]:
    """Move what has come due into its lane, and insert the runs in escrow whose time has come; at most so many."""
    count = 0
    for index in ("scheduled", "requeued"):
        buckets = yield from watch_cache.listing(context, context.paths.at(index))
        if not buckets:
            continue
        now = context.clock.certainly_past((yield from server_clock.server_time(context)))
        for name in buckets:
            start, bucket = bucket_start(name), context.paths.at(index, name)
            if start is None:
                context.report(bucket, "no bucket of ours; stepped over")
            elif start <= now:
                count += yield from _promote_bucket(context, bucket, now, schedule, MOST - count)
            else:
                schedule.no_later_than(context.clock.until(start))
                break
    return count


def _promote_bucket(context: Context, path: str, now: int, schedule: Schedule, most: int) -> Procedure[int]:
    entries = yield from watch_cache.listing(context, path)
    if not entries:
        if (bucket_start(path.rpartition("/")[2]) or 0) + 2 * BUCKET_MS < now:
            yield zk.Multi((zk.Delete(path),))  # refused if an entry came meanwhile
            context.segments.buckets.discard(path)
        return 0
    names = _due_names(context, path, entries, now, schedule)
    records = yield from bulk_read.read_records(context, [entry_task(name) or "" for name in names[:most]])
    due: dict[str, Current] = {}
    for name, record in zip(names[:most], records, strict=True):
        entry = f"{path}/{name}"
        if record is bulk_read.Unread.CORRUPT:
            context.ignored_paths.add(entry)
        elif (
            isinstance(record, bulk_read.Record)
            and record.state.index
            and context.paths.at(record.state.index) == entry
        ):
            due[entry] = Current(record.task_id, record.stat.version, record.state, zxid=record.stat.mzxid)
        elif context.listings.still_listed(path, name):
            context.report(entry, "an entry whose task is not scheduled by it; stepped over")
    done = yield from _promote(context, due, schedule)
    if len(names) > most:
        schedule.no_later_than(0.0)
        schedule.more = schedule.more or done > 0
    return done


def _due_names(context: Context, path: str, entries: list[str], now: int, schedule: Schedule) -> list[str]:
    """The entries whose time has come, for this consumer; the next one is on the schedule."""
    slot, shares = share(context)
    # Who only looks leaves all of them to the consumers, as long as there are any.
    looks = context.registration.consumer is None and context.known_consumers.live
    due = []
    for name in entries:
        when, entry = entry_time(name), f"{path}/{name}"
        if when is None:
            context.report(entry, "no entry of ours; stepped over")
            continue
        if entry in context.ignored_paths or context.retry_times.waits(entry, schedule):
            continue
        mine = when if not looks and zlib.crc32(name.encode()) % shares == slot else when + GRACE_MS
        if mine <= now:
            due.append(name)
        else:
            schedule.no_later_than(context.clock.until(mine))
            if when > now:
                break  # entries sort by time
    return due


def promote_task(context: Context, record: bulk_read.Record) -> Procedure[bool]:
    """Have a scheduled task in its lane, whose time has come; False where it changed meanwhile, or is damaged."""
    entry = context.paths.at(record.state.index or "")
    current = Current(record.task_id, record.stat.version, record.state, zxid=record.stat.mzxid)
    return (yield from unless_damaged(context, entry, _promote_one(context, current)))


def _promote(context: Context, due: dict[str, Current], schedule: Schedule) -> Procedure[int]:
    """Those without a place of their own go to the ends of their lanes, all in flight together; then the others."""
    plans: dict[str, Plan] = {}
    for entry, current in due.items():
        # In a queue of strict order a task goes back to where it once stood in a segment.
        has_place = current.state.rank is not None and current.state.placed
        if current.state.state is State.INSERTED and not has_place:
            plans[entry] = yield from transitions.promote_to_end(context, current)
    sent = (yield from send_together(list(plans.values()))) if plans else []
    firsts = dict(zip(plans, sent, strict=True))
    count = 0
    for entry in (*plans, *(entry for entry in due if entry not in plans)):
        if entry not in plans:
            done = yield from unless_damaged(context, entry, _promote_one(context, due[entry]))
        else:
            first = firsts[entry]
            done = first.outcome.committed
            if not done:
                context.segments.open.clear()  # a segment may have come or gone: looked up again by the next try
            if not done and not first.outcome.unknown:
                build = partial(transitions.promote_to_end, context, due[entry])
                done = yield from unless_damaged(context, entry, _committed(plans[entry], build, first))
        if done:
            context.retry_times.pauses.pop(entry, None)
        else:
            context.retry_times.retry_later(entry, schedule)
        count += done
    return count


def _promote_one(context: Context, current: Current) -> Procedure[bool]:
    state = current.state
    if state.state is State.FINISHED:  # its dedupe window has ended, and a run is held in escrow
        ended = state.with_attempt("finished", state.ended or 0, None, state.started)
        return (yield from next_run.rerun(context, current.with_state(ended), context.marks.nonce())).committed
    build = partial(transitions.promote, context, current)
    return (yield from _committed((yield from build()), build))


def _committed(plan: Plan, build: Callable[[], Procedure[Plan]], first: Sent | None = None) -> Procedure[bool]:
    """Carry a promotion out; False where the task changed meanwhile. Raises `CorruptRecord`."""
    refusal = (yield from commit(plan, mending(build), first=first)).refusal
    if refusal is not None and refusal.why is not Why.CHANGED:
        raise damaged("a promotion", refusal.outcome, refusal.multi)
    return refusal is None


def unless_damaged(context: Context, path: str, procedure: Procedure[bool]) -> Procedure[bool]:
    """Whether a duty was carried out; what refuses it for good is reported once, and holds up no other duty.

    It is the caller's to leave it alone for a while: somebody may put the znode right.
    """
    try:
        return (yield from procedure)
    except (TransportError, ConfigError):
        raise
    except ZkmqError as error:
        context.warn_once(path, str(error), damage=str(error))
        return False


# --- The maintenance lock: an ephemeral znode, which ends with its holder's session at the latest.
#
# A clean-up that is cancelled or interrupted can give nothing back: its lock would stand for as long as its session
# lives. What the lock holds when it is this client's is therefore remembered before it is first sent, and is the
# same for the client's whole life: one that is found while none of its threads cleans up was left behind.


def take_lock(context: Context) -> Procedure[bool]:
    """Take the lock, also one that this client left behind; False where another client has it.

    Where ZooKeeper refuses to make one, that is told, and there is none to wait for: clean-up may run in several places
    at once, and at a hard quota it is what makes room.
    """
    content = context.maintenance.content or dump({"nonce": context.marks.nonce(), **context.describe}).decode()
    context.maintenance.content, context.maintenance.left = content, True
    lock = zk.Create(context.paths.at("lock"), content.encode(), ephemeral=True)
    outcome = yield from transact(zk.Multi((lock,)))
    if not outcome.committed:
        outcome = (yield from proven(_lock_proof(context))) or outcome
    context.maintenance.left = outcome.committed
    if outcome.failure is zk.Failure.OTHER:
        context.warn_once(lock.path, f"clean-up goes on without its lock, which cannot be made: {outcome.detail}")
    return outcome.committed or outcome.failure is zk.Failure.OTHER


def _lock_proof(context: Context) -> Holds:
    """What shows that the lock is this client's."""
    return Holds(((context.paths.at("lock"), (context.maintenance.content or "").encode()),))


def give_lock_back(context: Context) -> Procedure[None]:
    """End the lock, if there is one of ours. Where the connection is lost it is remembered: what was done was done."""
    if context.maintenance.left:
        with suppress(TransportError):
            yield from transact(zk.Multi((zk.Delete(context.paths.at("lock")),)))
            context.maintenance.left = False


def release_abandoned_lock(context: Context) -> Procedure[None]:
    """Give back a lock that a clean-up of this client left behind; not one under which another thread is at it.

    It costs nothing where none was left. Another client's lock is not touched.
    """
    if context.maintenance.busy or not context.maintenance.left:
        return
    context.maintenance.busy = True
    try:
        if (yield from proven(_lock_proof(context))) is not None:
            yield from give_lock_back(context)
        else:
            context.maintenance.left = False
    finally:
        context.maintenance.busy = False


# --- What calls of a client left to be put right: it is paid before the client's next claim, and in the background.
#
# A call that was cut off, or lost its connection at its last step, can do nothing more itself. What it leaves is
# remembered: claims that nobody got, rollbacks, batches to be ended, the lock of a clean-up; and of handlers that
# have begun, that this does not stand yet. So is what was handled, and goes with the client's next claim: it waits
# for that no longer than it may.


def has_pending(context: Context) -> bool:
    """Whether any operation is pending."""
    return bool(
        context.claims.has_undelivered()
        or context.claims.deferred
        or context.pending.batches
        or context.pending.unmarked_starts
        or (context.maintenance.left and not context.maintenance.busy)
    )


def finish_pending(context: Context) -> Procedure[int]:
    """Finish what can be finished; returns how many tasks were given back. May raise `TransportError`."""
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
    count = (yield from finish_pending(context)) if has_pending(context) else 0
    yield from check_cancellations(context)
    if context.pending.lost_claims:
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


def _rescue_lost_claims(context: Context) -> Procedure[int]:
    """Give back what this client had in hand and lost since somebody deleted the claim's znode.

    Its session lives, so that nobody else would ever take it away. Elsewhere settled or cancelled, it has no note.
    """
    count = 0
    for note, task_id in list(context.pending.lost_claims.items()):
        if context.pending.lost_claims.pop(note, None) is None:
            continue  # another call is at it
        if (yield zk.Exists(context.paths.task(task_id, "claim"))) is None:
            count += yield from unless_damaged(context, note, rescue_task(context, task_id, note))
    return count


def rescue_dead(context: Context, schedule: Schedule) -> Procedure[int]:
    """Give back what consumers without a live session were working on.

    A watch tells of the next death. A rescue that was refused is on the schedule, since no watch tells of that.
    """
    if not context.known_consumers.stands:
        yield from watch_cache.single_flight(
            context, "consumers", lambda: context.known_consumers.stands, lambda: _read_consumers(context)
        )
    count = 0
    for consumer in list(context.known_consumers.unrescued):
        if not context.retry_times.waits(context.paths.consumer(consumer), schedule):
            count += yield from _rescue(context, consumer, schedule)
    return count


def _read_consumers(context: Context) -> Procedure[None]:
    """Learn who lives, under a watch, and who is registered and does not.

    The register is read last. A consumer that joined or died between the two has fired the watch: then nobody is taken
    for dead, and the next look reads both anew.
    """
    known, watch = context.known_consumers, context.new_watch()
    live = yield zk.Children(context.paths.at("live"), watch)
    registered = yield zk.Children(context.paths.at("consumers"))
    known.live = sorted(live or ())
    known.unrescued = [] if watch.fired else sorted(set(registered or ()) - set(known.live))
    known.watch = watch


def _rescue(context: Context, consumer: str, schedule: Schedule) -> Procedure[int]:
    """Rescue one dead consumer's tasks, then take it off the register; what is refused is put off."""
    count, paths = 0, context.paths
    path, notes = paths.consumer(consumer), paths.consumer(consumer, "current")
    current = yield zk.Children(notes)
    for task_id in current or ():
        note = paths.current(consumer, task_id)
        count += yield from unless_damaged(context, note, rescue_task(context, task_id, note))
    gone = [path] if current is None else [notes, path]
    outcome: zk.Outcome = yield zk.Multi(tuple(map(zk.Delete, gone)))
    if outcome.committed or (yield zk.Children(path)) is None:
        context.retry_times.pauses.pop(path, None)
        if consumer in context.known_consumers.unrescued:
            context.known_consumers.unrescued.remove(consumer)
        yield from close_batches(context)
    else:  # something of it is left: a task that somebody else was changing, or a znode that is not ours
        context.retry_times.retry_later(path, schedule)
    return count


def expire_leases(context: Context, schedule: Schedule) -> Procedure[int]:
    """Rescue the claims whose lease or lock has ended, judged by the server's clock."""
    names: list[str] = []
    for path in map(context.paths.at, claim_status.DEADLINES):
        leases = yield from watch_cache.listing(context, path, max_age=LEASE_LISTING_SECONDS)
        if leases is None:
            continue  # the queue is gone
        listed = context.listings.at(path)
        if not listed.fresh:  # the names are not of this moment: look again when they are as old as they may be
            schedule.no_later_than(listed.read_at + LEASE_LISTING_SECONDS - context.run.monotonic())
        names += [name for name in (f"{path}/{name}" for name in leases) if name not in context.ignored_paths]
    if not names:
        context.known_consumers.lease_ends.clear()
        return 0
    now = yield from server_clock.certainly_past(context)
    yield from claim_status.read_ends(context, names, now)
    count = 0
    for path in names:
        end = context.known_consumers.lease_ends.get(path)
        if end is not None and end <= now:
            count += yield from _expire(context, path, schedule)
        elif end is not None:
            context.retry_times.pauses.pop(path, None)  # it was extended: the next end is a new one
            schedule.no_later_than(context.clock.until(end))
    return count


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
    return bool((yield zk.Wait(context.signal, seen, seconds("timeout", timeout))))


# --- Claims that their callers never got, or went away from, are given back before their client claims again.
#
# A call that was cancelled or interrupted, or that ended in `OutcomeUnknown`, may have claimed a task: its session
# lives, so no rescue would ever take it away. The claim's own transaction is issued once more, which tells what
# became of the first one whatever was on its way, and the task is released; the delivery counts as no attempt,
# since no handler has begun.
#
# A rollback that was cut off, or whose server was away, is repeated here too: its caller has left the transaction.
# What the transaction had taken counts as a delivery. So does what a loop over claims left (`core.claim.claim`).


def give_back(context: Context) -> Procedure[int]:
    """Give back what callers left behind; returns how many tasks. After a `TransportError` it is still pending."""
    count = 0
    for nonce in list(context.claims.handovers):
        # A caller that was refused and goes on sending has a new one by the same nonce.
        while (handover := context.claims.handovers.get(nonce)) is not None and handover.busy is not None:
            yield zk.Wait(handover.busy, 0, turn=True)  # another call is at it
        if handover is not None and handover.caller.left:  # else it has been given back, or its caller has it
            count += yield from _give_back_alone(context, nonce, handover)
    for key, unsettled in list(context.claims.unsettled.items()):
        try:
            yield from unsettled.end(context, unsettled.claimed)
            count += 1
        except errors.TransportError:
            raise
        except errors.ClaimLost:  # its session has ended, or its caller was here first
            pass
        except errors.ZkmqError as error:
            context.run.report(context.paths.task(unsettled.claimed.task_id), f"what was left is not settled: {error}")
        context.claims.unsettled.pop(key, None)
    return count


def _give_back_alone(context: Context, nonce: str, handover: Handover) -> Procedure[int]:
    """Give back what was on its way to one caller; other calls wait meanwhile, so that it is given back once."""
    handover.busy = busy = context.run.new_signal()
    count = 0
    try:
        for sending in list(handover.sent):
            outcome = yield from _outcome_of(context, sending)
            for claimed in sending.claims:
                if outcome is not None and not claimed.lost:  # an earlier try, cut off, may have come to this one
                    context.claims.receive(claimed, outcome.zxid or 0)
                    count += yield from _release(context, claimed)
        context.claims.handovers.pop(nonce, None)
        return count
    finally:
        handover.busy = None
        busy.fire()


def _outcome_of(context: Context, sending: Sending) -> Procedure[zk.Outcome | None]:
    """What became of a transaction that claims, or becomes of it now; None: it did not happen, or all of it is over."""
    first = sending.claims[0]
    if first.ends_with_session and first.session != context.run.session():
        return None  # it ended with its session
    outcome = yield from transact(sending.multi)
    if not outcome.committed:
        outcome = (yield from proven(standing(context.paths, sending.claims))) or outcome
    return outcome if outcome.committed else None


def _release(context: Context, claimed: Claimed) -> Procedure[bool]:
    try:
        yield from release(context, claimed)
    except errors.TransportError:
        raise
    except errors.ZkmqError as error:
        context.run.report(context.paths.task(claimed.task_id), f"a claim that nobody got was not given back: {error}")
        return False
    return True
