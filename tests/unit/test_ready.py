"""Whether there is work: who looks claims nothing, is no consumer, takes nobody's wake-up, and sleeps over nothing."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.claiming.ready import ready
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, Multi
from airflow_provider_zkmq.engine.core.tasks import configure, enqueue, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import consumers, deletion
from airflow_provider_zkmq.engine.errors import ConfigError, QueueNotFound
from tests.fake_zookeeper import FakeZooKeeper, check_tree, drive, new_context
from tests.stepping import Stepper

ANY = Wanted(EVERYTHING)


class World:
    """A queue, a client that changes it, and another one that looks."""

    def __init__(self, order: str = "default", **conf: Any) -> None:
        self.zk = FakeZooKeeper()
        self.session, self.context = self.client("one")
        self.looks, self.looker = self.client("looker")
        conf.setdefault("policy", RetryPolicy(attempts=5, factor=0))
        self.do(configure.configure(self.context, order=order, filters={"k": String()}, **conf))

    def client(self, name: str) -> tuple[int, Context]:
        session = self.zk.connect()
        return session, new_context(self.zk, session, name=name)

    def do(self, procedure: Any) -> Any:
        return drive(self.zk, self.session, procedure)

    def put(self, task_id: str = "a", filters: dict[str, object] | None = None, **options: Any) -> None:
        self.do(enqueue.enqueue(self.context, Message(b"x", filters, task_id=task_id, **options)))

    def claimed(self, **wanted: Any) -> Any:
        claimed = self.do(claim.claim(self.context, Wanted(EVERYTHING, **wanted)))
        assert claimed is not None
        return claimed

    def look(self, **asked: Any) -> Any:
        return drive(self.zk, self.looks, ready(self.looker, **asked))

    def waiting(self, **asked: Any) -> Stepper:
        """A client that has found nothing, and is about to wait."""
        stepper = Stepper(self.zk, self.looks, ready(self.looker, **({"timeout": None} | asked)))
        stepper.until(Wait)
        assert not stepper.over
        return stepper

    def woken(self, waiter: Stepper) -> bool:
        """Let a waiter go on that was told; whether it has found work, or waits again."""
        assert waiter.op.signal.count > waiter.op.seen, "it sleeps although something has come"
        waiter.answer(True)
        waiter.until(Wait)
        return waiter.over and waiter.result is True

    def state(self, task_id: str = "a") -> State:
        return check_tree(self.zk, self.context)[task_id].state


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_there_is_work_where_there_is_some_and_nothing_is_claimed(order: str) -> None:
    world = World(order)
    assert world.look() is False
    world.put()
    before = {path: (node.data, node.version) for path, node in world.zk.nodes.items()}
    assert world.look() is True
    assert {path: (node.data, node.version) for path, node in world.zk.nodes.items()} == before
    assert world.claimed().task_id == "a"
    assert world.look() is False


def test_who_only_looks_is_no_consumer() -> None:
    """It is on no register: it has no share of a crowd, and nobody buries it."""
    world = World()
    world.put(delay=1)
    waiter = world.waiting()
    world.zk.advance(2)
    waiter.answer(False)
    assert waiter.finish() is True
    assert world.looker.registration.consumer is None
    assert not [path for path in world.zk.nodes if path.startswith(("/zkmq/q/consumers/", "/zkmq/q/live/"))]


def test_a_waiter_is_woken_by_an_enqueue_and_asks_for_nothing_while_it_is_idle() -> None:
    """Its second look at a queue in which nothing has happened is made from memory."""
    world = World()
    world.put()
    world.do(settle.complete(world.context, world.claimed()))
    waiter = world.waiting()
    assert waiter.op.timeout is None
    waiter.answer(True)
    asked = len(waiter.done)
    waiter.until(Wait)
    assert len(waiter.done) == asked, "nothing has happened, so that nothing is asked for"
    world.put("b")
    assert world.woken(waiter)


def test_a_due_task_is_promoted_by_who_only_looks() -> None:
    """There is no consumer to do it."""
    world = World()
    world.put(delay=5)
    waiter = world.waiting()
    assert waiter.op.timeout <= 5.1
    world.zk.advance(6)
    waiter.answer(False)
    assert waiter.finish() is True
    assert check_tree(world.zk, world.context)["a"].due is None


def test_who_only_looks_leaves_promotions_to_living_consumers_for_a_moment() -> None:
    """Each consumer has its share of them; who looks takes what none of them has seen to."""
    world = World()
    assert world.do(claim.claim(world.context, ANY)) is None
    world.put(delay=5)
    waiter = world.waiting()
    world.zk.advance(5.1)
    waiter.answer(False)
    waiter.until(Wait)
    assert 0 < waiter.op.timeout <= 0.3
    world.zk.advance(0.5)
    waiter.answer(False)
    assert waiter.finish() is True


def test_the_task_of_a_dead_consumer_is_given_back_by_who_only_looks() -> None:
    world = World()
    world.put()
    world.claimed()
    waiter = world.waiting()
    world.zk.expire(world.session)
    assert world.woken(waiter)


def test_a_lease_that_ends_is_seen_to_by_who_only_looks() -> None:
    world = World()
    world.put()
    world.claimed(lease=5)
    waiter = world.waiting()
    assert waiter.op.timeout <= 5.1
    world.zk.advance(6)
    waiter.answer(False)
    assert waiter.finish() is True


def test_nothing_is_ready_in_a_paused_queue() -> None:
    """Who waits is woken when it is resumed."""
    world = World()
    world.put()
    world.do(configure.pause(world.context))
    waiter = world.waiting()
    world.do(configure.resume(world.context))
    assert world.woken(waiter)


def test_only_what_fits_counts() -> None:
    world = World()
    world.put("a", {"k": "x"})
    waiter = world.waiting(selector="k==y")
    world.put("b", {"k": "z"})
    assert not world.woken(waiter)
    world.put("c", {"k": "y"})
    assert world.woken(waiter)
    with pytest.raises(ConfigError):
        world.look(selector="nonsense==1")


def test_the_entries_of_a_mixed_lane_are_judged_by_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a claim judges them."""
    monkeypatch.setattr("airflow_provider_zkmq.engine.core.writing.place.MAX_LANES", 1)
    world = World()
    for number, kind in enumerate("xyz"):
        world.put(f"t{number}", {"k": kind})
    assert any(path.endswith(";*") for path in world.zk.nodes)
    assert [world.look(selector=f"k=={kind}") for kind in "xyzw"] == [True, True, True, False]


