"""Which lanes and which entries a consumer accepts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.lanes import Lane, is_shortened, parse_lane
from airflow_provider_zkmq.engine.core.ops import Get, GetMany, Node, Procedure
from airflow_provider_zkmq.engine.core.paths import entry_task
from airflow_provider_zkmq.engine.core.records import TaskState
from airflow_provider_zkmq.engine.core.take import Taker
from airflow_provider_zkmq.engine.errors import CorruptRecord

READ_CHUNK: Final = 128
MAX_VERDICTS: Final = 100_000


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
    if path not in context.verdicts:
        node: Node | None = yield Get(path)
        if node is None:
            return None
        try:
            lane: Lane | None = Lane.decode(path, node.data)
        except CorruptRecord as error:
            context.report(path, str(error))
            lane = None
        context.verdicts[path] = None if lane is None else dict(lane.filters or {})
    filters = context.verdicts[path]
    return None if filters is None else Lane(0, filters)


def judged(context: Context, taker: Taker, names: list[str]) -> Procedure[list[str]]:
    """The entries of a mixed lane that fit; an entry whose filters change gets another name, so each is read once."""
    if len(context.verdicts) > MAX_VERDICTS:
        context.verdicts.clear()
    unknown = [name for name in names if name not in context.verdicts and entry_task(name)]
    for start in range(0, len(unknown), READ_CHUNK):
        chunk = unknown[start : start + READ_CHUNK]
        paths = [context.paths.task(entry_task(name) or "", "state") for name in chunk]
        nodes: list[Node | None] = yield GetMany(tuple(paths))
        for name, path, node in zip(chunk, paths, nodes, strict=True):
            if node is not None:  # else it is gone, or comes back: not to be remembered
                context.verdicts[name] = _filters(context, path, node)
    fitting = []
    for name in names:
        filters = context.verdicts.get(name)
        if filters is not None and taker.accepts(filters):
            fitting.append(name)
    return fitting


def _filters(context: Context, path: str, node: Node) -> dict[str, str] | None:
    try:
        return dict(TaskState.decode(path, node.data).filters)
    except CorruptRecord as error:
        context.report(path, str(error))
        return None
