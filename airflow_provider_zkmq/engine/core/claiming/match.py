"""Which lanes and which entries a consumer accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.lanes import Lane, is_shortened, parse_lane
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.nodes import AT_ONCE, Record, Unread, read_records, unless_corrupt


class Choosing(Protocol):
    """Whoever wants some of the tasks."""

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted."""


def fitting_lanes(context: Context, taker: Choosing, names: Iterable[str]) -> Procedure[list[tuple[str, bool]]]:
    """The lanes that may hold what is wanted, in the order of their names; whether their entries are judged singly."""
    fitting = []
    for name in names:
        fits = yield from lane_fits(context, taker, name)
        if fits is not None:
            fitting.append((name, not fits))
    return fitting


def lane_fits(context: Context, taker: Choosing, name: str) -> Procedure[bool | None]:
    """True: all of the lane fits; False: its entries are judged singly; None: nothing there fits."""
    lane = parse_lane(name)
    if lane is None and is_shortened(name):
        lane = yield from _read_lane(context, name)
        if lane is None:  # it is gone, or was reported
            return None
    if lane is None:
        context.report(context.paths.at("queue", name), "no lane of ours; stepped over")
        return None
    if lane.filters is None:
        return False
    return True if taker.accepts(lane.filters) else None


def _read_lane(context: Context, name: str) -> Procedure[Lane | None]:
    path = context.paths.at("queue", name)
    if path in context.quarantine:
        return None
    filters = context.listings.at(path).lane
    if filters is None:
        node: Node | None = yield Get(path)
        if node is None:
            return None
        lane = unless_corrupt(context, path, partial(Lane.decode, path, node.data))
        if lane is None:
            return None
        filters = dict(lane.filters or {})
        context.listings.at(path).lane = filters
    return Lane(0, filters)


def judged(context: Context, taker: Choosing, segment: str, names: list[str]) -> Procedure[list[str]]:
    """The entries of a mixed lane's segment that fit; one whose filters change gets another name: each is read once.

    What is remembered of a segment is replaced, never changed: a thread that reads it meanwhile keeps what it has.
    """
    known = context.listings.at(segment).verdicts
    unknown = [name for name in names if name not in known and entry_task(name)]
    if unknown or len(known) > 2 * len(names) + AT_ONCE:
        known = {name: known[name] for name in names if name in known}
        known |= yield from _read_filters(context, unknown)
        context.listings.at(segment).verdicts = known
    return [name for name in names if (filters := known.get(name)) is not None and taker.accepts(filters)]


def _read_filters(context: Context, names: list[str]) -> Procedure[dict[str, Mapping[str, str] | None]]:
    """The filters of some entries' tasks; what is gone, or comes back, is not to be remembered."""
    records = yield from read_records(context, [entry_task(name) or "" for name in names])
    return {
        name: record.state.filters if isinstance(record, Record) else None
        for name, record in zip(names, records, strict=True)
        if record is not Unread.MISSING
    }
