"""Workers that take tasks ahead, over a queue in a list: how many, when each begins, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncWorker, ClaimLost, ConfigError, Success, Worker
from airflow_provider_zkmq.engine.working import ahead
from airflow_provider_zkmq.engine.working.ahead import Ahead
from airflow_provider_zkmq.engine.working.background import Background
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, Delivery
from airflow_provider_zkmq.engine.working.options import Options
from tests.support import eventually
from tests.unit.test_verdicts import AsyncListClaim, AsyncListQueue, ListClaim, ListQueue


class Asked(ListQueue):
    """Notes how many tasks are asked for, and which claims were handed out."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.all, self.sizes, self.woken = list(claims), list[int](), threading.Event()

    def claim(self, **_asked: object) -> ListClaim | None:
        self.sizes.append(1)
        return super().claim()

    def claim_many(self, n: int, *, ahead: bool = False, **_asked: Any) -> list[ListClaim]:
        claims = super().claim_many(n, ahead=ahead)
        self.sizes[-1] = n
        return claims

    def wait_for_change(self, _seen: int, timeout: float) -> bool:
        return self.woken.wait(min(timeout, 0.01))

    def wake(self) -> None:
        self.woken.set()


class AsyncAsked(AsyncListQueue):
    """`Asked`, awaited."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.all, self.sizes = list(claims), list[int]()

    async def claim_many(self, n: int, *, ahead: bool = False, **asked: Any) -> Any:  # type: ignore[override]
        self.sizes.append(n)
        return await super().claim_many(n, ahead=ahead, **asked)


def options(**given: Any) -> Options:
    usual: dict[str, Any] = {
        "threads": 1, "node": None, "filter_method": "absolute", "selector": None, "grace": 1, "transactional": False,
        "lease": None, "heartbeat": True, "throttle": 0, "prefetch": 32,
    }  # fmt: skip
    return Options.of(**(usual | given))


def ends(queue: Any) -> list[Any]:
    """How each claim was settled, the only time that it was."""
    assert all(len(claim.outcomes) <= 1 for claim in queue.all)
    return [claim.outcomes[0] if claim.outcomes else None for claim in queue.all]


@pytest.mark.parametrize(
    ("given", "seconds", "rooms"),
    [
        ({}, [0.0001], [32]),
        ({}, [0.005], [10]),
        ({}, [0.04], [1]),
        ({}, [3.0], [1]),
        ({}, [0.0001, 1.0, 0.0001], [32, 1, 1]),
        ({"threads": 8}, [0.0], [32]),
        ({"threads": 8, "prefetch": 3}, [0.0], [3]),
        ({"prefetch": 1_000}, [0.0], [64]),
        ({"prefetch": 0}, [0.0], [1]),
        ({"throttle": 1}, [0.0], [1]),
        ({"transactional": True}, [0.0], [1]),
        ({"heartbeat": False}, [0.0], [1]),
    ],
)
def test_how_many_are_claimed_follows_from_how_fast_handlers_are(
    given: dict[str, Any], seconds: list[float], rooms: list[int]
) -> None:
    """One by one until they are known; then 50 ms of work, bounded by `prefetch`: one thread claims for all."""
    taken: Ahead[Any, Any] = Ahead(options(**given))
    seen = [taken.room]
    for each in seconds:
        taken.handled(each)
        seen.append(taken.room)
    assert seen == [1, *rooms]


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_what_is_no_number_of_tasks_is_refused(wrong: object) -> None:
    """`prefetch` is a whole number, 0 for none."""
    with pytest.raises(ConfigError, match="prefetch"):
        options(prefetch=wrong)


def test_what_waits_comes_in_order_and_is_overdue_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has waited for too long is given back."""
    taken: Ahead[Any, Any] = Ahead(options())
    first, second, third = (Delivery[Any, Any](ListClaim(ahead=True), None) for _ in range(3))
    taken.put([first, second])
    assert (taken.overdue(), taken.until_overdue(0.5)) == ([], 0.5)
    monkeypatch.setattr(ahead, "HELD_SECONDS", 0.0)
    assert taken.until_overdue(0.5) == 0.0
    assert taken.overdue() == [first, second]
    assert (taken.take(), taken.until_overdue(0.5)) == (None, 0.5)
    monkeypatch.setattr(ahead, "HELD_SECONDS", 3600.0)
    taken.put([third])
    assert taken.overdue(every=True) == [third]


