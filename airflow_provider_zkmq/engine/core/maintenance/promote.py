"""Scheduled tasks whose time has come go to their lanes; runs in escrow whose dedupe window has ended are inserted.

One look promotes a bounded number, several transactions in flight, and says when the next one is due. What is refused,
because somebody changed the task at the same moment, is tried again soon: no watch would tell of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.client.context import Context, Schedule
from airflow_provider_zkmq.engine.core.maintenance.contention import share, unless_damaged
from airflow_provider_zkmq.engine.core.model.names import BUCKET_MS, bucket_start, entry_task, entry_time
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Delete, Multi, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import damaged
from airflow_provider_zkmq.engine.core.read.cache import listing
from airflow_provider_zkmq.engine.core.read.nodes import Record, Unread, read_records
from airflow_provider_zkmq.engine.core.read.server_clock import server_time
from airflow_provider_zkmq.engine.core.write import escrow, transitions
from airflow_provider_zkmq.engine.core.write.commit import Plan, Sent, Why, commit, mending, send_together
from airflow_provider_zkmq.engine.core.write.record import Current

#: Consumers promote due tasks of their own share first; after this long, anybody's.
GRACE_MS: Final = 250
#: How many one look promotes; a claim that looks after the queue is not kept waiting for more.
MOST: Final = 128


@dataclass(frozen=True, slots=True)
class _Due:
    """A task whose time has come, and the entry that says so."""

    entry: str
    record: Record

    @property
    def state(self) -> TaskState:
        """The task's record."""
        return self.record.state

    @property
    def current(self) -> Current:
        """What a promotion is based on."""
        stat = self.record.stat
        return Current(self.record.task_id, stat.version, self.state, zxid=stat.mzxid)


def promote_due(context: Context, schedule: Schedule | None = None, most: int = MOST) -> Procedure[int]:
    """Move what has come due into its lane, and insert the runs in escrow whose time has come; at most so many."""
    schedule = schedule or context.schedule()
    count = 0
    for index in ("scheduled", "requeued"):
        count += yield from _promote_index(context, index, schedule, most - count)
    return count


def _promote_index(context: Context, index: str, schedule: Schedule, most: int) -> Procedure[int]:
    buckets = yield from listing(context, context.paths.at(index))
    if not buckets:
        return 0
    now = context.clock.certainly_past((yield from server_time(context)))
    count = 0
    for name in buckets:
        start = bucket_start(name)
        if start is None:
            context.report(context.paths.at(index, name), "no bucket of ours; stepped over")
        elif start > now:
            schedule.no_later_than(context.clock.until(start))
            break
        else:
            count += yield from _promote_bucket(context, context.paths.at(index, name), now, schedule, most - count)
    return count


def _promote_bucket(context: Context, path: str, now: int, schedule: Schedule, most: int) -> Procedure[int]:
    entries = yield from listing(context, path)
    if not entries:
        if (bucket_start(path.rpartition("/")[2]) or 0) + 2 * BUCKET_MS < now:
            yield Multi((Delete(path),))  # refused if an entry came meanwhile
            context.segments.buckets.discard(path)
        return 0
    due = _due_names(context, path, entries, now, schedule)
    tasks = yield from _read(context, path, due[:most])
    done = yield from _promote(context, tasks, schedule)
    if len(due) > most:
        schedule.no_later_than(0.0)
        schedule.more = schedule.more or done > 0
    return done


def _due_names(context: Context, path: str, entries: list[str], now: int, schedule: Schedule) -> list[str]:
    """The entries whose time has come, for this consumer; the next one is on the schedule."""
    due = []
    for name in entries:
        when = entry_time(name)
        if when is None:
            context.report(f"{path}/{name}", "no entry of ours; stepped over")
        if (
            when is None
            or f"{path}/{name}" in context.ignored_paths
            or context.retry_times.waits(f"{path}/{name}", schedule)
        ):
            continue
        mine = when if _my_share(context, name) else when + GRACE_MS
        if mine <= now:
            due.append(name)
        else:
            schedule.no_later_than(context.clock.until(mine))
            if when > now:
                break  # entries sort by time
    return due


