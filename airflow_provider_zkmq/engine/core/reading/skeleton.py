"""A queue's permanent znodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.stored import dump
from airflow_provider_zkmq.engine.core.protocol.ops import EnsureRoot, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import never, refused, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Create, Failure, Multi, Ops, Outcome
from airflow_provider_zkmq.engine.core.reading.parts import THERE


def restored(context: Context, path: str) -> Procedure[bool]:
    """Whether something failed at `path` since a permanent znode of the queue was missing, which is there again now.

    Only of a queue that has its ``conf``: what was deleted as a whole, or is being so, is not to come back in parts.
    """
    permanent, there = set(context.paths.skeleton()[2:]), Check(context.paths.at(THERE))
    made = False
    for each in (path.rpartition("/")[0], path):
        outcome: Outcome | None = (yield Multi((there, Create(each)))) if each in permanent else None
        if outcome is not None and outcome.committed:
            context.tell(each, "it was missing; made anew")
            made = True
    return made


#: What a queue's marks hold at first: that of an archive with nothing in it, and that of streams.
MARKS: Final = {"archive": dump({"watermark": 0}), "followed": dump({})}


def create_skeleton(context: Context, conf: dict[str, bytes], marks: Iterable[str] = ()) -> Procedure[bool]:
    """Create the queue's permanent znodes in one transaction; False if the queue was there already."""
    yield EnsureRoot(context.root)
    ops = Ops()
    for path in context.paths.skeleton():
        ops.create(path)
    for name, value in conf.items():
        ops.create(context.paths.conf(name), value)
    for name in marks:
        ops.create(context.paths.at(name), MARKS[name])
    outcome = yield from transact(ops.multi(), never)
    context.clock.learn(outcome)
    if not outcome.committed and outcome.failure is not Failure.NODE_EXISTS:
        raise refused("creating the queue", outcome, ops.multi())
    return bool(outcome.committed)
