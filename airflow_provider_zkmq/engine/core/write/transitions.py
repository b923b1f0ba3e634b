"""Each transition of a task as operations: its record, its listings, the copy that history keeps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec import structs

from ...errors import CorruptRecord
from .. import zk_operations as zk
from ..client_state import Claimed, Context, OpenSegment
from ..model.records import KEPT_NONCES, HistoryEntry, TaskState, Times, claimed_before, clip, history_path
from ..model.settings import Conf
from ..model.states import ENDED, FAILED, Event, State, step
from ..model.values import dump
from ..model.znode_names import SEPARATOR, Lane, claim_note, consumer_note, index_path
from ..read import bulk_read, claim_status, server_clock
from ..read.configuration import default_conf, known_conf
from ..read.inspect import ended_ms
from ..transaction_retries import Gone, Recorded, ensure_bucket, ensure_node
from ..zk_operations import Procedure
from .batch_end import close_after, load_batch
from .commit import Change, Plan, make_bucket, open_segment

Ops: TypeAlias = Sequence[zk.WriteOp]

# --- The record of a task after an event: every change of state but the claim's is spelt here.


@dataclass(frozen=True, slots=True)
class Current:
    """A task as it was read, on which a change is based: its record, and that record's version."""

    task_id: str
    version: int
    state: TaskState
    claim_gone: bool = False
    """The claim's ephemeral vanished with its session."""
    zxid: int = 0
    """The transaction that wrote the record; 0: not known, and of no interest."""

    def with_state(self, state: TaskState) -> Current:
        """The same reading with a record prepared for the change: its history has the present delivery, say."""
        return replace(self, state=state)


def next_record(
    task_id: str, before: TaskState, event: Event, nonce: str, *, now: int = 0, due: int | None = None
) -> TaskState:
    """The record after `event`: state, index and nonce; `due` (server's milliseconds) schedules it.

    Raises `IllegalTransition` where the state table has no row.
    """
    after = step(task_id, before.state, event)
    settled = (*before.settled, nonce)[-KEPT_NONCES:]
    changes: dict[str, Any] = {"ended": now} if after is State.DEAD else {}
    if before.state is State.CLAIMED and after is not State.CLAIMED:
        changes |= {"lease": None, "bound": False, "slot": None}
        changes["ended"] = now if after in {State.FINISHED, State.DEAD} else None
        if after is not State.FINISHED:
            changes |= {"consumer": None, "claimed": None, "started": None}
    index = None
    if due is not None:
        index = index_path("requeued" if after is State.FINISHED else "scheduled", due, task_id)
    elif after is State.DEAD:
        index = f"dlq/{task_id}"
    elif after in {State.FINISHED, State.CANCELLED}:
        index = index_path(str(after), now, task_id)
    if event is Event.PROMOTE:
        changes["was_due"] = before.due
    elif due is not None or event is Event.FAIL:
        changes["was_due"] = None
    return structs.replace(before, state=after, nonce=nonce, settled=settled, due=due, index=index, **changes)


def still_ended(current: Current) -> int | None:
    """The transaction in which a run ended whose record is written once more: an archive must not take it for another.

    None of a task that had not ended.
    """
    known = current.state.ended_zxid or current.zxid or None
    return known if current.state.state is State.FINISHED else None


# --- A redriven task is a member of its batch again: the batch waits for it, and opens again if it was done.
#
# Whoever waits for the batch from then on waits for this member, too, and is told how it ended this time. The task
# that follows the batch was enqueued when it was done first, and is not enqueued again.


