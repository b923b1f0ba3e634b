"""What an archive of ended tasks needs besides the log: the number of now, and how far the archive has come."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Procedure, Stat
from airflow_provider_zkmq.engine.core.reading.clock import tick
from airflow_provider_zkmq.engine.core.reading.configuration import read_archive, read_conf
from airflow_provider_zkmq.engine.core.reading.existence import refuse_missing


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
