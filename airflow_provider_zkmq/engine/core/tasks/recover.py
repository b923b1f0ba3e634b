"""A task whose record was damaged while it was in hand: its consumer still knows what stood there."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.records import TaskState, replace
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Sync
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes
from airflow_provider_zkmq.engine.errors import ClaimLost, CorruptRecord


def recover_record(context: Context, claimed: Claimed) -> Procedure[bool]:
    """After a `CorruptRecord`: let the next settling write over the record, if that was damaged. Raises `ClaimLost`.

    The claim's znode says that the task is still ours, and the version of what is read fences the write to come.
    """
    path, claim_path = (context.paths.task(claimed.task_id, part) for part in ("state", "claim"))
    yield Sync(path)
    node, claim, escrow = yield from read_nodes((path, claim_path, context.paths.task(claimed.task_id, "requeue")))
    if node is None or claim is None or claim.stat.czxid != claimed.token:
        context.claims.let_go(claimed)
        msg = f"claim {claimed.token} of task {claimed.task_id!r} is not the current one; this call changed nothing"
        raise ClaimLost(msg)
    claimed.version = node.stat.version
    try:
        claimed.state = TaskState.decode(path, node.data)
    except CorruptRecord as error:
        context.run.report(path, f"{error}; what its consumer knows takes its place")
        claimed.state = replace(claimed.state, requeue=escrow is not None)
        return True
    return False
