"""Both workers over a queue in a list: what they tell while they wait, and how they begin and end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncWorker, ConfigError, Poll, QueueNotFound, Worker, monitor
from airflow_provider_zkmq.engine.errors import OutcomeUnknown, SessionLost
from airflow_provider_zkmq.engine.working import worker_base
from airflow_provider_zkmq.engine.working.worker_base import Running
from tests.integration.fronts import KINDS
from tests.support import eventually
from tests.unit.listed import Made, workers
from tests.unit.test_verdicts import ListClaim, ListQueue

Warned = Callable[[], list[str]]


class Waiting(ListQueue):
    """A queue whose claims wait until they are told to end; `waits` is set when one does."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.waits, self.go_on = threading.Event(), threading.Event()

    def claim(self, **requested: Any) -> ListClaim | None:
        claim = super().claim()
        if claim is None and requested["timeout"] > 0:
            self.waits.set()
            assert self.go_on.wait(20)
        return claim

    def wake(self) -> None:
        self.go_on.set()


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Makes workers of either front, whose monitors look often."""
    monkeypatch.setattr(worker_base, "MAINTENANCE_SECONDS", 0.01)
    with workers(request.param) as make:
        yield make


@pytest.fixture
def queue() -> Iterator[Waiting]:
    queue = Waiting(ListClaim())
    yield queue
    queue.wake()


def done(_task: object) -> None: ...


def test_an_idle_worker_says_that_its_last_look_found_nothing(made: Made, queue: Waiting) -> None:
    """While it waits for another task, not only afterwards; the task that it handled before is past."""
    polls: list[Poll] = []
    it = made(queue, done, monitor=polls.append)
    it.start()
    assert queue.waits.wait(20)
    eventually(lambda: bool(polls) and polls[-1] == Poll("list", 0, 1, "nothing"))
    it.stop()
    queue.wake()
    it.join()
    assert (it.finished, it.stopping) == (1, True)


def test_start_and_stop_say_whether_they_did_something(made: Made, queue: Waiting) -> None:
    """Each is True once; a worker that was stopped cannot be started again."""
    it = made(queue, done)
    assert [it.start(), it.start()] == [True, False]
    assert [it.stop(), it.stop()] == [True, False]
    queue.wake()
    it.join()
    assert it.start() is False


def test_a_worker_can_start_by_itself(made: Made) -> None:
    """`auto_start`: at once, or after so many seconds; a stop before that keeps it from starting."""
    for auto_start in (True, 0.01):
        queue = Waiting(ListClaim())
        it = made(queue, done, auto_start=auto_start)
        eventually(lambda it=it: it.finished == 1)  # type: ignore[misc]
        it.stop()
        queue.wake()
        it.join()
    late = made(queue, done, auto_start=3600.0)
    late.stop()
    late.join()
    assert (late.finished, late.start()) == (0, False)


def test_a_monitor_is_told_how_the_queue_stands(made: Made, queue: Waiting) -> None:
    """It hears how many tasks are pending; 0 threads will do, and such a worker ends when it is stopped, not before."""
    polls: list[Poll] = []
    it = made(queue, done, threads=0, monitor=polls.append)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(it.run)
        eventually(lambda: bool(polls))
        assert ((polls[0].queue, polls[0].size), running.done()) == (("list", 1), False)
        it.stop()
        running.result(20)


async def test_a_monitor_may_be_a_coroutine_function(queue: Waiting) -> None:
    """Of a worker on an event loop."""
    told = threading.Event()

    async def look(_poll: Poll) -> None:
        told.set()

    with workers("asynchronous") as make:
        it = make(queue, done, threads=0, monitor=look)
        it.start()
        assert told.wait(20)
        it.stop()
        it.join()


def test_the_ready_made_monitor_warns_once_a_period() -> None:
    """Above its size it warns, and then not before the period has passed; Carmine's 1000 and 6 hours by default."""
    warned: list[str] = []
    time = [0.0]
    look = monitor(max_size=10, period=60, warn=warned.append, clock=lambda: time[0])
    for now, size in ((0, 10), (1, 11), (30, 12), (60.9, 13), (61, 14)):
        time[0] = now
        look(Poll("q", size, 0, "handled"))
    assert [text.split()[3] for text in warned] == ["11", "14"]
    with pytest.raises(ConfigError):
        monitor(max_size=-1)
    warned.clear()
    default = monitor(warn=warned.append)
    for size, warnings in ((1000, 0), (1001, 1)):
        default(Poll("q", size, 0, "nothing"))
        assert len(warned) == warnings


def test_throttle_keeps_a_pause_between_two_tasks(made: Made) -> None:
    """A throttled thread that was stopped in its pause has handled one of two tasks."""
    queue = ListQueue(ListClaim(), ListClaim())
    it = made(queue, done, throttle=3600)
    it.start()
    eventually(lambda: it.finished == 1)
    it.stop()
    it.join()
    assert (it.finished, len(queue.claims)) == (1, 1)


class Refusing(ListQueue):
    def check_wanted(self, **_choice: object) -> None:
        raise ConfigError("no such filter")

    def claim(self, **_asked: object) -> ListClaim | None:
        raise ConfigError("no such filter")


