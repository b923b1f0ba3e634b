"""Carmine's message statuses and the moves between them, each through the Python API and through the command line."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from airflow_provider_zkmq.cli import main as command_line
from airflow_provider_zkmq.cli.output import task_record
from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    Claim,
    DuplicateTask,
    Queue,
    RetryPolicy,
    TaskNotFound,
    Zkmq,
    ZkmqError,
)
from tests.support import eventually

NOBODY = "performance_class==low"
"""What no task of these tests is."""

DAY = 86_400
LONG = 60.0


class Refused(Exception):
    """An operation that was refused: the error's name, and the status it tells."""

    def __init__(self, error: str, status: str | None = None) -> None:
        super().__init__(error, status)
        self.error = error
        self.status = status


@dataclass(frozen=True)
class Run:
    """A delivery: what settles it, and what was delivered."""

    handle: Any
    task_id: str
    attempt: int
    data: str


class Driver(Protocol):
    """What an application does with a queue."""

    @property
    def other(self) -> Driver:
        """The same queue in another ZooKeeper session."""

    def enqueue(self, data: str, task_id: str = "m", **options: Any) -> None: ...

    def claim(self, *, timeout: float = 0, hold: float | None = None, selector: str | None = None) -> Run | None:
        """`hold`: seconds after which the claim lapses, if it is not extended."""

    def complete(self, run: Run, *, dedupe: float | None = None) -> None: ...
    def fail(self, run: Run, *, retry: bool = True, backoff: float | None = None) -> None: ...
    def release(self, run: Run) -> None: ...
    def snooze(self, run: Run, delay: float) -> None: ...
    def extend(self, run: Run, hold: float) -> None: ...
    def progress(self, run: Run, value: float) -> None: ...
    def cancel(self) -> None: ...
    def redrive(self) -> None: ...
    def collect(self, lifetime: float) -> None: ...

    def record(self, task_id: str = "m") -> dict[str, Any]:
        """The task in the words of ``zkmq show --json``."""


class ByApi:
    """The Python API; a claim ends with its session, or with the queue's lock."""

    def __init__(self, q: Queue, other: Queue) -> None:
        self._q = q
        self._other = other

    @property
    def other(self) -> ByApi:
        return ByApi(self._other, self._q)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except ZkmqError as error:
            status = error.status if isinstance(error, DuplicateTask) else None
            raise Refused(type(error).__name__, status) from error

    def enqueue(self, data: str, task_id: str = "m", **options: Any) -> None:
        attempts = options.pop("attempts", None)
        policy = None if attempts is None else RetryPolicy(attempts=attempts)
        with self._refusals():
            assert self._q.enqueue(data, task_id=task_id, policy=policy, **options) == task_id

    def claim(self, *, timeout: float = 0, hold: float | None = None, selector: str | None = None) -> Run | None:
        self._q.configure(lock=hold or 0)
        claim = self._q.claim(timeout=timeout, selector=selector)
        return None if claim is None else Run(claim, claim.task.id, claim.task.attempt, claim.task.data.decode())

    def _settle(self, run: Run, act: Callable[[Claim], object]) -> None:
        with self._refusals():
            act(run.handle)

    def complete(self, run: Run, *, dedupe: float | None = None) -> None:
        self._settle(run, lambda claim: claim.complete(dedupe=dedupe))

    def fail(self, run: Run, *, retry: bool = True, backoff: float | None = None) -> None:
        self._settle(run, lambda claim: claim.fail("broken", retry=retry, backoff=backoff))

    def release(self, run: Run) -> None:
        self._settle(run, lambda claim: claim.release())

    def snooze(self, run: Run, delay: float) -> None:
        self._settle(run, lambda claim: claim.snooze(delay))

    def extend(self, run: Run, hold: float) -> None:
        self._settle(run, lambda claim: claim.extend(hold))

    def progress(self, run: Run, value: float) -> None:
        self._settle(run, lambda claim: claim.progress(value))

    def cancel(self) -> None:
        with self._refusals():
            self._q.cancel("m")

    def redrive(self) -> None:
        with self._refusals():
            self._q.redrive("m")

    def collect(self, lifetime: float) -> None:
        self._q.collect_garbage(lifetime)

    def record(self, task_id: str = "m") -> dict[str, Any]:
        with self._refusals():
            return task_record(self._q.task(task_id))


