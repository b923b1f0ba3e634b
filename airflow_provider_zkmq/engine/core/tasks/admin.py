"""What operators do: configure a queue; cancel, redrive, drop, replace and clear tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from msgspec import structs

from ... import errors
from .. import protocol as zk
from ..context import Context
from ..model.names import check_name, entry_name
from ..model.policy import ORDERS, RetryPolicy, Settings, checked_policy, load_settings
from ..model.records import TaskState, clip, encode_data
from ..model.selectors import FilterType, check_types, declare_types
from ..model.states import TRANSITIONS, Event, State, step
from ..model.values import MAX_ZXID, Duration, abbreviated, dump, interval_seconds, seconds, spell_seconds, whole_number
from ..protocol import Procedure, refused
from ..read import nodes
from ..read.configuration import DEFAULT_SETTINGS, DEFAULT_TIMES, Archive, read_conf
from ..read.inspect import as_state, checked_ids, listed_ids
from ..read.leases import lapsed_tasks, ordering_time, server_time
from ..write import transitions
from ..write.commit import Plan, anew, commit, send_together
from ..write.escrow import next_run
from ..write.transitions import Current, next_record, rejoin, with_history
from .settle import cancel_note, rescue_lapsed

# --- What operators do to tasks: cancel, redrive, drop, replace, clear.

#: What becomes of a corrupt task, for the report.
_KEPT: Final = "it is kept"
#: So many tasks are redriven at a time.
REDRIVEN_TOGETHER: Final = 64


def _change(
    context: Context, task_id: str, what: str, build: Callable[[Current], Procedure[Plan]], version: int | None = None
) -> Procedure[TaskState]:
    """Read a task, and commit what `build` makes of it; read it again while it changes under our eyes.

    `version`: only if it is still what was read as `Task.version`. Returns the record that was written last, of a
    deleted task the one that was read. Raises `ConfigError`, `TaskNotFound`, `CorruptRecord`, `IllegalTransition`.
    """
    path = context.paths.task(check_name("task id", task_id), "state")
    tries = zk.Tries(f"{what} task {task_id!r}")
    while True:
        node: zk.Node | None = yield zk.Get(path)
        if node is None:
            yield zk.Sync(path)  # the server that we read from may lag behind the one that was written to
            node = yield zk.Get(path)
        if node is None:
            msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
            raise errors.TaskNotFound(msg)
        mzxid, state = node.stat.mzxid, TaskState.decode(path, node.data)
        current = Current(task_id, node.stat.version, state, zxid=mzxid)
        if version is not None and mzxid != version:
            now = f"it is {state.state} by now, attempt {state.attempt}"
            raise errors.IllegalTransition(f"task {task_id!r} has changed since it was read: {now}")
        try:
            plan = yield from build(current)
        except errors.IllegalTransition:
            # Where a claim has ended by its deadline, it is done to what follows.
            if state.state is not State.CLAIMED or not (yield from rescue_lapsed(context, task_id)):
                raise
            continue
        committed = yield from commit(plan, anew(partial(build, current)))
        if committed.refusal is None:
            return committed.after or state
        yield from tries.refused(committed.refusal.outcome, committed.refusal.multi, mzxid)


def cancel(context: Context, task_id: str) -> Procedure[None]:
    """Withdraw a task that is pending or claimed; its consumer is told, and can settle it no more.

    Raises `TaskNotFound`, or `IllegalTransition` when it has ended.
    """

    def build(current: Current) -> Procedure[Plan]:
        now, state = (yield from server_time(context)), current.state
        step(task_id, state.state, Event.CANCEL)
        # The run in escrow goes too, and the consumer is told.
        extra: list[zk.WriteOp] = [zk.Delete(context.paths.task(task_id, "requeue"))] if state.requeue else []
        extra += yield from cancel_note(context, state)
        current = yield from _with_claim(context, current)
        if state.state is State.CLAIMED:
            current = current.with_state(state.with_attempt("cancelled", now, None))
        return (yield from transitions.cancel(context, current, extra, now))

    yield from _change(context, task_id, "cancel of", build)


def _with_claim(context: Context, current: Current) -> Procedure[Current]:
    """The reading, with whether the claim's ephemeral has vanished with its session, and nobody has rescued it yet."""
    if current.state.state is not State.CLAIMED:
        return current
    gone = (yield zk.Exists(context.paths.task(current.task_id, "claim"))) is None
    return replace(current, claim_gone=gone)


