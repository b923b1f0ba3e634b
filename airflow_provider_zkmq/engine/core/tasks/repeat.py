"""Enqueues whose callers do not know what became of them, and the same call made again.

A call that ends in `OutcomeUnknown`, or is broken off after something was sent, leaves a mark of each task that may
have been written: its id, stamp and nonce. The same client's next call with the same content takes the marks over,
each once, and writes the same tasks: what the first call wrote is found by its stamp, and a request of the first call
that is carried out late is refused, since the id is there. So each success that a caller heard of is one task of its
own, and the call that was not told of one counts as not carried out, which is what it was told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.unresolved import CallLeft, Mark
from airflow_provider_zkmq.engine.core.model.records import dump
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.writing.draft import Tree
from airflow_provider_zkmq.engine.errors import DuplicateTask, OutcomeUnknown, TransportError, Unavailable

T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """One enqueue under way: what of it may have been written. ``nonce``: by which its batch is recognised."""

    trees: list[Tree]
    nonce: str
    batch: bytes | None = None
    restored: int = 0
    """How often the servers had gone back when it began."""
    opened: bool = False
    sent: dict[str, Tree] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def sending(self, trees: Iterable[Tree]) -> None:
        """These may be written from now on."""
        self.sent.update((tree.task_id, tree) for tree in trees)

    def refused(self, trees: Iterable[Tree]) -> None:
        """These were not written, and no request is under way that could."""
        for tree in trees:
            self.sent.pop(tree.task_id, None)

    def done(self, trees: Iterable[Tree]) -> None:
        """These are written."""
        self.written.update(tree.task_id for tree in trees)


def begin(context: Context, trees: list[Tree], then: Tree | None = None, batch: str | None = None) -> Call:
    """A call is about to write: it takes over what the same call left before."""
    asked, restored = _batch_content(batch, trees, then) if batch else None, context.run.restored()
    call = Call(trees, context.marks.nonce(), asked, restored)
    if context.unresolved.calls:
        context.unresolved.doubt(restored)
        for tree in trees:
            _take_over(context, call, tree)
        _take_batch_over(context, call)
    return call


def told(context: Context, call: Call, procedure: Procedure[T]) -> Procedure[T]:
    """Carry a call out. Once something of it was sent, its caller hears success, refusal or `OutcomeUnknown`."""
    try:
        result = yield from procedure
        check_written(context, call)
        return result
    except DuplicateTask:
        raise  # it tells which were written
    except TransportError as error:
        if not (call.sent or call.opened):
            raise
        _keep(context, call)
        ids = tuple(call.sent)
        names = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
        what = f"tasks of queue {context.queue!r} were written or not ({names})" if ids else "a batch was begun or not"
        msg = f"{what}; make the same call again: {error}"
        raise OutcomeUnknown(msg, task_ids=ids) from error
    except BaseException:
        _keep(context, call)
        raise


def check_written(context: Context, call: Call) -> None:
    """Raise `Unavailable` where what a call has written may be gone: the servers went back to an older state."""
    if call.sent and context.run.restored() != call.restored:
        raise Unavailable("the servers went back to an older state meanwhile")


def _keep(context: Context, call: Call) -> None:
    if not (call.sent or call.opened):
        return
    marks = [
        Mark(content(tree), tree.task_id, tree.stamp, tree.nonce, tree.task_id in call.written)
        for tree in call.sent.values()
    ]
    batch = call.batch if call.opened else None
    context.unresolved.keep(CallLeft(context.run.monotonic(), marks, batch, call.nonce, call.restored))


def _take_over(context: Context, call: Call, tree: Tree) -> None:
    mark = context.unresolved.take(content(tree))
    if mark is None:
        return
    tree.task_id, tree.stamp, tree.nonce, tree.uncertain = mark.task_id, mark.stamp, mark.nonce, True
    call.sending([tree])
    if mark.written:
        call.done([tree])


def _take_batch_over(context: Context, call: Call) -> None:
    nonce = None if call.batch is None else context.unresolved.take_batch(call.batch)
    if nonce is not None:
        call.nonce, call.opened = nonce, True


def content(tree: Tree) -> bytes:
    """What a caller asked for with one message: equal for equal messages."""
    own = None if tree.generated and tree.batch is None else tree.task_id
    asked = [own, tree.metadata.decode(), sorted(tree.filters.items()), tree.lane.priority, tree.delay, tree.policy]
    asked += [tree.lock, tree.update, tree.requeue, tree.batch, tree.not_before, tree.only_new]
    return hashlib.sha256(dump(asked) + b"\n" + tree.data).digest()


def _batch_content(name: str, trees: Iterable[Tree], then: Tree | None) -> bytes:
    parts = [content(tree) for tree in (*trees, *([] if then is None else [then]))]
    return hashlib.sha256(dump(name) + b"\n" + b"".join(parts)).digest()
