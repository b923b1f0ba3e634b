"""Enqueue of what is not there yet: an id that a task has, in whatever state, is left alone, and never runs again.

Who loads much does so in pieces that are tried again and side by side. So each message has an id of its own, the ids
are looked up before anything is written, and what is missing is written several trees a transaction: a transaction that
meets an id all the same is refused as a whole, and made anew of what is still missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.messages import Message, NewTasks
from airflow_provider_zkmq.engine.core.model.moments import Moment, optional_milliseconds
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Procedure, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import Failure, SetData
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.nodes import Record, Unread, chunked, read_records
from airflow_provider_zkmq.engine.core.tasks.batches import WRITING
from airflow_provider_zkmq.engine.core.tasks.bulk import WINDOW, groups, plan_of, refused_group, send, unless_deleted
from airflow_provider_zkmq.engine.core.tasks.enqueue import refuse_twins
from airflow_provider_zkmq.engine.core.tasks.new_messages import prepare_new
from airflow_provider_zkmq.engine.core.tasks.repeat import Call, begin, told
from airflow_provider_zkmq.engine.core.tasks.reuse import refuse_a_torso
from airflow_provider_zkmq.engine.core.writing.commit import Sent, commit
from airflow_provider_zkmq.engine.core.writing.draft import Tree
from airflow_provider_zkmq.engine.core.writing.plan import Change, Plan, Refusal, Why
from airflow_provider_zkmq.engine.errors import (
    ConfigError,
    DuplicateTask,
    Unavailable,
    ZkmqError,
)

#: Of the time for which finished tasks are kept, as much is left for writes that are under way.
_MARGIN: Final = 0.1


def enqueue_new(
    context: Context, messages: Sequence[Message], *, batch: str | None = None, since: Moment | None = None
) -> Procedure[NewTasks]:
    """Write the messages whose ids no task has; what is there, in whatever state, stays as it is and runs no more.

    Each message needs a ``task_id``. So the call can be made again, by anybody and side by side: each task is written
    once, as long as it is kept. `batch`: one that `open_batch` has opened; its members are kept until it is sealed, and
    none comes after that. `since`: when the first try may have begun, by `now`; once ``task_gc_lifetime`` has nearly
    passed since, the call is refused, as what was done may be gone by then and would be done again.

    Raises `BadMessage` for the first message that is refused, `ConfigError`, `TaskTooLarge`; then nothing was written.
    `DuplicateTask`: an id is in use by a task that is no member of the batch. `OutcomeUnknown`: make the call again.
    """
    began = optional_milliseconds("since", since)
    conf = yield from read_conf(context, create=True)
    name = None if batch is None else check_name("batch", batch)
    trees = [prepare_new(context, conf, position, message, name) for position, message in enumerate(messages)]
    refuse_twins(trees)
    load = _Load(context, begin(context, trees), trees, name, began)
    return (yield from told(context, load.call, unless_deleted(context, load.carry_out())))


@dataclass(slots=True)
class _Load:
    """One call under way. ``met``: ids that a transaction was refused for; ``existing``: those that are there."""

    context: Context
    call: Call
    trees: list[Tree]
    batch: str | None
    since: int | None
    met: set[str] = field(default_factory=set)
    existing: set[str] = field(default_factory=set)

    def carry_out(self) -> Procedure[NewTasks]:
        """Write what is missing, a window of transactions after the other."""
        context = self.context
        yield Sync(context.paths.at("tasks"))  # what is seen there was there when the call was made
        for window in chunked(groups(context, self.trees), WINDOW):
            yield from self._in_time()
            missing = yield from self._look([tree for group in window for tree in group])
            while missing:
                again = yield from self._write(missing)
                if again:  # the server that we read from may lag behind the one that refused
                    yield Sync(context.paths.at("tasks"))
                missing = yield from self._look(again)
        ids = [tree.task_id for tree in self.trees]
        new = tuple(task_id for task_id in ids if task_id in self.call.written)
        return NewTasks(new, tuple(task_id for task_id in ids if task_id not in self.call.written))

    def _in_time(self) -> Procedure[None]:
        """Raise `ConfigError` where a finished task that an earlier try wrote may have been deleted by now."""
        if self.since is None:
            return
        lifetime = (yield from read_conf(self.context)).gc_lifetime
        passed = ((yield from server_time(self.context)) - self.since) / 1000
        if passed >= lifetime * (1 - _MARGIN):
            msg = (
                f"the first try began {passed:.0f} s ago, and finished tasks are kept for {lifetime:g} s "
                f"(task_gc_lifetime of queue {self.context.queue!r}): what is done may be gone and would run again. "
                "Keep them for longer than the whole load takes, or load as a batch, whose members are kept"
            )
            raise ConfigError(msg)

    def _look(self, trees: Sequence[Tree]) -> Procedure[list[Tree]]:
        """Those of the trees whose ids no task has.

        Nor a member that failed and was dropped: it never runs again. Who drops one names it in the transaction that
        deletes its task, so that the names are read after the tasks.
        """
        asked = [tree for tree in trees if tree.task_id not in self.existing and tree.task_id not in self.call.written]
        records = yield from read_records(self.context, [tree.task_id for tree in asked])
        missing: list[Tree] = []
        for tree, record in zip(asked, records, strict=True):
            if record is not Unread.MISSING:
                self._stands(tree, record)
            elif tree.task_id in self.met:
                yield from self._gone(tree)
            else:
                missing.append(tree)
        if self.batch is None or not missing:
            return missing
        failed = set((yield Children(self.context.paths.batch(self.batch, "failed"))) or ())
        self.existing.update(tree.task_id for tree in missing if tree.task_id in failed)
        return [tree for tree in missing if tree.task_id not in failed]

    def _stands(self, tree: Tree, record: Record | Unread) -> None:
        """There is a task with the id of a tree: it may be this very one."""
        state = record.state if isinstance(record, Record) else None
        if state is not None and tree.uncertain and tree.wrote(state):
            self.call.done([tree])
            return
        self.call.refused([tree])
        self.existing.add(tree.task_id)
        if self.batch is not None and (state is None or state.batch != self.batch):
            msg = f"task id {tree.task_id!r} is in use by a task that is no member of batch {self.batch!r}"
            raise DuplicateTask(msg, duplicates=[tree.task_id], enqueued=sorted(self.call.written))

    def _gone(self, tree: Tree) -> Procedure[None]:
        """Its id was met a moment ago and has no record: it was deleted meanwhile, unless it never was a task."""
        yield from refuse_a_torso(self.context, tree.task_id)
        self.existing.add(tree.task_id)

    def _write(self, trees: Sequence[Tree]) -> Procedure[list[Tree]]:
        """Send one window of transactions; returns the trees of those that met an id."""
        made = groups(self.context, trees)
        plans: list[Plan] = []
        for group in made:
            plans.append((yield from self._plan(group)))
        again: list[Tree] = []
        errors: list[ZkmqError] = []
        for group, plan, sent in zip(made, plans, (yield from send(self.call, made, plans)), strict=True):
            refusal = yield from self._carry_on(group, plan, sent)
            if refusal is None:
                self.call.done(group)
            elif self._meets(group, refusal):
                again += group
            else:
                errors.append(refused_group(self.context, self.call, group, refusal))
        if errors:
            raise errors[0]
        return again

    def _plan(self, group: list[Tree]) -> Procedure[Plan]:
        """A transaction that writes a group; as members of a batch only while that is open."""
        plan = yield from plan_of(self.context, group)
        if self.batch is not None:
            marker = self.context.paths.batch(self.batch, "open", WRITING)
            plan.changes.append(Change(self.context, self.batch, [SetData(marker, b"", -1)]))
        return plan

    def _carry_on(self, group: list[Tree], plan: Plan, sent: Sent) -> Procedure[Refusal | None]:
        """Carry a transaction to its end: None when it is written, else why it is not."""
        self._doubt(group, unknown=sent.outcome.unknown)
        try:
            verdict = yield from commit(plan, partial(self._anew, group), first=sent)
        except Unavailable:
            self._not_written(group)
            raise
        return verdict.refusal

    def _anew(self, group: list[Tree], refusal: Refusal) -> Procedure[Plan | None]:
        """The same elsewhere, where its segment came or went."""
        self._doubt(group, unknown=refusal.uncertain)
        self._not_written(group)
        if refusal.why is not Why.PLACE:
            return None
        plan = yield from self._plan(group)
        self.call.sending(group)
        return plan

    def _doubt(self, group: list[Tree], *, unknown: bool) -> None:
        for tree in group:
            tree.uncertain = tree.uncertain or unknown

    def _not_written(self, group: list[Tree]) -> None:
        self.call.refused(tree for tree in group if not tree.uncertain)

    def _meets(self, group: list[Tree], refusal: Refusal) -> bool:
        """Whether a transaction was refused since there is a task with an id of its own; which is noted."""
        ids = {self.context.paths.task(tree.task_id): tree.task_id for tree in group}
        if refusal.path not in ids or refusal.outcome.failure is not Failure.NODE_EXISTS:
            return False
        self.met.add(ids[refusal.path])
        return True