def rejoin(context: Context, current: Current) -> Procedure[list[Change]]:
    """What makes a task that has ended an open member of its batch again; nothing where that is gone by now.

    A batch that was created since is another one of the same name. It stands under the batch's znodes as they were
    read: where the batch ends at the same moment, this is refused.
    """
    if current.state.batch is None:
        return []
    base, task_id = context.paths.batch(current.state.batch), current.task_id
    paths = (base, f"{base}/open", f"{base}/open/{task_id}", f"{base}/failed/{task_id}")
    batch, members, member, failed = yield from bulk_read.read_nodes(paths)
    if batch is None or batch.stat.czxid > (current.state.ended_zxid or current.zxid):
        return []
    ops: list[zk.WriteOp] = []
    if members is None:  # it is done, or was given up before it was written to its end
        record = bulk_read.unless_corrupt(context, base, partial(load_batch, base, batch.data))
        if record is None or "total" not in record:
            return []
        done = record.pop("done", None)
        ops += [zk.SetData(base, dump(record | {"then": None}), batch.stat.version), zk.Create(f"{base}/open")]
        if isinstance(done, int):
            listed = context.paths.at(index_path("batches-done", done, current.state.batch))
            ops += [] if (yield zk.Exists(listed)) is None else [zk.Delete(listed)]
    ops += [] if failed is None else [zk.Delete(paths[3])]
    if member is None:  # one that is there was left by somebody else, and holds up nothing
        ops.append(zk.Create(paths[2]))
    return [Change(context, task_id, ops)]


# --- The operations of which changes are made: where a task is listed, noted, and a member.


def notes_of(context: Context, task_id: str, state: TaskState) -> list[str]:
    """Where a claim is noted: with its consumer if it ends with a session, among the leases if it has a deadline."""
    notes = []
    if state.bound or state.lease is None:
        notes.append(context.paths.current(state.consumer or "", task_id))
    if state.lease is not None:
        notes.append(claim_status.lease_path(context, state))
    return notes


def beginning(context: Context, claimed: Claimed) -> zk.SetData:
    """Say that the handler of a claim begins. Whoever is at the claim's note meanwhile is refused."""
    note = consumer_note(prefetched=False) if claimed.ends_with_session else claim_note(claimed.claim, prefetched=False)
    return zk.SetData(claim_status.mark_path(context, claimed.task_id, claimed.state), note)


def unlist(context: Context, current: Current) -> list[zk.WriteOp]:
    """The deletes that take a task from where it is listed."""
    if current.state.state is State.CLAIMED:
        gone = [] if current.claim_gone else [context.paths.task(current.task_id, "claim")]
        slot = [] if current.state.slot is None else [context.paths.at("slots", current.state.slot)]
        return [*map(zk.Delete, (*gone, *notes_of(context, current.task_id, current.state), *slot))]
    return [zk.Delete(place_of(context, current.state))]


def place_of(context: Context, state: TaskState) -> str:
    """The entry that lists a task which is not claimed."""
    return context.paths.entry(state.place) if state.index is None else context.paths.at(state.index)


def membership(context: Context, task_id: str, state: TaskState, *, failed: bool = False) -> list[zk.WriteOp]:
    """What takes a task off its batch's open ones; `failed`: it ended dead or cancelled."""
    if state.batch is None or state.state in ENDED:
        return []
    ops: list[zk.WriteOp] = [zk.Delete(context.paths.batch(state.batch, "open", task_id))]
    if failed:
        ops.append(zk.Create(context.paths.batch(state.batch, "failed", task_id)))
    return ops


def without_record(context: Context, batch: str) -> zk.WriteOp:
    """A failed member's record goes, or is another task's from now on: only its batch's list still tells of it.

    By the version of that list whoever adds members sees it, and does not write the member again.
    """
    return zk.SetData(context.paths.batch(batch, "failed"), b"", -1)


def task_deletes(context: Context, task_id: str, state: TaskState, version: int) -> list[zk.WriteOp]:
    """The deletes of a task's own tree; its claim, if any, is deleted by its departure."""
    task, filters = context.paths.task, bool(state.filters)
    optional = {"metadata": state.metadata, "filters": filters, "result": state.result, "requeue": state.requeue}
    parts = ["data", *(f"filters/{name}" for name in state.filters), *(name for name in optional if optional[name])]
    deletes: list[zk.WriteOp] = [zk.Delete(task(task_id, "state"), version)]
    return [*deletes, *(zk.Delete(task(task_id, part)) for part in parts), zk.Delete(task(task_id))]


