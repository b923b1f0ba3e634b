"""Each operation, interrupted at each of its transactions: it happens exactly once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine.core.claim import claim, take
from airflow_provider_zkmq.engine.core.maintenance import collect, due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import admin, enqueue, interventions, settle, transaction
from airflow_provider_zkmq.engine.core.write.new_task import WRITING
from tests.unit.world import CRASHES, LOST, Client, Crash, FakeZooKeeper, Faults

I, C, F, D, X = State.INSERTED, State.CLAIMED, State.FINISHED, State.DEAD, State.CANCELLED  # noqa: E741


class World(Client):
    """A client, the claim that it has in hand, and its unit of work."""

    held: Any = None

    def __init__(self) -> None:
        super().__init__(FakeZooKeeper())
        self.unit = transaction.TransactionState()
        self.do(admin.configure(self.context, policy=RetryPolicy(attempts=20, factor=0)))


Step = Callable[[World], Any]


# --- calls, to be carried out for a world


def of(verb: Any, *arguments: Any, **options: Any) -> Step:
    """A verb of the queue."""
    return lambda w: verb(w.context, *arguments, **options)


def a(verb: Any, **options: Any) -> Step:
    """A verb of the task `a`."""
    return of(verb, "a", **options)


def held(verb: Any, *arguments: Any, **options: Any) -> Step:
    """A verb of the claim in hand."""
    return lambda w: verb(w.context, w.held, *arguments, **options)


def message(w: World, data: bytes = b"x", *, at: float | None = None, **options: Any) -> Message:
    """`at`: a moment, so many seconds after the server's present."""
    if at is not None:
        options["not_before"] = datetime.fromtimestamp(w.zk.ms / 1000 + at, UTC)
    return Message(data, **({"task_id": "a"} | options))


def requested(data: bytes = b"new", **options: Any) -> Step:
    return lambda w: enqueue.enqueue(w.context, message(w, data, **options))


def batched(*messages: Message) -> Step:
    return of(enqueue.enqueue_batch, messages, "b", Message(b"then", task_id="then"))


def many(verb: Any, count: int, **options: Any) -> Step:
    messages = [Message(b"x", task_id=f"t{n}", priority=n % 2, delay=n % 3 or None) for n in range(count)]
    return of(verb, messages, **options)


def commit(w: World) -> Any:
    return transaction.commit(w.unit)


TEND = of(due_work.maintain)

# --- what came before, step by step


def done(call: Step) -> Step:
    return lambda w: w.do(call(w))


def put(**options: Any) -> Step:
    return done(requested(b"x", **options))


def hold(**options: Any) -> Step:
    return lambda w: setattr(w, "held", w.claimed(**options))


def later(seconds: float) -> Step:
    return lambda w: w.zk.advance(seconds)


def dies(w: World) -> None:
    """Its session ends, and it comes back with another."""
    w.zk.expire(w.session)
    w.session = w.zk.connect()
    w.context = w._context()


def together(*messages: dict[str, Any]) -> Step:
    """The claim in hand becomes part of the unit of work, which puts tasks, too."""

    def begin(w: World) -> None:
        w.unit = transaction.TransactionState([(w.context, w.held)])
        for options in messages:
            transaction.put(w.unit.put, w.context, message(w, b"y", **options))

    return begin


CLAIMED = [put(), hold()]
LEASED = [put(), hold(lease=30)]
ABANDONED = [*CLAIMED, dies]
DUE = [put(delay=5), later(6)]
CANCELLED = [put(), done(a(interventions.cancel))]
ENDED = [*CLAIMED, done(held(settle.complete, b"r")), later(100_000)]
REQUEUED = [*CLAIMED, done(requested(on_conflict="requeue"))]
IN_WINDOW = [*CLAIMED, done(held(settle.complete, b"r", dedupe=60))]
LOCKED = [put(lock=5), hold()]
MEMBER = [done(batched(Message(b"x", task_id="a"))), hold()]
DIED = done(held(settle.fail, "e", retry=False))
ARCHIVED = [done(of(admin.configure, archive=True)), *CLAIMED, DIED]
FIFO = [done(of(admin.configure, order="fifo"))]
SEVERAL = [done(of(enqueue.open_shared, "several"))]
KNOWN = [put(task_id="t3"), hold(), done(held(settle.complete))]
THIRTY = {f"t{n}": I for n in range(30)}
TIMED = together({"task_id": "b"}, {"task_id": "c", "delay": 5}, {"task_id": "d", "at": 150})

