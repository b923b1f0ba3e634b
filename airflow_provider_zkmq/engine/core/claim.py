"""Claim: take the first task that a selector accepts, in one transaction.

The listings of lanes, segments and entries are remembered under watches. While no watch fires, looking for work
costs no request at all; a claim costs one read of the candidate and one transaction.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow_provider_zkmq.engine.core.configure import read_conf
from airflow_provider_zkmq.engine.core.context import Conf, Consumer, Context, listing
from airflow_provider_zkmq.engine.core.lanes import Lane, is_shortened, parse_lane
from airflow_provider_zkmq.engine.core.ops import (
    Delete,
    Exists,
    Failure,
    Get,
    GetMany,
    Multi,
    Node,
    Ops,
    Outcome,
    Procedure,
    Wait,
)
from airflow_provider_zkmq.engine.core.paths import SEPARATOR, entry_task
from airflow_provider_zkmq.engine.core.records import TaskState, dump, load
from airflow_provider_zkmq.engine.core.rescue import tend
from airflow_provider_zkmq.engine.core.selectors import Selector
from airflow_provider_zkmq.engine.core.states import Event, State, step
from airflow_provider_zkmq.engine.core.transact import failed_at, reconnect, refused, server_time, transact
from airflow_provider_zkmq.engine.errors import CorruptRecord, SessionLost

#: Names of a listing whose watch has fired are used this long, so that a busy segment is not listed for every claim.
LISTING_SECONDS: Final = 0.25
SPREAD_WINDOW: Final = 64
READ_CHUNK: Final = 128
MAX_VERDICTS: Final = 100_000


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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for. ``lease`` (seconds): the claim outlives the process; None: it ends with its session."""

    selector: Selector
    lease: float | None = None


def claim(
    context: Context, wanted: Wanted, timeout: float = 0.0, stopping: Callable[[], bool] = lambda: False
) -> Procedure[Held | None]:
    """The first task that fits, waiting for one at most `timeout` seconds; None when there was none.

    `stopping` ends the wait early; it is asked whenever the queue's signal is fired.
    """
    deadline = context.run.monotonic() + timeout
    while not stopping():
        seen = context.signal.count
        held = yield from claim_now(context, wanted)
        left = deadline - context.run.monotonic()
        if held is not None or left <= 0:
            return held
        due = context.next_due
        pause = left if due is None else max(0.0, min(left, due - context.run.monotonic()))
        yield Wait(context.signal, seen, pause)
    return None


def claim_now(context: Context, wanted: Wanted) -> Procedure[Held | None]:
    """One look at the queue, without waiting."""
    conf = yield from read_conf(context, create=True)
    consumer = yield from register(context)
    yield from tend(context)
    if conf.paused:
        return None
    path = context.paths.at("queue")
    lanes = yield from listing(context, path)
    for name in lanes or ():
        fits = yield from _lane_fits(context, conf, wanted, name)
        if fits is not None:
            held = yield from _claim_in_lane(context, conf, wanted, consumer, f"{path}/{name}", judge=not fits)
            if held is not None:
                return held
    return None


def register(context: Context) -> Procedure[Consumer]:
    """This session's record under ``consumers``, made once. A new session is a new consumer."""
    session = context.run.session()
    known = context.consumer
    if known is not None and known.session == session:
        return known
    consumer = Consumer(
        f"{context.describe.get('name', 'consumer')}-{session & (1 << 64) - 1:x}-{context.nonce()[:4]}", session
    )
    paths = context.paths
    ops = Ops().set(paths.at("clock"), b"", -1).create(paths.live(consumer.id), ephemeral=True)
    ops.create(paths.consumer(consumer.id), dump(context.describe)).create(paths.consumer(consumer.id, "current"))

    def ours() -> Procedure[Outcome | None]:
        node: Node | None = yield Get(paths.live(consumer.id))
        return None if node is None else Outcome(committed=True, time=node.stat.ctime)

    outcome = yield from transact(ops.multi(), ours)
    if not outcome.committed:
        raise refused("registering as a consumer", outcome, ops.multi())
    if context.run.session() != session:
        return (yield from register(context))
    context.learn_time(outcome.time)
    context.consumer = consumer
    for task_id, held in list(context.held.items()):
        if held.state.lease is None:  # bound to the session that ended
            held.lost = True
            del context.held[task_id]
    return consumer