def work(queue: Any, handler: Callable[[Any], Any], **given: Any) -> Worker:
    worker = Worker(queue, handler, **given)
    worker.run(until_empty=True)
    return worker


async def awork(queue: Any, handler: Callable[[Any], Any], **given: Any) -> AsyncWorker:
    async def handle(task: Any) -> Any:
        return handler(task)

    worker = AsyncWorker(queue, handle, **given)
    await worker.run(until_empty=True)
    return worker


def test_fast_handlers_are_given_groups_and_each_begins_before_it_is_called() -> None:
    """Every task is handled once, in order, by threads that asked for more than one at a time."""
    queue = Asked(*(ListClaim() for _ in range(100)))
    begun: list[bool] = []
    worker = work(queue, lambda task: begun.append(task._claim.ahead), prefetch=8)
    assert (worker.finished, worker.failed) == (100, 0)
    assert begun == [False] * 100
    assert queue.sizes[0] == 1
    assert max(queue.sizes) == 8
    assert ends(queue) == [Success(None)] * 100


async def test_the_same_on_an_event_loop() -> None:
    """With several coroutines, which share what was taken ahead."""
    queue = AsyncAsked(*(AsyncListClaim() for _ in range(100)))
    begun: list[bool] = []
    worker = await awork(queue, lambda task: begun.append(task._claim.ahead), prefetch=8, threads=2)
    assert (worker.finished, worker.failed) == (100, 0)
    assert begun == [False] * 100
    assert max(queue.sizes) == 8
    assert ends(queue) == [Success(None)] * 100


def stopping_at(worker: list[Any], at: int) -> tuple[list[Any], Callable[[Any], None]]:
    called: list[Any] = []

    def handler(task: Any) -> None:
        called.append(task)
        if len(called) == at:
            worker[0].stop()

    return called, handler


def test_a_stop_gives_back_what_never_began() -> None:
    """The handler that runs ends; what waits behind it is given back, and counts as neither finished nor failed."""
    made: list[Any] = []
    called, handler = stopping_at(made, 5)
    queue = Asked(*(ListClaim() for _ in range(40)))
    made.append(Worker(queue, handler))  # type: ignore[arg-type]
    made[0].run()
    assert (made[0].finished, made[0].failed, len(called)) == (5, 0, 5)
    taken = 40 - len(queue.claims)
    assert taken > 5
    assert ends(queue) == [Success(None)] * 5 + [NOT_BEGUN] * (taken - 5) + [None] * (40 - taken)


class Late(Asked):
    """Its first group comes when the worker has been stopped, and its keeper has ended."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.before_a_group: Callable[[], None] = lambda: None

    def claim_many(self, n: int, *, ahead: bool = False, **asked: Any) -> list[ListClaim]:
        self.before_a_group()
        return super().claim_many(n, ahead=ahead, **asked)


def test_what_comes_after_a_stop_is_given_back_though_nobody_joins() -> None:
    """Whoever stops a worker need not wait for it: nothing stays in hand for as long as the process lives."""
    queue = Late(*(ListClaim() for _ in range(40)))
    worker, started = Worker(queue, lambda _task: None, prefetch=8), threading.Event()  # type: ignore[arg-type]

    def stop() -> None:
        assert started.wait(20)
        worker.stop()
        worker._keeper.join()

    queue.before_a_group = stop
    worker.start()
    started.set()
    worker._threads[0].join()
    assert ends(queue) == [Success(None)] + [NOT_BEGUN] * 8 + [None] * 31
    assert not worker._deliveries


async def test_a_stop_on_an_event_loop_gives_it_back_too() -> None:
    """Nothing is in hand once it has ended."""
    made: list[Any] = []
    called, handler = stopping_at(made, 5)
    queue = AsyncAsked(*(AsyncListClaim() for _ in range(40)))

    async def handle(task: Any) -> None:
        handler(task)

    made.append(AsyncWorker(queue, handle))  # type: ignore[arg-type]
    await made[0].run()
    assert (made[0].finished, made[0].failed, len(called)) == (5, 0, 5)
    taken = 40 - len(queue.claims)
    assert taken > 5
    assert ends(queue) == [Success(None)] * 5 + [NOT_BEGUN] * (taken - 5) + [None] * (40 - taken)


def test_a_handler_that_turns_out_slow_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits behind it is given back while it runs; afterwards tasks are claimed one by one."""
    monkeypatch.setattr(ahead, "HELD_SECONDS", 0.02)
    queue = Asked(*(ListClaim() for _ in range(20)))
    called: list[Any] = []

    def handler(task: Any) -> None:
        called.append(task)
        if len(called) == 2:  # the first of a group
            eventually(lambda: ends(queue).count(NOT_BEGUN) == 7)

    worker = Worker(queue, handler, prefetch=8)  # type: ignore[arg-type]
    worker.run(until_empty=True)
    assert (worker.finished, worker.failed) == (13, 0)
    assert ends(queue) == [Success(None)] * 2 + [NOT_BEGUN] * 7 + [Success(None)] * 11