class ByCli:
    """The command line, each command in a session of its own; a claim has a lease."""

    def __init__(self, hosts: str, root: str, queue: str) -> None:
        self._common = ["--hosts", hosts, "--root", root, "--json"]
        self._queue = queue

    @property
    def other(self) -> ByCli:
        return self

    def _ask(self, verb: str, *argv: object) -> dict[str, Any] | None:
        """The answer of a command; None if there was nothing to claim."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command_line.main([*self._common, verb, self._queue, *map(str, argv)])
        assert code in {0, 1, 3}, err.getvalue()
        answer: dict[str, Any] = json.loads(out.getvalue())
        if code == 1:
            raise Refused(answer.get("error", ""), answer.get("status"))
        return None if code == 3 else answer

    def _settle(self, verb: str, run: Run, *argv: object) -> None:
        assert self._ask(verb, run.task_id, "--token", run.handle, *argv) is not None

    def enqueue(self, data: str, task_id: str = "m", **options: Any) -> None:
        given = [part for name, value in options.items() for part in _option(name, value)]
        answer = self._ask("enqueue", data, "--task-id", task_id, *given)
        assert answer is not None
        assert answer["id"] == task_id

    def claim(self, *, timeout: float = 0, hold: float | None = None, selector: str | None = None) -> Run | None:
        answer = self._ask(
            "claim", "--timeout", timeout, *_option("lease", hold or LONG), *_option("selector", selector)
        )
        return None if answer is None else Run(answer["token"], answer["id"], answer["attempt"], answer["data"])

    def complete(self, run: Run, *, dedupe: float | None = None) -> None:
        self._settle("complete", run, *_option("dedupe", dedupe))

    def fail(self, run: Run, *, retry: bool = True, backoff: float | None = None) -> None:
        self._settle("fail", run, "--error", "broken", *_option("no-retry", not retry), *_option("backoff", backoff))

    def release(self, run: Run) -> None:
        self._settle("release", run)

    def snooze(self, run: Run, delay: float) -> None:
        self._settle("snooze", run, "--delay", delay)

    def extend(self, run: Run, hold: float) -> None:
        self._settle("extend", run, "--lease", hold)

    def progress(self, run: Run, value: float) -> None:
        self._settle("progress", run, value)

    def cancel(self) -> None:
        self._ask("cancel", "m")

    def redrive(self) -> None:
        self._ask("redrive", "m")

    def collect(self, lifetime: float) -> None:
        self._ask("gc", "--lifetime", lifetime)

    def record(self, task_id: str = "m") -> dict[str, Any]:
        answer = self._ask("show", task_id)
        assert answer is not None
        return answer


def _option(name: str, value: object) -> list[str]:
    if value is None or value is False:
        return []
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]


@pytest.fixture
def second(zookeeper: str, root: str) -> Iterator[Queue]:
    """The queue in another session."""
    with Zkmq.connect(zookeeper, root=root, session_timeout=4, gc=False) as client:
        yield client.queue("census")


@pytest.fixture(params=["api", "cli"])
def mq(request: pytest.FixtureRequest, zookeeper: str, root: str, q: Queue, monkeypatch: pytest.MonkeyPatch) -> Driver:
    if request.param == "api":
        return ByApi(q, request.getfixturevalue("second"))
    monkeypatch.delenv("ZKMQ_AUTH", raising=False)
    monkeypatch.setattr(logging.getLogger("airflow_provider_zkmq.kazoo"), "propagate", False)  # as `main` leaves it
    return ByCli(zookeeper, root, q.name)


def status(mq: Driver, task_id: str = "m") -> str:
    """The task's status; ``nil`` for none."""
    try:
        return str(mq.record(task_id)["status"])
    except Refused as why:
        if why.error != TaskNotFound.__name__:
            raise
        return "nil"


def take(mq: Driver, *, hold: float | None = None, timeout: float = 20) -> Run:
    """The next task, which must come."""
    run = mq.claim(timeout=timeout, hold=hold)
    assert run is not None
    return run


def tend(mq: Driver) -> None:
    """Have a consumer look after the queue and take nothing."""
    assert mq.claim(selector=NOBODY) is None


def becomes(mq: Driver, wanted: str, task_id: str = "m") -> None:
    """Return when a task has the status, a consumer looking after the queue meanwhile."""

    def reached() -> bool:
        tend(mq)
        return status(mq, task_id) == wanted

    eventually(reached)


