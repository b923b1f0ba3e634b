"""The register of consumers, and the lock that lets one of them at a duty."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.client.claims import Claimed
from airflow_provider_zkmq.engine.core.client.context import Context, Registered
from airflow_provider_zkmq.engine.core.model.codec import dump
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Create,
    Delete,
    Failure,
    Get,
    Multi,
    Node,
    Ops,
    Outcome,
    Procedure,
    Reconnect,
    SetData,
    Wait,
)
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, never, refused, transact
from airflow_provider_zkmq.engine.core.read.nodes import Record, Unread, read_records, restored, single_flight
from airflow_provider_zkmq.engine.errors import TransportError

# --- The maintenance lock: an ephemeral znode, which ends with its holder's session at the latest.
#
# A clean-up that is cancelled or interrupted can give nothing back: its lock would stand for as long as its session
# lives. What the lock holds when it is this client's is therefore remembered before it is first sent, and is the
# same for the client's whole life: one that is found while none of its threads cleans up was left behind.


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
    outcome = yield from transact(Multi((lock,)), lambda: _proof(context))
    if not outcome.committed:
        outcome = (yield from _proof(context)) or outcome
    context.maintenance.left = outcome.committed
    if outcome.failure is Failure.OTHER:
        context.warn_once(lock.path, f"clean-up goes on without its lock, which cannot be made: {outcome.detail}")
    return outcome.committed or outcome.failure is Failure.OTHER


def _proof(context: Context) -> Procedure[Outcome | None]:
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
        if (yield from _proof(context)) is not None:
            yield from give_lock_back(context)
        else:
            context.maintenance.left = False
    finally:
        context.maintenance.busy = False


# --- Who consumes: its record, what it accepts, whether it lives, and what it is told.

MAX_ACCEPTS: Final = 16


def register(context: Context, accepts: str | None = None) -> Procedure[Registered]:
    """This session's record under ``consumers``, made once. A new session is a new consumer.

    `accepts`: a selector, which it announces: by it the question is answered why nobody takes a task. None: it asks for
    a task by its id.
    """
    while True:
        session = context.run.session()
        if session == 0:  # it has just ended: there will be another one
            yield Reconnect()
            continue
        known = context.registration.consumer
        if known is not None and known.session == session:
            break
        mine = context.run.new_signal()
        try:
            if context.registration.joining.setdefault(session, mine) is mine:
                yield from _join(context, session, accepts)
            else:
                yield Wait(context.registration.joining[session], 0, turn=True)  # another thread is at it
        finally:
            if context.registration.joining.get(session) is mine:
                del context.registration.joining[session]
                mine.fire()
    if accepts is not None and accepts not in known.accepts:
        yield from _announce(context, known, accepts)
    return known


def _join(context: Context, session: int, accepts: str | None) -> Procedure[None]:
    """Make the record; where the session became another one meanwhile, it is made again."""
    consumer = Registered(
        f"{context.describe.get('name', 'consumer')}-{session & (1 << 64) - 1:x}-{context.marks.nonce()[:8]}",
        session,
        [] if accepts is None else [accepts],
    )
    paths = context.paths
    ops = Ops().set(paths.at("clock"), b"", -1).create(paths.live(consumer.id), ephemeral=True)
    ops.create(paths.consumer(consumer.id), _record(context, consumer)).create(paths.consumer(consumer.id, "current"))

    def proof() -> Procedure[Outcome | None]:
        node: Node | None = yield Get(paths.live(consumer.id))
        return None if node is None else Outcome(committed=True, time=node.stat.ctime)

    while True:  # until nothing is missing any more in which it stands
        outcome = yield from transact(ops.multi(), proof)
        if outcome.committed or not (yield from restored(context, failed_at(outcome, ops.multi()))):
            break
    if not outcome.committed:
        raise refused("registering as a consumer", outcome, ops.multi())
    context.clock.learn(outcome)
    if context.run.session() != session:
        # Written under the session before, or under this one with that one's name: it is nobody's.
        yield from _strike(context, consumer.id)
        return
    context.registration.consumer, context.registration.cancel_watch = consumer, None
    context.claims.end_session(session, context.run.zxid())


def _record(context: Context, consumer: Registered) -> bytes:
    return dump({**context.describe, "accepts": consumer.accepts})


def _announce(context: Context, consumer: Registered, accepts: str) -> Procedure[None]:
    """Add a selector to the record; the oldest are dropped. Only a hint to people: a refusal harms nothing."""
    consumer.accepts = [*consumer.accepts, accepts][-MAX_ACCEPTS:]
    yield Multi((SetData(context.paths.consumer(consumer.id), _record(context, consumer)),))


def check_cancellations(context: Context) -> Procedure[None]:
    """Learn which claims in hand were taken away: who cancels a task, say, writes to the znode under this one watch."""
    if not context.registration.cancellations_checked:
        yield from single_flight(
            context, "cancelled", lambda: context.registration.cancellations_checked, lambda: _listen(context)
        )


def _listen(context: Context) -> Procedure[None]:
    consumer, watch = context.registration.consumer, context.new_watch()
    if consumer is None:
        return
    node: Node | None = yield Get(context.paths.consumer(consumer.id, "current"), watch)
    if node is not None:  # else it was taken for dead, as the next claim finds out, or the queue was deleted
        context.registration.cancel_watch = watch
    claimed = list(context.claims.held.values())
    if not claimed or (node is not None and node.stat.version == 0):
        return
    if (yield from _let_go_lost(context, claimed)) or node is not None:
        context.signal.fire()


def _let_go_lost(context: Context, claimed: list[Claimed]) -> Procedure[bool]:
    """Mark the claims among those in hand that are over: cancelled, or taken away. Whether there are any.

    What is being settled by us is left out: who settles it hears what became of it.
    """
    records = yield from read_records(context, [claim.task_id for claim in claimed])
    lost = False
    for claim, record in zip(claimed, records, strict=True):
        proof = claim.settling is not None or claim.chained or claim.unsure
        if proof or record is Unread.CORRUPT or (isinstance(record, Record) and _is_claimed(record.state, claim.state)):
            continue
        lost, claim.cancelled = True, isinstance(record, Record) and record.state.state is State.CANCELLED
        context.claims.let_go(claim)
    return lost


def _is_claimed(now: TaskState, as_claimed: TaskState) -> bool:
    """Whether a task is claimed by the claim that its record told of; its nonce may have changed, as by a requeue."""
    same = [(each.consumer, each.attempt, each.claimed, each.lease) for each in (now, as_claimed)]
    return now.state is State.CLAIMED and same[0] == same[1]


def unregister(context: Context) -> Procedure[None]:
    """Take this consumer off the register; what it still holds is left to a rescue."""
    consumer, context.registration.consumer = context.registration.consumer, None
    if consumer is None or context.run.session() != consumer.session:
        return
    yield from _strike(context, consumer.id)


def _strike(context: Context, name: str) -> Procedure[None]:
    """Take a consumer off the register, or have it looked upon as dead: then a rescue does."""
    paths = context.paths
    ops = Ops().delete(paths.consumer(name, "current")).delete(paths.consumer(name))
    outcome: Outcome = yield ops.delete(paths.live(name)).multi()
    if not outcome.committed:
        yield Multi((Delete(paths.live(name)),))
