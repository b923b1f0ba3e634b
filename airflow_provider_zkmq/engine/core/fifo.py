"""Strict order: claims happen in the order in which enqueues were committed, within a priority.

The rank of an entry is the transaction that first listed its task; a released, retried or rescued task comes back
with its rank. Of all fitting lanes the lowest rank is claimed, and nobody passes it by: who loses a race for it
knows that it was claimed, and only then looks for the next. The default order trades this for less contention.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from airflow_provider_zkmq.engine.core.context import Context, listing
from airflow_provider_zkmq.engine.core.lanes import priority_of
from airflow_provider_zkmq.engine.core.match import judged, lane_fits
from airflow_provider_zkmq.engine.core.ops import GetMany, Node, Procedure
from airflow_provider_zkmq.engine.core.spread import drop_if_empty
from airflow_provider_zkmq.engine.core.take import Held, Taker, take

READ_CHUNK: Final = 128
MAX_RANKS: Final = 100_000
_Head = tuple[tuple[int, str], str, str]


def claim_in_order(context: Context, taker: Taker) -> Procedure[Held | None]:
    """Claim the first of the fitting tasks, of the highest priority that has one."""
    names = yield from listing(context, context.paths.at("queue"))
    fitting = []
    for name in names or ():
        fits = yield from lane_fits(context, taker, name)
        if fits is not None:
            fitting.append((name, not fits))
    for _, lanes in groupby(fitting, key=lambda lane: priority_of(lane[0])):
        held = yield from _claim_first(context, taker, list(lanes))
        if held is not None:
            return held
    return None


def _claim_first(context: Context, taker: Taker, lanes: list[tuple[str, bool]]) -> Procedure[Held | None]:
    strays: set[str] = set()
    lost = ""
    while True:
        head = yield from _head(context, taker, lanes, strays)
        if head is None:
            return None
        (rank, entry), segment, _ = head
        held = yield from take(context, taker, segment, entry, rank)
        if held is not None:
            return held
        if entry == lost:  # it still stands there and cannot be claimed: no task's entry
            strays.add(entry)
        lost = entry
        context.forget(segment)


def _head(context: Context, taker: Taker, lanes: list[tuple[str, bool]], strays: set[str]) -> Procedure[_Head | None]:
    """The lowest rank of all lanes; certain, not only lowest of what was read.

    The listings are read one after the other, so that an enqueue may be seen whose predecessor, in a lane read
    before, is not. Everything committed up to `seen` is in all of them; and where no watch has fired in the
    meantime, they are all of one moment.
    """
    while True:
        seen = context.run.zxid()
        heads: list[_Head] = []
        paths: list[str] = []
        for name, judge in lanes:
            head = yield from _head_of_lane(context, taker, context.paths.at("queue", name), strays, paths, judge=judge)
            if head is not None:
                heads.append(head)
        first = min(heads, default=None)
        if (first is not None and first[0][0] <= seen) or all(_fresh(context, path) for path in paths):
            return first


def _fresh(context: Context, path: str) -> bool:
    entry = context.cache.get(path)
    return entry is None or entry.fresh


def _head_of_lane(
    context: Context, taker: Taker, lane: str, strays: set[str], paths: list[str], *, judge: bool
) -> Procedure[_Head | None]:
    """The lowest rank of the lane's first segment that has one; all of a later segment was committed later."""
    paths.append(lane)
    segments = yield from listing(context, lane)
    for number, name in enumerate(segments or ()):
        segment = f"{lane}/{name}"
        paths.append(segment)
        names = yield from listing(context, segment)
        if judge:
            names = yield from judged(context, taker, names or [])
        usable = [
            entry for entry in names or () if entry not in strays and f"{segment}/{entry}" not in context.quarantine
        ]
        yield from _read_ranks(context, segment, usable)
        head = min(_ranked(context, segment, usable), default=None)
        if head is not None:
            return (head, segment, lane)
        if number < len(segments or ()) - 1:
            yield from drop_if_empty(context, segment)
    return None


def _ranked(context: Context, segment: str, names: list[str]) -> Iterator[tuple[int, str]]:
    """The ranks; tasks of one transaction have the same, and stand in the order of their entries."""
    for name in names:
        rank = context.ranks.get(f"{segment}/{name}")
        if rank is not None:
            yield rank, name


def _read_ranks(context: Context, segment: str, names: list[str]) -> Procedure[None]:
    """Learn the ranks that are not known; an entry keeps its rank, so each is read once."""
    if len(context.ranks) > MAX_RANKS:
        context.ranks.clear()
    unknown = [f"{segment}/{name}" for name in names if f"{segment}/{name}" not in context.ranks]
    for start in range(0, len(unknown), READ_CHUNK):
        chunk = unknown[start : start + READ_CHUNK]
        nodes: list[Node | None] = yield GetMany(tuple(chunk))
        for path, node in zip(chunk, nodes, strict=True):
            if node is not None:
                context.ranks[path] = int(node.data) if node.data.isdigit() else node.stat.czxid
