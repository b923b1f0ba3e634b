"""What an archive of ended tasks needs: the number of now, what ended since, and how far the archive has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Node, Procedure
from airflow_provider_zkmq.engine.core.reading.clock import tick
from airflow_provider_zkmq.engine.core.reading.configuration import read_archive, read_conf
from airflow_provider_zkmq.engine.core.reading.counts import task_ids
from airflow_provider_zkmq.engine.core.reading.existence import refuse_missing
from airflow_provider_zkmq.engine.core.reading.letters import Departed, list_letters
from airflow_provider_zkmq.engine.core.reading.nodes import Record, chunked, read_nodes, record_of
from airflow_provider_zkmq.engine.errors import ZkmqError


class Ended(NamedTuple):
    """A task that has ended, and the zxid at which its record was written: its `Task.version` while it stays so."""

    id: str
    version: int


class Unreadable(Ended):
    """One whose record is damaged, which was reported: it cannot be read, nor archived; clean-up keeps it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Archive:
    """How far the archive of a queue has come.

    ``watermark``: up to this zxid clean-up may delete what has ended. ``directory``, ``run``: where the archive is, and
    a mark of whoever wrote this. ``version``: how often it was written; None where there is no archive yet.
    """

    watermark: int = 0
    directory: str | None = None
    run: str | None = None
    version: int | None = None


def zxid(context: Context) -> Procedure[int]:
    """The number of a transaction made now: whatever has a lower one is visible to all later reads of this client.

    Costs one small write. Raises `ConfigError` where the queue does not exist, `OutcomeUnknown`.
    """
    yield from read_conf(context)
    outcome = yield from tick(context)
    if outcome.zxid is None:
        raise ZkmqError(f"ZooKeeper did not say the number of a write to {context.paths.at('clock')}")
    return outcome.zxid


def ended_between(context: Context, after: int, until: int) -> Procedure[list[Ended]]:
    """The finished and cancelled tasks that ended after zxid `after`, up to and with `until`.

    Complete where `until` came from `zxid` of the same client. Every ended task that is kept is looked at; one whose
    record is corrupt is reported and left out. Raises `ConfigError` where the queue does not exist.
    """
    yield from read_conf(context)
    listed = [*(yield from task_ids(context, State.FINISHED)), *(yield from task_ids(context, State.CANCELLED))]
    ended: list[Ended] = []
    for chunk in chunked(listed):
        nodes = yield from read_nodes([context.paths.task(each, "state") for each in chunk])
        for task_id, node in zip(chunk, nodes, strict=True):
            if node is None or node.stat.mzxid <= after:
                continue  # not written since: it ended before, too, and need not be decoded
            if each := _ended_in(context, task_id, node, after, until):
                ended.append(each)
    return ended


def _ended_in(context: Context, task_id: str, node: Node, after: int, until: int) -> Ended | None:
    """The task, if it ended in that time; one whose record was written once more ended when it was written first."""
    record = record_of(context, task_id, node, "it cannot be archived")
    readable = isinstance(record, Record)
    ended = (record.state.ended_zxid if isinstance(record, Record) else None) or node.stat.mzxid
    return (Ended if readable else Unreadable)(task_id, node.stat.mzxid) if after < ended <= until else None


def departed_between(context: Context, after: int, until: int) -> Procedure[list[Departed]]:
    """The dead letters of an archived queue that left it after zxid `after`, up to and with `until`.

    By a redrive, a drop or a clear. They are kept until the archive has come so far. Complete as `ended_between` is.
    """
    yield from read_conf(context)
    return [each for each in (yield from list_letters(context, until)) if after < each.zxid <= until]


def archive(context: Context) -> Procedure[Archive]:
    """How far the queue's archive has come. Raises `CorruptRecord` for what is no archive's record, `QueueNotFound`."""
    record, version = yield from read_archive(context)
    if version is None:
        yield from refuse_missing(context)
    return Archive(record.get("watermark", 0), record.get("directory"), record.get("run"), version)
