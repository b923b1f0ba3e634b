"""Enqueue: one task or many, under ids that exist too, and again after an unknown outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import structs

from ... import errors
from .. import zk_operations as zk
from ..client_state import Context, Mark
from ..model import new_message
from ..model.filters import parse_filters
from ..model.records import TaskState
from ..model.settings import Conf, RetryPolicy
from ..model.states import ENDED, FAILED, Event, State, Status
from ..model.values import Duration, Moment, optional_milliseconds
from ..model.znode_names import SEPARATOR, Lane, check_name, check_priority, entry_name
from ..read import bulk_read, claim_status, server_clock
from ..read.configuration import known_conf, read_conf
from ..read.inspect import member_id
from ..transaction_retries import Tries, refused
from ..write import new_task, next_run, transitions
from ..write.commit import Change, Plan, Refusal, Sent, Why, anew, commit, queue_deleted, send, send_together
from ..zk_operations import Procedure
from .batches import Batch, Opened, is_sealed, open_batch, read_batch, seal_batch
from .interventions import rescue_lapsed

# --- An id that exists already: what an enqueue makes of it.

#: How long the stamp of an entry is; what follows tells how often its filters were changed.
STAMP: Final = 22


def _read(path: str, *, again: bool) -> Procedure[zk.Node | None]:
    """A record; `again`: the server catches up and is asked once more for a missing one."""
    node: zk.Node | None = yield zk.Get(path)
    if node is None and again:
        yield zk.Sync(path)
        node = yield zk.Get(path)
    return node


def refuse_a_torso(context: Context, task_id: str) -> Procedure[None]:
    """Raise `CorruptRecord` for a znode that has the id and is no task; the id would never be free."""
    base, record = yield from bulk_read.read_nodes((context.paths.task(task_id), context.paths.task(task_id, "state")))
    if base is not None and record is None:
        msg = f"{context.paths.task(task_id)} has no state: it is no task of ours; delete it, or choose another id"
        raise errors.CorruptRecord(msg)


def _is_member(context: Context, call: Call, new: new_task.NewTask, record: bulk_read.Record) -> Procedure[bool]:
    """Whether the task with an id is a member of its batch, not of an earlier one of that name, which was deleted."""
    if new.batch is None or record.state.batch != new.batch:
        return False
    if call.created is None:
        stat: zk.Stat | None = yield zk.Exists(context.paths.batch(new.batch))
        if stat is None:
            return False
        call.created = stat.czxid
    return call.created < (record.state.ended_zxid or record.stat.mzxid)


def _tried_before(context: Context, call: Call, new: new_task.NewTask, record: bulk_read.Record) -> Procedure[bool]:
    """Whether an earlier try of the same enqueue wrote the task that has the id; that of an id made for it did."""
    if not (new.uncertain and (new.has_own_id or new.has_written(record.state))):
        return False
    return new.batch is None or (yield from _is_member(context, call, new, record))


def _is_written(context: Context, call: Call, new: new_task.NewTask, record: bulk_read.Record) -> Procedure[bool]:
    """Whether the task with an id is what is to be written: an earlier try of ours, or an earlier call's same member.

    A member stays one once it has ended, and also where it failed, was dropped, and its id was used for another task.
    """
    state = record.state
    if new.batch is None:
        return (yield from _tried_before(context, call, new, record))
    if (yield from _is_member(context, call, new, record)):
        if state.state in ENDED or (new.uncertain and new.has_written(state)):
            return True
        node: zk.Node | None = yield zk.Get(context.paths.task(new.task_id, "data"))
        same = (state.filters, state.priority) == (new.filters, new.lane.priority)
        if same and node is not None and node.data == new.data:
            return True
        if new.uncertain and node is not None and node.stat.version:  # it was replaced since it was written
            return True
    return (yield from _has_failed(context, call, new))


def _has_failed(context: Context, call: Call, new: new_task.NewTask) -> Procedure[bool]:
    """Whether a member has failed already, whatever has its id by now."""
    named = context.paths.batch(new.batch or "", "failed", new.task_id)
    return new.task_id in call.failed or (yield zk.Exists(named)) is not None


Action = Callable[[Context, new_task.NewTask, transitions.Current], Procedure[Plan]]


def _action(new: new_task.NewTask, state: TaskState, status: Status) -> Action | None:
    """What the message may do to the task with its id; None: it is refused."""
    match status:
        case Status.DONE_AWAITING_GC | Status.CANCELLED:
            return run_anew
        case Status.QUEUED | Status.QUEUED_WITH_BACKOFF:
            return _update if new.update else None
        case Status.LOCKED | Status.LOCKED_WITH_REQUEUE | Status.DONE_WITH_BACKOFF | Status.DONE_WITH_REQUEUE:
            return next_run.hold_in_escrow if new.requeue and (new.update or not state.requeue) else None
        case _:
            return None


def ended_before(context: Context, new: new_task.NewTask) -> Procedure[transitions.Current | None]:
    """The task that has the id, which a new message runs anew; None without one. Raises `DuplicateTask`."""
    path = context.paths.task(new.task_id, "state")
    node = yield from _read(path, again=True)
    if node is None:
        yield from refuse_a_torso(context, new.task_id)
        return None
    state = TaskState.decode(path, node.data)
    status = yield from claim_status.status_of(context, state)
    if _action(new, state, status) is None:
        msg = f"task id {new.task_id!r} is in use: {status}; nothing was committed"
        raise errors.DuplicateTask(msg, status=str(status), duplicates=[new.task_id])
    return transitions.Current(new.task_id, node.stat.version, state, zxid=node.stat.mzxid)


def run_anew(context: Context, new: new_task.NewTask, current: transitions.Current) -> Procedure[Plan]:
    """The id of a task that has ended starts again; its last run is kept in the history, and for readers of the log."""
    state = current.state
    extra = new_task.content_ops(context, new, state)
    if state.result:
        extra.append(zk.Delete(context.paths.task(new.task_id, "result")))
    if new.batch is not None:
        extra.append(zk.Create(context.paths.batch(new.batch, "open", new.task_id)))
        extra += new_task.adding_members(context, new.batch, new.drops)
    left = state.batch if state.state in FAILED and state.batch != new.batch else None
    if left is not None:
        extra.append(transitions.without_record(context, left))
    before = current
    if state.state is State.FINISHED:
        before = current.with_state(state.with_attempt("finished", state.ended or 0, None, state.started))
    plan = yield from next_run.insert_run(context, before, new, Event.ENQUEUE_AGAIN, extra, result=False)
    plan.changes[0].batch = left
    return (yield from transitions.with_history(context, current, plan))


def _update(context: Context, new: new_task.NewTask, current: transitions.Current) -> Procedure[Plan]:
    """Replace what is still queued; it keeps its place in line, in its new lane if it has one, and its time."""
    state, due = current.state, current.state.due
    if new.timed:
        due = yield from new_task.due_of(context, new)
    stays = Lane(state.priority, dict(state.filters)).name == new.lane.name
    entry = _entry_for(state, new)
    rank = state.rank if stays else None
    leaves = stays and state.due is None and due is not None
    if leaves and rank is None and (yield from known_conf(context)).ordered:
        stat: zk.Stat | None = yield zk.Exists(
            context.paths.entry(state.place)
        )  # so that it comes back to its place in line
        rank = None if stat is None else stat.czxid
    extra = new_task.content_ops(context, new, state, fresh=False)
    updated = transitions.next_record(new.task_id, state, Event.UPDATE, new.nonce, due=due)
    updated = structs.replace(updated, metadata=state.metadata or new.has_metadata)

    def after(place: str) -> TaskState:
        return structs.replace(next_run.as_requested(updated, new, place), rank=rank)

    place = state.place if stays else f"{new.lane.name}//{entry}"
    if due == state.due and (stays or due is not None):
        return transitions.rewrite(context, current, after(place), extra)
    if due is not None or (rank is not None and state.placed):
        return (yield from transitions.relist(context, current, after(place), extra))
    return (yield from transitions.append(context, current, after(f"{new.lane.name}//{entry}"), extra))


def _entry_for(state: TaskState, new: new_task.NewTask) -> str:
    """The name of an updated task's entry: other filters have another one, which sorts next to it."""
    stamp = state.entry.partition(SEPARATOR)[0]
    if new.filters == state.filters:  # consumers remember these by the name
        return entry_name(stamp, new.task_id)
    first, times = stamp[:STAMP], stamp[STAMP:]
    number = int(times, 16) + 1 if times and set(times) <= set("0123456789abcdef") else 0
    return entry_name(f"{first}{number:x}", new.task_id)