# --- One constructor for each row of the state table that moves a task; `core.write.new_task` has that of new ones.
#
# Each makes a plan of one change: the record under the version that was read, what takes the task from where it is
# listed, what lists it where it goes. A place without a segment is none to go back to: such a task goes to the end
# of its lane.

#: What a record's refusal says: it is another by now, or gone.
_CHANGED: Final = frozenset({zk.Failure.BAD_VERSION, zk.Failure.NO_NODE})
#: The ephemeral of a claim goes with its session.
_GONE: Final = frozenset({zk.Failure.NO_NODE})


def claim(
    context: Context,
    claimed: Claimed,
    consumer: str,
    span: float | None,
    lease: float | None,
    now: int,
    slot: str | None = None,
) -> Plan:
    """Taken by a consumer whose session lives; `claimed` is made the claim that the plan writes.

    `span`: for how many seconds it holds unless it is extended; with a `lease` it outlives its session. `slot`: what it
    takes of the queue's limit. Whoever sends the plan says how a lost reply is resolved: it may be one of several that
    go together.
    """
    paths, task_id, nonce, before = context.paths, claimed.task_id, context.marks.nonce(), claimed.state
    place, deadline = paths.entry(before.place), f"{task_id}{SEPARATOR}{nonce}" if span else None
    claimed.state = structs.replace(
        before,
        state=step(task_id, before.state, Event.CLAIM),
        attempt=before.attempt + 1,
        consumer=consumer,
        claimed=now,
        nonce=nonce,
        lease=deadline,
        bound=lease is None and deadline is not None,
        error=None,
        slot=slot,
    )
    claimed.claim = {"consumer": consumer, "nonce": nonce, "lease": span}
    note = claim_note(claimed.claim, prefetched=claimed.prefetched and lease is not None)
    ops: list[zk.WriteOp] = [
        zk.SetData(paths.task(task_id, "state"), claimed.state.encode(), claimed.version - 1),
        zk.Create(paths.task(task_id, "claim"), note, ephemeral=lease is None),
        zk.Delete(place),
        zk.Check(paths.live(consumer)),
    ]
    if lease is None:
        ops.append(zk.Create(paths.current(consumer, task_id), consumer_note(prefetched=claimed.prefetched)))
    if deadline is not None:
        ops.append(
            zk.Create(claim_status.lease_path(context, claimed.state), dump({"seconds": span, "consumer": consumer}))
        )
    change = Change(context, task_id, ops, after=claimed.state)
    if slot is not None:
        path = context.paths.at("slots", slot)
        ops.append(zk.Create(path, task_id.encode()))
        change.make_parent[path] = partial(make_bucket, context, path.rpartition("/")[0])
    return Plan([change])


def finish(
    context: Context, current: Current, nonce: str, result: bytes, now: int, times: Times, until: int | None = None
) -> Procedure[Plan]:
    """Completed: the result is kept; a run in escrow is due at `until`, the end of its dedupe window, or at once.

    `times`: those of its handler, which has ended some time before `now`.
    """
    started, ended = times
    before = structs.replace(current.state, started=started, claimed=claimed_before(current.state.claimed, started))
    due = (until or now) if before.requeue else None
    state = next_record(current.task_id, before, Event.COMPLETE, nonce, now=now, due=due)
    after = structs.replace(state, error=None, dedupe=until, result=True, ended=ended)
    return (yield from relist(context, current, after, [result_write(context, current, result)]))


