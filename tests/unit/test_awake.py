"""Nobody sleeps over work: what was refused, is tried by another thread, or changed in place, is looked at again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim, take
from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Children, GetMany, Pipeline, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Multi
from airflow_provider_zkmq.engine.core.reading.watched import listing
from airflow_provider_zkmq.engine.core.tasks import configure, enqueue, holding, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import rescue
from airflow_provider_zkmq.engine.errors import ClaimLost
from tests.fake_zookeeper import FakeZooKeeper, check_tree, drive, new_context
from tests.stepping import Stepper

ANY = take.Wanted(EVERYTHING)
LEASED = take.Wanted(EVERYTHING, 30)


class World:
    """A server and clients, each a session with its own memory."""

    def __init__(self, order="default", **options):
        self.zk = FakeZooKeeper()
        self.session, self.context = self.client("one")
        options.setdefault("policy", RetryPolicy(attempts=5, factor=0))
        self.do(configure.configure(self.context, order=order, filters={"k": String()}, **options))

    def client(self, name):
        session = self.zk.connect()
        return session, new_context(self.zk, session, name=name)

    def do(self, procedure):
        return drive(self.zk, self.session, procedure)

    def put(self, task_id, **options):
        return self.do(enqueue.enqueue(self.context, Message(b"x", task_id=task_id, **options)))

    def claim(self, timeout=0.0, context=None):
        return self.do(claim.claim(context or self.context, ANY, timeout))

    def stepper(self, procedure):
        return Stepper(self.zk, self.session, procedure)

    def waiting(self):
        """A claim of a warm client that has found nothing and is about to wait."""
        stepper = self.stepper(claim.claim(self.context, ANY, 30))
        stepper.until(Wait)
        return stepper


def test_two_threads_get_two_tasks_however_soon_the_second_came():
    """One thread is at the first task when the second is enqueued: the other thread does not sleep on its listing."""
    world = World()
    world.put("warm")
    world.do(settle.complete(world.context, world.claim()))
    one, two = world.waiting(), world.waiting()
    world.put("a", priority=0)
    one.answer(True)
    one.until(GetMany, "tasks/a")  # it has listed the segment, and is at its only entry
    two.answer(True)
    two.until(Wait)
    world.put("b")
    assert two.op.timeout <= 0.5 or two.op.signal.count > two.op.seen, "it sleeps although work has come"
    two.answer(True)
    assert {one.finish().task_id, two.finish().task_id} == {"a", "b"}
    check_tree(world.zk, world.context)


def test_a_thread_looks_again_soon_at_what_another_one_is_trying():
    """The other thread's try may fail: nobody relies on it for longer than half a second."""
    world = World()
    world.put("a")
    one = world.stepper(claim.claim(world.context, ANY, 30))
    one.until(GetMany, "tasks/a")
    two = world.waiting()
    assert two.op.timeout <= 0.5
    one.cut()
    two.answer(False)
    assert two.finish().task_id == "a"


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_record_changed_between_a_claim_s_read_and_its_write_is_read_again(order):
    """An update in place fires no watch: the claim that it refuses hands the task out all the same, with new data."""
    world = World(order)
    world.put("a")
    _, other = world.client("two")
    stepper = world.stepper(claim.claim(world.context, ANY, 30))
    stepper.until(Multi, "tasks/a/claim")
    world.do(operate.replace_data(other, "a", b"new"))
    claimed = stepper.finish()
    assert (claimed.task_id, claimed.data) == ("a", b"new")
    world.do(settle.complete(world.context, claimed))
    check_tree(world.zk, world.context)


def test_a_promotion_that_was_refused_is_tried_again_soon():
    """Somebody changes a task just when it is promoted: who waits looks again, not at the end of its patience."""
    world = World()
    world.put("a", delay=5)
    assert world.claim() is None
    world.zk.advance(6)
    _, other = world.client("two")
    stepper = world.stepper(claim.claim(world.context, ANY, 30))
    stepper.until(Pipeline, "tasks/a/state")
    world.do(operate.replace_data(other, "a", b"new"))
    stepper.until(Wait)
    assert stepper.op.timeout <= 0.5
    world.zk.advance(0.5)
    stepper.answer(False)
    assert stepper.finish().data == b"new"
    check_tree(world.zk, world.context)


def test_the_next_time_to_look_is_each_look_s_own():
    """Another thread's look does not take a due time off the agenda of a thread that is about to wait."""
    world = World()
    world.put("a", delay=3)
    world.context.listings.readings.clear()
    one = world.stepper(claim.claim(world.context, ANY, 30))
    one.until(Children, "'/zkmq/q/queue'")  # it has looked at what is scheduled, and goes on to what is pending
    two = world.stepper(rescue.rescue_dead(world.context))
    two.finish()
    two = world.stepper(rescue.expire_leases(world.context, world.context.agenda()))
    two.finish()
    one.until(Wait)
    assert one.op.timeout <= 3.1


def test_a_thousand_due_tasks_do_not_keep_a_claim_waiting():
    """One look promotes a bounded number, several transactions in flight; the claim comes back with a task at once."""
    world = World()
    world.do(enqueue.enqueue_many(world.context, [Message(b"x", delay=5) for _ in range(1_000)]))
    world.zk.advance(6)
    stepper = world.stepper(claim.claim(world.context, ANY, 1))
    assert stepper.finish() is not None
    promotions = [
        op for op in stepper.done if isinstance(op, Pipeline) and any(isinstance(one, Multi) for one in op.ops)
    ]
    singles = [op for op in stepper.done if isinstance(op, Multi)]
    assert sum(len(op.ops) for op in promotions) <= 128
    assert len(singles) <= 5
    while world.claim(1) is not None:
        pass
    states = check_tree(world.zk, world.context)
    assert {state.state for state in states.values()} == {State.CLAIMED}


