"""Settling a claim: complete, fail, release, extend. Only the current claim can; a late owner changes nothing.

The fence is threefold, in one transaction: the version of the task's state, which every change bumps; the claim's
znode, which dies with its session; and the note of who is working on it, which a rescue takes away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_provider_zkmq.engine.core.claim import Held
from airflow_provider_zkmq.engine.core.configure import read_conf, seconds
from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.enqueue import MAX_REQUEST
from airflow_provider_zkmq.engine.core.moves import move, moved, note_of
from airflow_provider_zkmq.engine.core.ops import Check, Failure, GetMany, Node, Ops, Outcome, Procedure, SetData
from airflow_provider_zkmq.engine.core.paths import check_name
from airflow_provider_zkmq.engine.core.records import TaskState, clip, dump, encode_data
from airflow_provider_zkmq.engine.core.states import Event, State
from airflow_provider_zkmq.engine.core.transact import never, refused, server_time, transact
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, TaskNotFound, TaskTooLarge

After = Callable[[Held], TaskState]


def complete(context: Context, held: Held, result: bytes | str | None = None) -> Procedure[None]:
    """Finish the task and keep `result` (bytes or text). Raises `ClaimLost`, `TaskTooLarge`."""
    data = b"" if result is None else encode_data("result", result)
    if len(data) > MAX_REQUEST - 20_000:
        msg = f"the result of task {held.task_id!r} has {len(data):,} bytes; ZooKeeper takes {MAX_REQUEST - 20_000:,}"
        raise TaskTooLarge(msg)
    now = yield from server_time(context)

    def after(held: Held) -> TaskState:
        state = moved(context, held.task_id, held.state, Event.COMPLETE, now=now)
        return replace(state, error=None)

    extra = Ops().create(context.paths.task(held.task_id, "result"), data)
    yield from _settle(context, held, after, extra)


def fail(context: Context, held: Held, error: str, *, retry: bool = True) -> Procedure[State]:
    """The delivery failed: run again by the policy, or be dead. Returns the new state. Raises `ClaimLost`."""
    conf = yield from read_conf(context)
    now = yield from server_time(context)
    rand = context.run.random()

    def after(held: Held) -> TaskState:
        state = held.state.with_attempt("failed", now, str(error))
        policy = state.retry(conf.policy)
        final = not retry or policy.exhausted(state.attempt)
        wait = 0 if final else int(policy.backoff(state.attempt, rand) * 1000)
        due = now + wait if wait > 0 else None
        state = moved(context, held.task_id, state, Event.FAIL_FINAL if final else Event.FAIL, now=now, due=due)
        return replace(state, error=clip(str(error)))

    return (yield from _settle(context, held, after)).state


def release(context: Context, held: Held) -> Procedure[None]:
    """Give the task back to its old place; the delivery counts as no attempt. Raises `ClaimLost`."""

    def after(held: Held) -> TaskState:
        state = moved(context, held.task_id, held.state, Event.RELEASE)
        return replace(state, attempt=max(0, state.attempt - 1))

    state = yield from _settle(context, held, after)
    context.stock.pop(context.paths.entry(state.place).rpartition("/")[0], None)


def extend(context: Context, held: Held, lease: object) -> Procedure[None]:
    """Hold the claim for `lease` more seconds from now; for a session-bound claim, check that it still holds.

    Raises `ClaimLost`.
    """
    span = seconds("lease", lease)
    if held.lost:
        raise _lost(held.task_id, held.token)
    if held.state.lease is None:
        yield from current_claim(context, held.task_id, held.token)
        return
    path = note_of(context, held.task_id, held.state)
    record = dump({"seconds": span, "consumer": held.state.consumer})
    ops = Ops([Check(context.paths.task(held.task_id, "state"), held.version), SetData(path, record)])
    outcome = yield from transact(ops.multi(), never)
    if not outcome.committed:
        raise _lost(held.task_id, held.token)
    context.learn_time(outcome.time)


def current_claim(context: Context, task_id: str, token: int) -> Procedure[Held]:
    """The claim that `token` stands for, as read now; how another process takes a claim over.

    Raises `TaskNotFound` without the task, `ClaimLost` if the token is not the current claim's.
    """
    check_name("task id", task_id)
    if isinstance(token, bool) or not isinstance(token, int):
        msg = f"token {token!r} is not allowed: the whole number that the claim got"
        raise ConfigError(msg)
    path = context.paths.task(task_id, "state")
    nodes: list[Node | None] = yield GetMany((path, context.paths.task(task_id, "claim")))
    node, claim = nodes
    if node is None:
        msg = f"task {task_id!r} is not in queue {context.queue!r}: never enqueued, or collected"
        raise TaskNotFound(msg)
    state = TaskState.decode(path, node.data)
    if claim is None or claim.stat.czxid != token or state.state is not State.CLAIMED:
        raise _lost(task_id, token, state)
    return Held(task_id, token, node.stat.version, state, node.stat.ctime)


def _settle(context: Context, held: Held, after: After, extra: Ops | None = None) -> Procedure[TaskState]:
    if held.lost:
        raise _lost(held.task_id, held.token)
    while True:
        state = after(held)
        outcome, multi = yield from move(context, held.task_id, held.version, held.state, state, extra=extra)
        if outcome.committed:
            _let_go(context, held)
            return state
        if outcome.failure is Failure.OTHER:
            raise refused("settling the claim", outcome, multi)
        yield from _still_ours(context, held, outcome)


def _let_go(context: Context, held: Held) -> None:
    held.lost = True
    if context.held.get(held.task_id) is held:
        del context.held[held.task_id]


def _still_ours(context: Context, held: Held, outcome: Outcome) -> Procedure[None]:
    """After a refusal: the claim is another's (`ClaimLost`), or only its record changed and we may try again."""
    try:
        now = yield from current_claim(context, held.task_id, held.token)
    except (ClaimLost, TaskNotFound) as error:
        _let_go(context, held)
        raise _lost(held.task_id, held.token) from error
    if now.version == held.version:
        _let_go(context, held)
        msg = f"{outcome.failure and outcome.failure.value}"
        raise ClaimLost(f"{_lost(held.task_id, held.token)} ({msg})")
    held.version, held.state = now.version, now.state


def _lost(task_id: str, token: int, state: TaskState | None = None) -> ClaimLost:
    now = "" if state is None else f"; the task is {state.state}, attempt {state.attempt}"
    return ClaimLost(f"claim {token} of task {task_id!r} is not the current one{now}; nothing was changed")
