"""What the holder of a claim does besides settling it: extend it, report its progress."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration, seconds
from airflow_provider_zkmq.engine.core.model.records import clip
from airflow_provider_zkmq.engine.core.model.stored import dump
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import never, refused, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Failure, Ops, SetData, WriteOp
from airflow_provider_zkmq.engine.core.reading.claims import claim_lost, current_claim
from airflow_provider_zkmq.engine.core.reading.lapsed import lease_path
from airflow_provider_zkmq.engine.core.tasks.holder import Holding
from airflow_provider_zkmq.engine.core.writing.pieces import notes_of
from airflow_provider_zkmq.engine.errors import ConfigError


def progress(context: Context, claimed: Claimed, value: float, note: str = "") -> Procedure[None]:
    """Report how far the handling has come: `value` from 0 to 1, and a note. Raises `ClaimLost`.

    It stands in the claim's znode, and goes with it.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        msg = f"progress {value!r} is not allowed: a number from 0 to 1"
        raise ConfigError(msg)
    path = context.paths.task(claimed.task_id, "claim")
    record = dump(claimed.claim | {"progress": value, "note": clip(str(note))})
    # The record's version alone may be that of another run of the same id; the claim's note is this one's.
    notes = [Check(note) for note in notes_of(context, claimed.task_id, claimed.state)]
    yield from check_and_set(context, claimed, SetData(path, record), notes)


def extend(context: Context, claimed: Claimed, lease: Duration) -> Procedure[None]:
    """Hold the claim for `lease` more seconds from now; for a session-bound claim, check that it still holds.

    Raises `ClaimLost`.
    """
    span = seconds("lease", lease)
    if claimed.lost:
        raise claim_lost(claimed.task_id, claimed.token)
    if claimed.state.lease is None:
        yield from current_claim(context, claimed.task_id, claimed.token, claimed.claim.get("nonce"))
        return
    record = dump({"seconds": span, "consumer": claimed.state.consumer})
    # The deadline outlives the ephemeral of a session that has ended: until a rescue, only the claim's znode tells.
    held = [Check(context.paths.task(claimed.task_id, "claim"))]
    yield from check_and_set(context, claimed, SetData(lease_path(context, claimed.state), record), held)


def check_and_set(context: Context, claimed: Claimed, op: SetData, more: Sequence[WriteOp] = ()) -> Procedure[None]:
    """Write to a znode of the claim while it is the current one; `more`: what else has to hold for that."""
    if claimed.lost:
        raise claim_lost(claimed.task_id, claimed.token)
    holding = Holding(context, claimed, f"writing to the claim of task {claimed.task_id!r}")
    while True:
        tried = claimed.version
        ops = Ops([Check(context.paths.task(claimed.task_id, "state"), tried), *more, op])
        outcome = yield from transact(ops.multi(), never)
        if outcome.committed:
            context.clock.learn(outcome)
            return
        if outcome.failure is Failure.OTHER:
            raise refused("writing to the claim", outcome, ops.multi())
        yield from holding.after(outcome, ops.multi(), tried)
