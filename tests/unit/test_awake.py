"""Waiting for work: one look serves all, news wakes one waiter of each kind, and no interrupt leaves anybody asleep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING, String, as_selector
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.watch_cache import single_flight
from airflow_provider_zkmq.engine.core.tasks import enqueue, interventions, settle
from airflow_provider_zkmq.engine.core.zk_operations import (
    Children,
    Create,
    Get,
    GetMany,
    Multi,
    Pipeline,
    Wait,
    WaitPlace,
    WaitQueue,
)
from airflow_provider_zkmq.engine.errors import ConfigError, IllegalTransition, TaskNotFound
from airflow_provider_zkmq.engine.zk.session import ThreadSignal
from tests.stepping import Stepper
from tests.support import eventually
from tests.unit.claiming import ANY, another, queue_of, step
from tests.unit.world import Client, new_context, new_queue


def queue(*names: str) -> Client:
    return queue_of(names, filters={"k": String()}, policy=RetryPolicy(attempts=5, factor=0))


def warm() -> Client:
    """A client that has worked on its queue before; nothing is pending."""
    client = queue("warm")
    client.work()
    return client


def claiming(client: Client, timeout: float = 30, selector: str | None = None) -> Stepper:
    wanted = Wanted(EVERYTHING if selector is None else as_selector(selector))
    return step(client, claim.claim(client.context, wanted, timeout))


def waiting(client: Client, selector: str | None = None) -> Stepper:
    """A claim that has found nothing and is about to wait."""
    stepper = claiming(client, selector=selector)
    stepper.until(Wait)
    return stepper


def test_a_thousand_due_tasks_do_not_keep_a_claim_waiting() -> None:
    """One look promotes a bounded number, several transactions in flight; the claim comes back with a task at once."""
    client = queue()
    client.do(enqueue.enqueue_many(client.context, [Message(b"x", delay=5) for _ in range(1_000)]))
    client.zk.advance(6)
    stepper = claiming(client, 1)
    assert stepper.finish() is not None
    promotions = [
        op.ops for op in stepper.done if isinstance(op, Pipeline) and any(isinstance(one, Multi) for one in op.ops)
    ]
    assert sum(map(len, promotions)) <= 128
    assert sum(isinstance(op, Multi) for op in stepper.done) <= 5
    for most in (*[64] * 7, *[1] * 80, *[64] * 8):  # the end of a segment is met by single claims
        client.do(claim.claim_many(client.context, ANY, most, 1))
    assert {state.state for state in client.check().values()} == {State.CLAIMED}


def test_lanes_of_one_priority_are_served_by_time_of_enqueue() -> None:
    """Neither the name of a lane nor its inflow puts its tasks before those that came earlier."""
    client = queue()
    for number, kind in enumerate("zazmb"):
        client.put(task_id=f"t{number}", filters={"k": kind})
    client.put(task_id="urgent", filters={"k": "q"}, priority=1)
    got = []
    while (claimed := client.take()) is not None:
        got.append(claimed.task_id)
        if len(got) < 4:
            client.put(task_id=f"later{len(got)}", filters={"k": "a"})
    assert got[:6] == ["urgent", "t0", "t1", "t2", "t3", "t4"]


def test_a_rescue_heeds_an_extension_accepted_at_the_same_moment() -> None:
    """The lease is read again, and taken under its version: who has just extended it keeps its task."""
    for kind in (GetMany, Multi):
        client = queue("a")
        claimed = client.claimed(lease=30)
        other = another(client)
        other.take()  # it knows of the lease
        client.zk.advance(31)
        stepper = step(other, due_work.maintain(other.context))
        stepper.until(kind, "tasks/a/state")
        client.do(settle.extend(client.context, claimed, 30))
        stepper.finish()
        assert client.check()["a"].state is State.CLAIMED
        client.complete(claimed)


def test_whoever_takes_a_claim_away_its_holder_hears_of_it(subtests: pytest.Subtests) -> None:
    """By the watch that tells of cancellations: who has neither lock nor lease to extend learns of nothing else."""
    ways: dict[str, Callable[[Client], Any]] = {
        "cancelled": lambda it: interventions.cancel(it.context, "a"),
        "cleared": lambda it: interventions.clear(it.context),
        "released": lambda it: interventions.revoke(it.context, "a"),
        "failed": lambda it: interventions.revoke(it.context, "a", "hung"),
        "dead": lambda it: interventions.revoke(it.context, "a", "hung", retry=False),
        "lapsed": lambda it: due_work.maintain(it.context),
    }
    for way, taking in ways.items():
        with subtests.test(way=way):
            client = new_queue()
            client.put(task_id="a", lock=5 if way == "lapsed" else None)
            client.put(task_id="b")
            claimed, others = client.claimed(), client.claimed()
            client.do(due_work.maintain(client.context))
            client.zk.advance(6)
            other = Client(client.zk, "other")
            other.do(taking(other))
            client.do(due_work.maintain(client.context))
            assert (claimed.lost, claimed.cancelled, others.lost) == (True, way == "cancelled", way == "cleared")
            record = client.check().get("a", others.state)
            assert record.attempt == (0 if way == "released" else 1)
            told = {"cancelled": "cancelled", "released": "revoked", "lapsed": "rescued"}
            ended = [(each.number, each.consumer, each.outcome) for each in record.history]
            wanted = (1, claimed.state.consumer, told.get(way, "failed"))
            assert ended == ([] if way == "cleared" else [wanted])
            with pytest.raises(IllegalTransition if way != "cleared" else TaskNotFound):
                other.do(interventions.revoke(other.context, "a"))


def test_what_is_no_reason_for_a_revocation_is_refused_and_the_claim_holds() -> None:
    """Such as a version in the place of the error: the caller gets `ConfigError`, and its holder goes on."""
    client = queue("a")
    claimed = client.claimed()
    with pytest.raises(ConfigError, match="error 5 is not allowed"):
        client.do(interventions.revoke(client.context, "a", 5))  # type: ignore[arg-type]
    assert client.check()["a"].state is State.CLAIMED
    client.complete(claimed)


def test_a_foreign_znode_at_a_dead_consumer_is_no_loop_and_no_end() -> None:
    """What keeps a burial from its end is looked at again after longer and longer pauses; work goes on."""
    client = queue("a")
    client.claimed()
    consumer = client.context.registration.consumer.id  # type: ignore[union-attr]
    other = another(client)
    client.zk.multi(other.session, (Create(f"{client.context.paths.consumer(consumer)}/foreign"),))
    client.zk.expire(client.session)
    assert other.claimed(timeout=30).task_id == "a"
    stepper = claiming(other, 1_000)
    stepper.finish()
    assert sum(isinstance(op, Multi) for op in stepper.done) < 100


def test_the_server_s_clock_is_paired_with_when_it_was_asked() -> None:
    """A reply that was 20 s on its way does not make a delay of 30 s come due after 10."""
    client = queue()
    client.context.clock.last = None
    stepper = step(client, enqueue.enqueue(client.context, Message(b"x", task_id="a", delay=30)))
    stepper.until(Multi, "clock")
    requested = client.zk.ms
    outcome = client.zk.multi(client.session, stepper.op.ops)
    client.zk.advance(20)
    stepper.answer(replace(outcome, sent=requested / 1000))
    stepper.finish()
    due = client.check()["a"].due
    assert due is not None
    assert 30_000 - 1 <= due - client.zk.ms <= 31_000


# --- what one thread reads for all


class Interrupted(dict[str, Any]):
    """A memory, one call of which meets an interrupt once it has done its work."""

    calls = 0

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        value = method(*arguments)
        self.calls += 1
        if self.calls == self._at:
            raise KeyboardInterrupt
        return value

    def get(self, *arguments: Any) -> Any:
        return self._call(super().get, *arguments)

    def setdefault(self, *arguments: Any) -> Any:
        return self._call(super().setdefault, *arguments)


def test_wherever_an_interrupt_comes_the_next_reads_by_itself() -> None:
    """It does not wait for somebody who is gone."""

    def read() -> Any:
        yield Get("/")

    for at in (1, 2, 3):
        client = queue()
        client.context.shared = shared = Interrupted(at)
        try:
            client.do(single_flight(client.context, "conf", lambda: False, read))
        except KeyboardInterrupt:
            pass
        else:
            assert shared.calls < at
        client.context.shared = dict(shared)
        stepper = step(client, single_flight(client.context, "conf", lambda: False, read))
        assert isinstance(stepper.op, Get), "it waits for somebody who is gone"
        stepper.finish()
        assert not client.context.shared


@pytest.mark.parametrize("ending", ["done", "cut", "failed"])
def test_who_waited_reads_only_where_the_other_could_not(ending: str) -> None:
    """It reads by itself after the other was cut off, or failed."""
    client = queue()
    context = new_context(client.zk, client.session)
    first, second = step(client, read_conf(context)), step(client, read_conf(context))
    assert isinstance(second.op, Wait)
    if ending == "done":
        first.finish()
    elif ending == "cut":
        first.cut()
    else:
        with pytest.raises(ZeroDivisionError):
            first.fail(ZeroDivisionError())
    second.answer(True)
    assert second.over == (ending == "done")
    assert second.finish().order == "default"
    assert not context.shared


# --- who is woken


def test_one_of_each_kind_is_woken_in_the_order_in_which_they_came() -> None:
    """Who finds nothing is the first of its kind again, so that the agenda of one look is not that of all."""
    seats: WaitQueue[str] = WaitQueue()
    for who, kind in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("free", None), ("free2", None)):
        seats.take(who, None if kind is None else WaitPlace(kind))
    assert sorted(seats.one_of_each()) == ["a1", "b1", "free", "free2"]
    assert (seats.next_of("a"), seats.next_of("a"), seats.next_of("b")) == (["a2"], [], [])
    assert len(seats) == 0
    first = WaitPlace("a")
    seats.take("first", first)
    seats.take("second", WaitPlace("a"))
    for _ in range(3):
        assert seats.one_of_each() == ["first"]
        seats.take("first", first)
    seats.leave("first", first)
    assert seats.everybody() == ["second"]


def test_an_interrupt_of_who_tells_leaves_nobody_asleep() -> None:
    """It may come at the first of several, or before the one that was to be woken knows."""
    tells: tuple[Callable[[ThreadSignal], object], ...] = (
        ThreadSignal.fire, ThreadSignal.notify, lambda signal: signal.notify_one("kind"),
    )  # fmt: skip
    for tell in tells:
        signal, woken = ThreadSignal(), []

        def interrupted(woken: list[str] = woken) -> None:
            woken.append("first")
            if woken.count("first") == 1:
                raise KeyboardInterrupt

        signal.on_next(0, interrupted, WaitPlace("kind"))
        signal.on_next(0, lambda woken=woken: woken.append("second"), WaitPlace("kind"))  # type: ignore[misc]
        signal.on_next(0, lambda woken=woken: woken.append("free"))  # type: ignore[misc]
        with pytest.raises(KeyboardInterrupt):
            tell(signal)
        assert set(woken) == {"first", "second", "free"}
        assert not signal._callbacks


async def test_who_leaves_its_seat_is_not_woken_in_another_s_place() -> None:
    """A thread that waited in vain, or a coroutine that is cancelled: the next nudge is for the other."""
    signal, seat = ThreadSignal(), WaitPlace("kind")
    wake = asyncio.get_running_loop().create_future().cancel
    assert signal.on_next(0, wake, seat)
    signal.forget(wake, seat)
    assert not signal._callbacks
    assert not signal.wait(0, 0.0, WaitPlace("kind"))
    other = threading.Thread(target=signal.wait, args=(0, 60.0, WaitPlace("kind")))
    other.start()
    eventually(lambda: len(signal._callbacks) == 1)
    signal.notify()
    other.join(20)
    assert not other.is_alive()
    assert not signal._callbacks


def sit_down(*steppers: Stepper) -> list[list[bool]]:
    """Put each on its seat, as a driver does; whether it was woken."""
    told: list[list[bool]] = []
    for stepper in steppers:
        mine: list[bool] = []
        assert stepper.op.signal.on_next(stepper.op.seen, lambda mine=mine: mine.append(True), stepper.op.place)  # type: ignore[misc]
        told.append(mine)
    return told


def test_an_enqueue_wakes_one_thread_of_each_kind() -> None:
    """And few more once the task is taken: by the claim, which takes the entry off the listing, and by who leaves."""
    client = warm()
    steppers = [waiting(client, selector) for selector in [None] * 10 + ["k==a"] * 2]
    told = sit_down(*steppers)
    client.put(task_id="one")
    assert [at for at, each in enumerate(told) if each] == [0, 10]
    steppers[0].answer(True)
    assert steppers[0].finish().task_id == "one"
    assert [at for at, each in enumerate(told) if each] == [0, 1, 2, 10, 11]
    for woken in (1, 2, 10, 11):
        steppers[woken].answer(True)
        steppers[woken].until(Wait)  # nothing is there, nor of its kind
    assert sum(map(bool, told)) == 5


def test_who_sees_more_than_it_can_take_calls_the_next_before_it_takes_its_own() -> None:
    """Two tasks at once: the second thread is called while the first is at the first task, not after it."""
    client = warm()
    steppers = [waiting(client) for _ in range(3)]
    told = sit_down(*steppers)
    client.put(task_id="one")
    client.put(task_id="two")
    told[1].clear()  # the enqueues themselves may have told it
    steppers[0].answer(True)
    steppers[0].until(GetMany)
    assert told[0]
    assert told[1], "it was left asleep although there are two tasks"


@pytest.mark.parametrize("ending", ["cut", "error", "time-out"])
def test_who_was_woken_for_all_and_leaves_without_a_look_has_the_next_one_look(ending: str) -> None:
    """It is cancelled, or its connection fails, or its time is over: another one takes the task."""
    client = warm()
    first, second = waiting(client), waiting(client)
    told = sit_down(first, second)
    client.put(task_id="one")
    assert (bool(told[0]), bool(told[1])) == (True, False)
    if ending == "cut":
        first.cut()
    elif ending == "error":
        first.answer(True)
        first.until(Children)
        with pytest.raises(ZeroDivisionError):
            first.fail(ZeroDivisionError())
    else:
        first.op.signal.forget(lambda: None)
        client.zk.advance(31)
        first.answer(False)
        assert first.finish().task_id == "one"  # it looks a last time
    assert told[1], "nobody was told"
    second.answer(True)
    assert ending == "time-out" or second.finish().task_id == "one"
