"""Both workers over a queue in a list: what they tell while they wait, and how they begin and end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncWorker, ConfigError, Poll, QueueNotFound, Worker
from airflow_provider_zkmq.engine.errors import OutcomeUnknown, SessionLost
from airflow_provider_zkmq.engine.working import absence
from airflow_provider_zkmq.engine.working.handling import Running
from tests.support import eventually
from tests.unit.test_verdicts import AsyncListClaim, AsyncListQueue, ListClaim, ListQueue


async def until(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds; fail when it does not within a generous bound."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  looks again; nothing is assumed to have happened by then
            await asyncio.sleep(0.005)


class Waiting(ListQueue):
    """A queue whose claims wait until they are told to end; `waits` is set when one does."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.waits, self.go_on = threading.Event(), threading.Event()

    def claim(self, **asked: Any) -> ListClaim | None:
        claim = super().claim()
        if claim is None and asked["timeout"] > 0:
            self.waits.set()
            assert self.go_on.wait(20)
        return claim

    def wake(self) -> None:
        self.go_on.set()


class AsyncWaiting(AsyncListQueue):
    """`Waiting`, awaited."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.waits = asyncio.Event()

    async def claim(self, **asked: Any) -> Any:  # type: ignore[override]
        claim = await super().claim()
        if claim is None and asked["timeout"] > 0:
            self.waits.set()
            await asyncio.Event().wait()
        return claim

    async def check_wanted(self, **_choice: object) -> None: ...  # type: ignore[override]

    async def counts(self) -> dict[str, int]:  # type: ignore[override]
        return ListQueue.counts(self)


def test_an_idle_worker_says_that_its_last_look_found_nothing() -> None:
    """While it waits for another task, not only afterwards; the task that it handled before is past."""
    queue = Waiting(ListClaim())
    worker = Worker(queue, lambda _task: None)  # type: ignore[arg-type]
    worker.start()
    assert queue.waits.wait(20)
    assert worker._looks.poll("list", 0) == Poll("list", 0, 1, "nothing")
    worker.stop()
    worker.join()
    assert worker.finished == 1


async def done(_task: object) -> None: ...


async def test_an_idle_worker_on_an_event_loop_says_so_too() -> None:
    """To its monitor, a plain function or a coroutine function; started in the background and joined."""
    polls: list[Poll] = []
    told = asyncio.Event()

    async def look(poll: Poll) -> None:
        polls.append(poll)
        told.set()

    queue = AsyncWaiting(AsyncListClaim())
    for monitor in (look, lambda poll: polls.append(poll) or told.set()):
        worker = AsyncWorker(queue, done, monitor=monitor)  # type: ignore[arg-type]
        assert [await worker.start(), await worker.start()] == [True, False]
        await asyncio.wait_for(told.wait(), 20)
        assert polls[-1].last == "nothing"
        assert [worker.stop(), worker.stop()] == [True, False]
        await worker.join()
        assert worker.stopping
        told.clear()
    assert await AsyncWorker(queue, done, threads=0, monitor=look).start()  # type: ignore[arg-type]


async def test_an_asynchronous_worker_starts_by_itself() -> None:
    """`auto_start`: at once, or after so many seconds; a stop before that keeps it from starting."""
    for auto_start in (True, 0.01):
        worker = AsyncWorker(AsyncWaiting(AsyncListClaim()), done, auto_start=auto_start)  # type: ignore[arg-type]
        await until(lambda worker=worker: worker.finished == 1)  # type: ignore[misc]
        worker.stop()
        await worker.join()
    late = AsyncWorker(AsyncWaiting(AsyncListClaim()), done, auto_start=3600.0)  # type: ignore[arg-type]
    late.stop()
    await late.join()
    assert (late.finished, await late.start()) == (0, False)


async def test_an_asynchronous_worker_without_coroutines_only_monitors() -> None:
    """`threads=0`: it ends when it is stopped, not before."""
    polls: list[Poll] = []
    worker = AsyncWorker(AsyncWaiting(AsyncListClaim()), done, threads=0, monitor=polls.append)  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    await until(lambda: bool(polls))
    assert (polls[0].size, running.done()) == (1, False)
    worker.stop()
    await running


async def test_what_refuses_a_start_is_raised_by_it_or_by_join() -> None:
    """Of a worker that starts by itself, nobody else would hear of it."""

    class Refusing(AsyncWaiting):
        async def check_wanted(self, **_choice: object) -> None:  # type: ignore[override]
            raise ConfigError("no such filter")

        async def claim(self, **_asked: object) -> Any:  # type: ignore[override]
            raise ConfigError("no such filter")

    with pytest.raises(ConfigError):
        await AsyncWorker(Refusing(), done).start()  # type: ignore[arg-type]
    worker = AsyncWorker(Refusing(), done, auto_start=True)  # type: ignore[arg-type]
    for call in (worker.join, worker.run):
        with pytest.raises(ConfigError):
            await call()


def test_a_handler_learns_the_name_of_its_queue() -> None:
    """As Carmine's does."""
    queues: list[str] = []
    claim = ListClaim()
    claim.queue = "census"  # type: ignore[attr-defined]
    Worker(ListQueue(claim), lambda task: queues.append(task.queue)).run(until_empty=True)  # type: ignore[arg-type]
    assert (queues, Running(claim).queue) == (["census"], "census")  # type: ignore[arg-type]


