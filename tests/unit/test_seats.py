"""Who is woken by what: news of a queue wakes one waiter of each kind, and none of them sleeps over work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING, as_selector
from airflow_provider_zkmq.engine.core.protocol.ops import Children, GetMany, Wait
from airflow_provider_zkmq.engine.core.protocol.seats import Seat, Seats
from airflow_provider_zkmq.engine.core.tasks import settle
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal
from tests.support import eventually
from tests.unit.test_awake import World


def test_one_of_each_kind_is_woken_in_the_order_in_which_they_came() -> None:
    seats: Seats[str] = Seats()
    for who, kind in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("free", None), ("free2", None)):
        seats.take(who, None if kind is None else Seat(kind))
    assert sorted(seats.one_of_each()) == ["a1", "b1", "free", "free2"]
    assert (seats.next_of("a"), seats.next_of("a"), seats.next_of("b")) == (["a2"], [], [])
    assert len(seats) == 0


def test_who_finds_nothing_is_the_first_of_its_kind_again() -> None:
    """The same one looks each time, so that the agenda of one look is not that of all."""
    seats: Seats[str] = Seats()
    first = Seat("a")
    seats.take("first", first)
    seats.take("second", Seat("a"))
    for _ in range(3):
        assert seats.one_of_each() == ["first"]
        seats.take("first", first)
    seats.leave("first", first)
    assert seats.everybody() == ["second"]


def test_a_signal_wakes_everybody_when_it_is_fired_and_one_when_it_is_nudged() -> None:
    signal, woken = ThreadSignal(), []
    for number in range(3):
        signal.on_next(0, lambda number=number: woken.append(number), Seat("kind"))  # type: ignore[misc]
    signal.nudge()
    assert (woken, signal.count) == ([0], 1)
    signal.pass_on("kind")
    assert (woken, signal.count) == ([0, 1], 1)
    assert not signal.on_next(0, lambda: woken.append(9), Seat("kind")), "it has happened since"
    signal.fire()
    assert woken == [0, 1, 2]


@pytest.mark.parametrize("told", ["fire", "nudge", "pass_on"])
def test_an_interrupt_of_who_tells_leaves_nobody_asleep(told: str) -> None:
    """It may come at the first of several, or before the one that was to be woken knows."""
    signal, woken, seat = ThreadSignal(), [], Seat("kind")

    def interrupted() -> None:
        woken.append("first")
        if woken.count("first") == 1:
            raise KeyboardInterrupt

    signal.on_next(0, interrupted, seat)
    signal.on_next(0, lambda: woken.append("second"), Seat("kind"))
    signal.on_next(0, lambda: woken.append("free"))
    with pytest.raises(KeyboardInterrupt):
        getattr(signal, told)(*(["kind"] if told == "pass_on" else []))
    assert set(woken) == {"first", "second", "free"}
    assert not signal._callbacks


def test_a_thread_that_leaves_its_seat_is_not_woken_in_another_s_place() -> None:
    """One waits in vain and goes; the next nudge is for the other."""
    signal = ThreadSignal()
    assert not signal.wait(0, 0.0, Seat("kind"))
    other = threading.Thread(target=signal.wait, args=(0, 60.0, Seat("kind")))
    other.start()
    eventually(lambda: len(signal._callbacks) == 1)
    signal.nudge()
    other.join(20)
    assert not other.is_alive()
    assert not signal._callbacks


def kinds(world: World, *selectors: str | None) -> list:
    """Claims of one warm client that have found nothing and wait, sitting, for tasks of these kinds."""
    steppers = []
    for text in selectors:
        chosen = EVERYTHING if text is None else as_selector(text)
        stepper = world.stepper(claim.claim(world.context, Wanted(chosen), 30))
        stepper.until(Wait)
        steppers.append(stepper)
    return steppers


def sit_down(steppers: list) -> list[list[bool]]:
    """Put each on its seat, as a driver does; whether it was woken."""
    told: list[list[bool]] = []
    for stepper in steppers:
        mine: list[bool] = []
        assert stepper.op.signal.on_next(stepper.op.seen, lambda mine=mine: mine.append(True), stepper.op.seat)
        told.append(mine)
    return told


def test_an_enqueue_wakes_one_thread_of_each_kind() -> None:
    """Ten wait for anything, two for what is of kind a: one of each is told, and few more once the task is taken.

    These are told by the claim itself, which takes the entry off the listing, and by the thread that leaves.
    """
    world = World()
    world.put("warm")
    world.do(settle.complete(world.context, world.claim()))
    steppers = kinds(world, *[None] * 10, "k==a", "k==a")
    told = sit_down(steppers)
    world.put("one")
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
    world = World()
    world.put("warm")
    world.do(settle.complete(world.context, world.claim()))
    steppers = kinds(world, None, None, None)
    told = sit_down(steppers)
    world.put("one")
    world.put("two")
    told[1].clear()  # the enqueues themselves may have told it
    steppers[0].answer(True)
    steppers[0].until(GetMany)
    assert told[0]
    if not told[1]:
        pytest.fail("it was left asleep although there are two tasks")


@pytest.mark.parametrize("ending", ["cut", "error", "time-out"])
def test_who_was_woken_for_all_and_leaves_without_a_look_has_the_next_one_look(ending: str) -> None:
    """It is cancelled, or its connection fails, or its time is over: another one takes the task."""
    world = World()
    world.put("warm")
    world.do(settle.complete(world.context, world.claim()))
    first, second = kinds(world, None, None)
    told = sit_down([first, second])
    world.put("one")
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
        world.zk.advance(31)
        first.answer(False)
        assert first.finish().task_id == "one"  # it looks a last time
    assert told[1], "nobody was told"
    second.answer(True)
    if ending != "time-out":
        assert second.finish().task_id == "one"


async def test_a_cancelled_coroutine_on_its_seat_leaves_nothing_behind() -> None:
    signal = ThreadSignal()
    loop, seat = asyncio.get_running_loop(), Seat("kind")
    future = loop.create_future()
    wake = future.cancel
    assert signal.on_next(0, wake, seat)
    signal.forget(wake, seat)
    assert not signal._callbacks
