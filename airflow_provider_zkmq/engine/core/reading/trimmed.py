"""Up to where clean-up may have deleted ended runs of a queue that streams follow, taken or not."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.stored import corrupt_unless_read, load
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.reading.existence import refuse_missing
from airflow_provider_zkmq.engine.core.reading.nodes import unless_corrupt


class Trimmed(NamedTuple):
    """What clean-up has deleted of the log of a followed queue.

    ``upto``: no run that ended after this zxid was deleted; 0 where nothing was. ``since``: the transaction that made
    the queue a followed one: what was deleted before that, nobody has noted, and of a queue that was deleted, or not
    followed for a while, it is another one afterwards.
    """

    upto: int
    since: int


def trimmed(context: Context) -> Procedure[Trimmed | None]:
    """Up to where clean-up may have deleted runs of the log; None where the queue is not followed.

    Whoever began when `Trimmed.since` was the same, and has taken everything up to `Trimmed.upto`, has lost nothing.
    Read anew each time. Raises `QueueNotFound`.
    """
    path = context.paths.at("followed")
    yield Sync(path)  # the server that we read from may lag behind
    node: Node | None = yield Get(path)
    if node is None:
        yield from refuse_missing(context)
    return None if node is None else Trimmed(trimmed_upto(context, path, node), node.stat.czxid)


def trimmed_upto(context: Context, path: str, node: Node) -> int:
    """What the mark says; of one that cannot be read it is known only that nothing was deleted since it was written."""
    highest = unless_corrupt(context, path, partial(_load, path, node.data), "its last write counts")
    return node.stat.mzxid if highest is None else highest


def _load(path: str, data: bytes) -> int:
    """How far a mark says that clean-up has come. Raises `CorruptRecord`."""
    record = load(path, data)
    with corrupt_unless_read(path, "a mark of a queue that is followed"):
        return checks.zxid(record.get("trimmed", 0))
