"""The register of consumers: who they are, what each is told, and how they keep out of each other's way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from .. import zk_operations as zk
from ..client_state import Context, Registered
from ..model.states import State
from ..model.values import dump, load, shown
from ..read import bulk_read, queue_existence, watch_cache
from ..read.configuration import read_conf
from ..transaction_retries import Holds, failed_at, refused, transact
from ..zk_operations import Children, Procedure

# --- Many consumers at one queue: they keep out of each other's way, so that what comes does not set all of them going.
#
# Each consumer has a share, told by its place among the living. In the default order it begins at entries of its
# own share. Those who wait look one after the other when something comes: for most of them it is gone when their
# turn is there, and they have looked once instead of racing.

#: So many consumers look all at once.
FEW: Final = 8
#: Seconds between the looks of two waiting consumers: in the default order, and in strict order, where one claim must
#: be over before the next one can be.
SPACING: Final = {"default": 0.004, "fifo": 0.008}
#: Seconds between the looks of the first and the last of them at the most.
LONGEST: Final = {"default": 0.2, "fifo": 0.4}
#: A consumer without an entry in its own share begins at any of so many.
WIDTH: Final = 8


def share(context: Context) -> tuple[int, int]:
    """This consumer's place among the living, and how many they are."""
    names, consumer = context.known_consumers.live, context.registration.consumer
    return (names.index(consumer.id), len(names)) if consumer is not None and consumer.id in names else (0, 1)


def stagger(context: Context, most: float) -> Procedure[None]:
    """Wait for this consumer's turn to look, at most so many seconds; few consumers need none."""
    place, count = share(context)
    if count > FEW:
        yield from _rest(context, count, place, most)


def any_of_the_first(context: Context, many: int) -> int:
    """Where to begin among so many entries, none of this consumer's share: by chance, if consumers are many."""
    _, count = share(context)
    return int(context.run.random() * min(many, WIDTH)) if count > FEW else 0


def back_off(context: Context) -> Procedure[None]:
    """After a lost race: let those pass who are at it, the longer the more they are."""
    _, count = share(context)
    if count > FEW:
        yield from _rest(context, count, context.run.random() * count / 8)


def _rest(context: Context, count: int, places: float, most: float = math.inf) -> Procedure[None]:
    """Wait while so many of `count` consumers look."""
    order = "default" if context.configuration.conf is None else context.configuration.conf.order
    seconds = min(most, places * min(SPACING[order], LONGEST[order] / count))
    if seconds > 0:
        yield zk.Wait(context.run.new_signal(), 0, seconds)


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
            yield zk.Reconnect()
            continue
        known = context.registration.consumer
        if known is not None and known.session == session:
            break
        mine = context.run.new_signal()
        try:
            if context.registration.joining.setdefault(session, mine) is mine:
                yield from _join(context, session, accepts)
            else:
                yield zk.Wait(context.registration.joining[session], 0, turn=True)  # another thread is at it
        finally:
            if context.registration.joining.get(session) is mine:
                del context.registration.joining[session]
                mine.fire()
    if accepts is not None and accepts not in known.accepts:
        # The oldest are dropped. It is only a hint to people: a refusal harms nothing.
        known.accepts = [*known.accepts, accepts][-MAX_ACCEPTS:]
        yield zk.Multi((zk.SetData(context.paths.consumer(known.id), _record(context, known)),))
    return known


def _join(context: Context, session: int, accepts: str | None) -> Procedure[None]:
    """Make the record; where the session became another one meanwhile, it is made again."""
    name = f"{context.describe.get('name', 'consumer')}-{session & (1 << 64) - 1:x}-{context.marks.nonce()[:8]}"
    consumer, paths = Registered(name, session, [] if accepts is None else [accepts]), context.paths
    live, record = (
        zk.Create(paths.live(name), ephemeral=True),
        zk.Create(paths.consumer(name), _record(context, consumer)),
    )
    joining = zk.Multi(
        (zk.SetData(paths.at("clock"), b"", -1), live, record, zk.Create(paths.consumer(name, "current")))
    )

    while True:  # until nothing is missing any more in which it stands
        outcome = yield from transact(joining, Holds(((live.path, b""),)))
        if outcome.committed or not (yield from queue_existence.restored(context, failed_at(outcome, joining))):
            break
    if not outcome.committed:
        raise refused("registering as a consumer", outcome, joining)
    context.clock.learn(outcome)
    if context.run.session() != session:
        # Written under the session before, or under this one with that one's name: it is nobody's.
        yield from _strike(context, consumer.id)
        return
    context.registration.consumer, context.registration.cancel_watch = consumer, None
    context.claims.end_session(session, context.run.zxid())


def _record(context: Context, consumer: Registered) -> bytes:
    return dump({**context.describe, "accepts": [shown(each) for each in consumer.accepts]})