def refused(error: str, status: str | None = None) -> AbstractContextManager[Any]:
    """A block that is refused: with 1 on the command line, and a duplicate with the task's status."""
    return pytest.raises(Refused, match=rf"^\('{error}', {status!r}\)$")


def in_use(status: str) -> AbstractContextManager[Any]:
    return refused("DuplicateTask", status)


# --- queued


def test_nil_to_queued_to_locked_to_done(mq: Driver) -> None:
    """nil → queued → locked, with attempt 1 → done-awaiting-gc → nil once it is collected."""
    assert status(mq) == "nil"
    mq.enqueue("x")
    assert (status(mq), mq.record()["attempt"]) == ("queued", 0)
    run = take(mq)
    assert (run.task_id, run.data, run.attempt) == ("m", "x", 1)
    assert (status(mq), mq.record()["attempt"]) == ("locked", 1)
    mq.complete(run)
    assert status(mq) == "done-awaiting-gc"
    mq.collect(0)
    assert status(mq) == "nil"


def test_an_initial_delay_is_a_backoff(mq: Driver) -> None:
    """nil → queued-with-backoff, handed out to nobody; its end makes it queued, and it is handed out."""
    mq.enqueue("later", delay=LONG)
    mq.enqueue("soon", "n", delay=0.5)
    assert (status(mq), status(mq, "n")) == ("queued-with-backoff", "queued-with-backoff")
    becomes(mq, "queued", "n")
    assert take(mq).task_id == "n"
    assert mq.claim() is None
    assert status(mq) == "queued-with-backoff"


def test_a_retry_with_backoff_waits(mq: Driver) -> None:
    """locked → queued-with-backoff, the error kept; after the backoff it is handed out with attempt + 1."""
    mq.enqueue("x")
    mq.fail(take(mq), backoff=LONG)
    assert (status(mq), mq.record()["error"], mq.record()["attempt"]) == ("queued-with-backoff", "broken", 1)
    assert mq.claim() is None
    mq.enqueue("y", "n")
    mq.fail(take(mq), backoff=0.5)
    again = take(mq)
    assert (again.task_id, again.attempt) == ("n", 2)


def test_a_retry_without_backoff_is_queued_at_once(mq: Driver) -> None:
    """locked → queued, with attempt + 1 at the next delivery."""
    mq.enqueue("x")
    mq.fail(take(mq), backoff=0)
    assert status(mq) == "queued"
    assert take(mq).attempt == 2


def test_giving_back_counts_no_attempt(mq: Driver) -> None:
    """release: locked → queued; snooze: locked → queued-with-backoff; the next delivery is attempt 1 again."""
    mq.enqueue("x")
    mq.release(take(mq))
    assert (status(mq), mq.record()["attempt"]) == ("queued", 0)
    mq.snooze(take(mq), 0.5)
    assert (status(mq), mq.record()["attempt"]) == ("queued-with-backoff", 0)
    assert take(mq).attempt == 1


# --- locked


def test_a_lapsed_lock_queues_the_task_again(mq: Driver) -> None:
    """locked → queued when the lock has ended and nobody takes it; the next delivery is attempt 2."""
    mq.enqueue("x")
    take(mq, hold=1)
    becomes(mq.other, "queued")
    assert mq.record()["attempt"] == 1
    again = take(mq.other)
    assert (again.data, again.attempt) == ("x", 2)


def test_a_late_owner_is_refused_whatever_it_tries(mq: Driver) -> None:
    """After its lock a claim settles, extends and reports nothing: ClaimLost; the new owner's run is untouched."""
    mq.enqueue("x")
    late = take(mq, hold=1)
    owner = take(mq.other)
    assert (owner.attempt, mq.record()["attempt"]) == (2, 2)
    for act in (
        lambda: mq.complete(late),
        lambda: mq.complete(late, dedupe=1),
        lambda: mq.fail(late),
        lambda: mq.release(late),
        lambda: mq.snooze(late, 1),
        lambda: mq.extend(late, LONG),
        lambda: mq.progress(late, 0.5),
    ):
        with refused("ClaimLost"):
            act()
    assert (status(mq), mq.record()["progress"]) == ("locked", None)
    mq.other.complete(owner)
    assert status(mq) == "done-awaiting-gc"


