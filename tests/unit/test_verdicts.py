"""What a worker has in hand: who decides on its end, heartbeats, one verdict of whatever a try at settling raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncWorker, ConfigError, Error, Retry, Snooze, Success, Worker
from airflow_provider_zkmq.engine.core.model.handler_outcomes import Follows
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.coroutine_runners import run_blocking
from airflow_provider_zkmq.engine.errors import ClaimLost, OutcomeUnknown, SessionLost, Unavailable
from airflow_provider_zkmq.engine.working import held_deliveries, worker_base
from airflow_provider_zkmq.engine.working.async_worker import AwaitedCalls, LoopSettler
from airflow_provider_zkmq.engine.working.held_deliveries import NOT_BEGUN, OUTLASTED, Deliveries, Delivery
from airflow_provider_zkmq.engine.working.worker import ThreadSettler
from airflow_provider_zkmq.engine.working.worker_base import BlockingCalls, DeliveryResult, Tally
from tests.unit.test_cli import a_task


@dataclass
class ListClaim:
    """A claim of a queue in a list; `refusals` are raised by its first tries at settling."""

    task: Any = field(default_factory=a_task)
    refusals: list[Exception] = field(default_factory=list)
    token: int = 1
    queue: str = "list"
    settled: bool = False
    cancelled: bool = False
    span: float | None = None
    over: bool = False
    prefetched: bool = False
    mark_begun = mark_ended = staticmethod(lambda: None)
    outcomes: list[Any] = field(default_factory=list)

    def settle(self, outcome: Any, _progress: Any) -> bool:
        if self.refusals:
            raise self.refusals.pop(0)
        self.outcomes.append(outcome)
        return isinstance(outcome, Success)

    def extend(self, _lease: object) -> None: ...

    def progress(self, _progress: float, _note: str = "") -> None: ...

    def begin(self) -> Any:
        self.prefetched = False

    def settle_later(self, outcome: Any, progress: Any, told: Any) -> None:
        while True:
            try:
                told(ListClaim.settle(self, outcome, progress), None)
            except (Unavailable, OutcomeUnknown):
                continue  # tried again, by whoever it was put down with
            except Exception as error:  # noqa: BLE001  told, like any other
                told(False, error)
            return

    def transaction(self) -> Any:
        raise ConfigError("a list has no transactions")


class ListQueue:
    """A queue in a list, with what `Worker` needs and nothing else."""

    name, closed, changes, consumer = "list", False, 0, "me"

    def __init__(self, *claims: ListClaim) -> None:
        self.claims = list(claims)

    def __internals__(self) -> Any:
        return self

    def check_wanted(self, **_choice: object) -> None: ...

    def claim(self, **_asked: object) -> ListClaim | None:
        return self.claims.pop(0) if self.claims else None

    def claim_many(self, n: int, *, prefetch: bool = False, **requested: Any) -> list[ListClaim]:
        return self._with_more(self.claim(**requested), n, prefetch=prefetch)

    def _with_more(self, first: ListClaim | None, n: int, *, prefetch: bool) -> list[ListClaim]:
        more, self.claims = self.claims[: n - 1], self.claims[n - 1 :]
        for claim in more:
            claim.prefetched = prefetch
        return [] if first is None else [first, *more]

    def pending(self) -> int:
        return len(self.claims)

    def run_maintenance(self) -> None: ...

    def wait_for_change(self, _seen: int, _timeout: float) -> bool:
        return False

    def wake(self) -> None: ...


class AsyncListClaim(ListClaim):
    async def settle(self, outcome: Any, progress: Any) -> bool:  # type: ignore[override]
        return ListClaim.settle(self, outcome, progress)

    async def begin(self) -> None:
        ListClaim.begin(self)


class AsyncListQueue(ListQueue):
    async def claim(self, **requested: object) -> Any:  # type: ignore[override]
        return ListQueue.claim(self, **requested)

    async def claim_many(self, n: int, *, prefetch: bool = False, **requested: Any) -> Any:  # type: ignore[override]
        return self._with_more(await self.claim(**requested), n, prefetch=prefetch)


def run_threads(*claims: ListClaim) -> Worker:
    worker = Worker(ListQueue(*claims), lambda _task: "done")  # type: ignore[arg-type]
    worker.run(until_empty=True)
    return worker


def run_loop(*claims: ListClaim) -> AsyncWorker:
    async def handler(_task: object) -> str:
        return "done"

    async def work() -> AsyncWorker:
        queue = AsyncListQueue(*(AsyncListClaim(**vars(claim)) for claim in claims))
        worker = AsyncWorker(queue, handler)  # type: ignore[arg-type]
        await worker.run(until_empty=True)
        await worker._settler.background.wait(20)
        return worker

    return asyncio.run(work())


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger of the test's own: another test's command may have silenced the engine's."""
    for module in (held_deliveries, worker_base):
        monkeypatch.setattr(module, "log", logging.getLogger("verdicts"))


