"""Claims that their callers never got are given back, before their client claims again.

A call that was cancelled or interrupted, or that ended in `OutcomeUnknown`, may have claimed a task: its session lives, so no
rescue would ever take it away. The claim's own transaction is issued once more, which tells what became of the first
one whatever was on its way, and the task is released; the delivery counts as no attempt, since no handler has begun.
"""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.ops import Procedure, Wait
from airflow_provider_zkmq.engine.core.settle import release
from airflow_provider_zkmq.engine.core.take import Handover, claimed, hold
from airflow_provider_zkmq.engine.core.transact import transact
from airflow_provider_zkmq.engine.errors import ClaimLost, CorruptRecord


def give_back(context: Context) -> Procedure[int]:
    """Give back what callers left behind; returns how many tasks that were. Raises `TransportError`: then it is owed still."""
    count = 0
    for nonce, it in list(context.handovers.items()):
        while it.busy is not None:
            yield Wait(it.busy, 0)  # another call of this client is at it, for no longer than its own requests take
        if nonce not in context.handovers:
            continue  # it has been given back, or its caller has it
        elif it.caller.left:
            it.busy = busy = context.run.new_signal()
            try:
                count += yield from _give_back(context, it)
                context.handovers.pop(nonce, None)
            finally:
                it.busy = None
                busy.fire()
    return count


def _give_back(context: Context, it: Handover) -> Procedure[bool]:
    held = it.held
    bound = held.state.bound or held.state.lease is None
    if bound and held.session != context.run.session():
        return False  # it ended with its session
    outcome = yield from transact(it.multi, lambda: claimed(context, held))
    if not outcome.committed:
        outcome = (yield from claimed(context, held)) or outcome
    if not outcome.committed:
        return False
    hold(context, held, outcome)
    try:
        yield from release(context, held)
    except (ClaimLost, CorruptRecord) as error:
        context.run.report(context.paths.task(held.task_id), f"a claim that nobody got was not given back: {error}")
        return False
    return True
