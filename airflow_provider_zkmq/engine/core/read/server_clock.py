"""ZooKeeper's clock as a client knows it, and the marks that an archive reads by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.time import Moment, moment_of
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Create,
    Delete,
    EnsureRoot,
    Exists,
    Failure,
    Multi,
    Procedure,
    SetData,
    Stat,
)
from airflow_provider_zkmq.engine.core.protocol.transact import never, refused, transact
from airflow_provider_zkmq.engine.core.read.configuration import read_archive, read_conf
from airflow_provider_zkmq.engine.core.read.nodes import refuse_missing, restored
from airflow_provider_zkmq.engine.errors import ZkmqError

# --- Asking for the server's clock: the one reading that costs a write.

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


def now_below(root: str) -> Procedure[Moment]:
    """The time by ZooKeeper's clock, in UTC, whatever queues there are.

    Costs one small write, which leaves nothing; where there is no root, that is created. Queues have no such name.
    """
    path = f"{root}/~now"
    multi = Multi((Create(path), SetData(path, b"", -1), Delete(path)))
    outcome = yield from transact(multi, never)
    if outcome.failure is Failure.NO_NODE:
        yield EnsureRoot(root)
        outcome = yield from transact(multi, never)
    if not outcome.committed:
        raise refused("reading the server's clock", outcome, multi)
    if outcome.time is None:
        raise ZkmqError(f"ZooKeeper did not say the time of a write to {path}")
    return moment_of(outcome.time)


def tick(context: Context) -> Procedure[Tick]:
    """Write the queue's clock: the server's time and the transaction number (zxid) of now."""
    multi = Multi((SetData(context.paths.at("clock"), b"", -1),))
    outcome = yield from transact(multi, never)
    if outcome.failure is Failure.NO_NODE and (yield from restored(context, multi.ops[0].path)):
        outcome = yield from transact(multi, never)
    if not outcome.committed:
        raise refused("reading the server's clock", outcome, multi)
    if outcome.time is None or outcome.zxid is None:
        raise ZkmqError(f"ZooKeeper did not say the time and the number of a write to {multi.ops[0].path}")
    context.clock.learn(outcome)
    return Tick(outcome.time, outcome.zxid)


# --- What an archive of ended tasks needs besides the log: the number of now, and how far the archive has come.


@dataclass(frozen=True, slots=True)
class Archive:
    """How far the archive of a queue has come.

    ``watermark``: up to this zxid clean-up may delete what has ended. ``directory``, ``run``: where the archive is, and
    a mark of whoever wrote this. ``version``: how often it was written; None where there is no archive yet.
    ``born``: the transaction that made the queue, by which it is told from another one of its name; it is not written.
    """

    watermark: int = 0
    directory: str | None = None
    run: str | None = None
    version: int | None = None
    born: int = 0


def zxid(context: Context) -> Procedure[int]:
    """The number of a transaction made now: whatever has a lower one is visible to all later reads of this client.

    Costs one small write. Raises `ConfigError` where the queue does not exist, `OutcomeUnknown`.
    """
    yield from read_conf(context)
    return (yield from tick(context)).zxid


def archive(context: Context) -> Procedure[Archive]:
    """How far the queue's archive has come. Raises `CorruptRecord` for what is no archive's record, `QueueNotFound`."""
    record, version = yield from read_archive(context)
    stat: Stat | None = yield Exists(context.paths.base)
    if version is None or stat is None:
        yield from refuse_missing(context)
    return Archive(
        record.get("watermark", 0),
        record.get("directory"),
        record.get("run"),
        version,
        0 if stat is None else stat.czxid,
    )
