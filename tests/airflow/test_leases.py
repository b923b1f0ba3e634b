"""`ZkmqLeaseTrigger` and `ZkmqKeepOperator`: claims that hold while a run works, and not for longer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from airflow.models.crypto import get_fernet
from airflow.models.trigger import Trigger
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException
from airflow.sdk.execution_time import task_runner
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent
from cryptography.fernet import Fernet

from airflow_provider_zkmq.engine import (
    AccessDenied,
    AsyncClaim,
    ClaimLost,
    ConfigError,
    CorruptRecord,
    Message,
    Unavailable,
    Zkmq,
)
from airflow_provider_zkmq.filequeue.file_claim import FileClaim
from airflow_provider_zkmq.hooks.claim_references import MOST, claim_reference
from airflow_provider_zkmq.hooks.outages import Backoff
from airflow_provider_zkmq.operators.leases import ZkmqKeepOperator
from airflow_provider_zkmq.triggers import leases
from airflow_provider_zkmq.triggers.leases import ZkmqLeaseTrigger
from tests.airflow.conftest import Heard, deferral, define, instance, until

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner
LEASE = 3.0


def taken(queue, count=1, lease=LEASE):
    queue.enqueue_many([Message(b"x", task_id=f"task-{number}") for number in range(count)])
    return [["jobs", claim.task.id, claim.token] for claim in queue.claim_many(count, lease=lease)]


def kept(*claims, lease=LEASE, **arguments):
    """A trigger keeps these claims from now on; the task of its first event."""
    return asyncio.create_task(anext(ZkmqLeaseTrigger(claims=list(claims), lease=lease, **arguments).run()))


def settles(monkeypatch, state):
    """Airflow tells of what is to settle that it is in this state, or raises it; what it was asked."""
    requested = []

    def states(**wanted):
        requested.append(wanted)
        if isinstance(state, Exception):
            raise state
        return {"r": {"settle_3": state}}

    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", staticmethod(states))
    return requested


async def settled(queue, claim, verb, *arguments):
    """Settle a claim by its token, beside the event loop."""
    await asyncio.to_thread(lambda: getattr(queue.claim_handle(*claim[1:]), verb)(*arguments))


@pytest.fixture
def extended(monkeypatch):
    """The ids of the tasks whose claims are extended."""
    ids, extend = [], AsyncClaim.extend

    async def counted(claim, lease):
        ids.append(claim.task.id)
        await extend(claim, lease)

    monkeypatch.setattr(AsyncClaim, "extend", counted)
    return ids


async def test_claims_hold_beyond_their_lease_until_they_are_settled(queue, shared, extended):
    """Each is extended again and again; one that is settled is left, the end of the last one is the task's success."""
    first, second = taken(queue, 2)
    end = kept(first, second)
    await until(lambda: extended.count("task-0") > 4)  # four thirds of a lease
    assert {queue.task(name).state for name in ("task-0", "task-1")} == {"claimed"}
    await settled(queue, first, "complete")
    await until(lambda: extended.count("task-0") < extended.count("task-1"))
    assert not end.done()
    await settled(queue, second, "fail", "it is tried again")
    assert isinstance(await end, TaskSuccessEvent)
    assert (queue.task("task-0").attempt, queue.task("task-1").attempt) == (1, 1)
    assert shared.users() == []


async def test_the_end_of_a_claim_is_learnt_by_a_watch(queue, shared, subtests):
    """With a lease of an hour, whichever way it is settled, and by whomever. Several triggerers do no harm.

    A trigger that is ended, as Airflow moves it to another triggerer, settles nothing, and gives its session back.
    """
    for end, why in (("fail", ["why"]), ("release", []), ("complete", [])):
        with subtests.test(end=end):
            [claim] = taken(queue, lease=3600)
            ended, *ends = [kept(claim, lease=3600) for _ in range(3)]
            await until(lambda: shared.users() == [3])
            ended.cancel()
            await until(lambda: shared.users() == [2])
            await settled(queue, claim, end, *why)
            assert {type(event) for event in await asyncio.gather(*ends)} == {TaskSuccessEvent}
            if end != "complete":
                queue.cancel(claim[1])
    trigger = ZkmqLeaseTrigger(claims=[claim], lease=3600)
    await trigger.on_kill()
    await trigger.cleanup()
    assert shared.users() == []


async def test_a_claim_of_another_is_not_extended(queue, shared, extended):
    """What was lost is left at once: the other's lease is his own."""
    [claim] = taken(queue)
    queue.claim_handle(*claim[1:]).release()
    other = queue.claim(lease=600)
    assert isinstance(await kept(claim), TaskSuccessEvent)
    assert extended == []
    other.complete()