def test_an_extended_lock_holds(mq: Driver) -> None:
    """A claim of a second that was extended is still its owner's after three."""
    mq.enqueue("x")
    run = take(mq, hold=1)
    mq.extend(run, LONG)
    assert mq.other.claim(timeout=3) is None
    mq.complete(run)
    assert status(mq) == "done-awaiting-gc"


def test_a_message_s_own_lock_bounds_a_claim_of_it(mq: Driver, q: Queue, second: Queue) -> None:
    """A task enqueued with a lock is handed out again after it, although the queue has none."""
    mq.enqueue("x", lock=1)
    assert q.claim() is not None
    again = second.claim(timeout=20)
    assert again is not None
    assert again.task.attempt == 2


def test_an_update_without_a_lock_drops_the_message_s_own(mq: Driver, q: Queue, second: Queue) -> None:
    """After such an update a claim holds as long as its session lives."""
    mq.enqueue("x", lock=1)
    mq.enqueue("y", update=True)
    claim = q.claim()
    assert claim is not None
    assert second.claim(timeout=3) is None
    claim.complete()


def test_a_requeue_waits_for_the_end_of_the_run(mq: Driver) -> None:
    """locked → locked-with-requeue; at the end of the run → queued, with the NEW data, handed out as attempt 1."""
    mq.enqueue("old")
    mq.fail(take(mq), backoff=0)
    run = take(mq)
    assert run.attempt == 2
    mq.enqueue("new", requeue=True)
    assert (status(mq), mq.record()["data"]) == ("locked-with-requeue", "old")
    mq.complete(run)
    assert (status(mq), mq.record()["data"], mq.record()["attempt"]) == ("queued", "new", 0)
    again = take(mq)
    assert (again.data, again.attempt) == ("new", 1)
    mq.complete(again)
    assert status(mq) == "done-awaiting-gc"
    assert mq.claim() is None


def test_a_requeue_keeps_what_it_was_asked_with(mq: Driver) -> None:
    """The run in escrow brings its own delay: it is queued-with-backoff when the run before it has ended."""
    mq.enqueue("old")
    run = take(mq)
    mq.enqueue("new", requeue=True, delay=LONG)
    mq.complete(run)
    assert (status(mq), mq.record()["data"]) == ("queued-with-backoff", "new")


def test_a_requeue_survives_the_lock_and_retries(mq: Driver) -> None:
    """A lapsed lock or a retry runs the OLD data again, the escrow waiting; it comes when that run has ended."""
    mq.enqueue("old")
    take(mq, hold=1)
    mq.enqueue("new", requeue=True)
    again = take(mq.other)
    assert (again.data, again.attempt, status(mq)) == ("old", 2, "locked-with-requeue")
    mq.other.fail(again, backoff=0)
    third = take(mq)
    assert (third.data, third.attempt, status(mq)) == ("old", 3, "locked-with-requeue")
    mq.complete(third)
    assert (take(mq).data, status(mq)) == ("new", "locked")


def test_a_requeue_is_inserted_when_the_run_fails_finally(mq: Driver) -> None:
    """A run that would be dead makes way for the one in escrow: → queued with the new data, attempt 1."""
    mq.enqueue("old", attempts=1)
    run = take(mq)
    mq.enqueue("new", requeue=True)
    mq.fail(run)
    assert (status(mq), mq.record()["data"]) == ("queued", "new")
    assert mq.record()["history"][-1]["error"] == "broken"
    again = take(mq)
    assert (again.data, again.attempt) == ("new", 1)
    mq.enqueue("newer", requeue=True)
    mq.fail(again, retry=False)
    assert (take(mq).data, status(mq)) == ("newer", "locked")


def test_a_requeue_is_inserted_when_the_last_lock_lapses(mq: Driver) -> None:
    """A run whose last attempt ends with its lock makes way, too."""
    mq.enqueue("old", attempts=1)
    take(mq, hold=1)
    mq.enqueue("new", requeue=True)
    again = take(mq.other)
    assert (again.data, again.attempt) == ("new", 1)


