"""Claim: the first tasks that a selector accepts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TypeVar

from airflow_provider_zkmq.engine.core.claiming import default_order, strict_order
from airflow_provider_zkmq.engine.core.claiming.match import fitting_lanes
from airflow_provider_zkmq.engine.core.claiming.room import NoRoom
from airflow_provider_zkmq.engine.core.claiming.take import CallerLeft, Look, Taker, Unregistered, Wanted
from airflow_provider_zkmq.engine.core.memory.agenda import Agenda
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.readahead import ReadAhead
from airflow_provider_zkmq.engine.core.model.lanes import priority_of
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Wait, Within
from airflow_provider_zkmq.engine.core.protocol.seats import Seat
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.watched import listing
from airflow_provider_zkmq.engine.core.tasks.departing import Departure
from airflow_provider_zkmq.engine.core.upkeep.consumers import register
from airflow_provider_zkmq.engine.core.upkeep.crowd import take_turns
from airflow_provider_zkmq.engine.core.upkeep.rescue import tend
from airflow_provider_zkmq.engine.errors import TransportError, ZkmqError

T = TypeVar("T")


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
    claims = yield from claim_many(context, wanted, 1, timeout, stopping, caller)
    return claims[0] if claims else None


def claim_many(
    context: Context,
    wanted: Wanted,
    most: int,
    timeout: float = 0.0,
    stopping: Callable[[], bool] = lambda: False,
    caller: Caller | None = None,
    read_ahead: ReadAhead | None = None,
) -> Procedure[list[Claimed]]:
    """The first `most` tasks that fit, or as many as there are, in order; `claim` says what the rest means.

    They are on their way together: `deliver`, called with any of them, delivers all of them. What this client has
    handled, and not settled yet, goes with them. `read_ahead`: what the claims that they
    follow have read for them.
    """
    mine = caller or Caller()
    claiming = _claim(context, wanted, most, timeout, stopping, mine, read_ahead)
    claims = yield from owing(context, mine, claiming)
    if claims and caller is None:
        context.claims.deliver(claims[0])
    return claims


def owing(context: Context, caller: Caller, claiming: Procedure[T]) -> Procedure[T]:
    """Carry a claim out. Cancelled, interrupted, unknown: what it may have claimed is nobody's, and is given back."""
    try:
        return (yield from claiming)
    except BaseException:
        caller.left = True
        if context.claims.handovers:
            context.run.pay()
        raise


def _claim(
    context: Context,
    wanted: Wanted,
    most: int,
    timeout: float,
    stopping: Callable[[], bool],
    caller: Caller,
    read_ahead: ReadAhead | None,
) -> Procedure[list[Claimed]]:
    deadline = context.run.monotonic() + timeout
    if timeout > 0 and read_ahead is None:  # a loop also settles, for which it has as long as any other call
        yield Within(timeout)
    seat, departure, late = Seat(wanted.kind), Departure(context), False
    try:
        while not stopping():
            seen = context.signal.count
            agenda, taken = context.agenda(), list[Claimed]()
            look = Look(wanted, caller, departure, most, taken, read_ahead or context.paces.ask(wanted.kind))
            again = True
            try:
                settled = yield from then_settle(departure, claim_now(context, look, agenda))
                again = settled and not late  # when its time is over once: others may go on putting down for ever
            except Unregistered:
                pass
            except NoRoom:
                return taken
            except CallerLeft:
                if context.claims.handovers:
                    context.run.pay()
                return []
            left = deadline - context.run.monotonic()
            if again and not taken:
                late = left <= 0
                continue
            if taken or (left <= 0 and not agenda.more):
                return taken
            woken = yield Wait(context.signal, seen, agenda.left(left), seat=seat)
            if woken and not stopping():
                yield from take_turns(context, deadline - context.run.monotonic())
        return []
    finally:
        departure.journey.over = True
        departure.close()
        if seat.kept:  # woken for all of its kind, perhaps: however it ends, another one looks after it
            context.signal.pass_on(seat.kind)


def then_settle(departure: Departure, looking: Procedure[None]) -> Procedure[bool]:
    """One look; what could not go with a claim is settled by itself, also where nothing can be claimed.

    Whether anything was: a task that was given back so may be what is wanted, and was not there when we looked.
    """
    try:
        yield from looking
    except (TransportError, CallerLeft):
        raise
    except (ZkmqError, Unregistered, NoRoom):
        yield from departure.finish()
        raise
    return (yield from departure.finish())


def claim_now(context: Context, look: Look, agenda: Agenda) -> Procedure[None]:
    """One look at the queue, without waiting: what is claimed is added to ``look.taken``.

    `agenda` tells when to look again. Raises `Unregistered`, `CallerLeft`; what was claimed before stands.
    """
    conf = yield from read_conf(context)
    consumer = yield from register(context, str(look.wanted.selector))
    yield from tend(context, agenda)
    if conf.paused:
        return
    taker = Taker(conf, consumer, look)
    if conf.order == "fifo":
        yield from strict_order.claim_in_order(context, taker, agenda)
        return
    names = yield from listing(context, context.paths.at("queue"))
    lanes = yield from fitting_lanes(context, taker, names or ())
    for _, group in groupby(lanes, key=lambda lane: priority_of(lane[0])):
        yield from default_order.claim_among(context, taker, list(group), agenda)
        if not taker.room:
            return