# --- Enqueues whose callers do not know what became of them, and the same made again with the ids that they used.
#
# A call that ends in `OutcomeUnknown`, or is broken off after something was sent, leaves a mark for the id of each
# task that may have been written: its stamp and nonce. The same client's next enqueue of the same message with this
# id takes the mark over, and writes the same task: what the first call wrote is found by its stamp, and a request
# of the first call that is carried out late is refused, since the id is there. Another message with this id ends
# what was remembered.

T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """One enqueue under way: what of it may have been written. ``nonce``: by which its batch is recognised."""

    new_tasks: list[new_task.NewTask]
    nonce: str
    batch: str | None = None
    said: int = 0
    """Tells its batch from another of the same name."""
    restored: int = 0
    """How often the servers had gone back when it began."""
    opened: bool = False
    created: int | None = None
    """The transaction that created the batch, where that was read."""
    drops: int = 0
    """The version of its batch's list of failed members when that was read: dropping a member raises it."""
    failed: frozenset[str] = frozenset()
    """The members that stood there: they were written, and do not run again."""
    sent: dict[str, new_task.NewTask] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def sending(self, new_tasks: Iterable[new_task.NewTask]) -> None:
        """These may be written from now on."""
        self.sent.update((new.task_id, new) for new in new_tasks)

    def refused(self, new_tasks: Iterable[new_task.NewTask]) -> None:
        """These were not written, and no request is under way that could."""
        for new in new_tasks:
            self.sent.pop(new.task_id, None)

    def done(self, new_tasks: Iterable[new_task.NewTask]) -> None:
        """These are written."""
        self.written.update(new.task_id for new in new_tasks)

    def written_ids(self) -> tuple[str, ...]:
        """The ids of what is written, in the call's order."""
        return tuple(new.task_id for new in self.new_tasks if new.task_id in self.written)