def test_a_second_requeue_needs_update(mq: Driver) -> None:
    """The slot is one: a second requeue is refused with locked-with-requeue, and with update it replaces the first."""
    mq.enqueue("old")
    run = take(mq)
    mq.enqueue("first", requeue=True)
    with in_use("locked-with-requeue"):
        mq.enqueue("second", requeue=True)
    with in_use("locked-with-requeue"):
        mq.enqueue("second", update=True)
    mq.enqueue("third", requeue=True, update=True)
    assert status(mq) == "locked-with-requeue"
    mq.complete(run)
    assert take(mq).data == "third"
    assert mq.claim() is None


# --- done


def test_a_dedupe_window_is_a_backoff_of_the_done(mq: Driver) -> None:
    """locked → done-with-backoff, kept by clean-up; when the window has passed → done-awaiting-gc → nil."""
    mq.enqueue("x")
    mq.complete(take(mq), dedupe=LONG)
    mq.collect(0)
    assert (status(mq), mq.record()["state"]) == ("done-with-backoff", "finished")
    mq.enqueue("y", "n")
    mq.complete(take(mq), dedupe=0.5)
    eventually(lambda: status(mq, "n") == "done-awaiting-gc")
    mq.collect(0)
    assert (status(mq, "n"), status(mq)) == ("nil", "done-with-backoff")


def runs_anew_after_the_window(mq: Driver) -> None:
    """What is held in escrow comes with its new data, as a first attempt, once the window of the old run has passed."""
    assert (status(mq), mq.record()["data"]) == ("done-with-requeue", "old")
    becomes(mq, "queued")
    again = take(mq)
    assert (again.data, again.attempt) == ("new", 1)
    mq.complete(again)
    assert status(mq) == "done-awaiting-gc"


def test_a_requeue_waits_for_the_end_of_the_window(mq: Driver) -> None:
    """locked-with-requeue → done-with-requeue → queued with the new data when the window has passed, attempt 1."""
    mq.enqueue("old")
    run = take(mq)
    mq.enqueue("new", requeue=True)
    mq.complete(run, dedupe=1)
    runs_anew_after_the_window(mq)


def test_a_requeue_in_the_window_waits_for_its_end(mq: Driver) -> None:
    """done-with-backoff → done-with-requeue → queued with the new data when the window has passed, attempt 1."""
    mq.enqueue("old")
    mq.complete(take(mq), dedupe=1)
    mq.enqueue("new", requeue=True)
    runs_anew_after_the_window(mq)


def test_a_second_requeue_in_the_window_needs_update(mq: Driver) -> None:
    """The slot is one: refused with done-with-requeue, and with update it replaces the first."""
    mq.enqueue("old")
    mq.complete(take(mq), dedupe=1.5)
    mq.enqueue("first", requeue=True)
    with in_use("done-with-requeue"):
        mq.enqueue("second", requeue=True)
    mq.enqueue("third", requeue=True, update=True)
    assert status(mq) == "done-with-requeue"
    again = take(mq)
    assert again.data == "third"
    mq.complete(again)
    assert mq.claim() is None


async def test_a_requeue_in_the_window_on_an_event_loop(zookeeper: str, root: str, q: Queue) -> None:
    """`AsyncZkmq` accepts it, refuses a second one with the same status, and hands the run out after the window."""
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as zk:
        queue = zk.queue("census")
        await queue.enqueue("old", task_id="m")
        claim = await queue.claim()
        assert claim is not None
        await claim.complete(dedupe=1)
        await queue.enqueue("new", task_id="m", requeue=True)
        with pytest.raises(DuplicateTask) as refusal:
            await queue.enqueue("newer", task_id="m", requeue=True)
        assert refusal.value.status == "done-with-requeue"
        again = await queue.claim(timeout=20)
        assert again is not None
        assert (again.task.data, again.task.attempt) == (b"new", 1)
        await again.complete()
    assert q.task("m").status == "done-awaiting-gc"


# --- an id that is known