def revoke(
    context: Context, task_id: str, error: str | None = None, *, retry: bool = True, version: int | None = None
) -> Procedure[State]:
    """Take a claimed task from whoever holds it, and give it back to its place; returns the new state.

    Its consumer is told, and can settle it no more. The delivery counts as no attempt; with an `error` it has failed:
    the task runs again by its policy, or is dead, with ``retry=False`` in any case. `version`: only if the task is
    still what was read as `Task.version`. Raises `TaskNotFound`, or `IllegalTransition` for a task that is not claimed,
    or in another version.
    """
    conf, rand = (yield from read_conf(context)), context.run.random()

    def build(current: Current) -> Procedure[Plan]:
        step(task_id, current.state.state, Event.RELEASE)
        guards, nonce = (yield from cancel_note(context, current.state)), context.marks.nonce()
        current = yield from _with_claim(context, current)
        if error is None:
            return (yield from transitions.release(context, current, nonce, None, guards))
        now = yield from server_time(context)
        state = current.state.with_attempt("failed", now, error)
        current, policy = current.with_state(state), state.retry(conf.policy)
        if retry and not (policy.exhausted(state.attempt) or policy.is_final(error)):
            due = now + int(policy.backoff(state.attempt, rand) * 1000)
            return (yield from transitions.fail(context, current, nonce, error, due if due > now else None, guards))
        if state.requeue:
            return (yield from next_run(context, current, nonce, guards))
        return (yield from transitions.to_dead(context, current, Event.FAIL_FINAL, nonce, error, now, guards))

    after = yield from _change(context, task_id, "taking away of", build, version)
    context.listings.forget_tried(context.paths.entry(after.place).rpartition("/")[0])
    return after.state


def redrive(
    context: Context, task_id: str, version: int | None = None, data: bytes | str | None = None
) -> Procedure[None]:
    """Put a dead or cancelled task at the end of its lane, its attempts reset, its history kept.

    A member of a batch counts as open again; one that was done opens again, see `wait_batch`. Of a queue that is
    archived or followed, the run is kept as it ended.
    `version`: only if the task is still what was read as `Task.version`. `data` replaces the payload in the same
    transaction. Raises `TaskNotFound`, `TaskTooLarge`, or `IllegalTransition` for a task in any other state or version.
    """
    extra: list[zk.WriteOp] = []
    if data is not None:
        extra.append(zk.SetData(context.paths.task(task_id, "data"), encode_data("data", data)))
    yield from _change(context, task_id, "redrive of", partial(_redriving, context, extra), version)


def _redriving(context: Context, extra: list[zk.WriteOp], current: Current) -> Procedure[Plan]:
    step(current.task_id, current.state.state, Event.REDRIVE)
    yield from read_conf(context)
    entry = entry_name(context.marks.stamp((yield from ordering_time(context))), current.task_id)
    members = yield from rejoin(context, current)
    batch = current.state.batch if members else None
    plan = yield from transitions.redrive(context, current, entry, extra, batch)
    return (yield from with_history(context, current, Plan([*plan.changes, *members])))


def redrive_many(context: Context, task_ids: Sequence[str]) -> Procedure[dict[str, errors.ZkmqError]]:
    """Redrive tasks in their order, a group at a time; returns those that could not be, each with why.

    Each task is redriven by itself, as by `redrive`, in a transaction of its own: those of a group are on their way
    together. Why: `TaskNotFound`, `IllegalTransition` or `CorruptRecord`. Raises `QueueNotFound`, `ConfigError` for a
    bad id before anything is redriven, `Unavailable` where nothing was, and `OutcomeUnknown`: what was redriven by
    then, the same call then refuses.
    """
    refused: dict[str, errors.ZkmqError] = {}
    ids = checked_ids(task_ids)
    yield from read_conf(context)
    done: set[str] = set()
    for group in nodes.chunked(ids, REDRIVEN_TOGETHER):
        try:
            yield from _redrive_together(context, group, done)
            for task_id in [each for each in group if each not in done]:
                try:
                    yield from redrive(context, task_id)
                    done.add(task_id)
                except (errors.TaskNotFound, errors.IllegalTransition, errors.CorruptRecord) as error:
                    refused[task_id] = error
        except errors.Unavailable as error:
            if not done:
                raise
            raise errors.OutcomeUnknown(
                f"some of these tasks were redriven, and the others were not: {error}"
            ) from error
    return refused


