"""The status of claims: whose a claim is, and whether its lease or lock has ended by ZooKeeper's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ...errors import ClaimLost, ConfigError, QueueNotFound, TaskNotFound, ZkmqError
from ..client_state import Claimed, Context
from ..model.records import Attempt, RecentClaims, TaskState, load_claim, load_span
from ..model.settings import Limit
from ..model.states import State, Status, derive_status
from ..model.values import load
from ..model.znode_names import is_prefetched, lease_task
from ..zk_operations import Node, Procedure, Sync, explained
from .bulk_read import Record, list_children, read_nodes, read_records, unless_corrupt
from .configuration import read_conf
from .queue_existence import missing_queue
from .server_clock import certainly_past

# --- Which claim of a task is the current one.

T = TypeVar("T")


def current_claim(
    context: Context, task_id: str, token: int, nonce: str | None = None, *, whole: bool = False
) -> Procedure[Claimed]:
    """The claim that `token` stands for, as read now; `whole`: with what its handler is given.

    `nonce`: what else its holder knows of it. In servers restored from an older state another claim may have the token.
    Raises `TaskNotFound` without the task, `ClaimLost` if the token is not the current claim's.
    """
    try:
        return (yield from _current(context, task_id, token, nonce, whole=whole))
    except (ClaimLost, TaskNotFound):
        yield Sync(context.paths.task(task_id))  # the server that we are connected to may lag behind
        return (yield from _current(context, task_id, token, nonce, whole=whole))


def check_token(token: object) -> int:
    """Return a claim's token. Raises `ConfigError` for what is none."""
    if isinstance(token, bool) or not isinstance(token, int):
        raise ConfigError(f"token {token!r} is not allowed: the whole number that the claim got")
    return token