def promote_task(context: Context, record: Record) -> Procedure[bool]:
    """Have a scheduled task in its lane, whose time has come; False where it changed meanwhile, or is damaged."""
    due = _Due(context.paths.at(record.state.index or ""), record)
    return (yield from unless_damaged(context, due.entry, _promote_one(context, due)))


def _my_share(context: Context, name: str) -> bool:
    """Whether it is this client's to promote; who only looks leaves it to the consumers, as long as there are any."""
    if context.registration.consumer is None and context.known_consumers.live:
        return False
    slot, shares = share(context)
    return zlib.crc32(name.encode()) % shares == slot


def _read(context: Context, bucket: str, names: list[str]) -> Procedure[list[_Due]]:
    """The records of what is due; what is no task's, or another's entry, is reported and stepped over."""
    records = yield from read_records(context, [entry_task(name) or "" for name in names])
    due = []
    for name, record in zip(names, records, strict=True):
        entry = f"{bucket}/{name}"
        if record is Unread.CORRUPT:
            context.ignored_paths.add(entry)
        elif isinstance(record, Record) and record.state.index and context.paths.at(record.state.index) == entry:
            due.append(_Due(entry, record))
        elif context.listings.still_listed(bucket, name):
            context.report(entry, "an entry whose task is not scheduled by it; stepped over")
    return due


def _promote(context: Context, entries: list[_Due], schedule: Schedule) -> Procedure[int]:
    plain = [due for due in entries if due.state.state is State.INSERTED and not _has_place(due.state)]
    done = yield from _promote_together(context, plain, schedule)
    for due in entries:
        if due not in plain:
            promoted = yield from unless_damaged(context, due.entry, _promote_one(context, due))
            done += _noted(context, due, promoted, schedule)
    return done


def _noted(context: Context, due: _Due, promoted: bool, schedule: Schedule) -> bool:
    if promoted:
        context.retry_times.pauses.pop(due.entry, None)
    else:
        context.retry_times.retry_later(due.entry, schedule)
    return promoted


def _has_place(state: TaskState) -> bool:
    """Whether it goes back to a place of its own: in a queue of strict order, where it once stood in a segment."""
    return state.rank is not None and bool(state.place.split("/")[1])


def _promote_together(context: Context, entries: list[_Due], schedule: Schedule) -> Procedure[int]:
    """To the ends of their lanes, each in a transaction of its own, all in flight together."""
    plans: list[Plan] = []
    for due in entries:
        plans.append((yield from transitions.promote_to_end(context, due.current)))
    if not plans:
        return 0
    count = 0
    for due, plan, sent in zip(entries, plans, (yield from send_together(plans)), strict=True):
        done = sent.outcome.committed
        if not done:
            context.segments.open.clear()  # a segment may have come or gone: looked up again by the next try
        if not done and not sent.outcome.unknown:
            build = partial(transitions.promote_to_end, context, due.current)
            done = yield from unless_damaged(context, due.entry, _committed(plan, build, sent))
        count += _noted(context, due, done, schedule)
    return count


def _promote_one(context: Context, due: _Due) -> Procedure[bool]:
    if due.state.state is State.FINISHED:  # its dedupe window has ended, and a run is held in escrow
        state = due.state.with_attempt("finished", due.state.ended or 0, None, due.state.started)
        current = due.current.with_state(state)
        return (yield from escrow.rerun(context, current, context.marks.nonce())).committed
    build = partial(transitions.promote, context, due.current)
    return (yield from _committed((yield from build()), build))


def _committed(plan: Plan, build: Callable[[], Procedure[Plan]], first: Sent | None = None) -> Procedure[bool]:
    """Carry a promotion out; False where the task changed meanwhile. Raises `CorruptRecord`."""
    refusal = (yield from commit(plan, mending(build), first=first)).refusal
    if refusal is not None and refusal.why is not Why.CHANGED:
        raise damaged("a promotion", refusal.outcome, refusal.multi)
    return refusal is None
