"""A queue's permanent znodes."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import EnsureRoot, Exists, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import never, refused, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Failure, Multi, Ops, Outcome


def restored(context: Context, path: str) -> Procedure[bool]:
    """Whether something failed at `path` since a permanent znode of the queue was missing, which is there again now.

    Only of a queue that is there: what was deleted as a whole is not to come back in parts.
    """
    permanent = set(context.paths.skeleton()[2:])
    missing = [each for each in (path.rpartition("/")[0], path) if each in permanent]
    if not missing or (yield Exists(context.paths.conf("layout"))) is None:
        return False
    made = False
    for each in missing:
        outcome: Outcome = yield Multi((Create(each),))
        if outcome.committed:
            context.tell(each, "it was missing; made anew")
            made = True
    return made


def create_skeleton(context: Context, conf: dict[str, bytes]) -> Procedure[bool]:
    """Create the queue's permanent znodes in one transaction; False if the queue was there already."""
    yield EnsureRoot(context.root)
    ops = Ops()
    for path in context.paths.skeleton():
        ops.create(path)
    for name, value in conf.items():
        ops.create(context.paths.conf(name), value)
    outcome = yield from transact(ops.multi(), never)
    if not outcome.committed and outcome.failure is not Failure.NODE_EXISTS:
        raise refused("creating the queue", outcome, ops.multi())
    return bool(outcome.committed)
