"""Keeps a copy of a finished run when its task is redriven, dropped or enqueued again, in the same transaction."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.policy import Conf
from airflow_provider_zkmq.engine.core.model.records import HistoryEntry, TaskState, history_path
from airflow_provider_zkmq.engine.core.model.states import ENDED, State
from airflow_provider_zkmq.engine.core.protocol.ops import MAX_REQUEST, Create, Node, Procedure, request_size
from airflow_provider_zkmq.engine.core.protocol.transact import ensure_bucket, ensure_node
from airflow_provider_zkmq.engine.core.read.configuration import default_conf
from airflow_provider_zkmq.engine.core.read.inspect import ended_ms
from airflow_provider_zkmq.engine.core.read.nodes import read_nodes
from airflow_provider_zkmq.engine.core.read.server_clock import server_time
from airflow_provider_zkmq.engine.core.write.commit import Change, Plan
from airflow_provider_zkmq.engine.core.write.record import Current
from airflow_provider_zkmq.engine.errors import CorruptRecord


def with_history(context: Context, current: Current, plan: Plan) -> Procedure[Plan]:
    """A plan by which a task leaves where it is; of one that has ended, the run is kept where anybody may want it."""
    if current.state.state not in ENDED:
        return plan
    audience = yield from _audience(context)
    version = current.state.ended_zxid or current.zxid
    if audience is None or (version and not audience.wants(version)):
        return plan
    history_entry = yield from _standing(context, current)
    if history_entry is None or not audience.wants(history_entry.version):
        return plan  # the archive has it; or it has changed since it was read, and the plan will be refused
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
    data, metadata = yield from read_nodes((task("data"), task("metadata")))
    enqueued, payload = (now, b"") if data is None else (data.stat.ctime, data.data)
    history_entry = HistoryEntry(current.task_id, 0, enqueued, now, after, _text(metadata), payload, result)
    return (yield from _with(context, history_entry, plan))


def _audience(context: Context) -> Procedure[Conf | None]:
    """The configuration, of a queue that is archived or followed; None of any other.

    It is not read for this: of a queue whose configuration cannot be used a task can be dropped all the same.
    """
    conf, watch = context.configuration.conf, context.configuration.watch
    if conf is not None and watch is not None and not watch.fired:
        return conf if conf.has_readers else None
    marks = yield from read_nodes((context.paths.at("archive"), context.paths.at("followed")))
    return replace(default_conf(), follow=True) if any(mark is not None for mark in marks) else None


def _standing(context: Context, current: Current) -> Procedure[HistoryEntry | None]:
    """The run as it stands; None where that is not what was read."""
    task = partial(context.paths.task, current.task_id)
    parts = (task("state"), task("data"), task("metadata"), task("result"))
    record, data, metadata, result = yield from read_nodes(parts)
    if record is None or record.stat.version != current.version:
        return None
    state = _stored(parts[0], record, current)
    return HistoryEntry(
        current.task_id,
        version=state.ended_zxid or record.stat.mzxid,
        enqueued=(record if data is None else data).stat.ctime,
        ended=ended_ms(state.state, state.started, state.ended, state.ended_zxid, record.stat) or record.stat.mtime,
        state=state,
        metadata=_text(metadata),
        data=b"" if data is None else data.data,
        result=None if result is None or state.state is State.DEAD else result.data,
    )


def _stored(path: str, record: Node, current: Current) -> TaskState:
    """The record as it stands: a caller may have added to its reading what the next record is to hold."""
    try:
        return TaskState.decode(path, record.data)
    except CorruptRecord:
        return current.state


def _text(metadata: Node | None) -> str:
    return "{}" if metadata is None else metadata.data.decode(errors="replace")


def _with(context: Context, history_entry: HistoryEntry, plan: Plan) -> Procedure[Plan]:
    """The plan, and the write that keeps the letter."""
    now = yield from server_time(context)
    path = context.paths.at(history_path(now, history_entry.task_id, history_entry.version))
    write = _history_write(context, path, history_entry, request_size(plan.multi().ops))
    parent = partial(_ensure_parent, path.rpartition("/")[0])
    return Plan([*plan.changes, Change(context, history_entry.task_id, listing=[write], make_parent={path: parent})])


def _history_write(context: Context, path: str, history_entry: HistoryEntry, beside: int) -> Create:
    """The write that keeps a letter; without payload or result where they do not fit beside it, which is told."""
    lighter = [history_entry, replace(history_entry, data=b"")]
    lighter += [] if history_entry.result is None else [replace(history_entry, data=b"", result=None)]
    writes = [Create(path, each.encode()) for each in lighter]
    fits = next((write for write in writes if beside + request_size([write]) <= MAX_REQUEST), writes[-1])
    if fits is not writes[0]:
        context.run.report(
            path, f"the payload of task {history_entry.task_id!r} does not fit; what ended is kept without"
        )
    return fits


def _ensure_parent(bucket: str) -> Procedure[None]:
    """Create the bucket of a letter, and where it is the queue's first one what holds all of them."""
    yield from ensure_node(bucket.rpartition("/")[0])
    yield from ensure_bucket(bucket)