def _redrive_together(context: Context, ids: Sequence[str], done: set[str]) -> Procedure[None]:
    """Redrive what can be as it was read, and note it; the others are to be read and judged one by one."""
    records = yield from nodes.read_records(context, ids)
    plans: list[Plan] = []
    for task_id, record in zip(ids, records, strict=True):
        if isinstance(record, nodes.Record) and (record.state.state, Event.REDRIVE) in TRANSITIONS:
            current = Current(task_id, record.stat.version, record.state, zxid=record.stat.mzxid)
            plans.append((yield from _redriving(context, [], current)))
    for plan, sent in zip(plans, (yield from send_together(plans)) if plans else [], strict=True):
        if sent.outcome.committed or sent.outcome.unknown:  # a refused one is read again before it is tried again
            committed = yield from commit(plan, first=sent)
            if committed.committed:
                done.add(plan.changes[0].task_id)


def replace_data(context: Context, task_id: str, data: bytes | str, version: int | None = None) -> Procedure[None]:
    """Replace the payload of a pending task, which keeps its place; see `redrive` for `version`.

    Raises `TaskNotFound`, `TaskTooLarge`, or `IllegalTransition` for a task that is not pending any more.
    """
    extra: list[zk.WriteOp] = [zk.SetData(context.paths.task(task_id, "data"), encode_data("data", data))]

    def build(current: Current) -> Procedure[Plan]:
        state, nonce = current.state, context.marks.nonce()
        after = next_record(task_id, state, Event.UPDATE, nonce, due=state.due)
        return transitions.rewrite(context, current, after, extra)
        yield  # pragma: no cover  a procedure that needs nothing

    yield from _change(context, task_id, "new data for", build, version)


def drop(context: Context, task_id: str, version: int | None = None) -> Procedure[None]:
    """Delete a task that is not claimed, whole; see `redrive` for `version`.

    A member of a batch that had not ended counts as failed. Of a queue that is archived or followed, a run that had
    ended is kept for who reads what ended. Raises `TaskNotFound`, or `IllegalTransition` for a claimed task or another
    version.
    """

    def build(current: Current) -> Procedure[Plan]:
        if current.state.state is State.CLAIMED:
            msg = f"task {task_id!r} is claimed: it cannot be dropped; cancel it first"
            raise errors.IllegalTransition(msg)
        return (yield from with_history(context, current, transitions.delete(context, current)))

    yield from _change(context, task_id, "drop of", build, version)


def clear(context: Context, state: State | str | None = None) -> Procedure[int]:
    """Delete every task of the queue, or every one in a state, whatever is being done with it; returns how many.

    A consumer that has one in hand loses its claim; a member of a batch that had not ended counts as failed. Of a queue
    that is archived or followed, runs that had ended are kept as by `drop`. Configuration and consumers stay.
    """
    yield from read_conf(context)
    wanted = as_state(state)
    for task_id in [] if wanted is None else (yield from lapsed_tasks(context)):
        yield from rescue_lapsed(context, task_id)
    count = 0
    for chunk in nodes.chunked((yield from listed_ids(context, wanted))):
        records = yield from nodes.read_records(context, chunk, _KEPT)
        for task_id, record in zip(chunk, records, strict=True):
            base = context.paths.task(task_id)
            if record is nodes.Unread.MISSING and (yield zk.Exists(base)) is not None:
                context.report(base, f"has no state: it is no task of ours; {_KEPT}")
            try:
                count += yield from _delete_task(context, task_id, record, wanted)
            except errors.CorruptRecord as error:
                context.report(f"{base}/state", f"{error}; {_KEPT}")
    for reading in context.listings.readings.values():  # what was tried is tried again
        reading.cached_entries = None
    return count