def test_a_task_whose_attempts_are_used_up_is_no_work() -> None:
    """The policy was lowered meanwhile: it goes to the dead letters, as when a claim meets it."""
    world = World()
    world.put()
    world.do(settle.fail(world.context, world.claimed(), "e"))
    world.do(configure.configure(world.context, policy=RetryPolicy(attempts=1)))
    assert world.look() is False
    assert world.state() is State.DEAD
    world.put("b")
    assert world.look() is True


def test_a_task_that_another_has_claimed_since_it_was_listed_is_no_work() -> None:
    """Its record says so; the listing's watch has the waiter look again."""
    world = World()
    world.put()
    stepper = Stepper(world.zk, world.looks, ready(world.looker, timeout=None))
    stepper.until(GetMany, "tasks/a")
    claimed = world.claimed()
    stepper.until(Wait)
    assert not stepper.over
    world.do(settle.release(world.context, claimed))
    assert world.woken(stepper)


def test_an_entry_without_a_task_is_told_of_once_and_is_no_work() -> None:
    world = World()
    world.put()
    segment = next(path for path in world.zk.nodes if path.endswith("~a") or "~a" in path).rpartition("/")[0]
    world.do(operate.drop(world.context, "a"))
    world.put("b")
    world.do(settle.complete(world.context, world.claimed()))
    world.zk.multi(world.session, (Create(f"{segment}/0000000000000000000000~gone"),))
    told: list[str] = []
    world.looker.run.report = lambda path, _why: told.append(path)
    assert [world.look(), world.look()] == [False, False]
    assert len(told) == 1


def test_it_takes_no_wake_up_from_one_who_claims() -> None:
    """An event wakes one of those who claim and one of those who look: they sit apart, though in one client."""
    world = World()
    claiming = Stepper(world.zk, world.looks, claim.claim(world.looker, ANY, 30))
    claiming.until(Wait)
    looking = world.waiting()
    assert looking.op.seat.kind != claiming.op.seat.kind
    assert looking.op.seat.kind == world.waiting().op.seat.kind
    assert looking.op.seat.kind != world.waiting(selector="k==x").op.seat.kind


@pytest.mark.parametrize("how", ["found", "cut off", "in time"])
def test_who_leaves_has_the_next_one_look(how: str) -> None:
    """Of several that look for the same, one is woken: whatever becomes of it, it calls the next."""
    world = World()
    waiter, called = world.waiting(timeout=5), list[object]()
    kind = waiter.op.seat.kind
    passed = world.looker.signal.pass_on
    world.looker.signal.pass_on = lambda one: called.append(one) or passed(one)  # type: ignore[method-assign,func-returns-value]
    waiter.op.seat.kept = True  # as the driver has it when it sits down
    match how:
        case "found":
            world.put()
            assert world.woken(waiter)
        case "cut off":
            waiter.cut()
        case _:
            world.zk.advance(6)
            waiter.answer(False)
            assert waiter.finish() is False
    assert called == [kind]


def test_it_ends_when_it_is_told_to_stop() -> None:
    world, stop = World(), [False]
    waiter = world.waiting(stopping=lambda: stop[0])
    stop[0] = True
    world.looker.signal.fire()
    waiter.answer(True)
    assert waiter.finish() is False


def test_a_queue_that_is_not_there_or_goes_while_it_is_waited_for_is_told_of() -> None:
    world = World()
    waiter = world.waiting()
    world.do(deletion.delete(world.context, confirm=True))
    assert waiter.op.signal.count > waiter.op.seen
    with pytest.raises(QueueNotFound):
        world.woken(waiter)
    with pytest.raises(QueueNotFound):
        world.look()


def test_a_payload_that_is_missing_is_no_work() -> None:
    """A claim would step over it, so that who is told of work would find none, again and again."""
    world = World()
    world.put()
    world.do(_delete(world.context.paths.task("a", "data")))
    assert world.look() is False


def _delete(path: str) -> Any:
    yield Multi((Delete(path),))


def test_one_who_looks_beside_one_who_claims_registers_nothing_of_its_own() -> None:
    """A client of both has its consumer announce what it claims, not what it looks for."""
    world = World()
    drive(world.zk, world.looks, consumers.register(world.looker, "k=='x'"))
    world.look(selector="k==y")
    assert world.looker.registration.consumer is not None
    assert world.looker.registration.consumer.accepts == ["k=='x'"]
