"""A policy that was tightened binds what is pending, too."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import Event
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.writing import escrow, transitions
from airflow_provider_zkmq.engine.core.writing.commit import commit
from airflow_provider_zkmq.engine.core.writing.record import Current


def used_up(conf: Conf, state: TaskState) -> bool:
    """Whether a pending task has had as many deliveries as its policy, as it is now, allows."""
    return state.retry(conf.policy).exhausted(state.attempt)


def bury_exhausted(context: Context, current: Current, now: int) -> Procedure[bool]:
    """Move a pending task to the dead letters instead of handing it out; False if it changed meanwhile.

    A run held in escrow is inserted.
    """
    nonce, state = context.marks.nonce(), current.state
    if state.requeue:
        return (yield from escrow.rerun(context, current, nonce)).committed
    why = f"it was delivered {state.attempt} times, and its policy has been lowered to allow no more"
    error = f"{why}; the last delivery ended with: {state.error}" if state.error else why
    plan = yield from transitions.bury(context, current, Event.EXHAUST, nonce, error, now)
    return (yield from commit(plan)).committed
