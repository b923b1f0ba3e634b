"""What calls of a client left to be put right: it is paid before the client's next claim, and in the background.

A call that was cut off, or lost its connection at its last step, can do nothing more itself. What it leaves is
remembered: claims that nobody got, rollbacks, batches to be ended, the lock of a clean-up; and of handlers that have
begun, that this does not stand yet. So is what was handled, and goes with the client's next claim: it waits for that no
longer than it may.
"""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.tasks.beginning import begin_again
from airflow_provider_zkmq.engine.core.tasks.departing import leaves_late, settle_leaving, until_leaving
from airflow_provider_zkmq.engine.core.tasks.giveback import give_back
from airflow_provider_zkmq.engine.core.upkeep.lock import release_abandoned_lock
from airflow_provider_zkmq.engine.core.writing.closing import close_pending


def in_debt(context: Context) -> bool:
    """Whether anything is owed."""
    return bool(
        context.claims.left_behind()
        or context.claims.leaving
        or context.debts.batches
        or context.debts.unmarked
        or (context.maintenance.left and not context.maintenance.busy)
    )


def pay_debts(context: Context) -> Procedure[int]:
    """Put right what can be; returns how many tasks were given back. Raises `TransportError`: then it is owed still."""
    if leaves_late(context):
        yield from settle_leaving(context)
    yield from begin_again(context)
    count = yield from give_back(context)
    yield from close_pending(context)
    yield from release_abandoned_lock(context)
    return count


def until_due(context: Context, most: float) -> float:
    """Seconds until something is to be looked at, at the most `most`; with the client's lock held."""
    return min(most, until_leaving(context, most))
