"""Workers that take tasks ahead, over a queue in a list: how many, when each begins, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncWorker, ClaimLost, ConfigError, Success, Worker
from airflow_provider_zkmq.engine.coroutine_runners import Background, run_blocking
from airflow_provider_zkmq.engine.working import held_deliveries, worker_base
from airflow_provider_zkmq.engine.working.held_deliveries import NOT_BEGUN, Delivery, PrefetchedDeliveries
from tests.integration.fronts import KINDS
from tests.support import eventually
from tests.unit.listed import Made, workers
from tests.unit.test_verdicts import AsyncListClaim, AsyncListQueue, ListClaim, ListQueue

DONE = Success(None)


class ClaimRequest(ListQueue):
    """Notes how many tasks are asked for, and which claims were handed out."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.all, self.sizes, self.woken = list(claims), list[int](), threading.Event()
        self.before_a_group: Callable[[], None] = lambda: None

    def claim(self, **_asked: object) -> ListClaim | None:
        self.sizes.append(1)
        return super().claim()

    def claim_many(self, n: int, *, prefetch: bool = False, **_asked: Any) -> list[ListClaim]:
        self.before_a_group()
        claims = super().claim_many(n, prefetch=prefetch)
        self.sizes[-1] = n
        return claims

    def wait_for_change(self, _seen: int, timeout: float) -> bool:
        return self.woken.wait(min(timeout, 0.01))

    def wake(self) -> None:
        self.woken.set()


class AsyncAsked(AsyncListQueue):
    """What is asked for on an event loop that no thread holds up; also which claims were handed out."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.all, self.sizes = list(claims), list[int]()

    async def claim_many(self, n: int, *, prefetch: bool = False, **requested: Any) -> Any:  # type: ignore[override]
        self.sizes.append(n)
        return await super().claim_many(n, prefetch=prefetch, **requested)


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Makes workers of either front, whose keepers look often."""
    monkeypatch.setattr(worker_base, "MAINTENANCE_SECONDS", 0.01)
    with workers(request.param) as make:
        yield make


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], None]:
    """Says how long the handlers take, by number; however busy the machine is, the others take no time."""
    took, taken = PrefetchedDeliveries.handled, itertools.count(1)

    def say(slow: dict[int, float]) -> None:
        monkeypatch.setattr(
            PrefetchedDeliveries, "handled", lambda self, _seconds: took(self, slow.get(next(taken), 0.0))
        )

    say({})
    return say


def requested(count: int) -> ClaimRequest:
    return ClaimRequest(*(ListClaim() for _ in range(count)))


def prefetched(**given: Any) -> PrefetchedDeliveries:
    """What a worker has prefetched that was made with these options: nothing."""
    return Worker(requested(0), print, **given)._prefetched


def ends(queue: Any) -> list[Any]:
    """How each claim was settled, the only time that it was."""
    assert all(len(claim.outcomes) <= 1 for claim in queue.all)
    return [claim.outcomes[0] if claim.outcomes else None for claim in queue.all]


def test_how_many_are_claimed_follows_from_how_fast_handlers_are(subtests: pytest.Subtests) -> None:
    """One by one until they are known; then 50 ms of work, bounded by `prefetch`: one thread claims for all."""
    for given, seconds, rooms in (
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
    ):
        with subtests.test(given=given, seconds=seconds):
            taken = prefetched(**given)
            seen = [taken.room]
            for each in seconds:
                taken.handled(each)
                seen.append(taken.room)
            assert seen == [1, *rooms]
    for wrong in (-1, 1.5, "2", True):
        with subtests.test(prefetch=wrong), pytest.raises(ConfigError, match="prefetch"):
            prefetched(prefetch=wrong)


def test_what_waits_comes_in_order_and_is_overdue_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has waited for too long is given back."""
    taken = prefetched()
    first, second, third = (Delivery(ListClaim(prefetched=True), None) for _ in range(3))
    taken.put([first, second])
    assert (taken.overdue(), taken.until_overdue(0.5)) == ([], 0.5)
    monkeypatch.setattr(held_deliveries, "HELD_SECONDS", 0.0)
    assert taken.until_overdue(0.5) == 0.0
    assert taken.overdue() == [first, second]
    assert (taken.take(), taken.until_overdue(0.5)) == (None, 0.5)
    monkeypatch.setattr(held_deliveries, "HELD_SECONDS", 3600.0)
    taken.put([third])
    assert taken.overdue(every=True) == [third]


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("threads", [1, 2])
def test_fast_handlers_are_given_groups_and_each_begins_before_it_is_called(made: Made, threads: int) -> None:
    """Every task is handled once by threads, or coroutines, that asked for more than one at a time, and share them."""
    queue, begun = requested(100), list[bool]()
    it = made(queue, lambda task: begun.append(task._claim.prefetched), prefetch=8, threads=threads)
    it.run(until_empty=True)
    assert (it.finished, it.failed, begun) == (100, 0, [False] * 100)
    assert (queue.sizes[0], max(queue.sizes)) == (1, 8)
    assert ends(queue) == [DONE] * 100


@pytest.mark.usefixtures("timed")
def test_a_stop_gives_back_what_never_began(made: Made) -> None:
    """The handler that runs ends; what waits behind it is given back, and counts as neither finished nor failed."""
    called: list[Any] = []

    def handler(task: Any) -> None:
        called.append(task)
        if len(called) == 5:
            it.stop()

    queue = requested(40)
    it = made(queue, handler)
    it.run()
    assert (it.finished, it.failed, len(called)) == (5, 0, 5)
    taken = 40 - len(queue.claims)
    assert taken > 5
    assert ends(queue) == [DONE] * 5 + [NOT_BEGUN] * (taken - 5) + [None] * (40 - taken)


@pytest.mark.usefixtures("timed")
def test_what_comes_after_a_stop_is_given_back_though_nobody_joins() -> None:
    """Whoever stops a worker need not wait for it: nothing stays in hand for as long as the process lives."""
    queue, started = requested(40), threading.Event()
    worker = Worker(queue, lambda _task: None, prefetch=8)  # type: ignore[arg-type]

    def stop() -> None:
        assert started.wait(20)
        worker.stop()
        worker._maintenance.join()

    queue.before_a_group = stop
    worker.start()
    started.set()
    worker._threads[0].join()
    assert ends(queue) == [DONE] + [NOT_BEGUN] * 8 + [None] * 31
    assert not worker._deliveries


def test_a_handler_that_turns_out_slow_holds_up_nothing(
    made: Made, timed: Callable[[dict[int, float]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits behind it is given back while it runs; afterwards tasks are claimed one by one."""
    timed({2: 1.0})
    queue, called = requested(20), list[Any]()

    def handler(task: Any) -> None:
        called.append(task)
        if len(called) == 2:  # the first of a group
            monkeypatch.setattr(held_deliveries, "HELD_SECONDS", 0.0)
            eventually(lambda: ends(queue).count(NOT_BEGUN) == 7)
            monkeypatch.setattr(held_deliveries, "HELD_SECONDS", 3600.0)

    it = made(queue, handler, prefetch=8)
    it.run(until_empty=True)
    assert (it.finished, it.failed, queue.sizes[:3]) == (13, 0, [1, 8, 1])
    assert ends(queue) == [DONE] * 2 + [NOT_BEGUN] * 7 + [DONE] * 11