def check_cancellations(context: Context) -> Procedure[None]:
    """Learn which claims in hand were taken away: who cancels a task, say, writes to the znode under this one watch."""
    if not context.registration.cancellations_checked:
        yield from watch_cache.single_flight(
            context, "cancelled", lambda: context.registration.cancellations_checked, lambda: _listen(context)
        )


def _listen(context: Context) -> Procedure[None]:
    """Let go of the claims in hand that are over: cancelled, or taken away.

    What is being settled by us is left out: who settles it hears what became of it.
    """
    consumer, watch = context.registration.consumer, context.new_watch()
    if consumer is None:
        return
    node: zk.Node | None = yield zk.Get(context.paths.consumer(consumer.id, "current"), watch)
    if node is not None:  # else it was taken for dead, as the next claim finds out, or the queue was deleted
        context.registration.cancel_watch = watch
    claimed = list(context.claims.held.values())
    if not claimed or (node is not None and node.stat.version == 0):
        return
    records = yield from bulk_read.read_records(context, [each.task_id for each in claimed])
    lost = node is not None
    for claim, record in zip(claimed, records, strict=True):
        if claim.settling is not None or claim.chained or claim.unsure or record is bulk_read.Unread.CORRUPT:
            continue
        now = record.state if isinstance(record, bulk_read.Record) else None
        if now is not None and now.state is State.CLAIMED:  # its nonce may have changed, as by a requeue
            same = [(each.consumer, each.attempt, each.claimed, each.lease) for each in (now, claim.state)]
            if same[0] == same[1]:
                continue
        lost, claim.cancelled = True, now is not None and now.state is State.CANCELLED
        context.claims.let_go(claim)
    if lost:
        context.signal.fire()


def unregister(context: Context) -> Procedure[None]:
    """Take this consumer off the register; what it still holds is left to a rescue."""
    consumer, context.registration.consumer = context.registration.consumer, None
    if consumer is not None and context.run.session() == consumer.session:
        yield from _strike(context, consumer.id)


def _strike(context: Context, name: str) -> Procedure[None]:
    """Take a consumer off the register, or have it looked upon as dead: then a rescue does."""
    paths = context.paths
    gone = paths.consumer(name, "current"), paths.consumer(name), paths.live(name)
    outcome: zk.Outcome = yield zk.Multi(tuple(map(zk.Delete, gone)))
    if not outcome.committed:
        yield zk.Multi((zk.Delete(paths.live(name)),))


# --- The register of consumers: who claims from a queue, who of them lives, and what each has in hand.


@dataclass(frozen=True, slots=True)
class Consumer:
    """One client that claims from a queue, in one ZooKeeper session: a process, or one of its connections.

    ``id``: as in `Task.consumer`. ``name``, ``host``, ``pid``: of its process; None where its record cannot be read.
    ``accepts``: the selectors that it has announced, the latest 16 at the most. ``in_hand``: the ids of the tasks that
    it has claimed without a lease; leased claims outlive their consumer and belong to none. ``alive``: its session
    lives; what a dead one has in hand is given back by the next look of any live consumer.
    """

    id: str
    name: str | None
    host: str | None
    pid: int | None
    accepts: tuple[str, ...]
    in_hand: tuple[str, ...]
    alive: bool


def consumers(context: Context) -> Procedure[list[Consumer]]:
    """The queue's consumers by id, the live ones and the dead that nobody has taken off the register yet.

    A client registers with its first claim and leaves when it is closed. Not a snapshot of one moment; costs two small
    requests for each consumer. Raises `ConfigError` where the queue does not exist.
    """
    yield from read_conf(context)
    # The register is listed first: who registers in between is seen alive, and no live consumer is taken for dead.
    registered: list[str] = (yield Children(context.paths.at("consumers"))) or []
    live = frozenset((yield Children(context.paths.at("live"))) or ())
    names = sorted(live.union(registered))
    nodes = yield from bulk_read.read_nodes([context.paths.consumer(name) for name in names])
    in_hand = yield from bulk_read.list_children([context.paths.consumer(name, "current") for name in names])
    found: list[Consumer] = []
    for name, node, tasks in zip(names, nodes, in_hand, strict=True):
        if node is None:  # it left meanwhile
            continue
        path = context.paths.consumer(name)
        record: dict[str, Any] = bulk_read.unless_corrupt(context, path, partial(load, path, node.data)) or {}
        own_name, host, pid, accepts = map(record.get, ("name", "host", "pid", "accepts"))
        found.append(
            Consumer(
                id=name,
                name=own_name if isinstance(own_name, str) else None,
                host=host if isinstance(host, str) else None,
                pid=pid if isinstance(pid, int) else None,
                accepts=tuple(each for each in accepts if isinstance(each, str)) if isinstance(accepts, list) else (),
                in_hand=tuple(tasks),
                alive=name in live,
            )
        )
    return found