def begin(
    context: Context, new_tasks: list[new_task.NewTask], then: new_task.NewTask | None = None, batch: str | None = None
) -> Call:
    """A call is about to write: it takes over what an earlier one left with the same ids."""
    call = Call(new_tasks, context.marks.nonce(), batch, restored=context.run.restored())
    if batch is not None:
        following = None if then is None else (then.task_id if not then.generated else None, _said(then))
        call.said = hash((following, *((new.task_id, _said(new)) for new in new_tasks)))
    unknown, now = context.unknown_outcomes, context.run.monotonic()
    if not unknown.marks:
        return call
    # What was written before the servers went back may be gone: its ids and marks are used again all the same.
    for new in new_tasks:
        mark = unknown.take(new.task_id, _said(new), now)
        if mark is not None:
            new.stamp, new.nonce, new.uncertain, new.generated = mark.stamp, mark.nonce, True, mark.generated
            call.sending([new])
            if mark.written and mark.restored == call.restored:
                call.done([new])
    mark = None if batch is None else unknown.take(f"batch/{batch}", call.said, now)
    if mark is not None and mark.restored == call.restored:
        call.nonce, call.opened = mark.nonce, True
    return call


def run_call(context: Context, call: Call, procedure: Procedure[T]) -> Procedure[T]:
    """Carry a call out. Once something of it was sent, its caller hears success, refusal or `OutcomeUnknown`."""
    try:
        result = yield from procedure
        check_written(context, call)
        return result
    except (errors.DuplicateTask, errors.QueueNotFound):
        raise  # it tells which were written; with the queue all of it went
    except errors.TransportError as error:
        if not (call.sent or call.opened):
            raise
        _keep(context, call)
        ids = [new.task_id for new in call.new_tasks]
        names = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
        msg = f"queue {context.queue!r}: written or not: {names}; make the same call again with these ids: {error}"
        raise errors.OutcomeUnknown(msg, task_ids=ids) from error
    except BaseException:
        _keep(context, call)
        raise


def check_written(context: Context, call: Call) -> None:
    """Raise `Unavailable` where what a call has written may be gone: the servers went back to an older state."""
    if call.sent and context.run.restored() != call.restored:
        raise errors.Unavailable("the servers went back to an older state meanwhile")


def _keep(context: Context, call: Call) -> None:
    now = context.run.monotonic()
    marks = {}
    for name, new in call.sent.items():
        written = name in call.written
        marks[name] = Mark(now, _said(new), new.nonce, new.stamp, written, call.restored, new.generated)
    if call.batch is not None and call.opened:
        batch = Mark(now, call.said, call.nonce, restored=call.restored)
        marks[f"batch/{call.batch}"] = batch  # no task has such an id
    context.unknown_outcomes.keep(marks)


def _said(new: new_task.NewTask) -> int:
    """What a caller asked for with one message, beside its id: equal for equal messages in this process."""
    metadata = new_message.without_trace(new.metadata)
    content = (new.data, metadata, new.lane.name, new.delay, new.not_before, str(new.policy), new.lock)
    return hash((*content, new.update, new.requeue, new.batch, new.only_new))


# --- Messages for tasks that are to be new, validated; what is refused is told by its position and its part.


def prepare_new(
    context: Context, conf: Conf, position: int, message: new_message.Message, batch: str | None
) -> new_task.NewTask:
    """A message, validated. Raises `BadMessage`, which says where in the call and in the message the trouble is."""
    try:
        if isinstance(message, new_message.Message) and message.task_id is None:
            msg = "task id None is not allowed: only by an id of its own can be told whether a task is there"
            raise errors.ConfigError(msg)
        if isinstance(message, new_message.Message) and (message.replaces or message.requeues):
            msg = f"on_conflict={message.on_conflict!r} is about tasks that are there; here those are left alone"
            raise errors.ConfigError(msg)
        new = new_task.prepare(context, conf, message, batch)
    except (errors.ConfigError, errors.TaskTooLarge) as error:
        raise errors.BadMessage(str(error), position=position, part=_part(conf, message)) from error
    new.only_new = True
    return new


#: The parts of a message, each with what refuses it.
_PARTS: Final[dict[str, Callable[[Conf, new_message.Message], object]]] = {
    "task_id": lambda _, message: check_name("task id", message.task_id),
    "data": lambda _, message: new_message.encode_data("data", message.data),
    "filters": lambda conf, message: parse_filters(conf.types, message.filters),
    "metadata": lambda _, message: new_message.encode_metadata(message.metadata),
    "priority": lambda _, message: check_priority(message.priority),
    "delay": lambda _, message: message.times(),
}


def _part(conf: Conf, message: object) -> str | None:
    """The part of a message that is refused; None where it is something else."""
    if not isinstance(message, new_message.Message):
        return None
    for name, check in _PARTS.items():
        try:
            check(conf, message)
        except errors.ConfigError:
            return name
    return None


