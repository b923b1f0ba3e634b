"""Each operation, interrupted at each of its transactions: it happens exactly once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim, take
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import (
    configure,
    enqueue,
    enqueue_new,
    holding,
    operate,
    putting,
    settle,
    several_writers,
    transaction,
)
from airflow_provider_zkmq.engine.core.tasks.batches import WRITING
from airflow_provider_zkmq.engine.core.upkeep import collect, rescue
from tests.unit.world import CRASHES, LOST, Client, Crash, FakeZooKeeper, Faults

I, C, F, D, X = State.INSERTED, State.CLAIMED, State.FINISHED, State.DEAD, State.CANCELLED  # noqa: E741


class World(Client):
    """A client, the claim that it has in hand, and its unit of work."""

    held: Any = None

    def __init__(self) -> None:
        super().__init__(FakeZooKeeper())
        self.unit = transaction.Transaction()
        self.do(configure.configure(self.context, policy=RetryPolicy(attempts=20, factor=0)))


Step = Callable[[World], Any]


# --- calls, to be carried out for a world


def held(verb: Any, *arguments: Any, **options: Any) -> Step:
    """A verb of the claim in hand."""
    return lambda w: verb(w.context, w.held, *arguments, **options)


def a(verb: Any, *arguments: Any, **options: Any) -> Step:
    """A verb of the task `a`."""
    return lambda w: verb(w.context, "a", *arguments, **options)


def message(w: World, data: bytes = b"x", *, at: float | None = None, **options: Any) -> Message:
    """`at`: a moment, so many seconds after the server's present."""
    if at is not None:
        options["not_before"] = datetime.fromtimestamp(w.zk.ms / 1000 + at, UTC)
    return Message(data, **({"task_id": "a"} | options))


def asked(data: bytes = b"new", **options: Any) -> Step:
    return lambda w: enqueue.enqueue(w.context, message(w, data, **options))


def batched(*messages: Message) -> Step:
    return lambda w: enqueue.enqueue_batch(w.context, list(messages), "b", Message(b"then", task_id="then"))


def many(verb: Any, count: int, **options: Any) -> Step:
    messages = [Message(b"x", task_id=f"t{n}", priority=n % 2, delay=n % 3 or None) for n in range(count)]
    return lambda w: verb(w.context, messages, **options)


def claiming(lease: float | None = None) -> Step:
    return lambda w: claim.claim(w.context, take.Wanted(EVERYTHING, lease))


def tend(w: World) -> Any:
    return rescue.tend(w.context)


def commit(w: World) -> Any:
    return transaction.commit(w.unit)


# --- what came before, step by step


def done(call: Step) -> Step:
    return lambda w: w.do(call(w))


def put(**options: Any) -> Step:
    return done(asked(b"x", **options))


def hold(**options: Any) -> Step:
    return lambda w: setattr(w, "held", w.claimed(**options))


def later(seconds: float) -> Step:
    return lambda w: w.zk.advance(seconds)


def dies(w: World) -> None:
    """Its session ends, and it comes back with another."""
    w.zk.expire(w.session)
    w.session = w.zk.connect()
    w.context = w._context()


def together(w: World) -> None:
    """The claim in hand becomes part of the unit of work, which puts a task, too."""
    w.unit = transaction.Transaction([(w.context, w.held)])
    putting.put(w.unit.put, w.context, message(w, b"y", task_id="b"))


def timed(w: World) -> None:
    for options in ({"task_id": "c", "delay": 5}, {"task_id": "d", "at": 150}):
        putting.put(w.unit.put, w.context, message(w, **options))