def result_write(context: Context, current: Current, result: bytes) -> zk.WriteOp:
    """Keep a result; an earlier run of the same task may have left one."""
    path = context.paths.task(current.task_id, "result")
    return zk.SetData(path, result) if current.state.result else zk.Create(path, result)


def fail(
    context: Context, current: Current, event: Event, nonce: str, error: str, due: int | None, guards: Ops = ()
) -> Procedure[Plan]:
    """The delivery failed, or nobody holds it any more: back to its place, at `due` (server's milliseconds) or now."""
    state = next_record(current.task_id, current.state, event, nonce, due=due)
    return (yield from relist(context, current, structs.replace(state, error=clip(error)), guards=guards))


def release(context: Context, current: Current, nonce: str, due: int | None, guards: Ops = ()) -> Procedure[Plan]:
    """Given back: the delivery counts as no attempt."""
    state = next_record(current.task_id, current.state, Event.RELEASE, nonce, due=due)
    state = structs.replace(state, attempt=max(0, state.attempt - 1))
    return (yield from relist(context, current, state, guards=guards))


def to_dead(
    context: Context, current: Current, event: Event, nonce: str, error: str, now: int, guards: Ops = ()
) -> Procedure[Plan]:
    """It is dead: `event` is the one of the state table by which it came to that."""
    state = next_record(current.task_id, current.state, event, nonce, now=now)
    return (yield from relist(context, current, structs.replace(state, error=clip(error)), guards=guards))


def promote(context: Context, current: Current) -> Procedure[Plan]:
    """Its time has come: it goes to its lane."""
    state = next_record(current.task_id, current.state, Event.PROMOTE, context.marks.nonce())
    return (yield from relist(context, current, state))


def promote_to_end(context: Context, current: Current) -> Procedure[Plan]:
    """Its time has come: it goes to the end of its lane, whatever place it had."""
    state = next_record(current.task_id, current.state, Event.PROMOTE, context.marks.nonce())
    return (yield from append(context, current, state))


def cancel(context: Context, current: Current, extra: Ops, now: int) -> Procedure[Plan]:
    """Withdrawn; `extra` tells its consumer, and drops a run in escrow."""
    state = next_record(current.task_id, current.state, Event.CANCEL, context.marks.nonce(), now=now)
    return (yield from relist(context, current, structs.replace(state, requeue=False), extra))


def redrive(context: Context, current: Current, entry: str, extra: Ops, batch: str | None) -> Procedure[Plan]:
    """Put back at the end of its lane: attempts are reset, the history is kept. `batch`: the one that it counts for."""
    fresh = next_record(current.task_id, current.state, Event.REDRIVE, context.marks.nonce())
    fresh = structs.replace(fresh, place=f"{fresh.place.rpartition('/')[0]}/{entry}", batch=batch)
    fresh = structs.replace(
        fresh, attempt=0, error=None, claimed=None, started=None, ended=None, was_due=None, rank=None
    )
    return (yield from append(context, current, fresh, extra))


def rewrite(context: Context, current: Current, after: TaskState, extra: Ops) -> Plan:
    """Changed where it stands: its listing stays.

    A task that was dropped and enqueued anew may have the record's version, but its entry has another name.
    """
    same = [] if current.state.state is State.CLAIMED else [zk.Check(place_of(context, current.state))]
    return Plan([_change(context, current, after, [*same, *extra])])


def delete(context: Context, current: Current, *, proof: bool = True) -> Plan:
    """Deleted whole, with all that lists it; it fails its batch unless it had ended.

    `proof`: that it is gone after a lost reply is this call's doing.
    """
    record, *parts = task_deletes(context, current.task_id, current.state, current.version)
    off, batch = membership(context, current.task_id, current.state, failed=True), current.state.batch
    if batch is not None:
        off.append(without_record(context, batch))
    # The record goes first: if that is another by now, the refusal says so.
    change = _change(context, current, None, [record, *unlist(context, current), *parts, *off])
    if proof:
        change.proof = Gone(context.paths.task(current.task_id))
    _leave(change, batch)
    return Plan([change])