def test_what_refuses_a_start_is_raised_by_it_or_by_join(made: Made) -> None:
    """Of a worker that starts by itself, nobody else would hear of it. A wrong limit is refused as it is made."""
    with pytest.raises(ConfigError, match="no such filter"):
        made(Refusing(), done).start()
    if made is not Worker:
        it = made(Refusing(), done, auto_start=True)
        for call in (it.join, it.run):
            with pytest.raises(ConfigError, match="no such filter"):
                call()
    for limit in (0, -1, 1.5, True, "3"):
        with pytest.raises(ConfigError, match="limit"):
            made(ListQueue(), done, limit=limit)
    with pytest.raises(ConfigError, match="coroutine"):
        AsyncWorker(ListQueue(), done)  # type: ignore[arg-type]


class Failing(ListQueue):
    """A queue one of whose claims, and each after the last task, raises something."""

    def __init__(self, error: Exception, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.error, self.raised = error, 0

    def claim(self, **requested: object) -> ListClaim | None:
        if not self.raised or not self.claims:
            self.raised += 1
            raise self.error
        return super().claim(**requested)


def test_an_unexpected_exception_ends_no_worker(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged and the worker goes on; what its caller must mend ends it, and is raised by `join`."""
    monkeypatch.setattr(worker_base, "RETRY_SECONDS", 0.01)
    queue = Failing(RuntimeError("dictionary changed size during iteration"), ListClaim(), ListClaim())
    it = made(queue, done)
    it.start()
    eventually(lambda: it.finished == 2 and queue.raised > 1)
    it.stop()
    it.join()
    queue = Failing(ConfigError("no such filter"), ListClaim())
    queue.raised = 1
    it = made(queue, done, threads=3)
    with pytest.raises(ConfigError, match="no such filter"):
        it.run()
    assert queue.claims == []


def test_a_handler_learns_the_name_of_its_queue() -> None:
    """As Carmine's does."""
    queues: list[str] = []
    claim = ListClaim()
    claim.queue = "census"  # type: ignore[attr-defined]
    Worker(ListQueue(claim), lambda task: queues.append(task.queue)).run(until_empty=True)  # type: ignore[arg-type]
    assert (queues, Running(claim).queue) == (["census"], "census")  # type: ignore[arg-type]


# --- a queue that is not there


class Absent(ListQueue):
    """A queue that is not there before `there` is set."""

    def __init__(self, *claims: ListClaim) -> None:
        super().__init__(*claims)
        self.there, self.looked = threading.Event(), 0

    def check_wanted(self, **_choice: object) -> None:
        self._look()

    def claim(self, **requested: object) -> ListClaim | None:
        self._look()
        return super().claim(**requested)

    def pending(self) -> int:
        self._look()
        return super().pending()

    def _look(self) -> None:
        if not self.there.is_set():
            self.looked += 1
            raise QueueNotFound.among("lits", "under '/zkmq'", ["list", "other"])

    def exists(self, timeout: float | None, *, stopping: Callable[[], bool] = lambda: False) -> bool:
        assert timeout is None
        self.there.wait(20)
        return not stopping()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Warned:
    """What was warned of; a logger of the test's own, as another test's command may have silenced the engine's."""
    monkeypatch.setattr(worker_base, "log", logging.getLogger("absence"))
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_worker_says_once_that_its_queue_is_not_there_and_waits(
    made: Made, warnings: Callable[[], list[str]]
) -> None:
    """All of its threads and its monitor; it looks no more until the queue has come. One that is stopped ends."""
    queue, none, told = Absent(*(ListClaim() for _ in range(5))), Absent(), threading.Event()
    it, stopped = made(queue, done, threads=3, monitor=lambda _poll: told.set()), made(none, done, threads=2)
    assert it.start()
    eventually(lambda: queue.looked == 1 + 3 + 1)  # its start, its threads and its monitor
    (warning,) = warnings()
    assert "queue 'lits' does not exist under '/zkmq' (did you mean 'list'?)" in warning
    assert stopped.start()
    stopped.stop()
    none.there.set()
    stopped.join()
    queue.there.set()
    assert told.wait(20)
    eventually(lambda: it.finished == 5)
    it.stop()
    it.join()
    assert len(warnings()) <= 2


def test_a_worker_that_is_to_empty_a_missing_queue_is_refused(made: Made, warnings: Warned) -> None:
    """Nothing is waited for, and nothing is warned of: it is an error."""
    with pytest.raises(QueueNotFound, match="did you mean 'list'"):
        made(Absent(), done).run(until_empty=True)
    assert warnings() == []


class Closed(ListQueue):
    """A queue whose connection is closed while a claim writes."""

    def claim(self, **_asked: object) -> ListClaim | None:
        self.closed = True
        raise OutcomeUnknown("a write was sent")


def test_a_worker_that_was_writing_when_its_connection_was_closed_ends_by_that(made: Made) -> None:
    """It is told of the end of the session, whatever its claim was doing; what that met is the cause."""
    with pytest.raises(SessionLost) as told:
        made(Closed(), done).run()
    assert isinstance(told.value.__cause__, OutcomeUnknown)


def test_a_queue_that_is_missing_is_told_of_once_until_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    """For all threads, but for one whose answer is older than the queue; and once more where it has gone again."""
    missing, counts = worker_base.Absence("later"), []
    before = missing.ended
    for requested in (before, before, None, before, missing.ended + 1):
        if requested is None:
            missing.end()
        else:
            missing.warn_absent(QueueNotFound("not there"), requested)
        counts.append((sum(record.levelname == "WARNING" for record in caplog.records), missing.noticed))
    assert counts == [(1, True), (1, True), (1, False), (1, False), (2, True)]
