"""Up to where clean-up may have deleted ended runs of a queue that streams follow, taken or not."""

from __future__ import annotations

from functools import partial

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.stored import corrupt_unless_read, load
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.reading.existence import refuse_missing
from airflow_provider_zkmq.engine.core.reading.nodes import unless_corrupt


def trimmed(context: Context) -> Procedure[int | None]:
    """The zxid up to which clean-up may have deleted runs of the log; None where the queue is not followed.

    Whoever has taken less than that may have lost some. At first it is the transaction that made the queue a followed
    one, since nobody has noted what was deleted before. Read anew each time. Raises `QueueNotFound`.
    """
    path = context.paths.at("followed")
    yield Sync(path)  # the server that we read from may lag behind
    node: Node | None = yield Get(path)
    if node is None:
        yield from refuse_missing(context)
    return None if node is None else trimmed_by(context, path, node)


def trimmed_by(context: Context, path: str, node: Node) -> int:
    """What the mark says; of one that cannot be read it is known only that nothing was deleted since it was written."""
    highest = unless_corrupt(context, path, partial(_load, path, node.data), "its last write counts")
    return node.stat.mzxid if highest is None else max(highest, node.stat.czxid)


def _load(path: str, data: bytes) -> int:
    """How far a mark says that clean-up has come. Raises `CorruptRecord`."""
    record = load(path, data)
    with corrupt_unless_read(path, "a mark of a queue that is followed"):
        return checks.zxid(record.get("trimmed", 0))