async def test_a_handler_that_turns_out_slow_holds_up_nothing_on_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, by the keeper of the event loop."""
    monkeypatch.setattr(ahead, "HELD_SECONDS", 0.02)
    monkeypatch.setattr("airflow_provider_zkmq.engine.working.aworker.KEEPER_SECONDS", 0.01)
    queue = AsyncAsked(*(AsyncListClaim() for _ in range(20)))
    called: list[Any] = []

    async def handler(task: Any) -> None:
        called.append(task)
        if len(called) == 2:
            async with asyncio.timeout(20):
                while ends(queue).count(NOT_BEGUN) < 7:  # noqa: ASYNC110  nothing is assumed to have happened by then
                    await asyncio.sleep(0.005)

    worker = AsyncWorker(queue, handler, prefetch=8)  # type: ignore[arg-type]
    await worker.run(until_empty=True)
    assert (worker.finished, worker.failed) == (13, 0)
    assert ends(queue) == [Success(None)] * 2 + [NOT_BEGUN] * 7 + [Success(None)] * 11


@pytest.mark.parametrize("rounds", range(1, 40))
async def test_whenever_a_worker_is_cancelled_all_that_it_took_is_settled(rounds: int) -> None:
    """Between two tasks, too: what the one's settlement began is in no other hand by then."""
    queue = AsyncAsked(*(AsyncListClaim() for _ in range(40)))

    async def handler(_task: object) -> None: ...

    worker = AsyncWorker(queue, handler, prefetch=8)  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(20):
        while not worker.finished:  # noqa: ASYNC110  nothing is assumed to have happened by then
            await asyncio.sleep(0)
    for _ in range(rounds):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    taken = 40 - len(queue.claims)
    assert None not in ends(queue)[:taken]
    assert not worker._deliveries


class Unbeginnable(ListClaim):
    """A claim that is lost before its handling begins."""

    def begin(self) -> None:
        raise ClaimLost("rescued meanwhile")


class AsyncUnbeginnable(AsyncListClaim):
    """The same, awaited."""

    async def begin(self) -> None:
        raise ClaimLost("rescued meanwhile")


async def test_a_handler_is_not_called_for_what_cannot_begin() -> None:
    """It is given back, which tells what became of it; those behind it are handled."""
    for kind, bad, queue_of, run in (
        (ListClaim, Unbeginnable, Asked, work),
        (AsyncListClaim, AsyncUnbeginnable, AsyncAsked, awork),
    ):
        queue: Any = queue_of(*(bad() if at == 3 else kind() for at in range(6)))
        called: list[Any] = []
        working: Any = run(queue, called.append)
        worker = await working if isinstance(working, asyncio.Future) or asyncio.iscoroutine(working) else working
        assert (worker.finished, worker.failed, len(called)) == (5, 0, 5)
        assert ends(queue) == [Success(None)] * 3 + [NOT_BEGUN] + [Success(None)] * 2