def test_duplicates_are_refused_with_the_status(mq: Driver) -> None:
    """An id that is queued, in backoff, locked, with requeue, in its window or dead is refused, and nothing changes."""

    def refuses(status_now: str, **options: Any) -> None:
        with in_use(status_now):
            mq.enqueue("duplicate", **options)
        assert status(mq) == status_now

    mq.enqueue("x", delay=0.5)
    refuses("queued-with-backoff")
    refuses("queued-with-backoff", requeue=True)
    becomes(mq, "queued")
    refuses("queued")
    refuses("queued", requeue=True)
    run = take(mq)
    refuses("locked")
    refuses("locked", update=True)
    mq.enqueue("y", requeue=True)
    refuses("locked-with-requeue")
    mq.complete(run, dedupe=1)
    refuses("done-with-requeue")
    refuses("done-with-requeue", requeue=True)
    becomes(mq, "queued")
    run = take(mq)
    assert run.data == "y"
    mq.complete(run, dedupe=LONG)
    refuses("done-with-backoff")
    refuses("done-with-backoff", update=True)
    mq.enqueue("z", "n")
    mq.fail(take(mq), retry=False)
    with in_use("dead"):
        mq.enqueue("duplicate", "n", update=True, requeue=True)
    assert mq.record()["data"] == "y"


def test_an_id_is_accepted_again_when_it_is_done(mq: Driver) -> None:
    """done-awaiting-gc, the window passed, collected, and cancelled: each time → queued, attempt 1, no old result."""
    mq.enqueue("1")
    mq.complete(take(mq))
    for data, between in (
        ("2", lambda run: mq.complete(run, dedupe=0.3)),
        ("3", lambda run: (mq.complete(run), mq.collect(0))),
        ("4", lambda _run: mq.cancel()),
        ("5", mq.complete),
    ):
        eventually(lambda: status(mq) in {"done-awaiting-gc", "cancelled", "nil"})
        mq.enqueue(data)
        assert (status(mq), mq.record()["result"], mq.record()["error"]) == ("queued", None, None)
        run = take(mq)
        assert (run.data, run.attempt) == (data, 1)
        between(run)
    assert status(mq) == "done-awaiting-gc"


def test_an_update_replaces_what_is_queued(mq: Driver) -> None:
    """The new data is what is handed out, once, at the old place in line; without a queued task it is an enqueue."""
    mq.enqueue("old")
    mq.enqueue("behind", "n")
    mq.enqueue("new", update=True)
    assert (status(mq), mq.record()["data"]) == ("queued", "new")
    mq.enqueue("fresh", "o", update=True)
    assert [take(mq).data for _ in range(3)] == ["new", "behind", "fresh"]
    assert mq.claim() is None


def test_an_update_keeps_the_time_unless_it_gives_one(mq: Driver) -> None:
    """In its backoff a task gets new data and keeps its due time; a delay in the update sets another."""
    mq.enqueue("old", delay=LONG)
    due = mq.record()["due_ms"]
    mq.enqueue("new", update=True)
    assert (status(mq), mq.record()["data"], mq.record()["due_ms"]) == ("queued-with-backoff", "new", due)
    mq.enqueue("newer", update=True, delay=0.5)
    assert mq.record()["due_ms"] < due
    assert take(mq).data == "newer"


# --- beyond Carmine: cancelled and dead


def test_cancelled_from_queued_backoff_and_locked(mq: Driver) -> None:
    """Each → cancelled; a run in escrow is dropped with it, the owner settles nothing, and redrive queues it again."""
    mq.enqueue("x", delay=LONG)
    mq.cancel()
    assert status(mq) == "cancelled"
    mq.redrive()
    assert status(mq) == "queued"
    mq.cancel()
    assert (status(mq), mq.claim()) == ("cancelled", None)
    mq.redrive()
    run = take(mq)
    mq.enqueue("y", requeue=True)
    mq.cancel()
    with refused("ClaimLost"):
        mq.complete(run)
    assert (status(mq), mq.record()["data"], mq.claim()) == ("cancelled", "x", None)
    with refused("IllegalTransition"):
        mq.cancel()


def test_dead_and_redriven(mq: Driver) -> None:
    """A final failure, or the last attempt → dead with its error, handed out no more; redrive → queued, attempt 1."""
    mq.enqueue("x", attempts=2)
    mq.fail(take(mq), backoff=0)
    mq.fail(take(mq), backoff=0)
    assert (status(mq), mq.record()["error"], mq.record()["attempt"]) == ("dead", "broken", 2)
    assert mq.claim() is None
    mq.redrive()
    assert (status(mq), len(mq.record()["history"])) == ("queued", 2)
    run = take(mq)
    assert run.attempt == 1
    mq.fail(run, retry=False)
    assert status(mq) == "dead"
    with refused("IllegalTransition"):
        mq.cancel()