def _current(context: Context, task_id: str, token: int, nonce: str | None, *, whole: bool) -> Procedure[Claimed]:
    parts = ("state", "claim", "data", "metadata") if whole else ("state", "claim")
    node, claim, *content = yield from read_nodes([context.paths.task(task_id, part) for part in parts])
    if node is None:
        raise TaskNotFound(f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected")
    state = TaskState.decode(context.paths.task(task_id, "state"), node.data)
    if claim is None or claim.stat.czxid != token or state.state is not State.CLAIMED:
        raise claim_lost(task_id, token, state)
    path = context.paths.task(task_id, "claim")
    record, prefetched = load_claim(path, claim.data), is_prefetched(path, claim.data)
    plain = {name: value for name, value in record.items() if name not in {"progress", "note", "ahead"}}
    if nonce is not None and plain.get("nonce", nonce) != nonce:
        raise claim_lost(task_id, token, state)
    if claim.stat.version and not prefetched and "progress" not in record:  # written once more, to say that it begins
        plain.setdefault("began", claim.stat.mtime)
    found = Claimed(task_id, token, node.stat.version, state, node.stat.ctime, prefetched=prefetched, claim=plain)
    if whole:
        data, metadata = content
        if data is not None:
            found.data, found.created = data.data, data.stat.ctime
        if metadata is not None:
            path = context.paths.task(task_id, "metadata")
            found.metadata = unless_corrupt(context, path, partial(load, path, metadata.data))
    return found


def claim_lost(task_id: str, token: int, state: TaskState | None = None) -> ClaimLost:
    """The error for a token that is not the current claim's."""
    now = "" if state is None else f"; the task is {state.state}, attempt {state.attempt}"
    return ClaimLost(f"claim {token} of task {task_id!r} is not the current one{now}; this call changed nothing")


def unless_queue_gone(context: Context, claimed: Claimed, procedure: Procedure[T]) -> Procedure[T]:
    """Carry out a procedure on a claim; where its queue is not there any more, the claim is lost: `ClaimLost`."""
    return explained(procedure, partial(lost_with_queue, context, claimed))


def lost_with_queue(context: Context, claimed: Claimed, error: ZkmqError) -> Procedure[ClaimLost | None]:
    """After an error: that the claim is lost, where its queue is not there any more."""
    missing = error if isinstance(error, QueueNotFound) else (yield from missing_queue(context, error))
    if missing is None:
        return None
    context.claims.let_go(claimed)
    return ClaimLost(f"the claim of task {claimed.task_id!r} was lost: {missing}")


# --- What a task is now where its record tells what was: its backoff is over, or its claim's lease or lock has ended.
#
# Whoever claims or cleans up moves such tasks. Until then, on a queue that nobody consumes for ever, they are shown
# as what they are about to become. Everything is judged by the server's clock.

#: What lists claims that have a deadline.
DEADLINES = ("leases", "locks")


class Lapsed(NamedTuple):
    """What a task is whose claim has ended by its deadline."""

    state: State
    attempt: int
    error: str | None
    history: tuple[Attempt, ...]


def status_of(context: Context, record: TaskState) -> Procedure[Status]:
    """Carmine's word for a record; a backoff and a dedupe window are judged by the server's clock."""
    timeless = record.due is None and record.dedupe is None
    past = 0 if timeless else (yield from certainly_past(context))
    return status_at(past, record)


def status_at(past: int, record: TaskState) -> Status:
    """Carmine's word for what a record says, by the server's clock."""
    scheduled = record.due is not None and record.due > past
    window = record.dedupe is not None and record.dedupe > past
    return derive_status(record.state, scheduled=scheduled, requeue=record.requeue, window=window)


def lease_path(context: Context, state: TaskState) -> str:
    """Where the deadline of a claim stands; it must have one."""
    return context.paths.at("locks" if state.bound else "leases", state.lease or "")


def mark_path(context: Context, task_id: str, state: TaskState) -> str:
    """Where a claim prefetched says so; see `core.model.znode_names`."""
    if state.bound or state.lease is None:
        return context.paths.current(state.consumer or "", task_id)
    return context.paths.task(task_id, "claim")


def end_of(context: Context, path: str, node: Node) -> int | None:
    """When a lease ends, by the server's clock in milliseconds; None, reported once, for what is no lease."""
    span = unless_corrupt(context, path, partial(load_span, path, node.data))
    return None if span is None else node.stat.mtime + int(span * 1000)


def read_ends(context: Context, paths: Sequence[str], now: int) -> Procedure[None]:
    """Have in memory when each of these leases and locks ends; what is known to hold still is not read again."""
    ends = context.known_consumers.lease_ends
    for path in set(ends).difference(paths):
        del ends[path]
    unknown = [path for path in paths if ends.get(path, 0) <= now]
    for path, node in zip(unknown, (yield from read_nodes(unknown)), strict=True):
        end = None if node is None else end_of(context, path, node)
        if end is None:
            ends.pop(path, None)
        else:
            ends[path] = end


def lapsed_tasks(context: Context) -> Procedure[dict[str, Lapsed]]:
    """The tasks of a queue whose claims have ended by their deadline, each with what it is now."""
    listings = yield from list_children([context.paths.at(name) for name in DEADLINES])
    paths = [context.paths.at(top, name) for top, names in zip(DEADLINES, listings, strict=True) for name in names]
    return (yield from lapsed_of(context, paths))


def lapsed_of(context: Context, paths: Sequence[str]) -> Procedure[dict[str, Lapsed]]:
    """Like `lapsed_tasks`; `paths`: the queue's leases and locks."""
    if not paths:
        return {}
    past = yield from certainly_past(context)
    yield from read_ends(context, paths, past)
    ended = [path for path in paths if context.known_consumers.lease_ends.get(path, past + 1) <= past]
    ids = list(filter(None, (lease_task(path.rpartition("/")[2]) for path in ended)))
    records = yield from read_records(context, ids)
    known = {record.task_id: record.state for record in records if isinstance(record, Record)}
    return (yield from lapsed_among(context, known))


def lapsed_among(context: Context, states: Mapping[str, TaskState]) -> Procedure[dict[str, Lapsed]]:
    """Those of some tasks whose claims have ended by their deadline, each with what it is now."""
    held = {each: state for each, state in states.items() if state.state is State.CLAIMED and state.lease is not None}
    if not held:
        return {}
    leases = [lease_path(context, state) for state in held.values()]
    marks = [mark_path(context, each, state) for each, state in held.items()]
    nodes = yield from read_nodes([*leases, *marks])
    past, policy = (yield from certainly_past(context)), (yield from read_conf(context)).policy
    lapsed: dict[str, Lapsed] = {}
    for number, (task_id, state) in enumerate(held.items()):
        lease, mark = nodes[number], nodes[len(held) + number]
        end = None if lease is None else end_of(context, leases[number], lease)
        if end is None or end > past:
            continue
        if mark is not None and is_prefetched(marks[number], mark.data):  # a delivery that has not begun counts nothing
            lapsed[task_id] = Lapsed(State.INSERTED, state.attempt - 1, state.error, state.history)
            continue
        last = not state.requeue and state.retry(policy).exhausted(state.attempt)
        why = why_ended(state.consumer)
        history = state.with_attempt("rescued", end, why).history
        lapsed[task_id] = Lapsed(State.DEAD if last else State.INSERTED, state.attempt, why, history)
    return lapsed


def why_ended(consumer: str | None) -> str:
    """What is kept as the error of a claim that has ended by its deadline."""
    return f"its lease ended ({consumer})"


# --- What counts under a queue's limit by time.


def recent_claims(context: Context, limit: Limit, key: str, node: Node) -> tuple[tuple[int, int], ...]:
    """The claims that were counted: from when each lot counts, in the server's milliseconds, and how many they are.

    What cannot be read counts as many as there may be: nothing is claimed for one period.
    """
    path = context.paths.at("rates", key)
    read = partial(load, path, node.data, RecentClaims, "what counts claims")
    record: Any = unless_corrupt(context, path, read, "nothing is claimed for one period")
    counted: RecentClaims = record or RecentClaims(latest=limit.rate or 0)
    return counted.until(node.stat.mtime)