CLAIMED = [put(), hold()]
LEASED = [put(), hold(lease=30)]
ABANDONED = [*CLAIMED, dies]
DUE = [put(delay=5), later(6)]
CANCELLED = [put(), done(a(operate.cancel))]
ENDED = [*CLAIMED, done(held(settle.complete, b"r")), later(100_000)]
REQUEUED = [*CLAIMED, done(asked(requeue=True))]
IN_WINDOW = [*CLAIMED, done(held(settle.complete, b"r", dedupe=60))]
LOCKED = [put(lock=5), hold()]
MEMBER = [done(batched(Message(b"x", task_id="a"))), hold()]
ARCHIVED = [
    done(lambda w: configure.configure(w.context, archive=True)),
    *CLAIMED,
    done(held(settle.fail, "e", retry=False)),
]
FIFO = [done(lambda w: configure.configure(w.context, order="fifo"))]
SEVERAL = [done(lambda w: several_writers.open_for_several(w.context, "several"))]
KNOWN = [put(task_id="t3"), hold(), done(held(settle.complete))]

#: Each case: what came before, the call, and the states that the tasks are in afterwards.
CASES: Final[dict[str, tuple[list[Step], Step, dict[str, State]]]] = {
    "enqueue": ([], asked(), {"a": I}),
    "enqueue delayed": ([], asked(delay=5), {"a": I}),
    "enqueue at a moment": ([], asked(at=150), {"a": I}),
    "enqueue_many": ([], many(enqueue.enqueue_many, 6), {f"t{n}": I for n in range(6)}),
    "enqueue_new": (KNOWN, many(enqueue_new.enqueue_new, 30), {f"t{n}": I for n in range(30)} | {"t3": F}),
    "enqueue_new of a batch": (
        SEVERAL,
        many(enqueue_new.enqueue_new, 30, batch="several"),
        {f"t{n}": I for n in range(30)},
    ),
    "seal": (
        [*SEVERAL, done(many(enqueue_new.enqueue_new, 1, batch="several"))],
        lambda w: several_writers.seal(w.context, "several"),
        {"t0": I},
    ),
    "claim": ([put()], claiming(), {"a": C}),
    "claim leased": ([put()], claiming(30), {"a": C}),
    "complete": (CLAIMED, held(settle.complete, b"r"), {"a": F}),
    "complete leased": (LEASED, held(settle.complete), {"a": F}),
    "fail": (CLAIMED, held(settle.fail, "e"), {"a": I}),
    "fail final": (CLAIMED, held(settle.fail, "e", retry=False), {"a": D}),
    "release": (CLAIMED, held(settle.release), {"a": I}),
    "snooze": (CLAIMED, held(settle.snooze, 5), {"a": I}),
    "extend": (LEASED, held(holding.extend, 60), {"a": C}),
    "extend a lock": (LOCKED, held(holding.extend, 60), {"a": C}),
    "progress": (CLAIMED, held(holding.progress, 0.5, "half"), {"a": C}),
    "rescue": (ABANDONED, tend, {"a": I}),
    "rescue lease": ([*LEASED, later(40)], tend, {"a": I}),
    "lock ends": ([*LOCKED, later(6)], tend, {"a": I}),
    "promote": (DUE, tend, {"a": I}),
    "window ends": ([*REQUEUED, done(held(settle.complete, dedupe=5)), later(6)], tend, {"a": I}),
    "gc": (ENDED, lambda w: collect.collect_garbage(w.context, 1), {}),
    "cancel": ([put()], a(operate.cancel), {"a": X}),
    "cancel claimed": (REQUEUED, a(operate.cancel), {"a": X}),
    "cancel abandoned": (ABANDONED, a(operate.cancel), {"a": X}),
    "redrive": (CANCELLED, a(operate.redrive), {"a": I}),
    "redrive with data": (CANCELLED, a(operate.redrive, data=b"n"), {"a": I}),
    "redrive of an archived one": (ARCHIVED, a(operate.redrive), {"a": I}),
    "drop": (CANCELLED, a(operate.drop), {}),
    "drop of an archived one": (ARCHIVED, a(operate.drop), {}),
    "replace": (DUE, a(operate.replace_data, b"new"), {"a": I}),
    "clear": (REQUEUED, lambda w: operate.clear(w.context), {}),
    "clear of an archived one": (ARCHIVED, lambda w: operate.clear(w.context), {}),
    "enqueue again": (ENDED, asked(), {"a": I}),
    "enqueue again at a moment": (ENDED, asked(at=150), {"a": I}),
    "enqueue a cancelled one again": (CANCELLED, asked(delay=5), {"a": I}),
    "update": ([put()], asked(update=True, priority=3), {"a": I}),
    "update in place": (DUE, asked(update=True), {"a": I}),
    "requeue": (CLAIMED, asked(requeue=True), {"a": C}),
    "requeue at a moment": (CLAIMED, asked(requeue=True, at=150), {"a": C}),
    "requeue anew": (REQUEUED, asked(requeue=True, update=True), {"a": C}),
    "requeue in the window": (IN_WINDOW, asked(requeue=True), {"a": F}),
    "requeue in the window anew": (
        [*IN_WINDOW, done(asked(requeue=True))],
        asked(requeue=True, update=True),
        {"a": F},
    ),
    "complete requeued": (REQUEUED, held(settle.complete, b"r"), {"a": I}),
    "complete, window": (REQUEUED, held(settle.complete, b"r", dedupe=5), {"a": F}),
    "fail requeued": (REQUEUED, held(settle.fail, "e", retry=False), {"a": I}),
    "batch": ([], batched(Message(b"x"), Message(b"x", priority=1)), {"b.000000": I, "b.000001": I}),
    "last of a batch": (MEMBER, held(settle.complete), {"a": F, "then": I}),
    "last of a batch cancelled": (MEMBER, a(operate.cancel), {"a": X, "then": I}),
    "redrive of a member": (
        [*MEMBER, done(held(settle.fail, "e", retry=False))],
        a(operate.redrive),
        {"a": I, "then": I},
    ),
    "enqueue in order": (FIFO, asked(), {"a": I}),
    "release in order": ([*FIFO, *CLAIMED], held(settle.release), {"a": I}),
    "commit": ([*CLAIMED, together], commit, {"a": F, "b": I}),
    "commit with times": ([*CLAIMED, together, timed], commit, {"a": F, "b": I, "c": I, "d": I}),
}