def test_a_lapsed_lock_counts_against_the_attempts(mq: Driver) -> None:
    """Where Carmine has no bound: the last attempt allowed, ended by its lock, → dead."""
    mq.enqueue("x", attempts=1)
    take(mq, hold=1)
    becomes(mq.other, "dead")
    assert mq.claim() is None


# --- what Carmine does and this queue must not


def test_no_old_payload_runs_for_a_new_request(mq: Driver) -> None:
    """v3.2 ran the old data for an id that was done or locked; here each run has the data it was asked with."""
    mq.enqueue("1")
    mq.complete(take(mq))
    mq.enqueue("2")
    run = take(mq)
    assert run.data == "2"
    mq.enqueue("3", requeue=True)
    mq.complete(run)
    assert take(mq).data == "3"


def test_no_requeue_flag_is_left_after_a_final_error_and_clean_up(mq: Driver) -> None:
    """v3.2 kept a stale flag: here the requeue runs once, and the id begins anew, locked without requeue."""
    mq.enqueue("old")
    run = take(mq)
    mq.enqueue("new", requeue=True)
    mq.fail(run, retry=False)
    run = take(mq)
    assert (run.data, status(mq)) == ("new", "locked")
    mq.complete(run)
    mq.collect(0)
    assert status(mq) == "nil"
    mq.enqueue("anew")
    run = take(mq)
    assert status(mq) == "locked"
    mq.complete(run)
    assert status(mq) == "done-awaiting-gc"
    assert mq.claim() is None


def test_a_late_completion_does_not_free_the_new_owner_s_lock(mq: Driver) -> None:
    """v3.2 deleted it, and a third consumer got the task: here it stays locked until its owner ends it."""
    mq.enqueue("x")
    late = take(mq, hold=1)
    owner = take(mq.other)
    with refused("ClaimLost"):
        mq.complete(late)
    assert (mq.claim(), status(mq)) == (None, "locked")
    mq.other.complete(owner)
    assert [at["outcome"] for at in mq.record()["history"]] == ["rescued"]


def _shift_clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Have this machine's calendar be wrong."""
    told, told_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: told() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: told_ns() + seconds * 1_000_000_000)


def test_a_client_whose_clock_is_fast_ends_nothing_early(mq: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day ahead it takes no lock, no backoff, no window and no lifetime for over: the server's clock decides."""
    _shift_clock(monkeypatch, DAY)
    mq.enqueue("held")
    run = take(mq, hold=LONG)
    mq.enqueue("later", "n", delay=LONG)
    tend(mq.other)
    assert (status(mq), status(mq, "n")) == ("locked", "queued-with-backoff")
    mq.complete(run, dedupe=LONG)
    with in_use("done-with-backoff"):
        mq.enqueue("again")
    mq.enqueue("x", "o")
    mq.complete(take(mq))
    mq.collect(3600)
    assert status(mq, "o") == "done-awaiting-gc"


def test_a_client_whose_clock_is_slow_ends_all_in_time(mq: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day behind it still sees locks, backoffs, windows and lifetimes end when they do."""
    _shift_clock(monkeypatch, -DAY)
    mq.enqueue("x")
    take(mq, hold=1)
    again = take(mq.other)
    assert again.attempt == 2
    mq.other.fail(again, backoff=0.5)
    third = take(mq)
    assert third.attempt == 3
    mq.complete(third, dedupe=0.5)
    eventually(lambda: status(mq) == "done-awaiting-gc")
    mq.collect(0)
    assert status(mq) == "nil"


def test_stopping_a_worker_waits_for_its_running_handler(q: Queue) -> None:
    """v3.3 waits for its poll loops only: here `join` returns when the handler has, its result kept."""
    entered, go = threading.Event(), threading.Event()

    def handler(_task: object) -> str:
        entered.set()
        assert go.wait(20)
        return "done"

    q.enqueue("x", task_id="m")
    worker = q.worker(handler)
    worker.start()
    assert entered.wait(20)
    assert worker.stop() is True
    joined = threading.Thread(target=worker.join)
    joined.start()
    assert q.claim(timeout=0.5) is None
    assert (joined.is_alive(), q.task("m").status) == (True, "locked")
    go.set()
    joined.join(20)
    assert not joined.is_alive()
    assert (q.task("m").status, q.task("m").result) == ("done-awaiting-gc", b"done")
