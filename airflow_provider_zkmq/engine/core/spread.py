"""The default order: nearly the order of enqueueing, each consumer beginning at entries of its own.

The listings of lanes, segments and entries are remembered under watches. While no watch fires, looking for work
costs no request at all.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import Final

from airflow_provider_zkmq.engine.core.context import Consumer, Context, listing
from airflow_provider_zkmq.engine.core.match import judged
from airflow_provider_zkmq.engine.core.ops import Delete, Multi, Procedure
from airflow_provider_zkmq.engine.core.take import Held, Taker, take

#: Names of a listing whose watch has fired are used this long, so that a busy segment is not listed for every claim.
LISTING_SECONDS: Final = 0.25
SPREAD_WINDOW: Final = 64


def claim_in_lane(context: Context, taker: Taker, path: str, *, judge: bool) -> Procedure[Held | None]:
    """Claim the first of a lane's tasks that nobody else is at; `judge`: its entries are to be judged singly."""
    segments = yield from listing(context, path)
    for number, name in enumerate(segments or ()):
        segment = f"{path}/{name}"
        held = yield from _claim_in_segment(context, taker, segment, judge=judge)
        if held is not None:
            return held
        if number < len(segments or ()) - 1:
            yield from drop_if_empty(context, segment)
    return None


def drop_if_empty(context: Context, segment: str) -> Procedure[None]:
    """Delete a drained segment that is not its lane's newest; the server refuses if an entry came meanwhile."""
    if context.cached(segment).value == []:
        yield Multi((Delete(segment),))
        context.forget(segment)


def _claim_in_segment(context: Context, taker: Taker, segment: str, *, judge: bool) -> Procedure[Held | None]:
    slot, slots = _slot(context, taker.consumer)
    passed: set[str] = set()
    while True:
        names = yield from _stock(context, segment)
        if judge:
            names = yield from judged(context, taker, names)
        entry = _pick(context, names, passed, slot, slots)
        if entry is None:
            return None
        try:
            held = yield from take(context, taker, segment, entry)
        except BaseException:  # it was not tried to the end: it stays in sight
            context.trying.discard(entry)
            raise
        _taken(context, segment, entry)
        if held is not None:
            return held


def _stock(context: Context, segment: str) -> Procedure[list[str]]:
    """The segment's entries that nobody of this process has tried: its listing less what was taken from it."""
    stock = context.stock.get(segment)
    entry = context.cached(segment)
    young = context.run.monotonic() - entry.read_at < LISTING_SECONDS
    if stock is not None and (entry.fresh or (stock and young)):
        return stock
    names = yield from listing(context, segment)
    context.stock[segment] = stock = [name for name in names or () if f"{segment}/{name}" not in context.quarantine]
    return stock


def _slot(context: Context, consumer: Consumer) -> tuple[int, int]:
    """This consumer's share: each starts at entries of its own, so that few races are lost."""
    names = context.live
    return (names.index(consumer.id), len(names)) if consumer.id in names else (0, 1)


def _pick(context: Context, names: list[str], passed: set[str], slot: int, slots: int) -> str | None:
    """The next entry to try, taken off the stock: of the first few the own share's first, else the very first."""
    while True:
        window = [name for name in names[: SPREAD_WINDOW + len(passed)] if name not in passed]
        share = (name for name in window if slots == 1 or zlib.crc32(name.encode()) % slots == slot)
        entry = next(share, window[0] if window else None)
        if entry is None:
            return None
        passed.add(entry)
        if entry not in context.trying:  # another thread of this process is at it
            context.trying.add(entry)
            return entry


def _taken(context: Context, segment: str, entry: str) -> None:
    """The entry was tried: off the stock, and free for others of this process should it come back."""
    stock = context.stock.get(segment)
    if stock is not None and entry in stock:
        with contextlib.suppress(ValueError):  # another thread took it off between the look and the removal
            stock.remove(entry)
    context.trying.discard(entry)
