"""Which lanes and which entries a consumer accepts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from airflow_provider_zkmq.engine.core.claiming.take import Taker
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.lanes import Lane, is_shortened, parse_lane
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.ops import Get, GetMany, Node, Procedure
from airflow_provider_zkmq.engine.errors import CorruptRecord

READ_CHUNK: Final = 128


def fitting_lanes(context: Context, taker: Taker, names: Iterable[str]) -> Procedure[list[tuple[str, bool]]]:
    """The lanes that may hold what is wanted, in the order of their names; whether their entries are judged singly."""
    fitting = []
    for name in names:
        fits = yield from lane_fits(context, taker, name)
        if fits is not None:
            fitting.append((name, not fits))
    return fitting


def lane_fits(context: Context, taker: Taker, name: str) -> Procedure[bool | None]:
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
        try:
            filters = dict(Lane.decode(path, node.data).filters or {})
        except CorruptRecord as error:
            context.report(path, str(error))
            return None
        context.listings.at(path).lane = filters
    return Lane(0, filters)


def judged(context: Context, taker: Taker, segment: str, names: list[str]) -> Procedure[list[str]]:
    """The entries of a mixed lane's segment that fit; one whose filters change gets another name: each is read once.

    What is remembered of a segment is replaced, never changed: a thread that reads it meanwhile keeps what it has.
    """
    known = context.listings.at(segment).verdicts
    unknown = [name for name in names if name not in known and entry_task(name)]
    if unknown or len(known) > 2 * len(names) + READ_CHUNK:
        known = {name: known[name] for name in names if name in known}
        for start in range(0, len(unknown), READ_CHUNK):
            known |= yield from _read_filters(context, unknown[start : start + READ_CHUNK])
        context.listings.at(segment).verdicts = known
    return [name for name in names if (found := known.get(name)) is not None and taker.accepts(found)]


def _read_filters(context: Context, names: list[str]) -> Procedure[dict[str, dict[str, str] | None]]:
    """The filters of some entries' tasks; what is gone, or comes back, is not to be remembered."""
    paths = [context.paths.task(entry_task(name) or "", "state") for name in names]
    nodes: list[Node | None] = yield GetMany(tuple(paths))
    found = zip(names, paths, nodes, strict=True)
    return {name: _filters(context, path, node) for name, path, node in found if node is not None}


def _filters(context: Context, path: str, node: Node) -> dict[str, str] | None:
    try:
        return dict(TaskState.decode(path, node.data).filters)
    except CorruptRecord as error:
        context.report(path, str(error))
        return None