# --- Writing new tasks: several a transaction, several transactions in flight, each carried to its end.

TASKS_PER_MULTI: Final = 20
GROUP_BYTES: Final = 256_000
WINDOW: Final = 8


@dataclass(slots=True)
class _Group:
    """The new tasks of one transaction, and the call whose they are."""

    context: Context
    call: Call
    new_tasks: list[new_task.NewTask]
    in_use: str | None = None
    """An id that a task has, for which the transaction was refused."""
    status: str = ""
    """That task's status, where it is not left alone."""
    written: bool = False
    doubted: bool = False
    """Its outcome was not known once, and nobody had sent its tasks before: what stands of one tells of all."""
    met_others: bool = False
    """Another call has written some of its tasks: each is to go alone."""
    tries: Tries | None = None

    @property
    def first(self) -> new_task.NewTask:
        return self.new_tasks[0]

    def plan(self) -> Procedure[Plan | None]:
        """The transaction that writes them, without members that have failed already; None where nothing is left."""
        if self.call.failed:
            self._leave_out_failed()
        if not self.new_tasks:
            self.written = True
            return None
        changes = []
        for new in self.new_tasks:
            changes.append((yield from new_task.insert(self.context, new)))
        if (batch := self.first.batch) is not None:
            adding = new_task.adding_members(self.context, batch, self.call.drops)
            changes.append(Change(self.context, batch, adding))
        return Plan(changes)

    def _leave_out_failed(self) -> None:
        failed = [new for new in self.new_tasks if new.task_id in self.call.failed]
        self.new_tasks = [new for new in self.new_tasks if new.task_id not in self.call.failed]
        if failed and failed[0].only_new:
            self.call.refused(failed)  # told as one that was there
        else:
            self.call.done(failed)

    def carry_out(self, plan: Plan, sent: Sent | None = None) -> Procedure[list[_Group]]:
        """Carry the transaction to its end, which may be sent already; returns the groups for which an id is in use."""
        if sent is not None and sent.outcome.unknown:
            self._doubt()
        try:
            committed = yield from commit(plan, self._anew, first=sent, by=send)
        except errors.Unavailable:
            self._not_written()
            raise
        self.written = self.written or committed.refusal is None
        if self.met_others:
            return (yield from _write(self.call, [_Group(self.context, self.call, [new]) for new in self.new_tasks]))
        if self.written:
            self.call.done(self.new_tasks)
        elif self.in_use is not None:
            return [self]
        elif committed.refusal is not None:
            self._not_written()
            refusal = committed.refusal
            if refusal.outcome.failure is not zk.Failure.NO_NODE:
                raise refused("enqueue", refusal.outcome, refusal.multi)
            raise (yield from self._batch_is_closed(refusal)) or queue_deleted(self.context)
        return []

    def _batch_is_closed(self, refusal: Refusal) -> Procedure[errors.ZkmqError | None]:
        """The error for a batch that takes no members any more: it was sealed, or given up. None: that is not why."""
        name = self.first.batch
        if name is None or refusal.outcome.failure is not zk.Failure.NO_NODE:
            return None
        if not refusal.path.startswith(self.context.paths.batch(name, "open") + "/"):
            return None
        msg = f"batch {name!r} of queue {self.context.queue!r} is not open for new tasks: "
        if not (yield from is_sealed(self.context, name)):
            self.call.written.clear()  # what was, is no member of the batch that is to be written
            return errors.ConfigError(msg + "it was deleted, or never opened")
        msg += "it was written to its end by another call"
        return errors.ConfigError(msg) if self.first.only_new else errors.DuplicateTask(msg)

    def _anew(self, refusal: Refusal) -> Procedure[Plan | None]:
        """What follows a refusal: the same elsewhere, or what the task that has the id allows."""
        if refusal.uncertain:
            self._doubt()
        there, task = refusal.outcome.failure is zk.Failure.NODE_EXISTS, self.context.paths.task
        met = next((new for new in self.new_tasks if there and task(new.task_id) == refusal.path), None)
        # What does not stand of a transaction that was carried out has been dropped, or collected.
        if self.doubted and ((met is not None and met.has_own_id) or (yield from self._any_stands())):
            self.written = True
            return None
        self._not_written()
        if (yield from self._read_failed(refusal)):
            self.tries = self.tries or Tries(f"enqueue of task {self.first.task_id!r}")
            yield from self.tries.refused(refusal.outcome, refusal.multi, self.call.drops)
        elif refusal.why is not Why.PLACE:
            if met is None:
                return None
            if met.only_new:
                self.in_use = met.task_id
                return None
            if len(self.new_tasks) > 1:
                self.met_others = True
                return None
            if not (yield from self._resolve_conflict()):
                return None
            self.tries = self.tries or Tries(f"enqueue of task {self.first.task_id!r}")
            yield from self.tries.refused(refusal.outcome, refusal.multi, None)
        plan = yield from self.plan()
        self.call.sending(self.new_tasks)
        return plan

    def _read_failed(self, refusal: Refusal) -> Procedure[bool]:
        """Where a member was dropped since that was looked for, read which have failed; whether that was the reason.

        A batch that has lost its list of the failed gets an empty one.
        """
        path = self.context.paths.batch(self.first.batch or "", "failed")
        if refusal.path != path:
            return False
        stat: zk.Stat | None = yield zk.Exists(path)
        if stat is None:
            yield zk.Multi((zk.Create(path),))
        self.call.drops = 0 if stat is None else stat.version
        self.call.failed = frozenset((yield zk.Children(path)) or ())  # after the version: later ones are refused
        return True

    def _resolve_conflict(self) -> Procedure[bool]:
        """Deal with the task that has the only one's id: it is replaced or changed, or refuses; whether it has gone.

        An earlier try of the same enqueue may have written it, which its stamp or nonce tells.
        """
        context, new = self.context, self.first
        path = context.paths.task(new.task_id, "state")
        tries = Tries(f"enqueue of task {new.task_id!r}")
        while not self.written:
            node = yield from _read(path, again=new.uncertain)
            if node is None and new.uncertain and new.batch is None:  # a batch tells itself what became of its members
                msg = f"task {new.task_id!r} was written or not, and what stood there has been collected meanwhile"
                raise errors.OutcomeUnknown(msg)
            if node is None:
                yield from refuse_a_torso(context, new.task_id)
                return True
            state = TaskState.decode(path, node.data)
            record = bulk_read.Record(new.task_id, node.stat, state)
            self.written = yield from _is_written(context, self.call, new, record)
            if self.written:
                break
            status = yield from claim_status.status_of(context, state)
            action = _action(new, state, status)
            if action is None:
                if (yield zk.Exists(path)) is None:
                    continue
                if new.update and state.state is State.CLAIMED and (yield from rescue_lapsed(context, new.task_id)):
                    continue
                self.call.refused(self.new_tasks)
                self.in_use, self.status = new.task_id, str(status)
                break
            self.call.sending(self.new_tasks)
            current = transitions.Current(new.task_id, node.stat.version, state, zxid=node.stat.mzxid)
            new.drops = self.call.drops
            build = partial(action, context, new, current)
            committed = yield from commit((yield from build()), anew(build))
            self.written = committed.refusal is None
            if committed.refusal is not None:
                yield from self._look_again(committed.refusal, tries, node)
        return False

    def _look_again(self, refusal: Refusal, tries: Tries, node: zk.Node) -> Procedure[None]:
        """What was to be done to the task that has the id was refused."""
        if refusal.uncertain:
            self._doubt()
        closed = yield from self._batch_is_closed(refusal)
        if closed is not None:
            raise closed
        yield from self._read_failed(refusal)
        yield from tries.refused(refusal.outcome, refusal.multi, (node.stat.mzxid, self.call.drops))

    def _any_stands(self) -> Procedure[bool]:
        """Whether one of its tasks is there as this transaction wrote it."""
        records = yield from bulk_read.read_records(self.context, [new.task_id for new in self.new_tasks])
        for new, record in zip(self.new_tasks, records, strict=True):
            if isinstance(record, bulk_read.Record) and (new.has_own_id or new.has_written(record.state)):
                return True
        return False

    def _doubt(self) -> None:
        self.doubted = self.doubted or not any(new.uncertain for new in self.new_tasks)
        for new in self.new_tasks:
            new.uncertain = True

    def _not_written(self) -> None:
        self.call.refused([new for new in self.new_tasks if not new.uncertain])