# --- a queue that is not there


class Absent(ListQueue):
    """A queue that is not there before `come` was called."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.there, self.looked = threading.Event(), 0

    def check_wanted(self, **_choice: object) -> None:
        self._look()

    def claim(self, **asked: object) -> ListClaim | None:
        self._look()
        return super().claim(**asked)

    def counts(self) -> dict[str, int]:
        self._look()
        return super().counts()

    def _look(self) -> None:
        if not self.there.is_set():
            self.looked += 1
            raise QueueNotFound.among("lits", "under '/zkmq'", ["list", "other"])

    def exists(self, timeout: float | None, *, stopping: Callable[[], bool]) -> bool:
        assert timeout is None
        self.there.wait(20)
        return not stopping()


class AsyncAbsent(AsyncListQueue):
    """`Absent`, awaited."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.there = asyncio.Event()

    async def check_wanted(self, **_choice: object) -> None:  # type: ignore[override]
        self._look()

    async def claim(self, **asked: object) -> Any:  # type: ignore[override]
        self._look()
        return await super().claim(**asked)

    def _look(self) -> None:
        if not self.there.is_set():
            raise QueueNotFound.among("lits", "under '/zkmq'", ["list", "other"])

    async def exists(self, timeout: float | None) -> bool:
        assert timeout is None
        return await self.there.wait()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was warned of; a logger of the test's own, as another test's command may have silenced the engine's."""
    monkeypatch.setattr(absence, "log", logging.getLogger("absence"))
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_worker_says_once_that_its_queue_is_not_there_and_waits(warnings: Callable[[], list[str]]) -> None:
    """All of its threads and its monitor wait; it looks no more until the queue has come, and then works."""
    queue, told = Absent(*(ListClaim() for _ in range(5))), threading.Event()
    worker = Worker(queue, lambda _task: None, threads=3, monitor=lambda _poll: told.set())  # type: ignore[arg-type]
    assert worker.start()
    eventually(lambda: queue.looked == 1 + 3 + 1)  # its start, its threads and its monitor
    (warning,) = warnings()
    assert "queue 'lits' does not exist under '/zkmq' (did you mean 'list'?)" in warning
    queue.there.set()
    assert told.wait(20)
    eventually(lambda: worker.finished == 5)
    assert queue.looked == 5
    worker.stop()
    worker.join()
    assert len(warnings()) == 1


async def test_an_asynchronous_worker_waits_for_its_queue_too(warnings: Callable[[], list[str]]) -> None:
    """And one that is stopped meanwhile ends."""
    queue = AsyncAbsent(AsyncListClaim(), AsyncListClaim())
    worker, stopped = (AsyncWorker(queue, done, threads=2) for _ in range(2))  # type: ignore[arg-type]
    assert await worker.start()
    assert await stopped.start()
    await asyncio.sleep(0)
    stopped.stop()
    await stopped.join()
    queue.there.set()
    await until(lambda: worker.finished == 2)
    worker.stop()
    await worker.join()
    assert len(warnings()) == 2


async def test_a_worker_that_is_to_empty_a_missing_queue_is_refused(warnings: Callable[[], list[str]]) -> None:
    """Nothing is waited for, and nothing is warned of: it is an error."""
    with pytest.raises(QueueNotFound, match="did you mean 'list'"):
        Worker(Absent(), lambda _task: None).run(until_empty=True)  # type: ignore[arg-type]
    with pytest.raises(QueueNotFound, match="did you mean 'list'"):
        await AsyncWorker(AsyncAbsent(), done).run(until_empty=True)  # type: ignore[arg-type]
    assert warnings() == []


class Closed(ListQueue):
    """A queue whose connection is closed while a claim writes."""

    def claim(self, **_asked: object) -> ListClaim | None:
        self.closed = True
        raise OutcomeUnknown("a write was sent")


class AsyncClosed(AsyncListQueue):
    """`Closed`, awaited."""

    async def claim(self, **_asked: object) -> Any:
        self.closed = True
        raise OutcomeUnknown("a write was sent")

    async def check_wanted(self, **_choice: object) -> None: ...  # type: ignore[override]


def test_a_worker_that_was_writing_when_its_connection_was_closed_ends_by_that() -> None:
    """It is told of the end of the session, whatever its claim was doing; what that met is the cause."""
    with pytest.raises(SessionLost) as told:
        Worker(Closed(), lambda _task: None).run()  # type: ignore[arg-type]
    assert isinstance(told.value.__cause__, OutcomeUnknown)


async def test_an_asynchronous_worker_that_was_writing_then_does_so_too() -> None:
    """The same on an event loop."""
    with pytest.raises(SessionLost) as told:
        await AsyncWorker(AsyncClosed(), done).run()  # type: ignore[arg-type]
    assert isinstance(told.value.__cause__, OutcomeUnknown)
