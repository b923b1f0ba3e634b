"""Strict order: claims happen in the order in which enqueues were committed, within a priority.

The rank of an entry is the transaction that first listed its task; a released, retried or rescued task comes back
with its rank. Of all fitting lanes the lowest rank is claimed, and nobody passes it by: who loses a race for it
knows that it was claimed, and only then looks for the next. The default order trades this for less contention.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby

from airflow_provider_zkmq.engine.core.claiming.default_order import SOON, TRIES, drop_if_empty
from airflow_provider_zkmq.engine.core.claiming.group import take_all
from airflow_provider_zkmq.engine.core.claiming.match import fitting_lanes, judged
from airflow_provider_zkmq.engine.core.claiming.take import Pick, Taker
from airflow_provider_zkmq.engine.core.memory.agenda import Agenda
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.listings import Reading
from airflow_provider_zkmq.engine.core.model.checks import MAX_ZXID
from airflow_provider_zkmq.engine.core.model.lanes import priority_of
from airflow_provider_zkmq.engine.core.protocol.ops import Node, Procedure, Watch
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes
from airflow_provider_zkmq.engine.core.reading.watched import listing
from airflow_provider_zkmq.engine.core.upkeep.crowd import step_back

_Key = tuple[int, str]


@dataclass(slots=True)
class _Look:
    """One look at the queue: what was read for it, and how often it has tried what."""

    taker: Taker
    read: list[tuple[Reading, Watch]] = field(default_factory=list)
    """What was read for it."""
    tried: Counter[str] = field(default_factory=Counter)

    def stands(self) -> bool:
        """Whether all that was read for it still stands: then it is all of one moment."""
        return all(reading.fresh and reading.watch is watch for reading, watch in self.read)


def claim_in_order(context: Context, taker: Taker, agenda: Agenda) -> Procedure[None]:
    """Claim the first of the fitting tasks, of the highest priority that has one."""
    look = _Look(taker)
    while taker.room:
        heads = yield from _heads(context, look)
        if not heads:
            return
        first = heads[0]
        look.tried[first.entry] += 1
        taken = yield from take_all(context, taker, heads, in_order=True)
        if taken == len(heads):
            continue
        if not taken and look.tried[first.entry] >= TRIES and first.path not in context.quarantine:
            agenda.within(SOON)  # somebody keeps changing it: it is first all the same, and nobody passes it by
            return
        yield from step_back(context)


def _heads(context: Context, look: _Look) -> Procedure[list[Pick]]:
    """The lowest ranks of the highest priority, in order; certain, not only lowest of what was read.

    The listings, that of the lanes among them, are read one after the other, so that an enqueue may be seen whose
    predecessor, in a lane read before or not known of, is not. Everything committed up to `seen` is in all of them; and
    where no watch has fired in the meantime, they are all of one moment.
    """
    while True:
        seen = context.run.zxid()
        look.read.clear()
        lowest = yield from _lowest(context, look)
        certain = lowest if look.stands() else [pick for pick in lowest if _key(pick)[0] <= seen]
        if certain or look.stands():
            return certain


def _key(pick: Pick) -> _Key:
    """How they are ordered: tasks of one transaction have the same rank, and stand in the order of their entries."""
    return pick.rank or 0, pick.entry


def _lowest(context: Context, look: _Look) -> Procedure[list[Pick]]:
    """As many as are wanted; no further than to the end of the first segment of any lane that has later ones."""
    names = yield from _listed(context, look, context.paths.at("queue"))
    lanes = yield from fitting_lanes(context, look.taker, names)
    for _, group in groupby(lanes, key=lambda lane: priority_of(lane[0])):
        heads: list[Pick] = []
        ends: list[_Key] = []
        for name, judge in group:
            segment, ranked, goes_on = yield from _first_segment(
                context, look, context.paths.at("queue", name), judge=judge
            )
            ends += [max(ranked)] if goes_on else []
            heads += [Pick(entry, segment, rank) for rank, entry in heapq.nsmallest(look.taker.view, ranked)]
        if heads:
            look.taker.later[:] = lowest = heapq.nsmallest(look.taker.view, heads, key=_key)
            return [pick for pick in lowest[: look.taker.room] if _key(pick) <= min(ends, default=_key(pick))]
    return []


def _listed(context: Context, look: _Look, path: str) -> Procedure[list[str]]:
    """A listing; `look` notes the reading, and the watch under which it was made.

    What is remembered at its path may be another reading by the time the look is judged.
    """
    names = yield from listing(context, path)
    reading = context.listings.at(path)
    if names is not None and reading.watch is not None:
        look.read.append((reading, reading.watch))
    return names or []


def _first_segment(context: Context, look: _Look, lane: str, *, judge: bool) -> Procedure[tuple[str, list[_Key], bool]]:
    """The lane's first segment that has any, and what; whether there are later ones: all of them committed later."""
    segments = yield from _listed(context, look, lane)
    for number, name in enumerate(segments):
        segment = f"{lane}/{name}"
        usable = yield from _usable(context, look, segment, judge=judge)
        ranks = yield from _read_ranks(context, segment, usable)
        ranked = [(ranks[entry], entry) for entry in usable if entry in ranks]
        if ranked:
            return segment, ranked, number < len(segments) - 1
        if number < len(segments) - 1:
            yield from drop_if_empty(context, segment)
    return "", [], False


def _usable(context: Context, look: _Look, segment: str, *, judge: bool) -> Procedure[list[str]]:
    """A segment's entries that fit, less those that are stepped over; `judge`: they are judged singly."""
    names = yield from _listed(context, look, segment)
    if judge:
        names = yield from judged(context, look.taker, segment, names)
    return [entry for entry in names if f"{segment}/{entry}" not in context.quarantine]


def rank_of(node: Node) -> int:
    """What an entry holds as its rank; else it stands where it was committed."""
    held = int(node.data) if node.data.isdigit() and len(node.data) < 20 else 0
    return held if 0 < held <= MAX_ZXID else node.stat.czxid


def _read_ranks(context: Context, segment: str, names: list[str]) -> Procedure[dict[str, int]]:
    """Learn the ranks that are not known; an entry keeps its rank, so each is read once.

    What is remembered of a segment is replaced, never changed: a thread that reads it meanwhile keeps what it has.
    """
    known = context.listings.at(segment).ranks
    ranks = {name: known[name] for name in names if name in known}
    unknown = [name for name in names if name not in known]
    nodes = yield from read_nodes([f"{segment}/{name}" for name in unknown])
    for name, node in zip(unknown, nodes, strict=True):
        if node is not None:
            ranks[name] = rank_of(node)
    context.listings.at(segment).ranks = ranks
    return ranks
