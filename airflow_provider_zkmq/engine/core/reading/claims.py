"""Which claim of a task is the current one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.notes import taken_ahead
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.records import TaskState, load_claim
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.stored import load
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import Outcome
from airflow_provider_zkmq.engine.core.reading.existence import unless_missing
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, CorruptRecord, QueueNotFound, TaskNotFound

T = TypeVar("T")


def claim_stands(context: Context, claimed: Claimed) -> Procedure[Outcome | None]:
    """Whether a claim stands, as its first try left it."""
    node: Node | None = yield Get(context.paths.task(claimed.task_id, "claim"))
    if node is None or not _is_of(context, claimed, node):
        return None
    return Outcome(committed=True, zxid=node.stat.czxid)


def one_stands(context: Context, claims: Sequence[Claimed]) -> Procedure[Outcome | None]:
    """Whether what one transaction claimed stands, or at least one of them: one tells of all."""
    nodes = yield from read_nodes([context.paths.task(claimed.task_id, "claim") for claimed in claims])
    for claimed, node in zip(claims, nodes, strict=True):
        if node is not None and _is_of(context, claimed, node):
            return Outcome(committed=True, zxid=node.stat.czxid)
    return None


def _is_of(context: Context, claimed: Claimed, node: Node) -> bool:
    try:
        return load(context.paths.task(claimed.task_id, "claim"), node.data).get("nonce") == claimed.state.nonce
    except CorruptRecord:
        return False


def current_claim(context: Context, task_id: str, token: int, nonce: str | None = None) -> Procedure[Claimed]:
    """The claim that `token` stands for, as read now; how another process takes a claim over.

    `nonce`: what else its holder knows of it. In servers restored from an older state another claim may have the token.
    Raises `TaskNotFound` without the task, `ClaimLost` if the token is not the current claim's.
    """
    check_name("task id", task_id)
    check_token(token)
    try:
        return (yield from _current(context, task_id, token, nonce))
    except (ClaimLost, TaskNotFound):
        yield Sync(context.paths.task(task_id))  # the server that we are connected to may lag behind
        return (yield from _current(context, task_id, token, nonce))


def check_token(token: object) -> int:
    """Return a claim's token. Raises `ConfigError` for what is none."""
    if isinstance(token, bool) or not isinstance(token, int):
        msg = f"token {token!r} is not allowed: the whole number that the claim got"
        raise ConfigError(msg)
    return token


def _current(context: Context, task_id: str, token: int, nonce: str | None) -> Procedure[Claimed]:
    path = context.paths.task(task_id, "state")
    node, claim = yield from read_nodes((path, context.paths.task(task_id, "claim")))
    if node is None:
        msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    state = TaskState.decode(path, node.data)
    if claim is None or claim.stat.czxid != token or state.state is not State.CLAIMED:
        raise claim_lost(task_id, token, state)
    path = context.paths.task(task_id, "claim")
    record, ahead = load_claim(path, claim.data), taken_ahead(path, claim.data)
    plain = _plain_claim(record)
    if nonce is not None and plain.get("nonce", nonce) != nonce:
        raise claim_lost(task_id, token, state)
    if claim.stat.version and not ahead and "progress" not in record:  # written once more, to say that it begins
        plain.setdefault("began", claim.stat.mtime)
    return Claimed(task_id, token, node.stat.version, state, node.stat.ctime, ahead=ahead, claim=plain)


def _plain_claim(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in {"progress", "note", "ahead"}}


def claim_lost(task_id: str, token: int, state: TaskState | None = None) -> ClaimLost:
    """The error for a token that is not the current claim's."""
    now = "" if state is None else f"; the task is {state.state}, attempt {state.attempt}"
    return ClaimLost(f"claim {token} of task {task_id!r} is not the current one{now}; this call changed nothing")


def unless_queue_gone(context: Context, claimed: Claimed, procedure: Procedure[T]) -> Procedure[T]:
    """Carry out a procedure on a claim; where its queue is not there any more, the claim is lost: `ClaimLost`."""
    try:
        return (yield from unless_missing(context, procedure))
    except QueueNotFound as error:
        context.claims.let_go(claimed)
        raise ClaimLost(f"the claim of task {claimed.task_id!r} was lost: {error}") from error
