"""Each operation, interrupted at each of its transactions: it happens exactly once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim, take
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
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
from tests.fake_zookeeper import CRASHES, LOST, Crash, FakeZooKeeper, Faults, check_tree, drive, new_context

ANY = take.Wanted(EVERYTHING)
LEASED = take.Wanted(EVERYTHING, 30)


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

    def take(self, wanted: take.Wanted = ANY) -> Claimed:
        claimed = self.do(claim.claim(self.context, wanted))
        assert claimed is not None
        return claimed


def claimed(world: World) -> None:
    world.put(task_id="a")
    world.memory["held"] = world.take()


def leased(world: World) -> None:
    world.put(task_id="a")
    world.memory["held"] = world.take(LEASED)


def abandoned(world: World) -> None:
    claimed(world)
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
    world.do(operate.cancel(world.context, "a"))


def ended(world: World) -> None:
    claimed(world)
    world.do(settle.complete(world.context, world.memory["held"], b"r"))
    world.zk.advance(100_000)


def taken(world: World) -> None:
    claimed(world)
    world.memory["unit"] = transaction.Transaction([(world.context, world.memory["held"])])
    putting.put(world.memory["unit"].put, world.context, Message(b"y", task_id="b"))


def taken_and_timed(world: World) -> None:
    """A transaction that puts a task with a delay, and one with a moment."""
    taken(world)
    for options in ({"task_id": "c", "delay": 5}, {"task_id": "d", "not_before": moment(world, 150)}):
        putting.put(world.memory["unit"].put, world.context, Message(b"x", **options))


def moment(world: World, seconds: float) -> datetime:
    """So many seconds after the server's present."""
    return datetime.fromtimestamp(world.zk.ms / 1000 + seconds, UTC)


def again(world: World, **options: Any) -> Any:
    return enqueue.enqueue(world.context, Message(b"new", task_id="a", **options))


def requeued(world: World) -> None:
    claimed(world)
    world.do(again(world, requeue=True))


def in_window(world: World) -> None:
    claimed(world)
    world.do(settle.complete(world.context, world.memory["held"], b"r", dedupe=60))


def in_window_requeued(world: World) -> None:
    in_window(world)
    world.do(again(world, requeue=True))


def window(world: World) -> None:
    requeued(world)
    world.do(settle.complete(world.context, world.memory["held"], dedupe=5))
    world.zk.advance(6)


def locked(world: World) -> None:
    world.put(task_id="a", lock=5)
    world.memory["held"] = world.take()


def unlocked(world: World) -> None:
    locked(world)
    world.zk.advance(6)


def members(world: World) -> Any:
    messages = [Message(b"x"), Message(b"x", priority=1)]
    return enqueue.enqueue_batch(world.context, messages, "b", Message(b"then", task_id="then"))


def last_member(world: World) -> None:
    world.do(enqueue.enqueue_batch(world.context, [Message(b"x", task_id="a")], "b", Message(b"then", task_id="then")))
    world.memory["held"] = world.take()


def dead_member(world: World) -> None:
    last_member(world)
    world.do(settle.fail(world.context, world.memory["held"], "e", retry=False))


def archived(world: World) -> None:
    world.do(configure.configure(world.context, archive=True))
    claimed(world)
    world.do(settle.fail(world.context, world.memory["held"], "e", retry=False))


def fifo(world: World) -> None:
    world.do(configure.configure(world.context, order="fifo"))


def fifo_held(world: World) -> None:
    fifo(world)
    claimed(world)


@dataclass(frozen=True)
class Case:
    name: str
    setup: Callable[[World], Any]
    run: Callable[[World], Any]
    states: dict[str, State]


def many(world: World) -> Any:
    messages = [Message(b"x", task_id=f"t{n}", priority=n % 2, delay=n % 3 or None) for n in range(6)]
    return enqueue.enqueue_many(world.context, messages)


def known(world: World) -> None:
    world.put(task_id="t3")
    world.do(settle.complete(world.context, world.take()))


def new(world: World) -> Any:
    messages = [Message(b"x", task_id=f"t{n}", priority=n % 2, delay=n % 3 or None) for n in range(30)]
    return enqueue_new.enqueue_new(world.context, messages)