@pytest.mark.parametrize("run", [run_threads, run_loop])
@pytest.mark.parametrize(
    ("refusals", "finished"),
    [
        ([], 1),
        ([Unavailable("away"), OutcomeUnknown("no reply"), SessionLost("a hiccup")], 1),
        ([ClaimLost("taken away")], 0),
        ([RuntimeError("not now")], 1),
    ],
    ids=["at once", "again", "lost", "later"],
)
def test_both_workers_settle_by_the_same_rules(
    run: Callable[..., Any], refusals: list[Exception], finished: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a queue that is neither ZooKeeper's nor a file's: what can be settled is, once."""
    for module in ("worker", "async_worker", "worker_base"):
        for name in ("RETRY_SECONDS", "LEFT_SECONDS"):
            monkeypatch.setattr(f"airflow_provider_zkmq.engine.working.{module}.{name}", 0.01, raising=False)
    claim = ListClaim(refusals=list(refusals))
    worker = run(claim)
    assert (worker.finished, worker.failed, claim.refusals) == (finished, 0, [])
    assert claim.outcomes == [Success("done")] * finished


def test_each_error_is_one_verdict_and_one_report(
    log: None, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    """A session that is merely cut off still has its claims; what is in the way for good is told in full, once.

    So is a claim that others have ended; after an outage, in which we may have done so ourselves, by the error's words.
    """
    for error, over, verdict, level in (
        (ClaimLost("gone"), False, DeliveryResult.LOST, "WARNING"),
        (SessionLost("ended"), True, DeliveryResult.LOST, "WARNING"),
        (SessionLost("cut off"), False, DeliveryResult.AGAIN, "WARNING"),
        (Unavailable("away"), True, DeliveryResult.AGAIN, "WARNING"),
        (OutcomeUnknown("no reply"), False, DeliveryResult.AGAIN, "WARNING"),
        (ConfigError("no"), False, DeliveryResult.LATER, "ERROR"),
        (SystemExit(3), False, DeliveryResult.LATER, "ERROR"),
    ):
        with subtests.test(error=repr(error), over=over):
            delivery: Delivery = Delivery(ListClaim(over=over), None)
            caplog.clear()
            tally = Tally()
            assert [tally.judge(delivery, error) for _ in range(2)] == [verdict, verdict]
            lost = isinstance(error, ClaimLost)
            assert [record.levelname for record in caplog.records] == ([level] if lost else [level, "WARNING"])
            assert bool(caplog.records[0].exc_info) is (verdict is DeliveryResult.LATER)
    delivery = Delivery(ListClaim(), None)
    Tally().judge(delivery, OutcomeUnknown("no reply"))
    Tally().judge(delivery, ClaimLost("gone"))
    assert caplog.records[-1].getMessage() == "queue 'list', task 't-1': gone"


def test_only_what_a_handler_was_called_for_counts(log: None, caplog: pytest.LogCaptureFixture) -> None:
    """As finished or failed; a failure is told in one line with its attempt, the reason and what follows.

    The record names queue, task and attempt; it has the traceback where the level is DEBUG.
    """
    told = {
        Follows(State.INSERTED, 5, 8.04): ("WARNING", "attempt 2 of 5 failed, again in 8 s: OSError: x"),
        Follows(State.INSERTED, None, 0.0): ("WARNING", "attempt 2 failed, again at once: OSError: x"),
        Follows(State.INSERTED, 5, 5400.0): ("WARNING", "attempt 2 of 5 failed, again in 1h30m: OSError: x"),
        Follows(State.INSERTED): ("WARNING", "attempt 2 failed, to be tried again: OSError: x"),
        Follows(State.DEAD, 2, 0.0): ("ERROR", "dead: attempt 2 of 2 failed: OSError: x"),
    }
    for level, (follows, (name, words)) in product((logging.INFO, logging.DEBUG), told.items()):
        caplog.set_level(level, "verdicts")
        failed: Delivery = Delivery(ListClaim(), None, began=0.0)
        failed.progress.outcome, failed.progress.follows = Retry(OSError("x")), follows
        Tally().settled(failed, success=False)
        record = caplog.records[-1]
        assert (record.levelname, record.getMessage()) == (name, f"queue 'list', task 't-1': {words}")
        assert [getattr(record, each) for each in ("queue", "task", "attempt")] == ["list", "t-1", 2]
        assert bool(record.exc_info) is (level == logging.DEBUG)
    caplog.set_level(logging.INFO, "verdicts")
    for begun, outcome in product((True, False), (Success(), Error("no"), Retry("no"), Snooze(3))):
        caplog.clear()
        delivery: Delivery = Delivery(ListClaim(), None, began=0.0 if begun else None)
        tally, success = Tally(), isinstance(outcome, Success)
        assert tally.settled(delivery, success=success) is DeliveryResult.SETTLED
        assert (tally.finished, tally.failed) == (begun * success, begun * (not success))
        assert len(caplog.records) == (begun and not success)


def test_the_owner_hears_of_what_was_handled_and_ends_nothing(log: None, caplog: pytest.LogCaptureFixture) -> None:
    """Each outcome, None for a lost claim, nothing of what no handler was called for; what he raises is logged."""
    heard: list[Any] = []

    def told(_task: Any, outcome: Any) -> None:
        heard.append(outcome)
        raise RuntimeError("the owner's own trouble")

    tally = Tally(told)
    for begun in (True, False):
        delivery: Delivery = Delivery(ListClaim(), None, began=0.0 if begun else None)
        delivery.progress.outcome = Snooze(3)
        tally.settled(delivery, success=False)
        tally.judge(delivery, ClaimLost("gone"))
    assert heard == [Snooze(3), None]
    assert (tally.finished, tally.failed) == (0, 1)
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 2


async def test_an_interrupt_ends_a_try_at_settling_on_a_loop() -> None:
    """It is meant for the program, which hears of it; the claim is untouched, and another try settles it."""
    table, claim = Deliveries(), AsyncListClaim(refusals=[KeyboardInterrupt()])  # type: ignore[list-item]
    settler, delivery = LoopSettler(table, Tally(), AwaitedCalls()), table.add(claim, None)
    with pytest.raises(KeyboardInterrupt):
        await settler.settle(delivery)
    assert (table.held(), claim.outcomes) == ([], [])
    assert await settler.attempt(delivery) is DeliveryResult.SETTLED


def test_an_interrupt_in_a_worker_s_thread_is_trouble_like_any_other() -> None:
    """The thread goes on, and the delivery is settled by the next try."""
    table, claim = Deliveries(), ListClaim(refusals=[KeyboardInterrupt()])  # type: ignore[list-item]
    settler, delivery = ThreadSettler(table, Tally(), BlockingCalls()), table.add(claim, None)
    run_blocking(settler.settle(delivery))
    assert (table.held(), claim.outcomes) == ([], [])
    run_blocking(settler.settle_left())
    assert (table.take_left(), claim.outcomes) == ([], [NOT_BEGUN])


# --- the table of what is in hand


def test_who_decides_first_settles() -> None:
    """Of the handler's thread and of who ends the worker, one is told that it may settle.

    Given up before its handler was called it is to be released, and its handler is never called.
    """
    table = Deliveries()
    for mine_first in (True, False):
        it = table.add(ListClaim(), None)
        assert table.begin(it)
        calls = [lambda it=it: table.decide(it, Success()), lambda it=it: table.give_up(it)]
        assert [call() for call in (calls if mine_first else calls[::-1])] == [True, False]
        assert it.outcome == (Success() if mine_first else OUTLASTED)
    it = table.add(ListClaim(), None)
    assert (table.give_up(it), it.outcome, table.begin(it)) == (True, NOT_BEGUN, False)


def test_a_heartbeat_that_failed_is_tried_again_soon() -> None:
    """Long before the next one of its span would be due, and a claim that is over is not extended at all."""
    table = Deliveries()
    long, ended = table.add(ListClaim(), 600), table.add(ListClaim(settled=True), 0.001)
    assert table.seconds_until_extension(1000) > 100
    table.beaten(long, good=False)
    assert table.seconds_until_extension(1000) <= 0.5
    table.beaten(long, good=True)
    table.beaten(ended, good=False)
    assert (table.due(), table.seconds_until_extension(1000) > 100) == ([], True)
    table.drop(long)
    assert table.seconds_until_extension(1000) == 1000