def write_all(context: Context, new_tasks: Sequence[new_task.NewTask], call: Call) -> Procedure[None]:
    """Write validated tasks; see `enqueue_many`. `call` learns what may have been written, at every moment."""
    refusals: list[_Group] = []
    left = [new for new in new_tasks if new.task_id not in call.written] if call.written else new_tasks
    made = [_Group(context, call, list(left))] if len(left) == 1 else _grouped(context, call, left)
    if len(made) == 1 and not made[0].new_tasks[0].only_new:  # it may go together with what other calls send
        if (plan := (yield from made[0].plan())) is not None:
            call.sending(made[0].new_tasks)
            refusals = yield from made[0].carry_out(plan)
    else:
        for start in range(0, len(made), WINDOW):
            refusals += yield from _write(call, made[start : start + WINDOW])
    if refusals:
        ids, more = [each.first.task_id for each in refusals], len(refusals) - 1
        msg = (
            f"task id {ids[0]!r}{f' (and {more} more)' if more else ''} is in use (status: {refusals[0].status}); "
            "choose another or wait until it is collected"
        )
        raise errors.DuplicateTask(msg, status=refusals[0].status, duplicates=ids, enqueued=call.written_ids())


def _grouped(context: Context, call: Call, new_tasks: Sequence[new_task.NewTask]) -> list[_Group]:
    """New tasks grouped into transactions. What may meet its id goes alone: one duplicate refuses its whole group."""
    made: list[_Group] = []
    room = 0
    for new in new_tasks:
        size = new.size(context)
        alone = not new.only_new and (not new.generated or new.uncertain)
        if not made or alone or room < size or len(made[-1].new_tasks) >= TASKS_PER_MULTI:
            made.append(_Group(context, call, []))
            room = 0 if alone else GROUP_BYTES
        made[-1].new_tasks.append(new)
        room -= size
    return made


