"""How many tasks are in each state, and where they are listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import bucket_start
from airflow_provider_zkmq.engine.core.model.lanes import is_lane, segments_of
from airflow_provider_zkmq.engine.core.model.paths import SEPARATOR, entry_task
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Procedure, Stat
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.lapsed import count_scheduled, lapsed_tasks
from airflow_provider_zkmq.engine.core.reading.nodes import list_children, read_stats
from airflow_provider_zkmq.engine.errors import ConfigError


def as_state(state: State | str | None) -> State | None:
    """A state by its name, None staying None. Raises `ConfigError`."""
    try:
        return None if state is None else State(state)
    except ValueError:
        msg = f"state {state!r} is unknown: use one of {', '.join(State)}"
        raise ConfigError(msg) from None


def task_ids(context: Context, state: State | None) -> Procedure[list[str]]:
    """The ids of the tasks in a state, as they are now (`reading.lapsed`); all of them without one."""
    listed = yield from listed_ids(context, state)
    if state not in {State.INSERTED, State.CLAIMED, State.DEAD}:
        return listed
    lapsed = yield from lapsed_tasks(context)
    others = [task_id for task_id in listed if task_id not in lapsed]
    return others + [task_id for task_id, now in lapsed.items() if now.state is state]


def listed_ids(context: Context, state: State | None) -> Procedure[list[str]]:
    """The ids of the tasks whose records have a state, from where they are listed; all of them without one.

    A state's lists are read in the order in which tasks go from one to the other, so that none is missed on its way.
    """
    match state:
        case None:
            return sorted((yield Children(context.paths.at("tasks"))) or ())
        case State.DEAD:
            return sorted((yield Children(context.paths.at("dlq"))) or ())
        case State.FINISHED:
            finished = yield from _two_levels(context, "finished")
            return _tasks_of([*finished, *(yield from _two_levels(context, "requeued"))])
        case State.CANCELLED:
            return _tasks_of((yield from _two_levels(context, "cancelled")))
        case State.CLAIMED:
            return (yield from _claimed_ids(context))
        case State.INSERTED:
            scheduled = yield from _two_levels(context, "scheduled")
            return _tasks_of([*(yield from _pending_entries(context)), *scheduled])


def _tasks_of(entries: Iterable[str]) -> list[str]:
    """Each once, also one that was listed twice on its way."""
    return list(dict.fromkeys(task for task in map(entry_task, entries) if task is not None))


def _two_levels(context: Context, index: str) -> Procedure[list[str]]:
    buckets = yield from _parts(context, index)
    listings = yield from list_children([context.paths.at(index, bucket) for bucket in buckets])
    return [name for names in listings for name in names]


def _parts(context: Context, index: str) -> Procedure[list[str]]:
    """The buckets of an index, or the segments of a lane; what is neither is not looked into."""
    names: list[str] = (yield Children(context.paths.at(index))) or []
    ours = (
        segments_of(names) if index.startswith("queue/") else [name for name in names if bucket_start(name) is not None]
    )
    return sorted(ours)


def _pending_entries(context: Context) -> Procedure[list[str]]:
    lanes = sorted(filter(is_lane, (yield Children(context.paths.at("queue"))) or ()))
    entries: list[str] = []
    for lane in lanes:
        entries += yield from _two_levels(context, f"queue/{lane}")
    return entries


def _claimed_ids(context: Context) -> Procedure[list[str]]:
    consumers = sorted((yield Children(context.paths.at("consumers"))) or ())
    notes = yield from list_children([context.paths.consumer(name, "current") for name in consumers])
    leases = (yield Children(context.paths.at("leases"))) or ()
    leased = [name.rpartition(SEPARATOR)[0] for name in leases]
    return sorted({task for names in notes for task in names} | set(filter(None, leased)))


def counts(context: Context) -> Procedure[dict[str, int]]:
    """How many tasks are in each state, ``scheduled`` being the part of ``inserted`` that waits for its time.

    Read from Stats, in requests that grow with lanes and consumers, not with tasks; but of claims with a deadline each
    is read once, and again when it may have ended: what has is counted as what follows it. Raises `ConfigError` where
    the queue does not exist.
    """
    yield from read_conf(context)
    pending = yield from _count_lanes(context)
    delayed, scheduled = yield from count_scheduled(context, (yield from _parts(context, "scheduled")))
    finished = (yield from _count_two(context, "finished")) + (yield from _count_two(context, "requeued"))
    cancelled = yield from _count_two(context, "cancelled")
    consumers = sorted((yield Children(context.paths.at("consumers"))) or ())
    stats = yield from read_stats([context.paths.consumer(name, "current") for name in consumers])
    dlq, leases = yield from read_stats((context.paths.at("dlq"), context.paths.at("leases")))
    lapsed = Counter(now.state for now in (yield from lapsed_tasks(context)).values())
    return {
        "inserted": pending + delayed + lapsed[State.INSERTED],
        "scheduled": scheduled,
        "claimed": _sum(stats) + _sum([leases]) - lapsed.total(),
        "finished": finished,
        "dead": _sum([dlq]) + lapsed[State.DEAD],
        "cancelled": cancelled,
    }


def _sum(stats: Iterable[Stat | None]) -> int:
    return sum(stat.children for stat in stats if stat is not None)


def _count_two(context: Context, index: str) -> Procedure[int]:
    buckets = yield from _parts(context, index)
    return _sum((yield from read_stats([context.paths.at(index, bucket) for bucket in buckets])))


def _count_lanes(context: Context) -> Procedure[int]:
    lanes = sorted(filter(is_lane, (yield Children(context.paths.at("queue"))) or ()))
    total = 0
    for lane in lanes:
        total += yield from _count_two(context, f"queue/{lane}")
    return total
