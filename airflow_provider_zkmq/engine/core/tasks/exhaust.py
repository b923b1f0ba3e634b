"""A policy that was tightened binds what is pending, too."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import Event
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.writing import escrow
from airflow_provider_zkmq.engine.core.writing.moves import Moving, move, moved


def used_up(conf: Conf, state: TaskState) -> bool:
    """Whether a pending task has had as many deliveries as its policy, as it is now, allows."""
    return state.retry(conf.policy).exhausted(state.attempt)


def bury_exhausted(context: Context, task_id: str, version: int, state: TaskState, now: int) -> Procedure[bool]:
    """Move a pending task to the dead letters instead of handing it out; False if it changed meanwhile.

    `version` and `state`: its record as it was read. A run held in escrow is inserted.
    """
    if state.requeue:
        return (yield from escrow.rerun(context, Moving(task_id, version, state))) is not None
    why = f"it was delivered {state.attempt} times, and its policy has been lowered to allow no more"
    error = f"{why}; the last delivery ended with: {state.error}" if state.error else why
    after = replace(moved(context, task_id, state, Event.EXHAUST, now=now), error=error)
    outcome, _ = yield from move(context, Moving(task_id, version, state), after)
    return bool(outcome.committed)