def prepared(case: str) -> World:
    world = World()
    for step in CASES[case][0]:
        step(world)
    return world


def run(world: World, case: str, faults: Faults) -> None:
    world.do(CASES[case][1](world), faults)


def points(kinds: tuple[str, ...]) -> Iterator[tuple[str, int, str]]:
    """Each case, each of the transactions that it takes undisturbed, each kind of fault."""
    for case in CASES:
        faults = Faults()
        run(prepared(case), case, faults)
        yield from ((case, at, kind) for at in range(faults.seen) for kind in kinds)


def test_a_lost_reply_changes_nothing(subtests: pytest.Subtests) -> None:
    """The call succeeds and its effect happened exactly once, whichever transaction's reply was lost."""
    for case, at, kind in points(LOST):
        with subtests.test(case=case, at=at, kind=kind):
            world = prepared(case)
            run(world, case, Faults(at, kind))
            assert {task: state.state for task, state in world.check().items()} == CASES[case][2]


def test_a_crash_loses_no_task(subtests: pytest.Subtests) -> None:
    """After a crash at any transaction another consumer finishes every task that was enqueued, once."""
    for case, at, kind in points(CRASHES):
        with subtests.test(case=case, at=at, kind=kind):
            world = prepared(case)
            with pytest.raises(Crash):
                run(world, case, Faults(at, kind))
            world.zk.expire(world.session)
            states = world.check()
            expected = [task for task, state in states.items() if state.state is not X]
            expected += [task for task, state in states.items() if state.requeue]
            paths = world.context.paths
            if world.zk.node(paths.batch("b")) and not world.zk.node(paths.batch("b", "open", WRITING)):
                expected += [] if "then" in states else ["then"]  # the batch was written to its end
            ended = [task for task, state in states.items() if state.state in {F, D}]
            successor = Client(world.zk)
            assert sorted([*ended, *successor.work(timeout=200)]) == sorted(expected)
            successor.check()
