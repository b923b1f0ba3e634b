"""Each operation, interrupted at each of its transactions: it happens exactly once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core import admin, claim, configure, enqueue, gc, rescue, settle, unit
from airflow_provider_zkmq.engine.core.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.records import Message
from airflow_provider_zkmq.engine.core.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.states import State
from tests.fake_zookeeper import CRASHES, LOST, Crash, FakeZooKeeper, Faults, check_tree, drive, new_context

ANY = claim.Wanted(EVERYTHING)
LEASED = claim.Wanted(EVERYTHING, 30)


@dataclass
class World:
    zk: FakeZooKeeper = field(default_factory=FakeZooKeeper)
    memory: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = self.zk.connect()
        self.context = new_context(self.zk, self.session)
        self.do(configure.configure(self.context, policy=RetryPolicy(attempts=20, factor=0)))

    def do(self, procedure: Any, faults: Faults | None = None) -> Any:
        return drive(self.zk, self.session, procedure, faults)

    def put(self, **options: Any) -> str:
        return self.do(enqueue.enqueue(self.context, Message(b"x", **options)))

    def take(self, wanted: claim.Wanted = ANY) -> claim.Held:
        held = self.do(claim.claim(self.context, wanted))
        assert held is not None
        return held


def held(world: World) -> None:
    world.put(task_id="a")
    world.memory["held"] = world.take()


def leased(world: World) -> None:
    world.put(task_id="a")
    world.memory["held"] = world.take(LEASED)


def abandoned(world: World) -> None:
    held(world)
    world.zk.expire(world.session)
    world.session = world.zk.connect()
    world.context = new_context(world.zk, world.session)


def expired(world: World) -> None:
    leased(world)
    world.zk.advance(40)


def due(world: World) -> None:
    world.put(task_id="a", delay=5)
    world.zk.advance(6)


def cancelled(world: World) -> None:
    world.put(task_id="a")
    world.do(admin.cancel(world.context, "a"))


def ended(world: World) -> None:
    held(world)
    world.do(settle.complete(world.context, world.memory["held"], b"r"))
    world.zk.advance(100_000)


def taken(world: World) -> None:
    held(world)
    tree = world.do(unit.check_put(world.context, Message(b"y", task_id="b")))
    world.memory["unit"] = unit.Unit([(world.context, world.memory["held"])], [(world.context, tree)])


@dataclass(frozen=True)
class Case:
    name: str
    setup: Callable[[World], Any]
    run: Callable[[World], Any]
    states: dict[str, State]


def many(world: World) -> Any:
    messages = [Message(b"x", task_id=f"t{n}", priority=n % 2, delay=n % 3 or None) for n in range(6)]
    return enqueue.enqueue_many(world.context, messages)


HELD = lambda world: world.memory["held"]
CASES = [
    Case(
        "enqueue",
        lambda _: None,
        lambda w: enqueue.enqueue(w.context, Message(b"x", task_id="a")),
        {"a": State.INSERTED},
    ),
    Case(
        "enqueue delayed",
        lambda _: None,
        lambda w: enqueue.enqueue(w.context, Message(b"x", task_id="a", delay=5)),
        {"a": State.INSERTED},
    ),
    Case("enqueue_many", lambda _: None, many, {f"t{n}": State.INSERTED for n in range(6)}),
    Case("claim", lambda w: w.put(task_id="a"), lambda w: claim.claim(w.context, ANY), {"a": State.CLAIMED}),
    Case("claim leased", lambda w: w.put(task_id="a"), lambda w: claim.claim(w.context, LEASED), {"a": State.CLAIMED}),
    Case("complete", held, lambda w: settle.complete(w.context, HELD(w), b"r"), {"a": State.FINISHED}),
    Case("complete leased", leased, lambda w: settle.complete(w.context, HELD(w)), {"a": State.FINISHED}),
    Case("fail", held, lambda w: settle.fail(w.context, HELD(w), "e"), {"a": State.INSERTED}),
    Case("fail final", held, lambda w: settle.fail(w.context, HELD(w), "e", retry=False), {"a": State.DEAD}),
    Case("release", held, lambda w: settle.release(w.context, HELD(w)), {"a": State.INSERTED}),
    Case("extend", leased, lambda w: settle.extend(w.context, HELD(w), 60), {"a": State.CLAIMED}),
    Case("rescue", abandoned, lambda w: rescue.tend(w.context), {"a": State.INSERTED}),
    Case("rescue lease", expired, lambda w: rescue.tend(w.context), {"a": State.INSERTED}),
    Case("promote", due, lambda w: rescue.tend(w.context), {"a": State.INSERTED}),
    Case("cancel", lambda w: w.put(task_id="a"), lambda w: admin.cancel(w.context, "a"), {"a": State.CANCELLED}),
    Case("redrive", cancelled, lambda w: admin.redrive(w.context, "a"), {"a": State.INSERTED}),
    Case("gc", ended, lambda w: gc.collect_garbage(w.context, 1), {}),
    Case("commit", taken, lambda w: unit.commit(w.memory["unit"]), {"a": State.FINISHED, "b": State.INSERTED}),
]
BY_NAME = {case.name: case for case in CASES}


def multis(case: Case) -> int:
    world = World()
    case.setup(world)
    faults = Faults()
    world.do(case.run(world), faults)
    return faults.seen


def points(kinds: tuple[str, ...]) -> list[Any]:
    return [(case.name, at, kind) for case in CASES for at in range(multis(case)) for kind in kinds]


@pytest.mark.parametrize(("name", "at", "kind"), points(LOST))
def test_a_lost_reply_changes_nothing(name, at, kind):
    """The call succeeds and its effect happened exactly once, whichever transaction's reply was lost."""
    case, world = BY_NAME[name], World()
    case.setup(world)
    world.do(case.run(world), Faults(at, kind))
    states = check_tree(world.zk, world.context)
    assert {task: state.state for task, state in states.items()} == case.states


@pytest.mark.parametrize(("name", "at", "kind"), points(CRASHES))
def test_a_crash_loses_no_task(name, at, kind):
    """After a crash at any transaction another consumer finishes every task that was enqueued, once."""
    case, world = BY_NAME[name], World()
    case.setup(world)
    with pytest.raises(Crash):
        world.do(case.run(world), Faults(at, kind))
    world.zk.expire(world.session)
    before = {task for task, state in check_tree(world.zk, world.context).items() if state.state is not State.CANCELLED}
    done = [
        task
        for task, state in check_tree(world.zk, world.context).items()
        if state.state in {State.FINISHED, State.DEAD}
    ]
    world.session = world.zk.connect()
    world.context = new_context(world.zk, world.session)
    while (got := world.do(claim.claim(world.context, ANY, 200))) is not None:
        world.do(settle.complete(world.context, got))
        done.append(got.task_id)
    assert sorted(done) == sorted(before)
    check_tree(world.zk, world.context)