def _write(call: Call, groups: Sequence[_Group]) -> Procedure[list[_Group]]:
    """One window of transactions in flight together, each carried to its end; those for which an id is in use."""
    planned: list[tuple[_Group, Plan]] = []
    for group in groups:
        if (plan := (yield from group.plan())) is not None:
            planned.append((group, plan))
    new_tasks = [new for group, _ in planned for new in group.new_tasks]
    before = set(call.sent)
    call.sending(new_tasks)
    try:
        ended = yield from send_together([plan for _, plan in planned])
    except errors.Unavailable:  # nothing was sent
        call.refused(new for new in new_tasks if new.task_id not in before)
        raise
    in_use, failed = list[_Group](), list[errors.ZkmqError]()
    for (group, plan), sent in zip(planned, ended, strict=True):
        try:
            in_use += yield from group.carry_out(plan, sent)
        except errors.TransportError:
            raise
        except errors.ZkmqError as error:  # raised when all have been carried to their end
            failed.append(error)
    if failed:
        if isinstance(failed[0], errors.DuplicateTask):
            failed[0].enqueued = call.written_ids()
        raise failed[0]
    return in_use


# --- Enqueue: one message, many, or a batch of them; each task's tree and its entry are written in one transaction.


def enqueue(context: Context, message: new_message.Message) -> Procedure[str]:
    """Write one task; returns its id when it is durable."""
    new = new_task.prepare(context, (yield from read_conf(context, create=True)), message)
    call = begin(context, [new])
    yield from run_call(context, call, write_all(context, [new], call))
    return new.task_id


def enqueue_many(context: Context, messages: Sequence[new_message.Message]) -> Procedure[list[str]]:
    """Write many tasks; see `enqueue_each`."""
    new_tasks = yield from prepare_many(context, messages)
    call = begin(context, new_tasks)
    yield from run_call(context, call, write_all(context, new_tasks, call))
    return [new.task_id for new in new_tasks]


def enqueue_batch(
    context: Context, messages: Sequence[new_message.Message], batch: str, then: new_message.Message | None = None
) -> Procedure[list[str]]:
    """Write many tasks as one batch, which is done when each of them has ended; `then` is enqueued at that moment.

    Raises `DuplicateTask` for a batch that is complete already,
    and for a member whose id is in use, by another message or another batch; then the batch waits to be repeated.
    The id of `then`, if it has one, must be free at the end; else the batch ends without it, see `Batch.refused`.
    """
    if not messages:
        msg = f"batch {batch!r} has no tasks"
        raise errors.ConfigError(msg)
    name = check_name("batch", batch)
    named = [
        replace(message, task_id=member_id(name, number))
        if isinstance(message, new_message.Message) and message.task_id is None
        else message
        for number, message in enumerate(messages)
    ]
    new_tasks = yield from prepare_many(context, named, name)
    following = None if then is None else (yield from prepare_many(context, [then]))[0]
    _refuse_conflicts(name, (*new_tasks, *filter(None, [following])))
    call = begin(context, new_tasks, following, name)
    return (yield from run_call(context, call, _write_batch(context, call, messages, name, following)))


def _refuse_conflicts(batch: str, new_tasks: Sequence[new_task.NewTask]) -> None:
    """Raise `ConfigError` where a batch's member, or what follows it, is to do something to a task with its id."""
    if any(new.update or new.requeue or new.only_new for new in new_tasks):
        msg = (
            f"batch {batch!r}: its tasks, and the one that follows, are new: they take no on_conflict, but that 'skip' "
            "for all tasks adds them to a batch that open_batch has opened"
        )
        raise errors.ConfigError(msg)


def _write_batch(
    context: Context, call: Call, messages: Sequence[new_message.Message], name: str, then: new_task.NewTask | None
) -> Procedure[list[str]]:
    new_tasks, before, call.opened = call.new_tasks, call.opened, True
    try:
        opened = yield from open_batch(context, name, then, call.nonce)
    except errors.Unavailable:
        call.opened = before  # nothing was sent now
        raise
    if opened is not Opened.SEALED:
        for new, message in zip(new_tasks, messages, strict=True):
            new.generated = opened is Opened.FRESH and message.task_id is None
        yield from write_all(context, new_tasks, call)
        check_written(context, call)
        yield from seal_batch(context, name, len(new_tasks))
    return [new.task_id for new in new_tasks]


def prepare_many(
    context: Context, messages: Sequence[new_message.Message], batch: str | None = None
) -> Procedure[list[new_task.NewTask]]:
    """Validate every message. Raises `ConfigError`, `TaskTooLarge`; nothing is written."""
    conf = yield from read_conf(context, create=True)
    new_tasks = [new_task.prepare(context, conf, message, batch) for message in messages]
    refuse_repeated_ids(new_tasks)
    return new_tasks


def refuse_repeated_ids(new_tasks: Sequence[new_task.NewTask]) -> None:
    """Raise `ConfigError` for an id that stands twice among what one call is to write."""
    times = Counter(new.task_id for new in new_tasks)
    twin, most = times.most_common(1)[0] if times else ("", 0)
    if most > 1:
        msg = f"task id {twin!r} stands twice in the same call; nothing was written"
        raise errors.ConfigError(msg)


