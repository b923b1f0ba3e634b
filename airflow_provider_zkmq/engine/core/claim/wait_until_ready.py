"""Whether there is work that fits, waited for as a claim waits; nothing is claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from .. import client_state
from ..client_state import Context
from ..maintenance.due_work import maintain
from ..model.filters import FilterMethods, Selector
from ..model.settings import Conf
from ..model.values import Duration
from ..read.bulk_read import WHOLE_AT_ONCE
from ..read.configuration import read_conf
from ..read.watch_cache import listing
from ..zk_operations import Procedure, Wait, WaitPlace
from . import claim, take
from .candidates import judged, matching_lanes
from .limits import Limits, filters_of

# Who only looks is no consumer: it is not on the register, and has no share of what consumers divide among
# themselves. It looks after the queue as they do, so that delays, ended leases and dead consumers are no reason to
# sleep over work. It sits among its like: what wakes one of those who claim never wakes it instead.


def ready(
    context: Context,
    node: Mapping[str, object] | Selector | str | None = None,
    filter_method: FilterMethods = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration | None = 0,
    stopping: Callable[[], bool] = client_state.never_stopping,
) -> Procedure[bool]:
    """Whether there is a task that fits and may be delivered now, waiting for one at most `timeout` seconds.

    Nothing is claimed: by the time a caller claims, others may have been faster. Without a `timeout` (None) it waits to
    the end. Nothing is ready while the queue is paused. Who waits looks after delays, leases and dead consumers, as a
    claim does. `stopping` ends the wait early; it is asked whenever the queue changes. `node`, `filter_method` and
    `selector` are `claim`'s; a selector may stand first, too. Raises `ConfigError` for what the queue's declarations
    refuse, and `QueueNotFound`, also while it waits.
    """
    deadline = yield from client_state.Deadline.after(context, timeout)
    request = yield from claim.wanted(context, node, filter_method, selector)
    place = WaitPlace(("ready", request.kind))
    try:
        while not stopping():
            seen, schedule = context.signal.count, context.schedule()
            if (yield from _any_ready(context, request.selector, schedule)):
                return True
            if deadline.passed and not schedule.more:
                return False
            left = schedule.left(inf if deadline.left is None else deadline.left)
            yield Wait(context.signal, seen, None if left == inf else left, place=place)
        return False
    finally:
        if place.kept:  # woken for all of its kind, perhaps: however it ends, another one looks after it
            context.signal.notify_one(place.kind)


def _any_ready(context: Context, selector: Selector, schedule: client_state.Schedule) -> Procedure[bool]:
    """One look at the queue, without waiting; `schedule` tells when to look again."""
    conf = yield from read_conf(context)
    yield from maintain(context, schedule)
    if conf.paused:
        return False
    limits = None if conf.limit is None else Limits(context, conf.limit, schedule)
    accepts = lambda filters: (  # noqa: E731
        selector.matches(filters, conf.types) and (limits is None or not limits.blocks(filters))
    )
    names = yield from listing(context, context.paths.at("queue"))
    for name, judge in (yield from matching_lanes(context, accepts, names or ())):
        lane = context.paths.at("queue", name)
        segments = yield from listing(context, lane)
        for segment in [f"{lane}/{name}" for name in segments or ()]:
            entries = (yield from listing(context, segment)) or []
            if judge:
                entries = yield from judged(context, accepts, segment, entries)
            picks = [take.RankedEntry(entry, segment) for entry in entries]
            open_picks = [ranked for ranked in picks if ranked.path not in context.ignored_paths]
            if limits is not None:
                filters = {ranked: filters_of(context, segment, ranked.entry) for ranked in open_picks}
                yield from limits.look_at(filters.values())
                open_picks = [ranked for ranked in open_picks if not limits.blocks(filters[ranked])]
            if (yield from _any_deliverable(context, conf, open_picks)):
                return True
    return False


def _any_deliverable(context: Context, conf: Conf, picks: Sequence[take.RankedEntry]) -> Procedure[bool]:
    """Whether one of some entries stands for a task that a claim would get: most often the first one does."""
    size = 1
    while picks:
        ids = {
            ranked: task_id for ranked in picks[:size] if (task_id := take.task_of_entry(context, ranked)) is not None
        }
        nodes = yield from take.read_tasks(context, list(ids.values()))
        for (ranked, task_id), read in zip(ids.items(), nodes, strict=True):
            if (yield from take.deliverable(context, conf, task_id, ranked.path, read)) is not None:
                return True
            if take.may_be_tried(context, ranked):
                yield from take.step_over_if_there(context, ranked)
        picks, size = picks[size:], min(2 * size, WHOLE_AT_ONCE)
    return False