def _delete_task(
    context: Context, task_id: str, record: nodes.Record | nodes.Unread, wanted: State | None
) -> Procedure[bool]:
    """Delete one tree with all that lists it; again if it changed meanwhile. Raises `CorruptRecord`: it cannot be."""
    tries = zk.Tries(f"deletion of task {task_id!r}")
    while isinstance(record, nodes.Record) and wanted in {None, record.state.state}:
        current = Current(task_id, record.stat.version, record.state, zxid=record.stat.mzxid)
        current = yield from _with_claim(context, current)
        delete = transitions.delete(context, current, proof=False)
        delete.changes[0].ops += yield from cancel_note(context, record.state)
        plan = yield from with_history(context, current, delete)
        committed = yield from commit(plan)
        if committed.refusal is None:
            return True
        yield from tries.refused(committed.refusal.outcome, committed.refusal.multi, record.stat.mzxid)
        (record,) = yield from nodes.read_records(context, [task_id], _KEPT)
    return False


# --- What an operator does to a queue: configure, pause, resume, publish its archive.


def configure(
    context: Context,
    *,
    filters: Mapping[str, FilterType] | None = None,
    task_gc_lifetime: Duration | None = None,
    task_gc_interval: Duration | None = None,
    policy: RetryPolicy | None = None,
    lock: Duration | None = None,
    order: str | None = None,
    archive: bool | None = None,
    follow: bool | None = None,
) -> Procedure[None]:
    """Create the queue if it does not exist and set the given values; what is not given stays as it is.

    ``filters`` replaces the declaration of filter types. ``task_gc_lifetime``: how long a finished task is kept,
    ``task_gc_interval``: how often clean-up runs, every second at the most; seconds or a duration. ``policy``: when
    failed tasks run again. ``lock``: how long a claim holds without being extended, also while its session lives (0:
    without bound, the default). ``order``: ``"fifo"``: claims happen in the order in which enqueues were committed;
    ``"default"``: nearly so, consumers keeping out of each other's way. ``archive=True``: the queue is archived, so
    that clean-up keeps what no archive holds, also before the first run of one; ``False``: it is not any more, and
    clean-up waits for none. ``follow=True``: streams follow what ends here, so that runs which leave before their time
    (redriven, dropped, run anew) are kept for them for as long as ended tasks are.
    Raises `ConfigError` for values that are refused, `QueueNotFound` while the queue is being deleted; then nothing is
    written.
    """
    changes: dict[str, Any] = {}
    times: dict[str, bytes] = {}
    if filters is not None:
        changes["filters"] = declare_types(check_types(filters))
    if policy is not None:
        changes["policy"] = checked_policy(policy)
    if lock is not None:
        changes["lock"] = seconds("lock", lock)
    if order is not None:
        if order not in ORDERS:
            msg = f"order {order!r} is unknown: use one of {', '.join(ORDERS)}"
            raise errors.ConfigError(msg)
        changes["order"] = order
    if task_gc_lifetime is not None:
        times["task_gc_lifetime"] = spell_seconds(seconds("task_gc_lifetime", task_gc_lifetime))
    if task_gc_interval is not None:
        times["task_gc_interval"] = spell_seconds(interval_seconds("task_gc_interval", task_gc_interval))
    for name, value in {"archive": archive, "follow": follow}.items():
        if value is not None and not isinstance(value, bool):
            msg = f"{name} {value!r} is not understood: True or False"
            raise errors.ConfigError(msg)
    marks = {"archive": archive, "followed": follow}
    fresh = structs.replace(DEFAULT_SETTINGS, **changes).encode()
    created = yield from nodes.create_skeleton(
        context, fresh, DEFAULT_TIMES | times, [name for name, yes in marks.items() if yes]
    )
    if not created and (yield zk.Exists(context.paths.at("deleting"))) is not None:
        raise (yield from nodes.queue_missing(context))
    requested = {name: yes for name, yes in marks.items() if yes is not None}
    if not created and (changes or times or requested):
        yield from _set(context, "configuring the queue", changes, times, requested)