async def test_what_cannot_begin_is_none_of_a_workers_limit() -> None:
    """Another is handled in its place: it ends when its handler was called so many times, and not before."""
    for kind, bad, queue_of, run in (
        (ListClaim, Unbeginnable, Asked, work),
        (AsyncListClaim, AsyncUnbeginnable, AsyncAsked, awork),
    ):
        queue: Any = queue_of(*(bad() if at in {2, 3, 5} else kind() for at in range(12)))
        called: list[Any] = []
        working: Any = run(queue, called.append, limit=6)
        worker = await working if asyncio.iscoroutine(working) else working
        assert (worker.finished, worker.failed, len(called), len(queue.claims)) == (6, 0, 6, 3)


class SettledLater:
    """A claim whose settlement is put down, and told when the test says so."""

    def __init__(self) -> None:
        self.put_down = list[Any]()
        self.coming = threading.Event()

    def of(self, kind: type[ListClaim]) -> Any:
        claim = kind()

        def settle_later(outcome: Any, progress: Any, told: Any) -> None:
            self.put_down.append(lambda: ListClaim.settle_later(claim, outcome, progress, told))
            self.coming.set()

        claim.settle_later = settle_later  # type: ignore[method-assign]
        return claim


def test_a_worker_has_ended_when_what_its_handlers_did_is_settled() -> None:
    """Who joins it may close the connection then."""
    later = SettledLater()
    queue = Asked(ListClaim(), later.of(ListClaim))
    worker = Worker(queue, lambda _task: "done", grace=20)
    worker.start()
    assert later.coming.wait(20)
    worker.stop()
    joining = threading.Thread(target=worker.join)
    joining.start()
    eventually(lambda: worker._alive() is None)
    joining.join(0.05)
    assert joining.is_alive()
    later.put_down[0]()
    joining.join(20)
    assert ends(queue) == [Success("done")] * 2
    assert not worker._deliveries


async def test_the_same_end_on_an_event_loop() -> None:
    """What was put down is waited for."""
    later = SettledLater()

    async def handle(_task: object) -> str:
        return "done"

    queue = AsyncAsked(AsyncListClaim(), later.of(AsyncListClaim))
    worker = AsyncWorker(queue, handle, grace=20)  # type: ignore[arg-type]
    working = asyncio.create_task(worker.run())
    await asyncio.to_thread(later.coming.wait, 20)
    worker.stop()
    await asyncio.wait({working}, timeout=0.05)
    assert not working.done()
    await asyncio.to_thread(later.put_down[0])
    await working
    assert ends(queue) == [Success("done")] * 2
    assert not worker._deliveries


def test_what_waits_for_its_turn_to_claim_asks_for_nothing_after_a_stop() -> None:
    """Whoever claimed for all may have waited for a server for long: the others do not, one after the other."""
    queue = Asked(ListClaim())
    worker = Worker(queue, lambda _task: None, threads=2)  # type: ignore[arg-type]
    worker._ahead.handled(0.0)
    worker.stop()
    assert worker._claim(idle=False) is None
    assert queue.sizes == []


async def test_nor_on_an_event_loop() -> None:
    queue = AsyncAsked(AsyncListClaim())

    async def handle(_task: object) -> None: ...

    worker = AsyncWorker(queue, handle, threads=2)  # type: ignore[arg-type]
    worker._ahead.handled(0.0)
    worker.stop()
    assert await worker._claim(idle=False) is None
    assert queue.sizes == []


async def test_what_is_put_down_while_everything_is_waited_for_is_waited_for_too() -> None:
    """A handler that was cancelled comes to its end, and what it did is put down: that is known later still."""
    background, promises = Background(), list[asyncio.Future[None]]()

    async def put_down() -> None:
        await asyncio.sleep(0)
        promises.append(background.promise())

    began = background.do(put_down())
    waiting = asyncio.create_task(background.wait(20))
    await began
    await asyncio.sleep(0)
    assert not waiting.done()
    promises[0].set_result(None)
    await waiting
    await background.wait(0)
