"""Taking a claim over: whoever was told of a task's id and its claim's token gets the claim, as if it had made it."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_zkmq.engine.core.claiming.ask import Asked, wanted
from airflow_provider_zkmq.engine.core.claiming.candidates import read_tasks
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.stored import load
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.reading.claims import check_token, current_claim
from airflow_provider_zkmq.engine.core.reading.existence import unless_missing
from airflow_provider_zkmq.engine.core.tasks.holding import extend
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, TaskNotFound


def ask_over(context: Context, task_id: str, token: int, *, lease: Duration | None = None) -> Procedure[Asked]:
    """Return a leased claim that another process made, to be extended and settled as one's own.

    None where `token` is not the current claim's any more, or the task is gone. `lease`: it holds for so many seconds
    from now, and from each time that a worker extends it; without it, nothing is written, and it holds as long as it
    did. Of one that was taken ahead the delivery counts when it begins. Whoever else knows the token may settle it as
    well, and who does so first has. The client that made it, while it refers to it, gets that very claim, with the new
    lease. That the task was cancelled is known by the claim being over. Raises `ConfigError` for a claim that ends with
    the session which made it, and for what is no id, token or lease; `QueueNotFound`, and `CorruptRecord` for a task
    that cannot be read.
    """
    name, number = check_name("task id", task_id), check_token(token)
    span = (yield from wanted(context, lease=lease)).lease

    def claiming(_: Caller) -> Procedure[list[Claimed]]:
        return unless_missing(context, _take_over(context, name, number, span))

    return Asked(context, claiming)


def _take_over(context: Context, task_id: str, token: int, span: float | None) -> Procedure[list[Claimed]]:
    try:
        found = yield from current_claim(context, task_id, token)
        claimed = yield from _mine(context, found)
        if span is not None:
            yield from extend(context, claimed, span)
            claimed.claim = claimed.claim | {"lease": span}
    except (ClaimLost, TaskNotFound):
        return []
    return [claimed]


def _mine(context: Context, found: Claimed) -> Procedure[Claimed]:
    """The claim with what its handler is given. Two of one claim could not know what became of the other."""
    if found.ends_with_session:
        msg = f"claim {found.token} of task {found.task_id!r} ends with the session that made it: claim with a lease"
        raise ConfigError(msg)
    known = _in_hand(context, found)
    if known is not None:
        return known
    [(_, data, metadata)] = yield from read_tasks(context, [found.task_id])
    if data is None:
        raise TaskNotFound(f"task {found.task_id!r} is not in queue {context.queue!r} any more")
    known = _in_hand(context, found)  # another call may have taken it over meanwhile
    if known is None:
        path = context.paths.task(found.task_id, "metadata")
        extra = load(path, metadata.data) if metadata is not None else {}
        known = replace(found, created=data.stat.ctime, data=data.data, metadata=extra)
        context.claims.receive(known, found.token)
    return known


def _in_hand(context: Context, found: Claimed) -> Claimed | None:
    known = context.claims.in_hand.get(found.task_id)
    return known if known is not None and known.token == found.token else None