#: Each case: what came before, the call, and the states that the tasks are in afterwards.
CASES: Final[dict[str, tuple[list[Step], Step, dict[str, State]]]] = {
    "enqueue": ([], requested(), {"a": I}),
    "enqueue delayed": ([], requested(delay=5), {"a": I}),
    "enqueue at a moment": ([], requested(at=150), {"a": I}),
    "enqueue_many": ([], many(enqueue.enqueue_many, 6), {f"t{n}": I for n in range(6)}),
    "enqueue_new": (KNOWN, many(enqueue.enqueue_new, 30), THIRTY | {"t3": F}),
    "enqueue_new of a batch": (SEVERAL, many(enqueue.enqueue_new, 30, batch="several"), THIRTY),
    "seal": (
        [*SEVERAL, done(many(enqueue.enqueue_new, 1, batch="several"))],
        of(enqueue.seal, "several"),
        {"t0": I},
    ),
    "claim": ([put()], of(claim.claim, take.Wanted(EVERYTHING)), {"a": C}),
    "claim leased": ([put()], of(claim.claim, take.Wanted(EVERYTHING, 30)), {"a": C}),
    "complete": (CLAIMED, held(settle.complete, b"r"), {"a": F}),
    "complete leased": (LEASED, held(settle.complete), {"a": F}),
    "fail": (CLAIMED, held(settle.fail, "e"), {"a": I}),
    "fail final": (CLAIMED, held(settle.fail, "e", retry=False), {"a": D}),
    "release": (CLAIMED, held(settle.release), {"a": I}),
    "snooze": (CLAIMED, held(settle.snooze, 5), {"a": I}),
    "extend": (LEASED, held(settle.extend, 60), {"a": C}),
    "extend a lock": (LOCKED, held(settle.extend, 60), {"a": C}),
    "progress": (CLAIMED, held(settle.progress, 0.5, "half"), {"a": C}),
    "rescue": (ABANDONED, TEND, {"a": I}),
    "rescue lease": ([*LEASED, later(40)], TEND, {"a": I}),
    "lock ends": ([*LOCKED, later(6)], TEND, {"a": I}),
    "promote": (DUE, TEND, {"a": I}),
    "window ends": ([*REQUEUED, done(held(settle.complete, dedupe=5)), later(6)], TEND, {"a": I}),
    "gc": (ENDED, of(collect.collect_garbage, 1), {}),
    "cancel": ([put()], a(interventions.cancel), {"a": X}),
    "cancel claimed": (REQUEUED, a(interventions.cancel), {"a": X}),
    "cancel abandoned": (ABANDONED, a(interventions.cancel), {"a": X}),
    "redrive": (CANCELLED, a(interventions.redrive), {"a": I}),
    "redrive with data": (CANCELLED, a(interventions.redrive, data=b"n"), {"a": I}),
    "redrive of an archived one": (ARCHIVED, a(interventions.redrive), {"a": I}),
    "drop": (CANCELLED, a(interventions.drop), {}),
    "drop of an archived one": (ARCHIVED, a(interventions.drop), {}),
    "replace": (DUE, a(interventions.replace_data, data=b"new"), {"a": I}),
    "clear": (REQUEUED, of(interventions.clear), {}),
    "clear of an archived one": (ARCHIVED, of(interventions.clear), {}),
    "enqueue again": (ENDED, requested(), {"a": I}),
    "enqueue again at a moment": (ENDED, requested(at=150), {"a": I}),
    "enqueue a cancelled one again": (CANCELLED, requested(delay=5), {"a": I}),
    "update": ([put()], requested(on_conflict="replace", priority=3), {"a": I}),
    "update in place": (DUE, requested(on_conflict="replace"), {"a": I}),
    "requeue": (CLAIMED, requested(on_conflict="requeue"), {"a": C}),
    "requeue at a moment": (CLAIMED, requested(on_conflict="requeue", at=150), {"a": C}),
    "requeue anew": (REQUEUED, requested(on_conflict="replace-or-requeue"), {"a": C}),
    "requeue in the window": (IN_WINDOW, requested(on_conflict="requeue"), {"a": F}),
    "requeue in the window anew": (
        [*IN_WINDOW, done(requested(on_conflict="requeue"))],
        requested(on_conflict="replace-or-requeue"),
        {"a": F},
    ),
    "complete requeued": (REQUEUED, held(settle.complete, b"r"), {"a": I}),
    "complete, window": (REQUEUED, held(settle.complete, b"r", dedupe=5), {"a": F}),
    "fail requeued": (REQUEUED, held(settle.fail, "e", retry=False), {"a": I}),
    "batch": ([], batched(Message(b"x"), Message(b"x", priority=1)), {"b.000000": I, "b.000001": I}),
    "last of a batch": (MEMBER, held(settle.complete), {"a": F, "then": I}),
    "last of a batch cancelled": (MEMBER, a(interventions.cancel), {"a": X, "then": I}),
    "redrive of a member": ([*MEMBER, DIED], a(interventions.redrive), {"a": I, "then": I}),
    "enqueue in order": (FIFO, requested(), {"a": I}),
    "release in order": ([*FIFO, *CLAIMED], held(settle.release), {"a": I}),
    "commit": ([*CLAIMED, together({"task_id": "b"})], commit, {"a": F, "b": I}),
    "rollback": ([*CLAIMED, together({"task_id": "b"})], lambda w: transaction.rollback(w.unit), {"a": I}),
    "commit of an id that ended": ([*KNOWN, *REQUEUED, together({"task_id": "t3"})], commit, {"a": I, "t3": I}),
    "commit with times": ([*CLAIMED, TIMED], commit, {"a": F, "b": I, "c": I, "d": I}),
}


def prepared(case: str) -> World:
    world = World()
    for step in CASES[case][0]:
        step(world)
    return world


def points(*kinds: str) -> Iterator[tuple[World, Step, str, Faults]]:
    """For each case and each of the transactions that it takes undisturbed, each kind of fault there."""
    for case, (_, call, _) in CASES.items():
        faults, world = Faults(), prepared(case)
        world.do(call(world), faults)
        for at, kind in product(range(faults.seen), kinds):
            yield prepared(case), call, case, Faults(at, kind)


def test_a_lost_reply_changes_nothing(subtests: pytest.Subtests) -> None:
    """The call succeeds and its effect happened exactly once, whichever transaction's reply was lost."""
    for world, call, case, fault in points(*LOST):
        with subtests.test(case=case, fault=fault):
            world.do(call(world), fault)
            assert {task: state.state for task, state in world.check().items()} == CASES[case][2]


def test_a_crash_loses_no_task(subtests: pytest.Subtests) -> None:
    """After a crash at any transaction another consumer finishes every task that was enqueued, once."""
    for world, call, case, fault in points(*CRASHES):
        with subtests.test(case=case, fault=fault):
            with pytest.raises(Crash):
                world.do(call(world), fault)
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
