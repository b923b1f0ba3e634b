"""Claiming one task by its id, wherever it is pending: for whoever was told of it, and wants no other.

It passes by what stands before it, in strict order, too: whoever asks for a task by its id knows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from airflow_provider_zkmq.engine.core.claiming.ask import Asked, wanted
from airflow_provider_zkmq.engine.core.claiming.candidates import candidate, read_tasks
from airflow_provider_zkmq.engine.core.claiming.claim import owing, then_settle
from airflow_provider_zkmq.engine.core.claiming.strict_order import rank_of
from airflow_provider_zkmq.engine.core.claiming.take import (
    CallerLeft,
    Look,
    Pick,
    Taker,
    Unregistered,
    Wanted,
    claim_together,
)
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.numbers import optional_whole_number
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.existence import unless_missing
from airflow_provider_zkmq.engine.core.reading.nodes import Record
from airflow_provider_zkmq.engine.core.tasks.departing import Departure
from airflow_provider_zkmq.engine.core.upkeep.consumers import register
from airflow_provider_zkmq.engine.core.upkeep.promote import promote_task
from airflow_provider_zkmq.engine.core.upkeep.rescue import tend
from airflow_provider_zkmq.engine.errors import ConfigError

#: How often a task that changes under our eyes is read again.
TRIES: Final = 4


def ask_by_id(
    context: Context, task_id: str, *, lease: Duration | None = None, attempt: int | None = None, ahead: bool = False
) -> Procedure[Asked]:
    """Take this task and no other, if it is pending and due, in whichever lane; it waits for nothing.

    None where there is no such task, it is not pending, another was faster, or the queue is paused. `attempt`: only if
    this is its delivery of that number, the first being 1. `lease` as with `claim`. `ahead`: it is claimed for somebody
    who says when the handling begins (`begin`); until then the delivery counts no attempt. A task whose attempts are
    used up is not delivered. In strict order it passes by what stands before it. A call that is cancelled or
    interrupted gives back what it took. Raises `ConfigError` for a bad id, lease or number, `QueueNotFound`, and
    `CorruptRecord` for a task that cannot be read.
    """
    name, number = check_name("task id", task_id), optional_whole_number("attempt", attempt, 1)
    if not isinstance(ahead, bool):
        raise ConfigError(f"ahead {ahead!r} is not allowed: True or False")
    asked = replace((yield from wanted(context, lease=lease)), ahead="all" if ahead else False)

    def claiming(caller: Caller) -> Procedure[list[Claimed]]:
        return unless_missing(context, claim_by_id(context, asked, name, number, caller))

    return Asked(context, claiming)


def claim_by_id(
    context: Context, asked: Wanted, task_id: str, attempt: int | None = None, caller: Caller | None = None
) -> Procedure[list[Claimed]]:
    """Claim one task; none where it cannot be. `caller`: who is to get it; without one, it counts as delivered."""
    mine = caller or Caller()
    claims = yield from owing(context, mine, _claim(context, asked, task_id, attempt, mine))
    if claims and caller is None:
        context.claims.deliver(claims[0])
    return claims


def _claim(
    context: Context, asked: Wanted, task_id: str, attempt: int | None, caller: Caller
) -> Procedure[list[Claimed]]:
    departure, first = Departure(context), True
    try:
        while True:
            look, again = Look(asked, caller, departure), True
            try:
                settled = yield from then_settle(departure, _look(context, look, task_id, attempt))
                again, first = settled and first, False  # once: others may go on putting down for ever
            except Unregistered:
                pass
            except CallerLeft:
                if context.claims.handovers:
                    context.run.pay()
                return []
            if look.taken or not again:
                return look.taken
    finally:
        departure.journey.over = True
        departure.close()


def _look(context: Context, look: Look, task_id: str, attempt: int | None) -> Procedure[None]:
    """One look at the task, after the queue was looked after: it may be a dead consumer's.

    Whoever was told of the task by another client may know more than the server that this one is connected to: what
    cannot be claimed is looked at again when that has caught up.
    """
    conf = yield from read_conf(context)
    consumer = yield from register(context)
    yield from tend(context)
    if conf.paused:
        return
    taker = Taker(conf, consumer, look)
    if not (yield from _take(context, taker, task_id, attempt)):
        yield Sync(context.paths.task(task_id))
        yield from _take(context, taker, task_id, attempt)


def _take(context: Context, taker: Taker, task_id: str, attempt: int | None) -> Procedure[bool]:
    """Try to claim it, again and again while it changes and could be claimed."""
    for _ in range(TRIES):
        [nodes] = yield from read_tasks(context, [task_id])
        record = _record_of(context, task_id, nodes[0])
        if record is None or not (yield from _may_be_claimed(context, record.state, attempt)):
            return False
        if record.state.index is not None:
            yield from promote_task(context, record)
            continue
        claimed = yield from _candidate(context, taker, record, nodes)
        if claimed is not None and (yield from claim_together(context, taker, [claimed])):
            return True
    return False


def _record_of(context: Context, task_id: str, node: Node | None) -> Record | None:
    """The task's record; None without the task. Raises `CorruptRecord`."""
    path = context.paths.task(task_id, "state")
    return None if node is None else Record(task_id, node.stat, TaskState.decode(path, node.data))


def _may_be_claimed(context: Context, state: TaskState, attempt: int | None) -> Procedure[bool]:
    """Whether a task is pending, due, and its next delivery the one that is asked for."""
    if state.state is not State.INSERTED or attempt not in {None, state.attempt + 1}:
        return False
    if state.due is None:
        return True
    return state.due <= context.clock.certainly_past((yield from server_time(context)))


def _candidate(
    context: Context, taker: Taker, record: Record, nodes: Sequence[Node | None]
) -> Procedure[Claimed | None]:
    """The task, ready to be claimed; in strict order with its rank, so that it comes back to where it stood."""
    segment, _, entry = context.paths.entry(record.state.place).rpartition("/")
    rank: int | None = None
    if taker.conf.ordered:
        node: Node | None = yield Get(f"{segment}/{entry}")
        if node is None:
            return None
        rank = rank_of(node)
    return (yield from candidate(context, taker, record.task_id, Pick(entry, segment, rank), nodes))
