"""Whether there is work that fits, waited for as a claim waits; nothing is claimed.

Who only looks is no consumer: it is not on the register, and has no share of what consumers divide among
themselves. It looks after the queue as they do, so that delays, ended leases and dead consumers are no reason to sleep
over work. It sits among its like: what wakes one of those who claim never wakes it instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from airflow_provider_zkmq.engine.core.claim.candidates import (
    RankedEntry,
    deliverable,
    may_be_tried,
    read_tasks,
    step_over_if_there,
    task_of_entry,
)
from airflow_provider_zkmq.engine.core.claim.claim import Method, wanted
from airflow_provider_zkmq.engine.core.claim.order import judged, matching_lanes
from airflow_provider_zkmq.engine.core.client.context import Context, Schedule
from airflow_provider_zkmq.engine.core.maintenance.rescue import maintain
from airflow_provider_zkmq.engine.core.model.policy import Conf
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.model.time import Duration
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Wait, WaitPlace
from airflow_provider_zkmq.engine.core.read.cache import listing
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.nodes import WHOLE_AT_ONCE, Deadline, never_stopping


@dataclass(frozen=True, slots=True)
class _Chooser:
    """What is looked for, and by what rules."""

    conf: Conf
    selector: Selector

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted."""
        return self.selector.matches(filters, self.conf.types)


def ready(
    context: Context,
    node: Mapping[str, object] | Selector | str | None = None,
    filter_method: Method = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration | None = 0,
    stopping: Callable[[], bool] = never_stopping,
) -> Procedure[bool]:
    """Whether there is a task that fits and may be delivered now, waiting for one at most `timeout` seconds.

    Nothing is claimed: by the time a caller claims, others may have been faster. Without a `timeout` (None) it waits to
    the end. Nothing is ready while the queue is paused. Who waits looks after delays, leases and dead consumers, as a
    claim does. `stopping` ends the wait early; it is asked whenever the queue changes. `node`, `filter_method` and
    `selector` are `claim`'s; a selector may stand first, too. Raises `ConfigError` for what the queue's declarations
    refuse, and `QueueNotFound`, also while it waits.
    """
    deadline = yield from Deadline.after(context, timeout)
    request = yield from wanted(context, node, filter_method, selector)
    place = WaitPlace(("ready", request.kind))
    try:
        while not stopping():
            seen, schedule = context.signal.count, context.schedule()
            if (yield from _look(context, request.selector, schedule)):
                return True
            if deadline.passed and not schedule.more:
                return False
            left = schedule.left(inf if deadline.left is None else deadline.left)
            yield Wait(context.signal, seen, None if left == inf else left, place=place)
        return False
    finally:
        if place.kept:  # woken for all of its kind, perhaps: however it ends, another one looks after it
            context.signal.notify_one(place.kind)


def _look(context: Context, selector: Selector, schedule: Schedule) -> Procedure[bool]:
    """One look at the queue, without waiting; `schedule` tells when to look again."""
    conf = yield from read_conf(context)
    yield from maintain(context, schedule)
    if conf.paused:
        return False
    chooser = _Chooser(conf, selector)
    names = yield from listing(context, context.paths.at("queue"))
    lanes = yield from matching_lanes(context, chooser, names or ())
    for name, judge in lanes:
        if (yield from _lane_has_any(context, chooser, context.paths.at("queue", name), judge=judge)):
            return True
    return False


def _lane_has_any(context: Context, chooser: _Chooser, lane: str, *, judge: bool) -> Procedure[bool]:
    """Whether a lane holds a task that fits; `judge`: its entries are judged singly."""
    segments = yield from listing(context, lane)
    for segment in [f"{lane}/{name}" for name in segments or ()]:
        names = (yield from listing(context, segment)) or []
        if judge:
            names = yield from judged(context, chooser, segment, names)
        picks = [RankedEntry(name, segment) for name in names]
        open_picks = [ranked for ranked in picks if ranked.path not in context.ignored_paths]
        if (yield from _any_deliverable(context, chooser.conf, open_picks)):
            return True
    return False


def _any_deliverable(context: Context, conf: Conf, picks: Sequence[RankedEntry]) -> Procedure[bool]:
    """Whether one of some entries stands for a task that a claim would get: most often the first one does."""
    size = 1
    while picks:
        ids = {ranked: task_id for ranked in picks[:size] if (task_id := task_of_entry(context, ranked)) is not None}
        nodes = yield from read_tasks(context, list(ids.values()))
        for (ranked, task_id), read in zip(ids.items(), nodes, strict=True):
            if (yield from deliverable(context, conf, task_id, ranked.path, read)) is not None:
                return True
            if may_be_tried(context, ranked):
                yield from step_over_if_there(context, ranked)
        picks, size = picks[size:], min(2 * size, WHOLE_AT_ONCE)
    return False