def _set(
    context: Context,
    what: str,
    changes: Mapping[str, Any],
    times: Mapping[str, bytes] | None = None,
    marks: Mapping[str, bool] | None = None,
) -> Procedure[Settings]:
    """Write several values at once; one that somebody deleted is created again. `marks`: which are to stand.

    Returns the settings before. Those that are damaged are written over by `configure` only.
    """
    missing, tries, settings = set[str](), zk.Tries(what), DEFAULT_SETTINGS
    wanted = {context.paths.at(name): (name, yes) for name, yes in (marks or {}).items()}
    while True:
        ops: list[zk.WriteOp] = []
        if changes:
            settings, version = yield from _read_settings(context, anew=marks is not None)
            ops.append(
                zk.SetData(context.paths.at(nodes.THERE), structs.replace(settings, **changes).encode(), version)
            )
        for name, value in (times or {}).items():
            path = context.paths.at("conf", name)
            ops.append(zk.Create(path, value) if path in missing else zk.SetData(path, value))
        for mark, (name, yes) in wanted.items():
            ops.append(zk.Create(mark, nodes.MARKS[name]) if yes else zk.Delete(mark))
        if not ops:
            return settings
        multi = zk.Multi(tuple(ops))
        outcome = yield from zk.transact(multi, zk.never)
        if outcome.committed:
            return settings
        path = zk.failed_at(outcome, multi)
        if path in wanted and outcome.failure in {zk.Failure.NODE_EXISTS, zk.Failure.NO_NODE}:
            del wanted[path]  # it is as it is to be: one that is there tells more, and stays
        elif outcome.failure is zk.Failure.NO_NODE and path not in missing:
            missing.add(path)
        elif outcome.failure is zk.Failure.NODE_EXISTS:
            missing.discard(path)
        else:  # others have changed the settings meanwhile, say
            yield from tries.refused(outcome, multi, None)


def _read_settings(context: Context, *, anew: bool = False) -> Procedure[tuple[Settings, int]]:
    """The settings as they stand now, and the version of their znode; `anew`: the defaults where they are damaged."""
    path = context.paths.at(nodes.THERE)
    node: zk.Node | None = yield zk.Get(path)
    if node is None:
        raise (yield from nodes.queue_missing(context))
    try:
        settings, _ = load_settings(path, node.data)
    except errors.CorruptRecord as error:
        if not anew:
            raise
        context.warn_once(path, f"{error}; what configure() is not given has its default now")
        settings = DEFAULT_SETTINGS
    return settings, node.stat.version


def pause(context: Context) -> Procedure[bool]:
    """Hand out nothing until `resume`; True if it was not paused before."""
    return not (yield from _set(context, "pausing the queue", {"paused": True})).paused


def resume(context: Context) -> Procedure[bool]:
    """Hand out tasks again; True if it was paused."""
    return (yield from _set(context, "resuming the queue", {"paused": False})).paused


def publish_archive(context: Context, reached: Archive) -> Procedure[None]:
    """Say how far the archive has come; clean-up deletes up to there. `reached`: an `archive()` with other values.

    Raises `ConfigError` for a watermark that is no zxid, and where another run has written since ``reached.version``
    was read; `OutcomeUnknown`.
    """
    watermark = whole_number("watermark", reached.watermark)
    if watermark > MAX_ZXID:
        msg = f"watermark {abbreviated(watermark)} is not allowed: no transaction of ZooKeeper has such a number"
        raise errors.ConfigError(msg)
    yield from nodes.refuse_missing(context)
    record = dump({"watermark": watermark, "directory": clip(reached.directory), "run": reached.run})
    path, version = context.paths.at("archive"), reached.version
    multi = zk.Multi((zk.Create(path, record) if version is None else zk.SetData(path, record, version),))
    outcome = yield from zk.transact(multi, zk.never)
    if outcome.committed:
        return
    if outcome.failure not in {zk.Failure.BAD_VERSION, zk.Failure.NODE_EXISTS, zk.Failure.NO_NODE}:
        raise refused("publishing the archive", outcome, multi)
    node: zk.Node | None = yield zk.Get(path)
    if node is None or node.data != record:  # else a first try did it, whose reply was lost
        msg = f"{path} was changed by another archive run; run this one again"
        raise errors.ConfigError(msg)