def opened(world: World) -> None:
    world.do(several_writers.open_for_several(world.context, "several"))


def new_members(world: World) -> Any:
    messages = [Message(b"x", task_id=f"t{n}", priority=n % 2, delay=n % 3 or None) for n in range(30)]
    return enqueue_new.enqueue_new(world.context, messages, batch="several")


def written(world: World) -> None:
    opened(world)
    world.do(enqueue_new.enqueue_new(world.context, [Message(b"x", task_id="t0")], batch="several"))


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
    Case("enqueue_new", known, new, {f"t{n}": State.INSERTED for n in range(30)} | {"t3": State.FINISHED}),
    Case("enqueue_new of a batch", opened, new_members, {f"t{n}": State.INSERTED for n in range(30)}),
    Case("seal", written, lambda w: several_writers.seal(w.context, "several"), {"t0": State.INSERTED}),
    Case("claim", lambda w: w.put(task_id="a"), lambda w: claim.claim(w.context, ANY), {"a": State.CLAIMED}),
    Case("claim leased", lambda w: w.put(task_id="a"), lambda w: claim.claim(w.context, LEASED), {"a": State.CLAIMED}),
    Case("complete", claimed, lambda w: settle.complete(w.context, HELD(w), b"r"), {"a": State.FINISHED}),
    Case("complete leased", leased, lambda w: settle.complete(w.context, HELD(w)), {"a": State.FINISHED}),
    Case("fail", claimed, lambda w: settle.fail(w.context, HELD(w), "e"), {"a": State.INSERTED}),
    Case("fail final", claimed, lambda w: settle.fail(w.context, HELD(w), "e", retry=False), {"a": State.DEAD}),
    Case("release", claimed, lambda w: settle.release(w.context, HELD(w)), {"a": State.INSERTED}),
    Case("extend", leased, lambda w: holding.extend(w.context, HELD(w), 60), {"a": State.CLAIMED}),
    Case("rescue", abandoned, lambda w: rescue.tend(w.context), {"a": State.INSERTED}),
    Case("rescue lease", expired, lambda w: rescue.tend(w.context), {"a": State.INSERTED}),
    Case("promote", due, lambda w: rescue.tend(w.context), {"a": State.INSERTED}),
    Case("cancel", lambda w: w.put(task_id="a"), lambda w: operate.cancel(w.context, "a"), {"a": State.CANCELLED}),
    Case("redrive", cancelled, lambda w: operate.redrive(w.context, "a"), {"a": State.INSERTED}),
    Case("gc", ended, lambda w: collect.collect_garbage(w.context, 1), {}),
    Case("enqueue again", ended, again, {"a": State.INSERTED}),
    Case("enqueue a cancelled one again", cancelled, lambda w: again(w, delay=5), {"a": State.INSERTED}),
    Case("update", lambda w: w.put(task_id="a"), lambda w: again(w, update=True, priority=3), {"a": State.INSERTED}),
    Case("update in place", due, lambda w: again(w, update=True), {"a": State.INSERTED}),
    Case("requeue", claimed, lambda w: again(w, requeue=True), {"a": State.CLAIMED}),
    Case("requeue anew", requeued, lambda w: again(w, requeue=True, update=True), {"a": State.CLAIMED}),
    Case("requeue in the window", in_window, lambda w: again(w, requeue=True), {"a": State.FINISHED}),
    Case(
        "requeue in the window anew",
        in_window_requeued,
        lambda w: again(w, requeue=True, update=True),
        {"a": State.FINISHED},
    ),
    Case("complete requeued", requeued, lambda w: settle.complete(w.context, HELD(w), b"r"), {"a": State.INSERTED}),
    Case(
        "complete, window",
        requeued,
        lambda w: settle.complete(w.context, HELD(w), b"r", dedupe=5),
        {"a": State.FINISHED},
    ),
    Case("window ends", window, lambda w: rescue.tend(w.context), {"a": State.INSERTED}),
    Case(
        "fail requeued",
        requeued,
        lambda w: settle.fail(w.context, HELD(w), "e", retry=False),
        {"a": State.INSERTED},
    ),
    Case("extend a lock", locked, lambda w: holding.extend(w.context, HELD(w), 60), {"a": State.CLAIMED}),
    Case("lock ends", unlocked, lambda w: rescue.tend(w.context), {"a": State.INSERTED}),
    Case("snooze", claimed, lambda w: settle.snooze(w.context, HELD(w), 5), {"a": State.INSERTED}),
    Case("progress", claimed, lambda w: holding.progress(w.context, HELD(w), 0.5, "half"), {"a": State.CLAIMED}),
    Case("cancel claimed", requeued, lambda w: operate.cancel(w.context, "a"), {"a": State.CANCELLED}),
    Case("cancel abandoned", abandoned, lambda w: operate.cancel(w.context, "a"), {"a": State.CANCELLED}),
    Case("drop", cancelled, lambda w: operate.drop(w.context, "a"), {}),
    Case("replace", due, lambda w: operate.replace_data(w.context, "a", b"new"), {"a": State.INSERTED}),
    Case("redrive with data", cancelled, lambda w: operate.redrive(w.context, "a", data=b"n"), {"a": State.INSERTED}),
    Case("clear", requeued, lambda w: operate.clear(w.context), {}),
    Case(
        "batch",
        lambda _: None,
        members,
        {"b.000000": State.INSERTED, "b.000001": State.INSERTED},
    ),
    Case(
        "last of a batch",
        last_member,
        lambda w: settle.complete(w.context, HELD(w)),
        {"a": State.FINISHED, "then": State.INSERTED},
    ),
    Case(
        "last of a batch cancelled",
        last_member,
        lambda w: operate.cancel(w.context, "a"),
        {"a": State.CANCELLED, "then": State.INSERTED},
    ),
    Case(
        "redrive of a member",
        dead_member,
        lambda w: operate.redrive(w.context, "a"),
        {"a": State.INSERTED, "then": State.INSERTED},
    ),
    Case("redrive of an archived one", archived, lambda w: operate.redrive(w.context, "a"), {"a": State.INSERTED}),
    Case("drop of an archived one", archived, lambda w: operate.drop(w.context, "a"), {}),
    Case("clear of an archived one", archived, lambda w: operate.clear(w.context), {}),
    Case("enqueue in order", fifo, lambda w: again(w), {"a": State.INSERTED}),
    Case("release in order", fifo_held, lambda w: settle.release(w.context, HELD(w)), {"a": State.INSERTED}),
    Case("commit", taken, lambda w: transaction.commit(w.memory["unit"]), {"a": State.FINISHED, "b": State.INSERTED}),
    Case(
        "commit with times",
        taken_and_timed,
        lambda w: transaction.commit(w.memory["unit"]),
        {"a": State.FINISHED, "b": State.INSERTED, "c": State.INSERTED, "d": State.INSERTED},
    ),
    Case(
        "enqueue at a moment",
        lambda _: None,
        lambda w: enqueue.enqueue(w.context, Message(b"x", task_id="a", not_before=moment(w, 150))),
        {"a": State.INSERTED},
    ),
    Case("enqueue again at a moment", ended, lambda w: again(w, not_before=moment(w, 150)), {"a": State.INSERTED}),
    Case(
        "requeue at a moment",
        claimed,
        lambda w: again(w, requeue=True, not_before=moment(w, 150)),
        {"a": State.CLAIMED},
    ),
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
    states = check_tree(world.zk, world.context)
    before = {task for task, state in states.items() if state.state is not State.CANCELLED}
    escrowed = [task for task, state in states.items() if state.requeue]
    written_to_its_end = world.zk.node(world.context.paths.batch("b")) and not world.zk.node(
        world.context.paths.batch("b", "open", WRITING)
    )
    if written_to_its_end:
        before.add("then")
    done = [task for task, state in states.items() if state.state in {State.FINISHED, State.DEAD}]
    world.session = world.zk.connect()
    world.context = new_context(world.zk, world.session)
    while (got := world.do(claim.claim(world.context, ANY, 200))) is not None:
        world.do(settle.complete(world.context, got))
        done.append(got.task_id)
    assert sorted(done) == sorted([*before, *escrowed])
    check_tree(world.zk, world.context)
