"""Writing validated trees: several a transaction, several transactions in flight, each carried to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.slots import OpenSegment
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Failure,
    Multi,
    Outcome,
    Pipeline,
    Procedure,
    WriteOp,
    request_size,
)
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, reconnect, refused
from airflow_provider_zkmq.engine.core.protocol.tries import Races, Tries
from airflow_provider_zkmq.engine.core.tasks import reuse
from airflow_provider_zkmq.engine.core.tasks.repeat import Call
from airflow_provider_zkmq.engine.core.writing.draft import Tree, due_of, scheduled_index
from airflow_provider_zkmq.engine.core.writing.place import (
    may_reopen,
    open_segment,
    queue_deleted,
    remember_opened,
    slot_ops,
    unless_deleted,
)
from airflow_provider_zkmq.engine.errors import ConfigError, DuplicateTask, TransportError, Unavailable, ZkmqError

TREES_PER_MULTI: Final = 20
BATCH_BYTES: Final = 256_000
WINDOW: Final = 8


@dataclass(slots=True)
class _Refused:
    """A task that met its id, and that one's status."""

    task_id: str
    status: str


def write_trees(context: Context, trees: Sequence[Tree], call: Call) -> Procedure[list[str]]:
    """Write validated trees; see `enqueue_many`. `call` learns what may have been written, at every moment."""
    refusals: list[_Refused] = []
    batches = _batches(context, [tree for tree in trees if tree.task_id not in call.written])
    for start in range(0, len(batches), WINDOW):
        refusals += yield from unless_deleted(context, _write(context, batches[start : start + WINDOW], call))
    if refusals:
        raise _duplicates(refusals, [tree.task_id for tree in trees if tree.task_id in call.written])
    return [tree.task_id for tree in trees]


def _duplicates(refusals: list[_Refused], done: list[str]) -> DuplicateTask:
    first = refusals[0]
    more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    use = f"in use (status: {first.status})"
    msg = f"task id {first.task_id!r}{more} is {use}; choose another or wait until it is collected"
    return DuplicateTask(msg, status=first.status, duplicates=[it.task_id for it in refusals], enqueued=done)


def _batches(context: Context, trees: Sequence[Tree]) -> list[list[Tree]]:
    """Trees grouped into transactions. What may meet its id goes alone: one duplicate refuses its whole group."""
    batches: list[list[Tree]] = []
    room = 0
    for tree in trees:
        size = request_size(tree.ops(context, "x" * 300, None, None))
        alone = not tree.generated or tree.uncertain
        if not batches or alone or room < size or len(batches[-1]) >= TREES_PER_MULTI:
            batches.append([])
            room = 0 if alone else BATCH_BYTES
        batches[-1].append(tree)
        room -= size
    return batches


def _write(context: Context, batches: list[list[Tree]], call: Call) -> Procedure[list[_Refused]]:
    """One window of transactions in flight together; each that did not commit at once is carried on singly.

    An error of one of them is raised when all have been carried to their end; without a connection none can be.
    """
    written = []
    opened: set[str] = set()  # requests of one session are carried out in order: the first one opens for all
    for batch in batches:
        written.append((yield from _batch_ops(context, batch, opened)))
    outcomes = yield from _send(
        call, Pipeline(tuple(it.multi for it in written)), [tree for b in batches for tree in b]
    )
    refusals: list[_Refused] = []
    errors: list[ZkmqError] = []
    for batch, it, outcome in zip(batches, written, outcomes, strict=True):
        try:
            status = yield from _settle_batch(context, batch, it, outcome, call)
        except TransportError:
            raise
        except ZkmqError as error:
            errors.append(error)
        else:
            refusals += [] if status is None else [_Refused(batch[0].task_id, status)]
    if errors:
        raise errors[0]
    return refusals


def _send(call: Call, op: Pipeline | Multi, trees: list[Tree]) -> Procedure[Any]:
    """Send what writes these trees; where no server is connected, nothing is sent."""
    before = {tree.task_id for tree in trees} & set(call.sent)
    call.sending(trees)
    try:
        return (yield op)
    except Unavailable:
        call.refused(tree for tree in trees if tree.task_id not in before)
        raise


@dataclass(slots=True)
class _Written:
    """A transaction of several trees, and the segments it writes to."""

    multi: Multi
    slots: list[OpenSegment]
    buckets: bool


def _batch_ops(context: Context, batch: list[Tree], opened: set[str]) -> Procedure[_Written]:
    ops: list[WriteOp] = []
    slots: list[OpenSegment] = []
    for tree in batch:
        if tree.delay:
            due = yield from due_of(context, tree.delay)
            index = yield from scheduled_index(context, tree.task_id, due)
            ops += tree.ops(context, f"{tree.lane.name}//{tree.entry}", index, due)
        else:
            slot = yield from open_segment(context, tree.lane)
            slots.append(slot)
            checked = [op for op in slot_ops(slot, opened) if op not in ops]
            ops += [*checked, *tree.ops(context, f"{slot.lane.name}/{slot.segment}/{tree.entry}", None, None)]
    return _Written(Multi(tuple(ops)), slots, any(tree.delay for tree in batch))


def _settle_batch(
    context: Context, batch: list[Tree], it: _Written, outcome: Outcome, call: Call
) -> Procedure[str | None]:
    """Carry a batch to its end: None when it is written, or the status of the task that holds its first id."""
    first = batch[0]
    uncertain, races, tries = first.uncertain, Races(), Tries(f"enqueue of task {first.task_id!r}")
    lost, sent = 0, None
    while True:
        remember_opened(context, it.multi, outcome)
        if outcome.committed:
            call.done(batch)
            return None
        if not (uncertain or outcome.unknown):
            call.refused(batch)
        path = failed_at(outcome, it.multi)
        if outcome.unknown:
            uncertain, lost, sent = True, lost + 1, sent or outcome.sent
            yield from reconnect(lost, sent)
        elif outcome.failure is Failure.NODE_EXISTS and path == context.paths.task(first.task_id):
            met = yield from reuse.meet(context, first, uncertain=uncertain, sending=lambda: call.sending(batch))
            if met is reuse.Met.WRITTEN:
                call.done(batch)
                return None
            if met is not reuse.Met.GONE:
                call.refused(batch)
                return str(met)
            yield from tries.refused(outcome, it.multi, None)
        elif races.lost(outcome, it.multi) or not _may_retry(context, it, path, outcome):
            call.refused([] if uncertain else batch)
            raise _refusal(context, outcome, it.multi)
        else:
            it = yield from _batch_ops(context, batch, set())
        outcome = yield from _send(call, it.multi, batch)


def _may_retry(context: Context, it: _Written, path: str, outcome: Outcome) -> bool:
    return may_reopen(context, it.slots, it.multi, outcome) or _bucket_gone(context, it, path, outcome)


def _bucket_gone(context: Context, it: _Written, path: str, outcome: Outcome) -> bool:
    """Whether a bucket of scheduled tasks was cleared away meanwhile."""
    inside = it.buckets and path.startswith(context.paths.at("scheduled") + "/")
    if inside and outcome.failure is Failure.NO_NODE:
        context.slots.buckets.clear()
        return True
    return False


def _refusal(context: Context, outcome: Outcome, multi: Multi) -> ZkmqError:
    path = failed_at(outcome, multi)
    if outcome.failure is Failure.NO_NODE and path.startswith(context.paths.at("batches") + "/"):
        return ConfigError(f"the batch of {path} was deleted while its tasks were written")
    if outcome.failure is Failure.NO_NODE:
        return queue_deleted(context)
    return refused("enqueue", outcome, multi)
