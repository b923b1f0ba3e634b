"""Replies and the waking of event loops: nobody is woken for nothing, nobody is forgotten."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any
from weakref import ref

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from airflow_provider_zkmq.engine.zk.reply import Reply
from airflow_provider_zkmq.engine.zk.waking import Wakes

PATIENCE = 20.0


def in_thread(job: Any) -> None:
    thread = threading.Thread(target=job)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


async def test_threads_wake_each_waiter_once() -> None:
    wakes, loop = Wakes(), asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(2_000)]
    calls = [wakes.line().waker(future) for future in futures]

    def wake(part: int) -> None:
        for call in (*calls[part::4], *calls[part::2]):  # half of them twice
            call()

    threads = [threading.Thread(target=wake, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    assert all(await asyncio.wait_for(asyncio.gather(*futures), PATIENCE))
    for thread in threads:
        thread.join(PATIENCE)


async def test_what_is_gathered_wakes_at_the_end_and_others_meanwhile() -> None:
    wakes, loop = Wakes(), asyncio.get_running_loop()
    gathered, other = loop.create_future(), loop.create_future()
    inside, go_on = threading.Event(), threading.Event()
    line, second = wakes.line(), Wakes().line()

    def gather() -> None:
        with wakes.together():
            line.waker(gathered)()
            inside.set()
            go_on.wait(PATIENCE)

    thread = threading.Thread(target=gather)
    thread.start()
    inside.wait(PATIENCE)
    second.waker(other)()
    assert await other
    assert not gathered.done()
    go_on.set()
    assert await gathered
    thread.join(PATIENCE)


async def test_a_waiter_that_has_gone_is_passed_over() -> None:
    wakes, loop = Wakes(), asyncio.get_running_loop()
    gone, there = loop.create_future(), loop.create_future()
    line = wakes.line()
    line.waker(gone)()
    line.waker(there)()
    gone.cancel()
    assert await there


async def test_an_interrupt_leaves_the_next_to_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes, loop = Wakes(), asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    line, call = wakes.line(), loop.call_soon_threadsafe

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
        future = asyncio.get_running_loop().create_future()
        kept.append(wakes.line().waker(future))

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


def test_a_reply_is_waited_for_by_several_threads_and_told_to_all() -> None:
    reply, told = Reply(), []
    threads = [threading.Thread(target=lambda: told.append(reply.get(timeout=PATIENCE))) for _ in range(3)]
    for thread in threads:
        thread.start()
    reply.rawlink(lambda one: told.append(one.get_nowait()))
    in_thread(lambda: reply.set("answer"))
    for thread in threads:
        thread.join(PATIENCE)
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
