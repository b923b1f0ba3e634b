"""Batches that several processes write together: one opens, all of them add members, and one seals.

Each transaction that adds members writes the marker of the batch as well, so that none comes once it is sealed, and so
that clean-up knows when it was written to last (`core.upkeep.collect`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Procedure, Stat, Sync
from airflow_provider_zkmq.engine.core.tasks.batches import WRITING, Batch, open_batch, read_batch, seal_batch
from airflow_provider_zkmq.engine.core.tasks.enqueue import prepare_many
from airflow_provider_zkmq.engine.errors import ConfigError, DuplicateTask

#: So often members are counted anew where more were added meanwhile; then the batch is sealed all the same.
COUNTS: Final = 20


def open_for_several(context: Context, name: str, *, then: Message | None = None) -> Procedure[Batch]:
    """Open a batch for `enqueue_new(…, batch=name)` from whichever processes; returns how it stands.

    One that is there already stays as it is: `Batch.written` is False as long as members can be added to it. `then`: a
    task to enqueue when the last of the batch has ended. Raises `ConfigError`.
    """
    check_name("batch", name)
    following = yield from prepare_many(context, [] if then is None else [then])
    if any(tree.update or tree.requeue for tree in following):
        msg = f"batch {name!r}: what follows it cannot update or requeue another task"
        raise ConfigError(msg)
    with suppress(DuplicateTask):  # one that was written to its end before stays as it is
        yield from open_batch(context, name, following[0] if following else None, context.marks.nonce())
    return (yield from read_batch(context, name))


def seal(context: Context, name: str) -> Procedure[Batch]:
    """All members of a batch are written: it is done when the last of them has ended. May be repeated.

    `Batch.total` counts how often a task became a member: twice for one that was redriven while the batch was open.
    Raises `TaskNotFound` for a batch that is not there.
    """
    check_name("batch", name)
    yield Sync(context.paths.batch(name))
    batch = yield from read_batch(context, name)
    for last in (*[False] * COUNTS, True):
        marker: Stat | None = yield Exists(context.paths.batch(name, "open", WRITING))
        members: Stat | None = yield Exists(context.paths.batch(name, "open"))
        if marker is None or members is None:
            break
        total = (members.cversion + members.children) // 2 - 1
        if (yield from seal_batch(context, name, total, -1 if last else marker.version)):
            break
        yield Sync(context.paths.batch(name))
    return batch if batch.written else (yield from read_batch(context, name))