async def test_zookeepers_absence_ends_nothing(queue, shared, monkeypatch):
    """It is tried again before the lease runs out, and told in one line."""
    extend, failures, log = AsyncClaim.extend, [], Heard()

    async def away(claim, lease):
        if len(failures) < 3:
            failures.append(claim.task.id)
            raise Unavailable("nobody answers")
        await extend(claim, lease)

    monkeypatch.setattr(AsyncClaim, "extend", away)
    monkeypatch.setattr(ZkmqLeaseTrigger, "log", log)
    [claim] = taken(queue, lease=600)
    end = kept(claim)
    await until(lambda: len(failures) == 3)
    await settled(queue, claim, "complete")
    assert isinstance(await end, TaskSuccessEvent)
    assert ["nobody answers" in line for line in log.warnings] == [True]


async def test_pauses_grow_and_the_log_has_a_line_a_minute(monkeypatch):
    """An hour without ZooKeeper: first pauses of a second or two, later of a minute at most, at most 60 lines.

    Where claims are kept they are shorter than what is left of a lease.
    """
    now, pauses, log = [0.0], [], Heard()

    async def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    made = Backoff(log, clock=lambda: now[0])
    while now[0] < 3600:
        await made.after(Unavailable("nobody answers"))
        now[0] += 10
    assert 1 <= pauses[0] <= 2
    assert max(pauses) <= 60
    assert min(pauses[-20:]) >= 30
    assert 2 <= len(log.warnings) <= 61
    assert all("nobody answers" in line for line in log.warnings)
    now[0] += 1000
    await made.after(Unavailable("again"))
    assert pauses[-1] <= 2
    pauses.clear()
    monkeypatch.setattr(leases, "HeldSession", lambda _conn_id, backoff: backoff)
    pause = leases.ZkmqLeaseTrigger(claims=[], lease=6.0)._session
    for _ in range(20):
        await pause.after(Unavailable("nobody answers"))
    assert max(pauses) <= 2


async def test_where_nobody_settles_any_more_the_tasks_are_delivered_again(queue, shared, monkeypatch, subtests):
    """An Airflow task that failed to settle leaves the claims to their leases; one that has not run yet does not.

    One that was skipped, as by a run's time-out, has not tried: they are given back, and count no attempt.
    """
    monkeypatch.setattr(leases, "_DYING", 0.0)
    for state, over in (("failed", True), ("skipped", True), (None, False)):
        with subtests.test(state=state):
            requested = settles(monkeypatch, state)
            [claim] = taken(queue)
            end = kept(claim, settle=["d", "r", "settle", 3])
            await until(lambda: len(requested) > 1 or end.done())  # noqa: B023  they are of this round
            assert end.done() is over
            assert requested[0] == {"dag_id": "d", "task_ids": ["settle"], "run_ids": ["r"], "map_index": 3}
            if over:
                again = await asyncio.to_thread(queue.claim, timeout=60)
                assert again.task.attempt == (1 if state == "skipped" else 2)
                with pytest.raises(ClaimLost):
                    queue.claim_handle(*claim[1:]).complete()
                again.complete()
            else:
                await settled(queue, claim, "complete")
                await end


async def test_a_run_s_time_out_gives_the_claims_back(queue, shared, monkeypatch):
    """It ends the trigger, and skips what settles; another end of a trigger gives back nothing."""
    monkeypatch.setattr(leases, "_DYING", 0.0)
    requested = settles(monkeypatch, None)
    trigger = ZkmqLeaseTrigger(claims=taken(queue, lease=600), lease=600, settle=["d", "r", "settle", 3])
    running = asyncio.create_task(anext(trigger.run()))
    await until(lambda: requested)
    running.cancel()
    for state, left in ((None, "claimed"), ("skipped", "inserted")):
        settles(monkeypatch, state)
        await trigger.on_kill()
        assert queue.task("task-0").state == left
    assert (queue.task("task-0").attempt, shared.users()) == (0, [])


async def test_what_cannot_be_extended_does_not_keep_the_rest_for_ever(queue, shared, monkeypatch):
    """The run ends, too: it would go on for as long as its task is deferred."""

    async def refused(_claim, _lease):
        raise AccessDenied("you may not write")

    monkeypatch.setattr(AsyncClaim, "extend", refused)
    settles(monkeypatch, "failed")
    end = kept(*taken(queue), settle=["d", "r", "settle", 3])
    assert isinstance(await asyncio.wait_for(end, 60), TaskSuccessEvent)


def test_what_airflow_stores_of_it_is_bounded(monkeypatch):
    """With as many claims as a run may have, of the longest names there are, it fits into MySQL's column, encrypted."""
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
    get_fernet.cache_clear()
    claims = [["q" * 121, f"{number:0121d}", 2**53] for number in range(MOST)]
    trigger = ZkmqLeaseTrigger(claims=claims, lease=900, settle=["d" * 250, "r" * 250, "t" * 250, 1000])
    path, kwargs = trigger.serialize()
    stored = Trigger.encrypt_kwargs(kwargs)
    assert len(stored) < 65_535
    assert ZkmqLeaseTrigger(**Trigger._decrypt_kwargs(stored)).serialize() == (path, kwargs)
    get_fernet.cache_clear()