def unregister(context: Context) -> Procedure[None]:
    """Take this consumer off the register; what it still holds is left to a rescue."""
    consumer, context.consumer = context.consumer, None
    if consumer is None or context.run.session() != consumer.session:
        return
    paths = context.paths
    ops = Ops().delete(paths.consumer(consumer.id, "current")).delete(paths.consumer(consumer.id))
    outcome: Outcome = yield ops.delete(paths.live(consumer.id)).multi()
    if not outcome.committed:
        yield Multi((Delete(paths.live(consumer.id)),))


# --- which lane, which segment


def _lane_fits(context: Context, conf: Conf, wanted: Wanted, name: str) -> Procedure[bool | None]:
    """True: all of the lane fits; False: its entries are judged singly; None: nothing there fits."""
    lane = parse_lane(name)
    if lane is None and is_shortened(name):
        lane = yield from _read_lane(context, name)
    if lane is None:
        context.run.report(context.paths.at("queue", name), "no lane of ours; stepped over")
        return None
    if lane.filters is None:
        return False
    return True if wanted.selector.matches(lane.filters, conf.types) else None


def _read_lane(context: Context, name: str) -> Procedure[Lane | None]:
    path = context.paths.at("queue", name)
    if path not in context.verdicts:
        node: Node | None = yield Get(path)
        try:
            lane = None if node is None else Lane.decode(path, node.data)
        except CorruptRecord as error:
            context.run.report(path, str(error))
            lane = None
        context.verdicts[path] = None if lane is None else dict(lane.filters or {})
    filters = context.verdicts[path]
    return None if filters is None else Lane(0, filters)


def _claim_in_lane(
    context: Context, conf: Conf, wanted: Wanted, consumer: Consumer, path: str, *, judge: bool
) -> Procedure[Held | None]:
    segments = yield from listing(context, path)
    for number, name in enumerate(segments or ()):
        segment = f"{path}/{name}"
        held = yield from _claim_in_segment(context, conf, wanted, consumer, segment, judge=judge)
        if held is not None:
            return held
        if number < len(segments or ()) - 1:
            yield from _drop_if_empty(context, segment)
    return None


def _drop_if_empty(context: Context, segment: str) -> Procedure[None]:
    """Delete a drained segment that is not its lane's newest; the server refuses if an entry came meanwhile."""
    if context.cached(segment).value == []:
        yield Multi((Delete(segment),))
        context.forget(segment)


def _claim_in_segment(
    context: Context, conf: Conf, wanted: Wanted, consumer: Consumer, segment: str, *, judge: bool
) -> Procedure[Held | None]:
    slot, slots = _slot(context, consumer)
    passed: set[str] = set()
    while True:
        names = yield from _stock(context, segment)
        if judge:
            names = yield from _judged(context, conf, wanted, names)
        entry = _pick(context, names, passed, slot, slots)
        if entry is None:
            return None
        try:
            held = yield from _take(context, wanted, consumer, segment, entry)
        finally:
            _taken(context, segment, entry)
        if held is not None:
            return held


def _stock(context: Context, segment: str) -> Procedure[list[str]]:
    """The segment's entries that nobody of this process has tried: its listing less what was taken from it."""
    stock = context.stock.get(segment)
    entry = context.cached(segment)
    young = context.run.monotonic() - entry.read_at < LISTING_SECONDS
    if stock is not None and (entry.fresh or (stock and young)):
        return stock
    names = yield from listing(context, segment)
    context.stock[segment] = stock = [name for name in names or () if f"{segment}/{name}" not in context.quarantine]
    return stock


def _slot(context: Context, consumer: Consumer) -> tuple[int, int]:
    """This consumer's share: each starts at entries of its own, so that few races are lost."""
    names = context.live
    return (names.index(consumer.id), len(names)) if consumer.id in names else (0, 1)


def _pick(context: Context, names: list[str], passed: set[str], slot: int, slots: int) -> str | None:
    """The next entry to try, taken off the stock: of the first few the own share's first, else the very first."""
    while True:
        window = [name for name in names[: SPREAD_WINDOW + len(passed)] if name not in passed]
        share = (name for name in window if slots == 1 or zlib.crc32(name.encode()) % slots == slot)
        entry = next(share, window[0] if window else None)
        if entry is None:
            return None
        passed.add(entry)
        if entry not in context.trying:  # another thread of this process is at it
            context.trying.add(entry)
            return entry


def _taken(context: Context, segment: str, entry: str) -> None:
    """The entry was tried: off the stock, and free for others of this process should it come back."""
    stock = context.stock.get(segment)
    if stock is not None and entry in stock:
        with contextlib.suppress(ValueError):  # another thread took it off between the look and the removal
            stock.remove(entry)
    context.trying.discard(entry)


