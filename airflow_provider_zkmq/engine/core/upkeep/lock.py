"""The maintenance lock: an ephemeral znode, which ends with its holder's session at the latest.

A clean-up that is cancelled or interrupted can give nothing back: its lock would stand for as long as its session
lives. What the lock holds when it is this client's is therefore remembered before it is first sent, and is the same
for the client's whole life: one that is found while none of its threads cleans up was left behind.
"""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.stored import dump
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import never, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, Failure, Multi, Outcome
from airflow_provider_zkmq.engine.errors import TransportError


def take_lock(context: Context) -> Procedure[bool]:
    """Take the lock, also one that this client left behind; False where another client has it.

    Where ZooKeeper refuses to make one, that is told, and there is none to wait for: clean-up may run in several places
    at once, and at a hard quota it is what makes room.
    """
    context.maintenance.content = (
        context.maintenance.content or dump({"nonce": context.marks.nonce(), **context.describe}).decode()
    )
    context.maintenance.left = True
    lock = Create(context.paths.at("lock"), context.maintenance.content.encode(), ephemeral=True)
    outcome = yield from transact(Multi((lock,)), lambda: _ours(context))
    if not outcome.committed:
        outcome = (yield from _ours(context)) or outcome
    context.maintenance.left = outcome.committed
    if outcome.failure is Failure.OTHER:
        context.tell(lock.path, f"clean-up goes on without its lock, which cannot be made: {outcome.detail}")
    return outcome.committed or outcome.failure is Failure.OTHER


def _ours(context: Context) -> Procedure[Outcome | None]:
    node: Node | None = yield Get(context.paths.at("lock"))
    mine = node is not None and node.data == (context.maintenance.content or "").encode()
    return Outcome(committed=True) if mine else None


def give_lock_back(context: Context) -> Procedure[None]:
    """End the lock, if there is one of ours. Where the connection is lost it is remembered: what was done was done."""
    if not context.maintenance.left:
        return
    try:
        yield from transact(Multi((Delete(context.paths.at("lock")),)), never)
    except TransportError:
        return
    context.maintenance.left = False


def release_abandoned_lock(context: Context) -> Procedure[None]:
    """Give back a lock that a clean-up of this client left behind; not one under which another thread is at it.

    It costs nothing where none was left. Another client's lock is not touched.
    """
    if context.maintenance.busy or not context.maintenance.left:
        return
    context.maintenance.busy = True
    try:
        if (yield from _ours(context)) is not None:
            yield from give_lock_back(context)
        else:
            context.maintenance.left = False
    finally:
        context.maintenance.busy = False
