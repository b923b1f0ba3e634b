"""Asking for the server's clock: the one reading that costs a write."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.moments import Moment, moment_of
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import never, refused, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Failure, Multi, Outcome, SetData
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.skeleton import restored

#: How often the server's clock is asked for before a loose answer must do.
CLOCK_TRIES: Final = 3


def server_time(context: Context) -> Procedure[int]:
    """The server's clock in milliseconds: remembered from a recent write, else asked by one small write.

    It is rather too late than too early, by as long as that write took; see `Clock.certainly_past`.
    """
    for _ in range(CLOCK_TRIES):
        known = context.clock.exact()
        if known is not None:
            return known
        outcome = yield from tick(context)
    return context.clock.now() or outcome.time or 0


def now(context: Context) -> Procedure[Moment]:
    """The time by ZooKeeper's clock, in UTC. Costs one small write. Raises `QueueNotFound`."""
    yield from read_conf(context)
    outcome = yield from tick(context)
    return moment_of(outcome.time or 0)


def tick(context: Context) -> Procedure[Outcome]:
    """Write the queue's clock: the outcome tells the server's time and the transaction number (zxid) of now."""
    multi = Multi((SetData(context.paths.at("clock"), b"", -1),))
    outcome = yield from transact(multi, never)
    if outcome.failure is Failure.NO_NODE and (yield from restored(context, multi.ops[0].path)):
        outcome = yield from transact(multi, never)
    if not outcome.committed:
        raise refused("reading the server's clock", outcome, multi)
    context.clock.learn(outcome)
    return outcome