def _judged(context: Context, conf: Conf, wanted: Wanted, names: list[str]) -> Procedure[list[str]]:
    """The entries of a mixed lane that fit; filters never change while a task is pending, so each is read once."""
    if len(context.verdicts) > MAX_VERDICTS:
        context.verdicts.clear()
    unknown = [name for name in names if name not in context.verdicts and entry_task(name)]
    for start in range(0, len(unknown), READ_CHUNK):
        chunk = unknown[start : start + READ_CHUNK]
        paths = [context.paths.task(entry_task(name) or "", "state") for name in chunk]
        nodes: list[Node | None] = yield GetMany(tuple(paths))
        for name, path, node in zip(chunk, paths, nodes, strict=True):
            context.verdicts[name] = None if node is None else _filters(context, path, node)
    fitting = []
    for name in names:
        filters = context.verdicts.get(name)
        if filters is not None and wanted.selector.matches(filters, conf.types):
            fitting.append(name)
    return fitting


def _filters(context: Context, path: str, node: Node) -> dict[str, str] | None:
    try:
        return dict(TaskState.decode(path, node.data).filters)
    except CorruptRecord as error:
        context.run.report(path, str(error))
        return None


# --- taking one


def _take(context: Context, wanted: Wanted, consumer: Consumer, segment: str, entry: str) -> Procedure[Held | None]:
    """Try to claim one entry; None when another was faster or the record is not ours."""
    task_id = entry_task(entry)
    paths = context.paths
    if task_id is None:
        _quarantine(context, f"{segment}/{entry}", "no entry of ours; stepped over")
        return None
    parts = [paths.task(task_id, part) for part in ("state", "data", "metadata")]
    nodes: list[Node | None] = yield GetMany(tuple(parts))
    node, data, metadata = nodes
    if node is None or data is None:
        if (yield Exists(f"{segment}/{entry}")) is not None:  # else it was claimed, finished and collected meanwhile
            _quarantine(context, f"{segment}/{entry}", "a pending entry without a task; stepped over")
        return None
    try:
        state = TaskState.decode(parts[0], node.data)
        extra = load(parts[2], metadata.data) if metadata is not None else {}
    except CorruptRecord as error:
        _quarantine(context, f"{segment}/{entry}", str(error))
        return None
    if state.state is not State.INSERTED or paths.entry(state.place) != f"{segment}/{entry}":
        return None
    held = Held(task_id, 0, node.stat.version + 1, state, node.stat.ctime, data.data, extra)
    return held if (yield from _commit(context, wanted, consumer, held)) else None


def _quarantine(context: Context, path: str, why: str) -> None:
    """Report a foreign or malformed znode once."""
    if path not in context.quarantine:
        context.quarantine.add(path)
        context.run.report(path, why)


def _commit(context: Context, wanted: Wanted, consumer: Consumer, held: Held) -> Procedure[bool]:
    now = yield from server_time(context)
    multi, nonce = _claim_ops(context, wanted, consumer, held, now)
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
        context.consumer = None  # taken for dead by a rescue, or the session is a new one: register again
    elif outcome.failure is Failure.OTHER:
        raise refused("claim", outcome, multi)
    return False


def _hold(context: Context, held: Held) -> None:
    """Remember a claim; an older one of the same task in this process can only be a lost one."""
    older = context.held.get(held.task_id)
    if older is not None:
        older.lost = True
    context.held[held.task_id] = held


def _claim_ops(context: Context, wanted: Wanted, consumer: Consumer, held: Held, now: int) -> tuple[Multi, str]:
    paths, task_id, nonce = context.paths, held.task_id, context.nonce()
    lease = None if wanted.lease is None else f"{task_id}{SEPARATOR}{nonce}"
    before, place = held.state, paths.entry(held.state.place)
    held.state = replace(
        before,
        state=step(task_id, before.state, Event.CLAIM),
        attempt=before.attempt + 1,
        consumer=consumer.id,
        claimed=now,
        nonce=nonce,
        lease=lease,
        error=None,
    )
    record = dump({"consumer": consumer.id, "nonce": nonce, "lease": wanted.lease})
    ops = Ops().set(paths.task(task_id, "state"), held.state.encode(), held.version - 1)
    ops.create(paths.task(task_id, "claim"), record, ephemeral=lease is None)
    ops.delete(place).check(paths.live(consumer.id))
    if lease is None:
        ops.create(paths.current(consumer.id, task_id))
    else:
        ops.create(paths.at("leases", lease), dump({"seconds": wanted.lease, "consumer": consumer.id}))
    return ops.multi(), nonce
