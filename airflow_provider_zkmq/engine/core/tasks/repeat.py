"""Enqueues whose callers do not know what became of them, and the same made again with the ids that they used.

A call that ends in `OutcomeUnknown`, or is broken off after something was sent, leaves a mark for the id of each task
that may have been written: its stamp and nonce. The same client's next enqueue of the same message with this id takes
the mark over, and writes the same task: what the first call wrote is found by its stamp, and a request of the first
call that is carried out late is refused, since the id is there. Another message with this id ends what was remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.unresolved import Mark
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.writing.draft import Tree
from airflow_provider_zkmq.engine.errors import DuplicateTask, OutcomeUnknown, TransportError, Unavailable

T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """One enqueue under way: what of it may have been written. ``nonce``: by which its batch is recognised."""

    trees: list[Tree]
    nonce: str
    batch: str | None = None
    said: int = 0
    """Tells its batch from another of the same name."""
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
    """A call is about to write: it takes over what an earlier one left with the same ids."""
    call = Call(trees, context.marks.nonce(), batch, restored=context.run.restored())
    if batch is not None:
        following = None if then is None else (then.task_id if not then.generated else None, _said(then))
        call.said = hash((following, *((tree.task_id, _said(tree)) for tree in trees)))
    if context.unresolved.marks:
        _take_over(context, call)
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
        ids = [tree.task_id for tree in call.trees]
        names = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
        msg = f"queue {context.queue!r}: written or not: {names}; make the same call again with these ids: {error}"
        raise OutcomeUnknown(msg, task_ids=ids) from error
    except BaseException:
        _keep(context, call)
        raise


def check_written(context: Context, call: Call) -> None:
    """Raise `Unavailable` where what a call has written may be gone: the servers went back to an older state."""
    if call.sent and context.run.restored() != call.restored:
        raise Unavailable("the servers went back to an older state meanwhile")


def _keep(context: Context, call: Call) -> None:
    now = context.run.monotonic()
    marks = {
        name: Mark(now, _said(tree), tree.nonce, tree.stamp, name in call.written, call.restored)
        for name, tree in call.sent.items()
    }
    if call.batch is not None and call.opened:
        marks[_of_batch(call.batch)] = Mark(now, call.said, call.nonce, restored=call.restored)
    context.unresolved.keep(marks)


def _take_over(context: Context, call: Call) -> None:
    """What was written before the servers went back may be gone: its ids and marks are used again all the same."""
    now = context.run.monotonic()
    for tree in call.trees:
        mark = context.unresolved.take(tree.task_id, _said(tree), now)
        if mark is not None:
            tree.stamp, tree.nonce, tree.uncertain = mark.stamp, mark.nonce, True
            call.sending([tree])
            if mark.written and mark.restored == call.restored:
                call.done([tree])
    mark = None if call.batch is None else context.unresolved.take(_of_batch(call.batch), call.said, now)
    if mark is not None and mark.restored == call.restored:
        call.nonce, call.opened = mark.nonce, True


def _of_batch(name: str) -> str:
    """The name of a batch's mark: no task has such an id."""
    return f"batch/{name}"


def _said(tree: Tree) -> int:
    """What a caller asked for with one message, beside its id: equal for equal messages in this process."""
    asked = (tree.data, tree.metadata, tree.lane.name, tree.delay, tree.not_before, str(tree.policy), tree.lock)
    return hash((*asked, tree.update, tree.requeue, tree.batch, tree.only_new))
