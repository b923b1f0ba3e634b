"""Taking several pending tasks: one read of all, one transaction; what is left of them is tried one by one."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zkmq.engine.core.claiming.take import (
    Pick,
    Taker,
    claim_together,
    may_be_tried,
    read_candidates,
    take,
)
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure


def take_all(context: Context, taker: Taker, picks: Sequence[Pick], *, in_order: bool = False) -> Procedure[int]:
    """Try to claim entries; returns how many were taken. Raises `Unregistered`, `CallerLeft`.

    `in_order`: none of them is taken unless all before it are. What was not taken although it stands there was changed
    in place, or is damaged: `take` finds out, and has what cannot be claimed stepped over. In a lost race nothing is
    left of that, so that it costs one request.
    """
    before, rest = len(taker.taken), picks
    if len(picks) > 1:
        candidates = yield from read_candidates(context, taker, picks, in_order=in_order)
        if candidates:
            yield from claim_together(context, taker, candidates, in_order=in_order)
        rest = _untaken(context, taker, picks[:1] if in_order else picks)
    for pick in rest:
        yield from take(context, taker, pick)
    return len(taker.taken) - before


def _untaken(context: Context, taker: Taker, picks: Sequence[Pick]) -> list[Pick]:
    """What was not taken, and stands there still."""
    taken = {claimed.task_id for claimed in taker.taken}
    return [pick for pick in picks if entry_task(pick.entry) not in taken and may_be_tried(context, pick)]
