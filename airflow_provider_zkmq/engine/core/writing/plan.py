"""What one transaction changes, and how its refusal is understood.

A plan is made of changes, each to one task or one batch; plans can be merged. Named constructors, one for each row of
the state table, fill them (`core.writing.transitions`, `core.writing.inserting`); `core.writing.commit` carries them
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TypeAlias, TypeGuard

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.slots import OpenSegment
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, never
from airflow_provider_zkmq.engine.core.protocol.writes import (
    MAX_REQUEST,
    Create,
    Delete,
    Failure,
    Multi,
    Outcome,
    SetData,
    WriteOp,
    request_size,
)
from airflow_provider_zkmq.engine.core.writing.place import remember_opened, reopens, slot_ops

Ours: TypeAlias = Callable[[], Procedure[Outcome | None]]


class Why(Enum):
    """What a refusal says."""

    PLACE = "a segment came or went"
    HOME = "what must hold an entry is not there, or is there already"
    BATCH = "the task is no member of its batch any more"
    CHANGED = "what the plan is based on has changed since it was read"
    OTHER = "the tree is not as its records tell, or an id is in use"


@dataclass(slots=True, eq=False)
class Change:
    """What is done to one task or one batch: ``ops``, then what opens the slot, then ``listing``."""

    context: Context
    task_id: str
    ops: list[WriteOp] = field(default_factory=list)
    slot: OpenSegment | None = None
    listing: list[WriteOp] = field(default_factory=list)
    after: TaskState | None = None
    """The record that it writes."""
    before: str | None = None
    """The nonce of the record that it was made from."""
    superseded: bool = False
    """That record is another task's by now: one of the same id that was enqueued after it was dropped."""
    ours: Ours = never
    """Asked where its reply was lost: whether it was carried out."""
    based_on: dict[str, frozenset[Failure]] = field(default_factory=dict)
    """The znodes it is based on, each with the refusals that say that it was changed."""
    homes: dict[str, Callable[[], Procedure[None]]] = field(default_factory=dict)
    """Entries of indexes whose buckets may be gone, each with what makes them."""
    parents: tuple[Create, ...] = ()
    """What creates the lane and the segment that it goes back to, which may be gone."""
    missing: tuple[Create, ...] = ()
    """Those of them that are gone, as far as is known: they are created with its entry."""
    either: dict[str, bytes] = field(default_factory=dict)
    """Znodes that hold this afterwards, whether they were there before or not: a damaged tree may have lost one."""
    batch: str | None = None
    """The batch whose last member it may take off."""
    afterwards: Callable[[], Procedure[None]] | None = None
    """Follows once it is committed; must not fail."""

    def leave_batch(self) -> None:
        """Go on without the membership: the task is no member any more, and its record does not say that it is."""
        record = self.context.paths.task(self.task_id, "state")
        if self.after is not None:
            self.after = after = replace(self.after, batch=None)
            self.ops = [SetData(op.path, after.encode(), op.version) if _writes(op, record) else op for op in self.ops]
        self._drop(lambda path: path.startswith(f"{self.context.paths.batch(self.batch or '')}/"))

    def turns(self, path: str) -> bool:
        """Whether what is written at `path` matters, not what stood there: it is created where it was to be set."""
        data = self.either.pop(path, None)
        if data is None:
            return False
        other: dict[type, WriteOp] = {Create: SetData(path, data), SetData: Create(path, data)}
        self.ops = [other.get(type(op), op) if op.path == path else op for op in self.ops]
        return True

    def misjudged(self, path: str, failure: Failure | None) -> Create | None:
        """The parent of its entry that is gone, or there, other than was thought."""
        if failure is Failure.NODE_EXISTS:
            return next((op for op in self.missing if op.path == path), None)
        if failure is not Failure.NO_NODE or not any(op.path == path for op in (*self.missing, *self.listing)):
            return None
        above = path.rpartition("/")[0]
        return next((op for op in self.parents if op.path == above and op not in self.missing), None)

    def judge_anew(self, parent: Create) -> None:
        """Create a parent that was thought to be there, or do not create one that was thought to be gone."""
        self.missing = tuple(op for op in self.parents if (op in self.missing) is not (op == parent))

    def lists(self, path: str, failure: Failure | None) -> bool:
        """Whether a listing of the task is gone that was to be deleted, or there that was to be created."""
        if path.startswith(self.context.paths.task(self.task_id) + "/"):
            return False
        kind = {Failure.NO_NODE: Delete, Failure.NODE_EXISTS: Create}.get(failure) if failure else None
        return kind is not None and any(op.path == path and isinstance(op, kind) for op in (*self.ops, *self.listing))

    def touches(self, path: str) -> bool:
        """Whether it does something at `path`."""
        return any(op.path == path for op in (*self.ops, *self.listing))

    def drop(self, path: str) -> None:
        """Go on without what is done at `path`."""
        self._drop(lambda other: other == path)

    def _drop(self, unwanted: Callable[[str], bool]) -> None:
        self.ops = [op for op in self.ops if not unwanted(op.path)]
        self.listing = [op for op in self.listing if not unwanted(op.path)]


