"""A queue's permanent znodes."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import dump
from airflow_provider_zkmq.engine.core.protocol.ops import EnsureRoot, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import never, refused, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Failure, Ops

#: What ``archive`` holds of a queue that is archived, and whose archive holds nothing yet.
UNARCHIVED: Final = dump({"watermark": 0})


def create_skeleton(context: Context, conf: dict[str, bytes], *, archived: bool = False) -> Procedure[bool]:
    """Create the queue's permanent znodes in one transaction; False if the queue was there already."""
    yield EnsureRoot(context.root)
    ops = Ops()
    for path in context.paths.skeleton():
        ops.create(path)
    for name, value in conf.items():
        ops.create(context.paths.conf(name), value)
    if archived:
        ops.create(context.paths.at("archive"), UNARCHIVED)
    outcome = yield from transact(ops.multi(), never)
    if not outcome.committed and outcome.failure is not Failure.NODE_EXISTS:
        raise refused("creating the queue", outcome, ops.multi())
    return bool(outcome.committed)