def test_lanes_of_one_priority_are_served_by_time_of_enqueue():
    """Neither the name of a lane nor its inflow puts its tasks before those that came earlier."""
    world = World()
    for number, kind in enumerate("zazmb"):
        world.put(f"t{number}", filters={"k": kind})
    world.put("urgent", filters={"k": "q"}, priority=1)
    got = []
    while (claimed := world.claim()) is not None:
        got.append(claimed.task_id)
        if len(got) < 4:
            world.put(f"later{len(got)}", filters={"k": "a"})
    assert got[:6] == ["urgent", "t0", "t1", "t2", "t3", "t4"]


@pytest.mark.parametrize("read_anew", [False, True])
def test_a_lane_that_comes_while_the_first_is_looked_for_is_not_passed_by(read_anew):
    """In strict order the list of lanes is read by the same rule as the lanes: a lower rank in a new one comes first.

    Also where another thread of the client has read that list anew meanwhile: it is another reading than this look's.
    """
    world = World("fifo")
    world.put("warm", filters={"k": "m"})
    world.do(settle.complete(world.context, world.claim()))
    _, other = world.client("two")
    stepper = world.stepper(claim.claim(world.context, ANY, 30))
    stepper.until(Children, "queue/p09999;k=m")
    world.do(enqueue.enqueue(other, Message(b"x", {"k": "a"}, task_id="first")))
    world.do(enqueue.enqueue(other, Message(b"x", {"k": "m"}, task_id="second")))
    if read_anew:
        world.do(listing(world.context, world.context.paths.at("queue")))
    assert stepper.finish().task_id == "first"


def test_a_rescue_heeds_an_extension_accepted_at_the_same_moment():
    """The lease is read again, and taken under its version: who has just extended it keeps its task."""
    for at in ("before the read", "before the write"):
        world = World()
        world.put("a")
        claimed = world.do(claim.claim(world.context, LEASED))
        other_session, other = world.client("two")
        drive(world.zk, other_session, claim.claim(other, ANY))  # it knows of the lease
        world.zk.advance(31)
        stepper = Stepper(world.zk, other_session, rescue.tend(other))
        stepper.until(GetMany if at == "before the read" else Multi, "tasks/a/state")
        world.do(holding.extend(world.context, claimed, 30))
        stepper.finish()
        assert check_tree(world.zk, world.context)["a"].state is State.CLAIMED
        world.do(settle.complete(world.context, claimed))


def test_progress_of_an_earlier_run_of_the_same_id_is_refused():
    """After `clear`, the same id again may have a record of the same version: the claim's own note tells them apart."""
    world = World()
    world.put("a")
    old = world.do(claim.claim(world.context, LEASED))
    world.do(operate.clear(world.context))
    other_session, other = world.client("two")
    world.put("a")
    new = drive(world.zk, other_session, claim.claim(other, LEASED))
    assert new.version == old.version
    with pytest.raises(ClaimLost):
        world.do(holding.progress(world.context, old, 0.5, "stale"))
    assert b"stale" not in world.zk.node(world.context.paths.task("a", "claim")).data
    drive(world.zk, other_session, settle.complete(other, new))


def test_a_burial_that_was_refused_is_tried_again():
    """A requeue written while a dead consumer's task is rescued: the task is given back all the same, by that look."""
    world = World()
    world.put("a")
    world.claim()
    other_session, other = world.client("two")
    assert drive(world.zk, other_session, claim.claim(other, ANY)) is None
    world.zk.expire(world.session)
    third_session, third = world.client("three")
    stepper = Stepper(world.zk, other_session, claim.claim(other, ANY, 30))
    stepper.until(Multi, "tasks/a/state")
    drive(world.zk, third_session, enqueue.enqueue(third, Message(b"again", task_id="a", requeue=True)))
    assert stepper.finish().task_id == "a"
    check_tree(world.zk, other)


def test_a_foreign_znode_at_a_dead_consumer_is_no_loop_and_no_end():
    """What keeps a burial from its end is looked at again after longer and longer pauses; work goes on."""
    world = World()
    world.put("a")
    world.claim()
    consumer = world.context.registration.consumer.id
    other_session, other = world.client("two")
    world.zk.multi(other_session, (Create(f"{world.context.paths.consumer(consumer)}/foreign"),))
    world.zk.expire(world.session)
    claimed = drive(world.zk, other_session, claim.claim(other, ANY, 30))
    assert claimed.task_id == "a"
    stepper = Stepper(world.zk, other_session, claim.claim(other, ANY, 1_000))
    stepper.finish()
    assert sum(isinstance(op, Multi) for op in stepper.done) < 100


def test_the_server_s_clock_is_paired_with_when_it_was_asked():
    """A reply that was 20 s on its way does not make a delay of 30 s come due after 10."""
    world = World()
    world.context.clock.last = None
    stepper = world.stepper(enqueue.enqueue(world.context, Message(b"x", task_id="a", delay=30)))
    stepper.until(Multi, "clock")
    asked = world.zk.ms
    outcome = world.zk.multi(world.session, stepper.op.ops)
    world.zk.advance(20)
    stepper.answer(replace(outcome, sent=asked / 1000))
    stepper.finish()
    due = check_tree(world.zk, world.context)["a"].due
    assert due >= world.zk.ms + 30_000 - 1
    assert due <= world.zk.ms + 31_000
