"""What one change of a task leaves alone: its attempts, its rank in strict order, what its batch says of it."""

from __future__ import annotations

from collections.abc import Container

from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import ENDED, State
from airflow_provider_zkmq.engine.core.model.znode_names import Paths
from tests.simulation.parts import Violation


def judge_change(
    nodes: Container[str], paths: Paths, task: str, before: TaskState | None, after: TaskState | None
) -> None:
    """A task's record has changed, as the tree stands now. Raises `Violation`."""
    if before is not None and before.batch and before.state not in ENDED:
        _judge_member(nodes, paths, task, before.batch, before, after)
    if after is None:
        return
    rerun = before is None or before.state in ENDED or (before.requeue and not after.requeue)
    anew = rerun and after.state is State.INSERTED
    if anew and after.rank is not None:
        raise Violation("a new run goes to the end of its lane", f"{task} keeps rank {after.rank}")
    if anew and after.batch and paths.batch(after.batch, "failed", task) in nodes:
        raise Violation("a batch tells which members failed", f"{task} is open again")
    claim = before is not None and before.state is State.INSERTED and after.state is State.CLAIMED  # judged elsewhere
    if not claim and after.attempt != _attempts(before, after, anew=anew):
        was = before and before.attempt
        raise Violation("only deliveries count as attempts", f"{task} is {after.state}: {was} -> {after.attempt}")


def _attempts(before: TaskState | None, after: TaskState, *, anew: bool) -> int:
    """What a record must say: a claim counts no more that left nothing in the history when it ended, or was revoked."""
    if before is None or anew:
        return 0
    ends = before.state is State.CLAIMED and after.state is State.INSERTED
    return before.attempt - (ends and (after.history == before.history or after.history[-1].outcome == "revoked"))


def _judge_member(
    nodes: Container[str], paths: Paths, task: str, batch: str, before: TaskState, after: TaskState | None
) -> None:
    """Of a member that ends its batch knows whether it failed: it died, was cancelled, or deleted before it ended."""
    if after is not None and after.state not in ENDED and after.batch == batch:
        return
    failed = after is None or after.state in {State.DEAD, State.CANCELLED}
    if after is not None and after.state is State.INSERTED:  # another run follows
        failed = after.history[-1].outcome != "finished"
    if (paths.batch(batch, "failed", task) in nodes) is not failed and paths.batch(batch, "failed") in nodes:
        raise Violation("a batch tells which members failed", f"{task} of {batch}, {before.state}: {failed}")
