"""Taking pending tasks: several with one read and one transaction; what is left of them is tried one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_provider_zkmq.engine.core.claiming.candidates import is_pending_at, read_candidates
from airflow_provider_zkmq.engine.core.claiming.take import Pick, Taker, claim_together
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.paths import entry_task
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Procedure, Stat

#: How often a candidate whose record changes under our eyes is read again.
TRIES: Final = 4


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


def take(context: Context, taker: Taker, pick: Pick) -> Procedure[bool]:
    """Try to claim one entry; False: another was faster, or it is not ours. Raises `Unregistered`, `CallerLeft`.

    While no watch on the segment's listing has fired, the entry is still there: a refusal then means that the record
    was changed in place (updated, say), and it is read again. What cannot be claimed although it stands there is
    reported, and stepped over from then on.
    """
    for _ in range(TRIES):
        candidates = yield from read_candidates(context, taker, [pick])
        if candidates and (yield from claim_together(context, taker, candidates)):
            return True
        if not may_be_tried(context, pick):
            return False
    if not candidates:
        yield from step_over_if_there(context, pick)
    return False


def step_over_if_there(context: Context, pick: Pick) -> Procedure[None]:
    """An entry whose task cannot be claimed from it: where it stands there all the same, it is reported.

    What was read of the task may be older than the listing that has the entry: the task was in hand then, came back,
    and another thread has listed it since. So the record is read once more, between two looks at the entry, which has
    to be the same one: stepped over is what stood there while its task was not pending, and nothing else.
    """
    before: Stat | None = yield Exists(pick.path)
    if before is None or not may_be_tried(context, pick) or (yield from is_pending_at(context, pick)):
        return
    after: Stat | None = yield Exists(pick.path)
    if after is not None and after.czxid == before.czxid and may_be_tried(context, pick):
        context.report(pick.path, "a pending entry of a task that is not pending; stepped over")


def may_be_tried(context: Context, pick: Pick) -> bool:
    """Whether an entry that was tried certainly stands there still, and is not stepped over."""
    return pick.path not in context.quarantine and context.listings.still_listed(pick.segment, pick.entry)
