"""The ids of tasks page by page, so that a queue may be looked through however deep it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..client_state import Context
from ..model.filters import Selector, as_selector
from ..model.states import State
from ..model.values import whole_number
from ..model.znode_names import bucket_start, entry_task, is_lane, parse_lane, segments_of
from ..zk_operations import Children, Procedure
from . import bulk_read, inspect
from .configuration import read_conf

#: So many lists are read in one round trip: each has some hundreds of names, or those of a minute.
_LISTS_AT_ONCE: Final = 4
#: A page has so many tasks at the most.
MOST: Final = 1_000


#: The word for the inserted tasks that wait for their time.
SCHEDULED: Final = "scheduled"


def page(
    context: Context,
    state: State | str,
    after: str | None = None,
    most: int = MOST,
    *,
    selector: Selector | str | None = None,
) -> Procedure[list[tuple[str, str]]]:
    """The next `most` tasks (1 to 1 000) in `state` behind `after`: where each stands, and its id.

    `after`: where the last one stood of the call before. Inserted tasks come by lane, without those that wait for their
    time, which are ``scheduled`` and come by that; ended ones the latest first, the others by their ids. No task is
    read; one that moves meanwhile may be missing, or come twice. `selector`: lanes that it refuses are left out; other
    tasks come whatever their filters are. Raises `ConfigError` for an unknown state or number, a bad selector, or where
    the queue does not exist.
    """
    wanted = None if state == SCHEDULED else State(inspect.as_state(state) or State.INSERTED)
    count = whole_number("most", most, 1, MOST)
    conf = yield from read_conf(context)
    bound = None if selector is None else as_selector(selector).bind(conf.types)
    if wanted in {State.DEAD, State.CLAIMED}:
        ids = yield from inspect.listed_ids(context, wanted)
        return [(task, task) for task in ids if after is None or task > after][:count]
    latest_first = wanted in {State.FINISHED, State.CANCELLED}
    lists = yield from _lists(context, wanted, lambda filters: bound is None or bound.matches(filters, conf.types))
    stands = None if after is None else _order(after.rpartition("/")[0])
    last = "" if after is None else after.rpartition("/")[2]
    if stands is not None:
        lists = [each for each in lists if (_order(each) <= stands if latest_first else _order(each) >= stands)]
    found: list[tuple[str, str]] = []
    for chunk in bulk_read.chunked(lists, _LISTS_AT_ONCE):
        listings = yield from bulk_read.list_children([context.paths.at(each) for each in chunk])
        for each, names in zip(chunk, listings, strict=True):
            if stands is not None and _order(each) == stands:
                names = [name for name in names if (name < last if latest_first else name > last)]
            for name in reversed(names) if latest_first else names:
                if (task := entry_task(name)) is not None:
                    found.append((f"{each}/{name}", task))
        if len(found) >= count:
            break
    return found[:count]


def _order(path: str) -> tuple[str, ...]:
    """By what lists are sorted: a lane's segments among lanes; buckets of one minute beside one another."""
    index, *parts = path.split("/")
    return (index, *parts) if index in {"queue", "scheduled"} else (*parts, index)


def _lists(context: Context, state: State | None, accepts: Callable[[Mapping[str, str]], bool]) -> Procedure[list[str]]:
    """The lists in which tasks of a state stand, in their order; None: those that wait for their time."""
    lists: list[str] = []
    if state is State.INSERTED:
        names = sorted(filter(is_lane, (yield Children(context.paths.at("queue"))) or ()))
        known = {name: lane.filters for name in names if (lane := parse_lane(name)) is not None}
        lanes = [name for name in names if (filters := known.get(name)) is None or accepts(filters)]
        segments = yield from bulk_read.list_children([context.paths.at("queue", lane) for lane in lanes])
        for lane, found in zip(lanes, segments, strict=True):
            lists += [f"queue/{lane}/{name}" for name in segments_of(found)]
        return sorted(lists, key=_order)
    indexes: dict[State | None, Sequence[str]] = {State.FINISHED: ("finished", "requeued"), None: (SCHEDULED,)}
    for index in indexes.get(state, ("cancelled",)):
        buckets: list[str] = (yield Children(context.paths.at(index))) or []
        lists += [f"{index}/{name}" for name in buckets if bucket_start(name) is not None]
    return sorted(lists, key=_order, reverse=state is not None)