def relist(context: Context, current: Current, after: TaskState, extra: Ops = (), guards: Ops = ()) -> Procedure[Plan]:
    """From where it is listed to where `after` lists it."""
    if after.index is None and not after.placed:
        return (yield from append(context, current, structs.replace(after, rank=None), extra, guards=guards))
    return Plan([_moved(context, current, after, extra, guards, None)])


def append(context: Context, current: Current, after: TaskState, extra: Ops = (), guards: Ops = ()) -> Procedure[Plan]:
    """To the end of its lane, whatever place `after` tells of."""
    lane, conf = Lane(after.priority, dict(after.filters)), (yield from known_conf(context))
    wanted = yield from open_segment(context, lane, ordered=conf.ordered)
    after = structs.replace(after, place=f"{wanted.lane.name}/{wanted.segment}/{after.entry}")
    return Plan([_moved(context, current, after, extra, guards, wanted)])


def _moved(
    context: Context, current: Current, after: TaskState, extra: Ops, guards: Ops, wanted: OpenSegment | None
) -> Change:
    before, entry = current.state, place_of(context, after)
    change = _change(context, current, after, [*guards, *unlist(context, current), *extra])
    change.segment = wanted
    if after.index is not None:
        change.make_parent[entry] = partial(make_bucket, context, entry.rpartition("/")[0])
    elif wanted is None:
        # The lane and the segment may have been deleted meanwhile. They are created with the entry, if at all: whoever
        # meets an empty segment deletes it.
        lane, segment, _ = after.place.split("/")
        own = Lane(after.priority, dict(after.filters))
        path, data = context.paths.at("queue", lane), (own if own.name == lane else own.mixed()).encode()
        change.parents = zk.Create(path, data), zk.Create(f"{path}/{segment}")
    # A run ends the part that its task has in a batch, also where another run follows it at once.
    if before.batch is not None and before.state not in ENDED and (after.state in ENDED or after.batch is None):
        failed = after.state in FAILED
        if after.state is State.INSERTED:
            failed = not before.history or before.history[-1].outcome != "finished"
        change.listing += membership(context, current.task_id, before, failed=failed)
        if failed and after.batch is None:
            change.listing.append(without_record(context, before.batch))
        _leave(change, before.batch)
    # In a queue of strict order the entry holds the place that the task had from the first.
    change.listing.append(zk.Create(entry, b"" if after.rank is None else str(after.rank).encode()))
    return change


def _change(context: Context, current: Current, after: TaskState | None, ops: list[zk.WriteOp]) -> Change:
    """What is done to a task whose record is still the one that was read: this fences every change."""
    record, result = (context.paths.task(current.task_id, part) for part in ("state", "result"))
    if after is not None:
        ops = [zk.SetData(record, after.encode(), current.version), *ops]
    change = Change(context, current.task_id, ops, after=after, before=current.state.nonce)
    for op in ops:
        if op.path == result and isinstance(op, zk.Create | zk.SetData):
            change.upsert[result] = op.data
    if after is not None:
        change.proof = Recorded(record, current.task_id, after.nonce)
    if current.state.slot is not None:
        change.dispensable = context.paths.at("slots", current.state.slot)
    change.preconditions[record] = _CHANGED
    change.preconditions[context.paths.task(current.task_id, "claim")] = _GONE
    return change


def _leave(change: Change, batch: str | None) -> None:
    if batch is not None:
        change.batch = batch
        change.on_commit = partial(close_after, change.context, batch)


# --- Keeps a copy of a finished run when its task is redriven, dropped or enqueued again, in the same transaction.


