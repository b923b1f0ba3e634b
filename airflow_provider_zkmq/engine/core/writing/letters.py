"""Dead letters that leave an archived queue: each is kept beside it, by the transaction in which it leaves.

What clean-up deletes is in the archive already. A dead letter is deleted or run again by an operator, at any time: the
next run of the archive would find nothing of it any more. It goes under ``unarchived``, for that run to take from there
(`core.reading.archiving`); clean-up deletes it once it is archived (`core.upkeep.prune`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import index_path
from airflow_provider_zkmq.engine.core.model.letters import Letter
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Node, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import ensure_bucket, ensure_node
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, Create, request_size
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes
from airflow_provider_zkmq.engine.core.writing.plan import Change, Plan
from airflow_provider_zkmq.engine.core.writing.record import Current


def with_letter(context: Context, current: Current, plan: Plan) -> Procedure[Plan]:
    """A plan by which a task leaves where it is; a dead letter of an archived queue is kept for the archive."""
    if current.state.state is not State.DEAD or not (yield from _archived(context)):
        return plan
    letter = yield from _read(context, current)
    if letter is None:
        return plan  # it has changed since it was read: the plan will be refused
    path = context.paths.at(index_path("unarchived", (yield from server_time(context)), current.task_id))
    write = _fitting(context, path, letter, request_size(plan.multi().ops))
    home = partial(_ensure_home, path.rpartition("/")[0])
    return Plan([*plan.changes, Change(context, current.task_id, listing=[write], homes={path: home})])


def _archived(context: Context) -> Procedure[bool]:
    """Whether the queue is archived, as its configuration tells where that is known.

    It is not read for this: of a queue whose configuration cannot be used a task can be dropped all the same.
    """
    conf, watch = context.configuration.conf, context.configuration.watch
    if conf is not None and watch is not None and not watch.fired:
        return conf.archive is not None
    return (yield Exists(context.paths.at("archive"))) is not None


def _read(context: Context, current: Current) -> Procedure[Letter | None]:
    """The dead letter as it stands; None where it is not what was read."""
    task = partial(context.paths.task, current.task_id)
    record, data, metadata = yield from read_nodes((task("state"), task("data"), task("metadata")))
    if record is None or record.stat.version != current.version:
        return None
    return Letter(
        current.task_id,
        version=record.stat.mzxid,
        enqueued=(record if data is None else data).stat.ctime,
        ended=record.stat.mtime,
        state=current.state,
        metadata=_text(metadata),
        data=b"" if data is None else data.data,
    )


def _text(metadata: Node | None) -> str:
    return "{}" if metadata is None else metadata.data.decode(errors="replace")


def _fitting(context: Context, path: str, letter: Letter, beside: int) -> Create:
    """The write that keeps a letter; without its payload where that does not fit beside the change, which is told."""
    write = Create(path, letter.encode())
    if beside + request_size([write]) <= MAX_REQUEST:
        return write
    context.run.report(path, f"the payload of task {letter.task_id!r} does not fit; the archive gets the rest")
    return Create(path, replace(letter, data=b"").encode())


def _ensure_home(bucket: str) -> Procedure[None]:
    """Create the bucket of a letter, and where it is the queue's first one what holds all of them."""
    yield from ensure_node(bucket.rpartition("/")[0])
    yield from ensure_bucket(bucket)