def keep(claims, lease=900, settle=None):
    ZkmqKeepOperator(task_id="keep", claims=claims, lease=lease, settle=settle).execute(instance())


def comes_again(*given, **arguments):
    """Keep the claims; Airflow is asked to call again, at this time."""
    with pytest.raises(AirflowRescheduleException) as again:
        keep(*given, **arguments)
    return again.value.reschedule_date


def test_keeping_defers_at_once(monkeypatch):
    """To a trigger that knows the claims, and who is to settle them; its priority is above that of work.

    Also where the secrets backend does not answer the worker for a moment: it is the trigger's to try.
    """
    claim = {"queue": "jobs", "id": "mine", "token": 7, "attempt": 1, "filters": {}}
    operator = ZkmqKeepOperator(task_id="keep", claims=[claim], lease="30s", settle="settle")
    trigger = deferral(operator.execute, instance()).trigger
    assert (trigger.claims, trigger.lease, trigger.settle) == ([["jobs", "mine", 7]], 30.0, ["d", "r", "settle", 3])
    assert (operator.is_teardown, operator.on_failure_fail_dagrun, operator.priority_weight) == (True, False, 1000)

    def away(_conn_id):
        raise ConfigError("the vault is sealed")

    monkeypatch.setattr(BaseHook, "get_connection", away)
    deferral(keep, [claim])
    with pytest.raises(AirflowSkipException):
        keep([])
    with pytest.raises(ValueError, match="settle 5 is not allowed"):  # an id is; the operator is refused, too
        keep([], settle=5)


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """A queue of the files that the connection ``zkmq_default`` names, with two tasks: no trigger can use it."""
    define(monkeypatch, host=f"textqueue://{tmp_path}")
    with Zkmq.connect(f"textqueue://{tmp_path}") as files:
        made = files.queue("jobs")
        for name in ("a", "b"):
            made.enqueue("x", task_id=name)
        yield made


@pytest.fixture
def claims(jobs):
    """Claims of both."""
    return [claim_reference("jobs", jobs.claim_task(name, lease=60)) for name in ("a", "b")]


@pytest.fixture
def lent(monkeypatch):
    """For how long a worker extends the claim of each task of the files, or an error that stands first in its place."""
    leases, extend = [], FileClaim.extend

    def noted(self, lease):
        if leases and isinstance(leases[0], Exception):
            raise leases.pop(0)
        extend(self, lease)
        leases.append((self.task.id, lease))

    monkeypatch.setattr(FileClaim, "extend", noted)
    return leases


def test_claims_of_files_are_extended_and_the_task_comes_again(claims, lent, subtests):
    """It asks Airflow for that, a third of the lease later at the latest, and holds no slot meanwhile."""
    for lease, pause in ((900, 30), (12, 4)):
        with subtests.test(lease=lease):
            lent.clear()
            before = datetime.now(UTC)
            at = comes_again(claims, lease)
            assert lent == [("a", lease), ("b", lease)]
            assert before <= at - timedelta(seconds=pause) <= datetime.now(UTC)


def test_keeping_files_ends_when_none_of_the_claims_holds(jobs, claims, lent):
    """One that was settled, or is another's, is left; the other's claim is not extended."""
    first, second = claims
    jobs.claim_handle("a", first["token"]).complete()
    comes_again(claims)
    jobs.claim_handle("b", second["token"]).release()
    other = jobs.claim_task("b", lease=60)
    keep(claims)
    assert lent == [("b", 900)]
    other.complete("the other's")


def test_keeping_files_ends_when_nobody_settles_any_more(jobs, claims, monkeypatch):
    """Then the claims are left to their leases; while what settles is to come, or Airflow does not answer, kept."""
    for state in ("running", RuntimeError("the API server restarts")):
        settles(monkeypatch, state)
        comes_again(claims, settle="settle")
    settles(monkeypatch, "failed")
    keep(claims, settle="settle")
    assert [jobs.task(name).state for name in ("a", "b")] == ["claimed"] * 2
    jobs.claim_handle("a", claims[0]["token"]).complete()


def test_a_file_that_another_process_holds_ends_nothing(jobs, claims, lent, subtests):
    """Nor does what somebody has edited: the others are extended, and it comes again."""
    for error in (Unavailable("the file's lock is held"), CorruptRecord("a line is damaged")):
        with subtests.test(error=error):
            lent[:] = [error]
            comes_again(claims)
            assert lent == [("b", 900)]
    jobs.claim_handle("a", claims[0]["token"]).complete()


def test_a_trigger_on_queue_files_ends_as_a_failure(jobs, claims):
    """It would try for ever; the claim is left as it is, for who holds it."""
    first = claims[0]
    trigger = ZkmqLeaseTrigger(claims=[["jobs", "a", first["token"]]], lease=3.0)

    async def run():
        async with asyncio.timeout(60):
            events = [type(event) async for event in trigger.run()]
        await trigger.cleanup()
        return events

    assert asyncio.run(run()) == [TaskFailedEvent]
    jobs.claim_handle("a", first["token"]).complete()
