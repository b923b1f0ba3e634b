"""How many tasks are in each state, and which states are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.names import SEPARATOR, bucket_start, entry_task, is_lane, segments_of
from airflow_provider_zkmq.engine.core.model.selectors import FilterTypes, Selector, as_selector
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Pipeline, Procedure, Stat, Watch
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.leases import DEADLINES, count_scheduled, lapsed_of, lapsed_tasks
from airflow_provider_zkmq.engine.core.read.nodes import list_children, read_stats
from airflow_provider_zkmq.engine.errors import ConfigError

# --- How many tasks are in each state, and where they are listed.


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
    own = (
        segments_of(names) if index.startswith("queue/") else [name for name in names if bucket_start(name) is not None]
    )
    return sorted(own)


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


# --- How many tasks are pending, for who asks again and again: under watches, so that it costs by what has changed.

T = TypeVar("T")


def pending(context: Context) -> Procedure[int]:
    """How many tasks are pending, as `counts` tells it; nothing is asked of the server while nothing has changed.

    Of what lists tasks only the number of names is remembered, as a queue may be deep. Raises `QueueNotFound`.
    """
    yield from read_conf(context)
    at, seen = context.paths.at, set[str]()
    tops = [at(name) for name in ("queue", "scheduled", *DEADLINES)]
    names, scheduled, *deadlines = yield from _below(context, tops, sorted, seen)
    lanes = [at("queue", lane) for lane in filter(is_lane, names)]
    segments = yield from _below(context, lanes, segments_of, seen)
    lists = [f"{lane}/{name}" for lane, found in zip(lanes, segments, strict=True) for name in found]
    lists += [at("scheduled", name) for name in scheduled if bucket_start(name) is not None]
    listed = yield from _below(context, lists, len, seen)
    for path in context.sizes.readings.keys() - seen:
        context.sizes.readings.pop(path, None)
    held = [f"{top}/{name}" for top, found in zip(tops[2:], deadlines, strict=True) for name in found]
    lapsed = yield from lapsed_of(context, held)
    return sum(listed) + sum(now.state is State.INSERTED for now in lapsed.values())


def _below(
    context: Context, paths: Sequence[str], made: Callable[[list[str]], T], seen: set[str]
) -> Procedure[list[T]]:
    """What is made of the names below each path; those that have changed are listed anew, in flight together."""
    seen.update(paths)
    known: dict[str, T] = {path: entry.value for path in paths if (entry := context.sizes.at(path)).fresh}
    stale = [path for path in paths if path not in known]
    watches = [Watch(context.sizes.at(path).signal) for path in stale]
    if stale:
        listings = yield Pipeline(tuple(Children(path, watch) for path, watch in zip(stale, watches, strict=True)))
        for path, watch, names in zip(stale, watches, listings, strict=True):
            entry, known[path] = context.sizes.at(path), made(names or [])
            entry.value, entry.watch = known[path], None if names is None else watch
    return [known[path] for path in paths]


# --- Which tasks a caller asks to see: those in a state that a selector accepts.


@dataclass(frozen=True, slots=True)
class Chosen:
    """A state and a selector, None for any, and the queue's filter types, by which a selector is judged."""

    state: State | None
    selector: Selector | None
    types: FilterTypes

    def accepts(self, state: State, filters: Mapping[str, str]) -> bool:
        """Whether a task that is in `state` and has these filters is asked for."""
        in_state = self.state is None or state is self.state
        return in_state and (self.selector is None or self.selector.matches(filters, self.types))


def chosen(context: Context, state: State | str | None, selector: Selector | str | None) -> Procedure[Chosen]:
    """What is asked for. Raises `ConfigError` for an unknown state or selector, or where the queue does not exist."""
    wanted = as_state(state)
    conf = yield from read_conf(context)
    return Chosen(wanted, None if selector is None else as_selector(selector).bind(conf.types), conf.types)