async def test_whenever_a_worker_is_cancelled_all_that_it_took_is_settled(subtests: pytest.Subtests) -> None:
    """Between two tasks, too: what the one's settlement began is in no other hand by then."""

    async def handler(_task: object) -> None: ...

    for rounds in range(1, 40):
        with subtests.test(rounds=rounds):
            queue = AsyncAsked(*(AsyncListClaim() for _ in range(40)))
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


@pytest.mark.usefixtures("timed")
def test_a_handler_is_not_called_for_what_cannot_begin(made: Made) -> None:
    """It is given back, and those behind it are handled; it is none of a worker's limit."""
    for bad, count, limit in (({3}, 6, None), ({2, 3, 5}, 12, 6)):
        queue, called = (
            ClaimRequest(*(Unbeginnable() if at in bad else ListClaim() for at in range(count))),
            list[Any](),
        )
        it = made(queue, called.append, limit=limit)
        it.run(until_empty=True)
        handled = limit or count - len(bad)
        taken = handled + len(bad)
        assert (it.finished, it.failed, len(called), len(queue.claims)) == (handled, 0, handled, count - taken)
        assert ends(queue)[:taken] == [NOT_BEGUN if at in bad else DONE for at in range(taken)]


class SettledLater(ListClaim):
    """A claim whose settlement is put down, and told when the test says so."""

    def settle_later(self, outcome: Any, progress: Any, told: Any) -> None:
        self.put_down = lambda: ListClaim.settle_later(self, outcome, progress, told)


def test_a_worker_has_ended_when_what_its_handlers_did_is_settled() -> None:
    """Who joins it may close the connection then."""
    later = SettledLater()
    queue = ClaimRequest(ListClaim(), later)
    worker = Worker(queue, lambda _task: "done", grace=20)
    wait, waits = worker._deliveries.wait_empty, threading.Event()
    worker._deliveries.wait_empty = lambda seconds: waits.set() or wait(seconds)  # type: ignore[func-returns-value,method-assign]
    worker.start()
    eventually(lambda: hasattr(later, "put_down"))
    worker.stop()
    joining = threading.Thread(target=worker.join)
    joining.start()
    assert waits.wait(20)
    assert (later.outcomes, joining.is_alive()) == ([], True)
    later.put_down()
    joining.join(20)
    assert ends(queue) == [Success("done")] * 2
    assert not worker._deliveries


async def test_the_same_end_on_an_event_loop() -> None:
    """What was put down is waited for, however often the loop goes round."""
    later = type("AsyncSettledLater", (SettledLater, AsyncListClaim), {})()

    async def handle(_task: object) -> str:
        return "done"

    queue = AsyncAsked(AsyncListClaim(), later)
    worker = AsyncWorker(queue, handle, grace=20)  # type: ignore[arg-type]
    working = asyncio.create_task(worker.run())
    async with asyncio.timeout(20):
        while not hasattr(later, "put_down"):  # noqa: ASYNC110  it comes on this loop
            await asyncio.sleep(0)
    worker.stop()
    for _ in range(100):  # nothing but the settlement is waited for
        await asyncio.sleep(0)
    assert not working.done()
    later.put_down()
    await working
    assert ends(queue) == [Success("done")] * 2
    assert not worker._deliveries


async def test_what_waits_for_its_turn_to_claim_asks_for_nothing_after_a_stop() -> None:
    """Whoever claimed for all may have waited for a server for long: the others do not, one after the other."""

    async def handle(_task: object) -> None: ...

    queue, other = requested(1), AsyncAsked(AsyncListClaim())
    blocking = Worker(queue, lambda _task: None, threads=2)  # type: ignore[arg-type]
    on_a_loop = AsyncWorker(other, handle, threads=2)  # type: ignore[arg-type]
    for worker in (blocking, on_a_loop):
        worker._prefetched.handled(0.0)
        worker.stop()
    assert (run_blocking(blocking._claim(idle=False)), await on_a_loop._claim(idle=False)) == (None, None)
    assert queue.sizes == other.sizes == []


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
