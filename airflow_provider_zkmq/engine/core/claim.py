"""Claim: the first task that a selector accepts."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_zkmq.engine.core import fifo
from airflow_provider_zkmq.engine.core.configure import read_conf
from airflow_provider_zkmq.engine.core.consumers import register
from airflow_provider_zkmq.engine.core.context import Context, listing
from airflow_provider_zkmq.engine.core.match import lane_fits
from airflow_provider_zkmq.engine.core.ops import Procedure, Wait
from airflow_provider_zkmq.engine.core.rescue import tend
from airflow_provider_zkmq.engine.core.spread import claim_in_lane
from airflow_provider_zkmq.engine.core.take import Held, Taker, Unregistered, Wanted


def claim(
    context: Context, wanted: Wanted, timeout: float = 0.0, stopping: Callable[[], bool] = lambda: False
) -> Procedure[Held | None]:
    """The first task that fits, waiting for one at most `timeout` seconds; None when there was none.

    `stopping` ends the wait early; it is asked whenever the queue's signal is fired.
    """
    deadline = context.run.monotonic() + timeout
    while not stopping():
        seen = context.signal.count
        try:
            held = yield from claim_now(context, wanted)
        except Unregistered:
            continue
        left = deadline - context.run.monotonic()
        if held is not None or left <= 0:
            return held
        due = context.next_due
        pause = left if due is None else max(0.0, min(left, due - context.run.monotonic()))
        yield Wait(context.signal, seen, pause)
    return None


def claim_now(context: Context, wanted: Wanted) -> Procedure[Held | None]:
    """One look at the queue, without waiting. Raises `Unregistered`."""
    conf = yield from read_conf(context, create=True)
    consumer = yield from register(context, str(wanted.selector))
    yield from tend(context)
    if conf.paused:
        return None
    taker = Taker(conf, wanted, consumer)
    if conf.order == "fifo":
        return (yield from fifo.claim_in_order(context, taker))
    path = context.paths.at("queue")
    lanes = yield from listing(context, path)
    for name in lanes or ():
        fits = yield from lane_fits(context, taker, name)
        if fits is not None:
            held = yield from claim_in_lane(context, taker, f"{path}/{name}", judge=not fits)
            if held is not None:
                return held
    return None