def with_history(context: Context, current: Current, plan: Plan) -> Procedure[Plan]:
    """A plan by which a task leaves where it is; of one that has ended, the run is kept where anybody may want it."""
    if current.state.state not in ENDED:
        return plan
    audience = yield from _audience(context)
    version = current.state.ended_zxid or current.zxid
    if audience is None or (version and not audience.wants(version)):
        return plan
    paths = [context.paths.task(current.task_id, part) for part in ("state", "data", "metadata", "result")]
    record, data, metadata, result = yield from bulk_read.read_nodes(paths)
    if record is None or record.stat.version != current.version:
        return plan  # it has changed since it was read, and the plan will be refused
    state = current.state
    with suppress(CorruptRecord):  # a caller may have added to its reading what the next record is to hold
        state = TaskState.decode(paths[0], record.data)
    history_entry = HistoryEntry(
        current.task_id,
        version=state.ended_zxid or record.stat.mzxid,
        enqueued=(record if data is None else data).stat.ctime,
        ended=ended_ms(state, record.stat) or record.stat.mtime,
        state=state,
        metadata=_text(metadata),
        data=b"" if data is None else data.data,
        result=None if result is None or state.state is State.DEAD else result.data,
    )
    if not audience.wants(history_entry.version):
        return plan  # the archive has it
    return (yield from _with(context, history_entry, plan))


def with_ending(
    context: Context, current: Current, after: TaskState, now: int, result: bytes | None, plan: Plan
) -> Procedure[Plan]:
    """A plan in which a run ends that never stands among what ended, another one following at once.

    `after`: the record that it would have had; `result`: the one that it leaves.
    """
    if (yield from _audience(context)) is None:
        return plan
    task = partial(context.paths.task, current.task_id)
    data, metadata = yield from bulk_read.read_nodes((task("data"), task("metadata")))
    enqueued, payload = (now, b"") if data is None else (data.stat.ctime, data.data)
    history_entry = HistoryEntry(current.task_id, 0, enqueued, now, after, _text(metadata), payload, result)
    return (yield from _with(context, history_entry, plan))


def _audience(context: Context) -> Procedure[Conf | None]:
    """The configuration, of a queue that is archived or followed; None of any other.

    It is not read for this: of a queue whose configuration cannot be used a task can be dropped all the same.
    """
    conf, watch = context.configuration.conf, context.configuration.watch
    if conf is not None and watch is not None and not watch.fired:
        return conf if conf.follow or conf.archive is not None else None
    marks = yield from bulk_read.read_nodes((context.paths.at("archive"), context.paths.at("followed")))
    return replace(default_conf(), follow=True) if any(mark is not None for mark in marks) else None


def _text(metadata: zk.Node | None) -> str:
    return "{}" if metadata is None else metadata.data.decode(errors="replace")


def _with(context: Context, history_entry: HistoryEntry, plan: Plan) -> Procedure[Plan]:
    """The plan, and the write that keeps the history entry; payload or result that do not fit are left out."""
    now, task_id = (yield from server_clock.server_time(context)), history_entry.task_id
    path = context.paths.at(history_path(now, task_id, history_entry.version))
    kept = [history_entry, structs.replace(history_entry, data=b"")]
    kept += [] if history_entry.result is None else [structs.replace(history_entry, data=b"", result=None)]
    writes = [zk.Create(path, each.encode()) for each in kept]
    beside = zk.request_size(plan.multi().ops)
    write = next((each for each in writes if beside + zk.request_size([each]) <= zk.MAX_REQUEST), writes[-1])
    if write is not writes[0]:
        context.run.report(path, f"the payload of task {task_id!r} does not fit; what ended is kept without")
    parent = partial(_ensure_parent, path.rpartition("/")[0])
    return Plan([*plan.changes, Change(context, task_id, listing=[write], make_parent={path: parent})])


def _ensure_parent(bucket: str) -> Procedure[None]:
    """Create the bucket of a history entry, and where it is the queue's first one what holds all of them."""
    yield from ensure_node(bucket.rpartition("/")[0])
    yield from ensure_bucket(bucket)
