"""Replies, the waking of event loops and their rounds: nobody is woken for nothing, nobody is forgotten."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any
from weakref import ref

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from airflow_provider_zkmq.engine.zk import session
from airflow_provider_zkmq.engine.zk.session import Fairness, Reply, Wakes
from tests.integration.clients import together

PATIENCE = 20.0


def futures(count: int) -> list[asyncio.Future[Any]]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


async def test_threads_wake_each_waiter_once() -> None:
    wakes, waiters = Wakes(), futures(2_000)
    calls = [wakes.line().waker(future) for future in waiters]

    def wake(part: int) -> None:
        for call in (*calls[part::4], *calls[part::2]):  # half of them twice
            call()

    waking = asyncio.to_thread(together, *(lambda part=part: wake(part) for part in range(4)))  # type: ignore[misc]
    assert all((await asyncio.wait_for(asyncio.gather(waking, *waiters), PATIENCE))[1:])


async def test_what_is_gathered_wakes_at_the_end_and_others_meanwhile() -> None:
    wakes, (gathered, other) = Wakes(), futures(2)
    inside, go_on = asyncio.Event(), threading.Event()
    loop, line, second = asyncio.get_running_loop(), wakes.line(), Wakes().line()

    def gather() -> None:
        with wakes.together():
            line.waker(gathered)()
            loop.call_soon_threadsafe(inside.set)
            assert go_on.wait(PATIENCE)

    gathering = asyncio.create_task(asyncio.to_thread(gather))
    await asyncio.wait_for(inside.wait(), PATIENCE)
    second.waker(other)()
    assert await other
    assert not gathered.done()
    go_on.set()
    assert await gathered
    await gathering


async def test_a_waiter_that_has_gone_is_passed_over() -> None:
    line, (gone, there) = Wakes().line(), futures(2)
    line.waker(gone)()
    line.waker(there)()
    gone.cancel()
    assert await there


async def test_an_interrupt_leaves_the_next_to_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    line, (first, second) = Wakes().line(), futures(2)
    loop = asyncio.get_running_loop()
    call = loop.call_soon_threadsafe

    def interrupted(*_args: Any) -> None:
        monkeypatch.setattr(loop, "call_soon_threadsafe", call)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        line.waker(first)()
    line.waker(second)()
    assert await first
    assert await second


def test_a_loop_that_was_closed_concerns_nobody_and_is_not_kept() -> None:
    wakes, kept = Wakes(), []

    async def leave() -> None:
        kept.append(wakes.line().waker(futures(1)[0]))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    kept.pop()()
    there = ref(loop)
    del loop
    gc.collect()
    assert there() is None


async def test_what_is_called_soon_is_called_once_a_round() -> None:
    line, calls = Wakes().line(), []
    for _ in range(2):
        for _ in range(3):
            line.soon(lambda: calls.append(1))
        await asyncio.sleep(0)
    assert calls == [1, 1]


def test_a_reply_is_told_to_all_who_wait_for_it() -> None:
    """Several threads, who has linked to it, and who does so afterwards."""
    reply, told = Reply(), []
    reply.rawlink(lambda one: told.append(one.get_nowait()))
    together(*[lambda: told.append(reply.get(timeout=PATIENCE))] * 3, lambda: reply.set("answer"))
    reply.rawlink(lambda one: told.append(one.get_nowait()))
    assert told == ["answer"] * 5


def test_a_reply_that_does_not_come_or_is_an_error() -> None:
    reply = Reply()
    for wait in (reply.get_nowait, lambda: reply.get(timeout=0.01)):
        with pytest.raises(KazooTimeoutError):
            wait()
    called: list[Any] = []
    reply.rawlink(called.append)
    reply.unlink(called.append)
    reply.set_exception(KeyError("a"))
    reply.set_exception(KeyError("a"))
    with pytest.raises(KeyError):
        reply.get()
    assert (reply.ready(), called) == (True, [])


# --- procedures' part of an event loop's round


async def test_a_round_that_is_long_enough_goes_on_without_those_who_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each gets its turn: all in one round while there is time left of it, else one in a round."""
    for share, taken in ((0.0, 10), (3600.0, 1)):
        monkeypatch.setattr(session, "SHARE", share)
        shared, went, now = Fairness(), list[int](), 0

        async def go(shared: Fairness = shared, went: list[int] = went) -> None:
            await shared.turn()
            went.append(now)  # noqa: B023  the round in which it has its turn

        everybody = [asyncio.create_task(go()) for _ in range(10)]
        while not all(each.done() for each in everybody):
            await asyncio.sleep(0)
            now += 1
        assert len(set(went)) == taken


def test_a_loop_that_ended_in_a_round_keeps_nobody_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's rounds are those of whichever loop runs; who is cancelled before its turn leaves others theirs."""
    monkeypatch.setattr(session, "SHARE", 0.0)
    shared = Fairness()

    async def second_of_three_is_cancelled() -> None:
        first, second, third = (asyncio.create_task(shared.turn()) for _ in range(3))
        await first
        second.cancel()
        await asyncio.wait_for(third, PATIENCE)
        assert second.cancelled()

    for _ in range(3):
        asyncio.run(asyncio.wait_for(shared.turn(), PATIENCE))
        asyncio.run(second_of_three_is_cancelled())