def _writes(op: WriteOp, path: str) -> TypeGuard[SetData]:
    return isinstance(op, SetData) and op.path == path


@dataclass(frozen=True, slots=True)
class Refusal:
    """A transaction that was refused: where, by which change's doing, and what that says.

    ``uncertain``: an earlier try of the same commit had an unknown outcome.
    """

    why: Why
    change: Change
    path: str
    outcome: Outcome
    multi: Multi
    uncertain: bool = False


@dataclass(eq=False)
class Plan:
    """One transaction."""

    changes: list[Change]

    @property
    def what(self) -> str:
        """What it does, for people."""
        names = ", ".join(repr(change.task_id) for change in self.changes[:3])
        return f"a change of {names}"

    @cached_property
    def contexts(self) -> list[Context]:
        """The memories of the queues that it changes."""
        return list({id(change.context): change.context for change in self.changes}.values())

    def multi(self, opened: set[str] | None = None) -> Multi:
        """The operations; `opened`: the segments that earlier transactions in flight open."""
        opened = set() if opened is None else opened
        ops: list[WriteOp] = []
        for change in self.changes:
            ops += change.ops
            if change.slot is not None:
                ops += [op for op in slot_ops(change.context, change.slot, opened) if op not in ops]
            ops += [op for op in change.missing if op not in ops]
            ops += change.listing
        return Multi(tuple(ops))

    def ours(self) -> Procedure[Outcome | None]:
        """Whether an earlier try was carried out: what became of the first change tells of the whole."""
        return self.changes[0].ours()

    def learn(self, multi: Multi, outcome: Outcome) -> None:
        """Remember the server's clock, and which segments are open."""
        for context in self.contexts:
            context.clock.learn(outcome)
            if any(change.slot is not None for change in self.changes):
                remember_opened(context, multi, outcome)

    def explain(self, multi: Multi, outcome: Outcome, *, uncertain: bool) -> Refusal:
        """What a refusal says."""
        path = failed_at(outcome, multi)
        for change in self.changes:
            why = _why(change, path, multi, outcome)
            if why is not None:
                return Refusal(why, change, path, outcome, multi, uncertain)
        return Refusal(Why.OTHER, self._changed_at(path), path, outcome, multi, uncertain)

    def _changed_at(self, path: str) -> Change:
        """The change that has to do with a path."""
        return next((change for change in self.changes if change.touches(path)), self.changes[0])


def _why(change: Change, path: str, multi: Multi, outcome: Outcome) -> Why | None:
    if outcome.failure in change.based_on.get(path, ()):
        return Why.CHANGED
    if path in change.homes and outcome.failure is Failure.NO_NODE:
        return Why.HOME
    if change.misjudged(path, outcome.failure) is not None:
        return Why.HOME
    inside = change.batch is not None and path.startswith(f"{change.context.paths.batch(change.batch)}/")
    if inside and change.touches(path):  # a merged plan may take several members off the same batch
        return Why.BATCH
    if change.slot is not None and reopens(change.context, change.slot, multi, outcome):
        return Why.PLACE
    return None


def one(change: Change) -> Plan:
    """A plan of one change."""
    return Plan([change])


def mergeable(plans: Iterable[Plan], most: int) -> Iterator[list[Plan]]:
    """Groups of at most so many plans, each of which fits into one of ZooKeeper's transactions."""
    group: list[Plan] = []
    room = MAX_REQUEST
    for plan in plans:
        size = request_size(plan.multi().ops)
        if group and (len(group) >= most or size > room):
            yield group
            group, room = [], MAX_REQUEST
        group.append(plan)
        room -= size
    if group:
        yield group


def merge(plans: Iterable[Plan]) -> Plan:
    """One transaction of several; they must not touch the same tasks."""
    return Plan([change for plan in plans for change in plan.changes])
