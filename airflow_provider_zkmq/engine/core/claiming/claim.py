"""Claim: the first task that a selector accepts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from airflow_provider_zkmq.engine.core.claiming import default_order, strict_order
from airflow_provider_zkmq.engine.core.claiming.match import fitting_lanes
from airflow_provider_zkmq.engine.core.claiming.take import CallerLeft, Taker, Unregistered, Wanted
from airflow_provider_zkmq.engine.core.memory.agenda import Agenda
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.lanes import priority_of
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Wait, Within
from airflow_provider_zkmq.engine.core.protocol.seats import Seat
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.watched import listing
from airflow_provider_zkmq.engine.core.upkeep.consumers import register
from airflow_provider_zkmq.engine.core.upkeep.crowd import take_turns
from airflow_provider_zkmq.engine.core.upkeep.rescue import tend


def claim(
    context: Context,
    wanted: Wanted,
    timeout: float = 0.0,
    stopping: Callable[[], bool] = lambda: False,
    caller: Caller | None = None,
) -> Procedure[Claimed | None]:
    """The first task that fits, waiting for one at most `timeout` seconds; None when there was none.

    `stopping` ends the wait early; it is asked whenever the queue's signal is fired. `caller`: who is to get the claim
    and says so with `deliver`; without one, what is returned counts as delivered.
    """
    mine = caller or Caller()
    try:
        claimed = yield from _claim(context, wanted, timeout, stopping, mine)
    except BaseException:  # cancelled, interrupted, unknown: what may have been claimed is nobody's
        mine.left = True
        if context.claims.handovers:
            context.run.pay()
        raise
    if claimed is not None and caller is None:
        context.claims.deliver(claimed)
    return claimed


def _claim(
    context: Context, wanted: Wanted, timeout: float, stopping: Callable[[], bool], caller: Caller
) -> Procedure[Claimed | None]:
    deadline = context.run.monotonic() + timeout
    if timeout > 0:
        yield Within(timeout)
    seat = Seat(wanted.kind)
    try:
        while not stopping():
            seen = context.signal.count
            agenda = context.agenda()
            try:
                claimed = yield from claim_now(context, wanted, caller, agenda)
            except Unregistered:
                continue
            except CallerLeft:
                return None
            left = deadline - context.run.monotonic()
            if claimed is not None or (left <= 0 and not agenda.more):
                return claimed
            woken = yield Wait(context.signal, seen, agenda.left(left), seat=seat)
            if woken and not stopping():
                yield from take_turns(context, deadline - context.run.monotonic())
        return None
    finally:
        if seat.kept:  # woken for all of its kind, perhaps: however it ends, another one looks after it
            context.signal.pass_on(seat.kind)


def claim_now(context: Context, wanted: Wanted, caller: Caller, agenda: Agenda) -> Procedure[Claimed | None]:
    """One look at the queue, without waiting; `agenda` tells when to look again. Raises `Unregistered`."""
    conf = yield from read_conf(context)
    consumer = yield from register(context, str(wanted.selector))
    yield from tend(context, agenda)
    if conf.paused:
        return None
    taker = Taker(conf, wanted, consumer, caller)
    if conf.order == "fifo":
        return (yield from strict_order.claim_in_order(context, taker, agenda))
    names = yield from listing(context, context.paths.at("queue"))
    lanes = yield from fitting_lanes(context, taker, names or ())
    for _, group in groupby(lanes, key=lambda lane: priority_of(lane[0])):
        claimed = yield from default_order.claim_among(context, taker, list(group), agenda)
        if claimed is not None:
            return claimed
    return None
