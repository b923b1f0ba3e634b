"""The time by ZooKeeper's clock: remembered from recent writes, or asked for by one small write."""

from __future__ import annotations

from typing import Final, NamedTuple

from ...errors import ZkmqError
from .. import zk_operations as zk
from ..client_state import Context
from ..model.values import Moment, moment_of
from ..transaction_retries import refused, transact
from ..zk_operations import Failure, Multi, Procedure, SetData
from .configuration import read_conf
from .queue_existence import restored


def now_below(root: str) -> Procedure[Moment]:
    """The time by ZooKeeper's clock, in UTC, whatever queues there are.

    Costs one small write, which leaves nothing; where there is no root, that is created. Queues have no such name.
    """
    path = f"{root}/~now"
    multi = zk.Multi((zk.Create(path), zk.SetData(path, b"", -1), zk.Delete(path)))
    outcome = yield from transact(multi)
    if outcome.failure is zk.Failure.NO_NODE:
        yield zk.EnsureRoot(root)
        outcome = yield from transact(multi)
    if not outcome.committed:
        raise refused("reading the server's clock", outcome, multi)
    if outcome.time is None:
        raise ZkmqError(f"ZooKeeper did not say the time of a write to {path}")
    return moment_of(outcome.time)


#: How often the server's clock is asked for before a loose answer must do.
CLOCK_TRIES: Final = 3


class Tick(NamedTuple):
    """What a write of the queue's clock tells: the server's time in milliseconds, and the transaction's number."""

    time: int
    zxid: int


def server_time(context: Context) -> Procedure[int]:
    """The server's clock in milliseconds: remembered from a recent write, else asked by one small write.

    It is rather too late than too early, by as long as that write took; see `Clock.certainly_past`.
    """
    for _ in range(CLOCK_TRIES):
        known = context.clock.exact()
        if known is not None:
            return known
        tick_read = yield from tick(context)
    return context.clock.now() or tick_read.time


def ordering_time(context: Context) -> Procedure[int]:
    """The server's clock in milliseconds, by which new tasks are put in order; off by a second at the most.

    A client that has just come asks for it by one small write; what it enqueues tells it from then on.
    """
    for _ in range(CLOCK_TRIES):
        known = context.clock.ordering()
        if known is not None:
            return known
        tick_read = yield from tick(context)
    return tick_read.time


def now(context: Context) -> Procedure[Moment]:
    """The time by ZooKeeper's clock, in UTC. Costs one small write. Raises `QueueNotFound`."""
    yield from read_conf(context)
    return moment_of((yield from tick(context)).time)


def tick(context: Context) -> Procedure[Tick]:
    """Write the queue's clock: the server's time and the transaction number (zxid) of now."""
    multi = Multi((SetData(context.paths.at("clock"), b"", -1),))
    outcome = yield from transact(multi)
    if outcome.failure is Failure.NO_NODE and (yield from restored(context, multi.ops[0].path)):
        outcome = yield from transact(multi)
    if not outcome.committed:
        raise refused("reading the server's clock", outcome, multi)
    if outcome.time is None or outcome.zxid is None:
        raise ZkmqError(f"ZooKeeper did not say the time and the number of a write to {multi.ops[0].path}")
    context.clock.learn(outcome)
    return Tick(outcome.time, outcome.zxid)


def zxid(context: Context) -> Procedure[int]:
    """The number of a transaction made now: whatever has a lower one is visible to all later reads of this client.

    Costs one small write. Raises `ConfigError` where the queue does not exist, `OutcomeUnknown`.
    """
    yield from read_conf(context)
    return (yield from tick(context)).zxid


def certainly_past(context: Context) -> Procedure[int]:
    """A time of the server's clock that has certainly come."""
    now = yield from server_time(context)
    return context.clock.certainly_past(now)
