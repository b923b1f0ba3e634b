"""The end of a batch: ``open`` is deleted in the transaction that enqueues what follows."""

from __future__ import annotations

from functools import partial
from typing import Any, TypedDict

from ...errors import CorruptRecord, TransportError, ZkmqError
from .. import zk_operations as zk
from ..client_state import Context
from ..model.records import clip
from ..model.values import Count, Milliseconds, Part, dump, load
from ..model.znode_names import index_path
from ..read import bulk_read, server_clock
from ..read.configuration import read_conf
from ..transaction_retries import Gone, transact
from ..zk_operations import Procedure
from .commit import Change, Plan, Refusal, Why, commit, known_bucket, remember_batch
from .new_task import insert, listed_at, unpack

# --- Ending a batch: ``open`` is deleted in the transaction that enqueues what follows, once no member is left in it.
#
# Whoever takes the last member off ends the batch; a crash or a lost connection in between leaves an empty
# ``open``, which the same client's next look, a waiter, the rescue of a dead consumer or a clean-up deletes.


class BatchRecord(TypedDict, total=False):
    """What the znode of a batch holds."""

    nonce: str | None
    then: Part | None
    total: Count
    done: Milliseconds
    refused: str | None


def load_batch(path: str, data: bytes) -> dict[str, Any]:
    """A batch's record. Raises `CorruptRecord`."""
    return {**load(path, data, BatchRecord, "a batch")}


def close_after(context: Context, name: str | None) -> Procedure[None]:
    """End a batch after a write that is committed and must not be told to have failed.

    Where the connection is lost, or the call is broken off, the batch is remembered for `close_pending`.
    """
    if name is None:
        return
    try:
        yield from close_batch(context, name)
    except TransportError:
        remember_batch(context, name)
    except ZkmqError as error:
        context.report(context.paths.batch(name), str(error), damage=str(error))
    except BaseException:
        remember_batch(context, name)
        raise


def close_pending(context: Context) -> Procedure[None]:
    """End the batches that this client could not end when it took their last member off."""
    for name in list(context.pending.batches):
        context.pending.batches.discard(name)
        yield from close_after(context, name)


def close_batches(context: Context) -> Procedure[None]:
    """End what a crash left without an end. What cannot be read is reported and stepped over."""
    names = (yield zk.Children(context.paths.at("batches"))) or ()
    stats = yield from bulk_read.read_stats([context.paths.batch(name, "open") for name in names])
    for name, stat in zip(names, stats, strict=True):
        if stat is not None and not stat.children:
            yield from close_after(context, name)


def close_batch(context: Context, name: str) -> Procedure[None]:
    """End a batch if the last of its members has ended. Raises `CorruptRecord` for a record that cannot be read."""
    stat: zk.Stat | None = yield zk.Exists(context.paths.batch(name, "open"))
    if stat is None or stat.children:
        return
    yield from read_conf(context)
    plan = yield from _ending(context, name)
    if plan is not None:
        yield from commit(plan, partial(_anew, context, name))


def _ending(context: Context, name: str) -> Procedure[Plan | None]:
    """How to end a batch as it stands now; None where it is not there any more."""
    base = context.paths.batch(name)
    node, follow_up = yield from bulk_read.read_nodes((base, f"{base}/then"))
    if node is None:
        return None
    record = load_batch(base, node.data)
    path, then, following = f"{base}/then", record.get("then"), list[Change]()
    lost: str | None = None
    if follow_up is not None:
        following.append(Change(context, str(then), [zk.Delete(path)]))
        if not record.get("refused"):
            try:
                new = unpack(context, path, follow_up.data)
            except CorruptRecord as error:
                lost = f"{error}; nothing follows the batch"
            else:
                new.stamp = context.marks.stamp((yield from server_clock.ordering_time(context)))
                following.append((yield from insert(context, new)))
    elif then:
        lost = f"{path} is missing: task {then!r} cannot follow the batch"
    now = yield from server_clock.server_time(context)
    index = index_path("batches-done", now, name)
    yield from known_bucket(context, index)
    done = dump(record | {"done": now} | ({"refused": clip(lost)} if lost else {}))
    closing = Change(context, name, [zk.Delete(f"{base}/open"), zk.SetData(base, done, node.stat.version)])
    closing.proof = Gone(f"{base}/open")
    closing.preconditions[base] = frozenset({zk.Failure.BAD_VERSION})
    if lost:
        closing.on_commit = partial(_notify, context, path, lost)
    return Plan([closing, *following, listed_at(context, name, index)])


def _notify(context: Context, path: str, why: str) -> Procedure[None]:
    context.report(path, why)
    return
    yield  # pragma: no cover


def _anew(context: Context, name: str, refusal: Refusal) -> Procedure[Plan | None]:
    """The plan made anew where its record changed or a segment came or went; without a follow-up whose id is in use."""
    if refusal.why not in {Why.CHANGED, Why.PLACE}:
        base, task_id = context.paths.batch(name), refusal.change.task_id
        taken = refusal.outcome.failure is zk.Failure.NODE_EXISTS and refusal.path == context.paths.task(task_id)
        node: zk.Node | None = (yield zk.Get(base)) if taken else None
        if node is None:
            return None
        why = f"task {task_id!r}, which should follow the batch, was not enqueued: its id is in use"
        context.report(base, why)
        refused = dump(load_batch(base, node.data) | {"refused": clip(why)})
        yield from transact(zk.Multi((zk.SetData(base, refused),)))
    return (yield from _ending(context, name))