# --- Batches that several processes write together: one opens, all of them add members, and one seals.

#: So often members are counted anew where more were added meanwhile; then the batch is sealed all the same.
COUNTS: Final = 20


def open_shared(context: Context, name: str, *, then: new_message.Message | None = None) -> Procedure[Batch]:
    """Open a batch for `enqueue_many(…, batch=name, on_conflict="skip")` by any process; returns how it stands.

    One that is there already stays as it is: `Batch.written` is False as long as members can be added to it. `then`: a
    task to enqueue when the last of the batch has ended. Raises `ConfigError`.
    """
    check_name("batch", name)
    following = yield from prepare_many(context, [] if then is None else [then])
    _refuse_conflicts(name, following)
    with suppress(errors.DuplicateTask):  # one that was written to its end before stays as it is
        yield from open_batch(context, name, following[0] if following else None, context.marks.nonce())
    return (yield from read_batch(context, name))


def seal(context: Context, name: str) -> Procedure[Batch]:
    """All members of a batch are written: it is done when the last of them has ended. May be repeated.

    `Batch.total` counts how often a task became a member: twice for one that was redriven while the batch was open.
    Raises `TaskNotFound` for a batch that is not there.
    """
    check_name("batch", name)
    yield zk.Sync(context.paths.batch(name))
    batch = yield from read_batch(context, name)
    for last in (*[False] * COUNTS, True):
        marker: zk.Stat | None = yield zk.Exists(context.paths.batch(name, "open", new_task.WRITING))
        members: zk.Stat | None = yield zk.Exists(context.paths.batch(name, "open"))
        if marker is None or members is None:
            break
        total = (members.cversion + members.children) // 2 - 1
        if (yield from seal_batch(context, name, total, -1 if last else marker.version)):
            break
        yield zk.Sync(context.paths.batch(name))
    return batch if batch.written else (yield from read_batch(context, name))


# --- Enqueue of what is not there yet: an id that a task has, in whatever state, is left alone, and never runs again.
#
# Who loads much does so in pieces that are tried again and side by side. So each message has an id of its own, the
# ids are looked up before anything is written, and what is missing is written several trees a transaction: a
# transaction that meets an id all the same is refused as a whole, and made anew of what is still missing.

#: Of the time for which finished tasks are kept, as much is left for writes that are under way.
_MARGIN: Final = 0.1


def enqueue_new(
    context: Context, messages: Sequence[new_message.Message], *, batch: str | None = None, since: Moment | None = None
) -> Procedure[new_message.NewTasks]:
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
    new_tasks = [prepare_new(context, conf, position, message, name) for position, message in enumerate(messages)]
    refuse_repeated_ids(new_tasks)
    call = begin(context, new_tasks)
    return (yield from run_call(context, call, _load(context, call, began)))


def _load(context: Context, call: Call, since: int | None) -> Procedure[new_message.NewTasks]:
    """Write what is missing, a window of transactions after the other."""
    found, existing = set[str](), set[str]()  # ids for which a transaction was refused, and of tasks that are there
    yield zk.Sync(context.paths.at("tasks"))  # what is seen there was there when the call was made
    for window in bulk_read.chunked(_grouped(context, call, call.new_tasks), WINDOW):
        if since is not None:
            yield from _refuse_late(context, since)
        looked_for = [new for group in window for new in group.new_tasks]
        while missing := (yield from _missing(context, call, looked_for, found, existing)):
            again = yield from _write(call, _grouped(context, call, missing))
            found.update(group.in_use for group in again if group.in_use is not None)
            if again:  # the server that we read from may lag behind the one that refused
                yield zk.Sync(context.paths.at("tasks"))
            looked_for = [new for group in again for new in group.new_tasks]
    ids = [new.task_id for new in call.new_tasks]
    written = tuple(task_id for task_id in ids if task_id in call.written)
    return new_message.NewTasks(written, tuple(task_id for task_id in ids if task_id not in call.written))


def _refuse_late(context: Context, since: int) -> Procedure[None]:
    """Raise `ConfigError` where a finished task that an earlier try wrote may have been deleted by now."""
    lifetime = (yield from read_conf(context)).gc_lifetime
    passed = ((yield from server_clock.server_time(context)) - since) / 1000
    if passed >= lifetime * (1 - _MARGIN):
        msg = (
            f"the first try began {passed:.0f} s ago, and finished tasks are kept for {lifetime:g} s "
            f"(task_gc_lifetime of queue {context.queue!r}): what is done may be gone and would run again. "
            "Keep them for longer than the whole load takes, or load as a batch, whose members are kept"
        )
        raise errors.ConfigError(msg)


