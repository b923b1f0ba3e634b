"""Taking one pending task: one read of the candidate, one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_zkmq.engine.core.context import Conf, Consumer, Context
from airflow_provider_zkmq.engine.core.moves import lease_path
from airflow_provider_zkmq.engine.core.ops import Exists, Failure, Get, GetMany, Multi, Node, Ops, Outcome, Procedure
from airflow_provider_zkmq.engine.core.paths import SEPARATOR, entry_task
from airflow_provider_zkmq.engine.core.records import TaskState, dump, load
from airflow_provider_zkmq.engine.core.selectors import Selector
from airflow_provider_zkmq.engine.core.states import Event, State, step
from airflow_provider_zkmq.engine.core.transact import failed_at, reconnect, refused, server_time, transact
from airflow_provider_zkmq.engine.errors import CorruptRecord, SessionLost


class Unregistered(Exception):
    """This session is no consumer any more: it is a new one, or was taken for dead. Whoever claims registers again."""


@dataclass(slots=True, eq=False)
class Held:
    """A task in hand: what settling it needs. ``token`` is the zxid of the claim, unique and rising."""

    task_id: str
    token: int
    version: int
    state: TaskState
    created: int
    data: bytes = b""
    metadata: dict[str, Any] | None = None
    lost: bool = False
    cancelled: bool = False
    session: int = 0
    claim: dict[str, Any] = field(default_factory=dict)
    """What the claim's znode holds, less the progress."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for. ``lease`` (seconds): the claim outlives the process; None: it ends with its session."""

    selector: Selector
    lease: float | None = None


@dataclass(frozen=True, slots=True)
class Taker:
    """Who claims, and by what rules."""

    conf: Conf
    wanted: Wanted
    consumer: Consumer

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted."""
        return self.wanted.selector.matches(filters, self.conf.types)


def take(context: Context, taker: Taker, segment: str, entry: str, rank: int | None = None) -> Procedure[Held | None]:
    """Try to claim one entry; None when another was faster or the record is not ours. Raises `Unregistered`."""
    task_id = entry_task(entry)
    paths = context.paths
    if task_id is None:
        quarantine(context, f"{segment}/{entry}", "no entry of ours; stepped over")
        return None
    parts = [paths.task(task_id, part) for part in ("state", "data", "metadata")]
    nodes: list[Node | None] = yield GetMany(tuple(parts))
    node, data, metadata = nodes
    if node is None or data is None:
        if (yield Exists(f"{segment}/{entry}")) is not None:  # else it was claimed, finished and collected meanwhile
            quarantine(context, f"{segment}/{entry}", "a pending entry without a task; stepped over")
        return None
    try:
        state = TaskState.decode(parts[0], node.data)
        extra = load(parts[2], metadata.data) if metadata is not None else {}
    except CorruptRecord as error:
        quarantine(context, f"{segment}/{entry}", str(error))
        return None
    if state.state is not State.INSERTED or paths.entry(state.place) != f"{segment}/{entry}":
        return None
    if rank is not None:
        state = replace(state, rank=rank)
    held = Held(task_id, 0, node.stat.version + 1, state, data.stat.ctime, data.data, extra)
    held.session = taker.consumer.session
    return held if (yield from _commit(context, taker, held)) else None


def quarantine(context: Context, path: str, why: str) -> None:
    """Report a foreign or malformed znode once."""
    if path not in context.quarantine:
        context.quarantine.add(path)
        context.run.report(path, why)


def _commit(context: Context, taker: Taker, held: Held) -> Procedure[bool]:
    consumer = taker.consumer
    now = yield from server_time(context)
    multi, nonce = _claim_ops(context, taker, held, now)
    claim_path = context.paths.task(held.task_id, "claim")

    def ours() -> Procedure[Outcome | None]:
        node: Node | None = yield Get(claim_path)
        if node is None or load(claim_path, node.data).get("nonce") != nonce:
            return None
        return Outcome(committed=True, time=node.stat.ctime, zxid=node.stat.czxid)

    outcome: Outcome = yield multi
    if outcome.unknown:
        yield from reconnect()
        if context.run.session() != consumer.session:
            msg = "the session ended during a claim; what it may have claimed is given back by a rescue"
            raise SessionLost(msg)
        outcome = yield from transact(multi, ours)
    if outcome.committed:
        context.learn_time(outcome.time)
        held.token = outcome.zxid or 0
        _hold(context, held)
        return True
    path = failed_at(outcome, multi)
    if outcome.failure is Failure.NO_NODE and path in {
        context.paths.live(consumer.id),
        context.paths.current(consumer.id, held.task_id),
    }:
        if context.consumer is consumer:
            context.consumer = None
        raise Unregistered
    if outcome.failure is Failure.OTHER:
        raise refused("claim", outcome, multi)
    return False


def _hold(context: Context, held: Held) -> None:
    """Remember a claim; an older one of the same task in this process can only be a lost one."""
    older = context.held.get(held.task_id)
    if older is not None:
        older.lost = True
    context.held[held.task_id] = held


def _claim_ops(context: Context, taker: Taker, held: Held, now: int) -> tuple[Multi, str]:
    paths, task_id, nonce, consumer = context.paths, held.task_id, context.nonce(), taker.consumer
    before, place, asked = held.state, paths.entry(held.state.place), taker.wanted.lease
    span = asked or before.lock or taker.conf.lock
    lease = f"{task_id}{SEPARATOR}{nonce}" if span else None
    held.state = replace(
        before,
        state=step(task_id, before.state, Event.CLAIM),
        attempt=before.attempt + 1,
        consumer=consumer.id,
        claimed=now,
        nonce=nonce,
        lease=lease,
        bound=asked is None and lease is not None,
        error=None,
    )
    held.claim = {"consumer": consumer.id, "nonce": nonce, "lease": span}
    ops = Ops().set(paths.task(task_id, "state"), held.state.encode(), held.version - 1)
    ops.create(paths.task(task_id, "claim"), dump(held.claim), ephemeral=asked is None)
    ops.delete(place).check(paths.live(consumer.id))
    if asked is None:
        ops.create(paths.current(consumer.id, task_id))
    if lease is not None:
        ops.create(lease_path(context, held.state), dump({"seconds": span, "consumer": consumer.id}))
    return ops.multi(), nonce