def _missing(
    context: Context,
    call: Call,
    new_tasks: Sequence[new_task.NewTask],
    found: set[str],
    existing: set[str],
) -> Procedure[list[new_task.NewTask]]:
    """Those of the new tasks whose ids no task has."""
    call.created = None
    requested = [new for new in new_tasks if new.task_id not in existing and new.task_id not in call.written]
    records = yield from bulk_read.read_records(context, [new.task_id for new in requested])
    missing: list[new_task.NewTask] = []
    for new, record in zip(requested, records, strict=True):
        if isinstance(record, bulk_read.Record) and (yield from _tried_before(context, call, new, record)):
            call.done([new])
        elif record is not bulk_read.Unread.MISSING:
            call.refused([new])
            existing.add(new.task_id)
            if new.batch is None:
                continue
            member = isinstance(record, bulk_read.Record) and (yield from _is_member(context, call, new, record))
            if not (member or (yield from _has_failed(context, call, new))):
                msg = f"task id {new.task_id!r} is in use by a task that is no member of batch {new.batch!r}"
                raise errors.DuplicateTask(msg, duplicates=[new.task_id], enqueued=call.written_ids())
        elif new.task_id in found:  # met a moment ago: it was deleted meanwhile, unless it never was a task
            yield from refuse_a_torso(context, new.task_id)
            existing.add(new.task_id)
        else:
            missing.append(new)
    return missing


# --- Enqueues as callers ask for them: one task told by its parts, or many messages.


def enqueue_one(
    context: Context,
    data: bytes | str,
    filters: Mapping[str, object] | None = None,
    *,
    priority: int = 0,
    delay: Duration | None = None,
    task_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    policy: RetryPolicy | None = None,
    lock: Duration | None = None,
    on_conflict: new_message.OnConflict = "raise",
    not_before: Moment | None = None,
    idempotency_key: str | None = None,
) -> Procedure[str]:
    """Write one task, all or nothing; returns its id when it is durable. The arguments are `Message`'s.

    `on_conflict`: ``"raise"``, ``"skip"``, ``"replace"``, ``"requeue"`` or ``"replace-or-requeue"``; see `Message`.
    `idempotency_key`: as in `enqueue_many`. Raises `ConfigError`, `TaskTooLarge`, `DuplicateTask`; then nothing was
    written. `OutcomeUnknown`: it was or was not; the same call with its ``task_ids[0]`` as `task_id` is the same task.
    """
    message = new_message.Message(
        data, filters, priority, delay, task_id, metadata, policy, lock, on_conflict, not_before
    )
    if idempotency_key is None and on_conflict != "skip":
        return enqueue(context, message)
    return _only(enqueue_each(context, [message], idempotency_key=idempotency_key))


def _only(procedure: Procedure[list[T]]) -> Procedure[T]:
    return (yield from procedure)[0]


def enqueue_each(
    context: Context,
    messages: Sequence[new_message.Message],
    *,
    batch: str | None = None,
    then: new_message.Message | None = None,
    on_conflict: new_message.OnConflict | None = None,
    idempotency_key: str | None = None,
) -> Procedure[list[str]]:
    """Write many tasks, several trees a transaction and several transactions in flight; returns their ids in order.

    Every message is validated before the first is written. Each task is all or nothing; the call as a whole is not:
    `DuplicateTask` tells which ids were refused and which tasks were written. `OutcomeUnknown`: they were written or
    not; the same messages with the ids in its `task_ids`, enqueued again by the same client, are the same tasks.

    `batch`: a name by which they can be waited for together (`wait_batch`); `then`: a task to enqueue at the moment
    when the last of the batch has ended. Members without an id are named ``<batch>.<number>``, so that a call that was
    interrupted can be repeated: what it wrote already is not written twice.

    `on_conflict`: for all messages, instead of their own. With ``"skip"`` each message needs a ``task_id``, and the
    call can be made again, by anybody and side by side: each task is written once, as long as it is kept. `batch` is
    then one that `open_batch` has opened, to which members are added.

    `idempotency_key`: the ids come from the queue's name, this text and each message's position. The same call by
    whomever then returns the same ids and writes each task once, for as long as it is kept: what is there, in whatever
    state and with whatever payload, stays as it is. Messages with ids of their own, an `on_conflict` that changes a
    task, and `batch` are refused with it.

    Raises `ConfigError` and `TaskTooLarge` before anything is written, `DuplicateTask`, `OutcomeUnknown`.
    """
    messages = new_message.with_on_conflict(messages, on_conflict)
    if idempotency_key is not None:
        if batch is not None or then is not None:
            msg = "idempotency_key and batch: give one of them; a batch is known by its name when it is enqueued again"
            raise errors.ConfigError(msg)
        messages, missing = new_message.keyed(context.queue, idempotency_key, messages), True
    else:
        if then is not None and batch is None:
            msg = "then= needs batch=: it follows when the last task of a batch has ended"
            raise errors.ConfigError(msg)
        missing = new_message.skips_existing(messages)
        if missing and then is not None:
            msg = "then= is given to open_batch where a batch is written with on_conflict='skip'"
            raise errors.ConfigError(msg)
    if missing:
        try:
            yield from enqueue_new(context, messages, batch=batch)
        except errors.BadMessage as error:
            raise error.__cause__ or error from None
        return [message.task_id or "" for message in messages]
    if batch is not None:
        return (yield from enqueue_batch(context, messages, batch, then))
    return (yield from enqueue_many(context, messages))
