"""`ZkmqLeaseTrigger` and `ZkmqKeepOperator`: claims that hold while a run works, and not for longer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest
from airflow.models.crypto import get_fernet
from airflow.models.trigger import Trigger
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.triggers.base import TaskSuccessEvent
from cryptography.fernet import Fernet

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import AsyncZkmq, ClaimLost, Message, Unavailable
from airflow_provider_zkmq.engine.fronts.aqueue import AsyncQueue
from airflow_provider_zkmq.hooks.claims import MOST
from airflow_provider_zkmq.operators.keeping import ZkmqKeepOperator
from airflow_provider_zkmq.triggers import held, keeping
from airflow_provider_zkmq.triggers.leases import ZkmqLeaseTrigger
from airflow_provider_zkmq.triggers.sessions import SharedSessions

from .conftest import define, instance

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner
LEASE = 3.0


@pytest.fixture
def shared(monkeypatch):
    """Sessions of the test's own."""
    sessions = SharedSessions()
    monkeypatch.setattr(held, "SESSIONS", sessions)
    return sessions


def taken(queue, count=1, lease=LEASE):
    queue.enqueue_many([Message(b"x", task_id=f"task-{number}") for number in range(count)])
    return [["jobs", claim.task.id, claim.token] for claim in queue.claim_many(count, lease=lease)]


def extended(monkeypatch):
    """Return the list of the ids that are extended from now on."""
    ids = []
    extend = AsyncQueue.extend

    async def counted(queue, task_id, token, lease):
        ids.append(task_id)
        await extend(queue, task_id, token, lease)

    monkeypatch.setattr(AsyncQueue, "extend", counted)
    return ids


async def until(holds):
    """Let the loop turn until it holds."""
    async with asyncio.timeout(90):
        while not holds():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.02)


async def test_claims_hold_beyond_their_lease_until_they_are_settled(queue, shared, monkeypatch):
    """Each is extended again and again; one that is settled is left, the end of the last one is the task's success."""
    ids = extended(monkeypatch)
    first, second = taken(queue, 2)
    trigger = ZkmqLeaseTrigger(claims=[first, second], lease=LEASE)
    kept = asyncio.create_task(anext(trigger.run()))
    await until(lambda: ids.count("task-0") > 5)  # five thirds of a lease
    assert {queue.task(name).state for name in ("task-0", "task-1")} == {"claimed"}
    await asyncio.to_thread(queue.complete, *first[1:])
    await until(lambda: ids.count("task-0") < ids.count("task-1"))
    assert not kept.done()
    await asyncio.to_thread(queue.fail, *second[1:], "it is tried again")
    assert isinstance(await kept, TaskSuccessEvent)
    assert (queue.task("task-0").attempt, queue.task("task-1").attempt) == (1, 1)
    assert shared.users() == []


async def test_the_end_of_a_claim_is_learnt_by_a_watch(queue, shared):
    """With a lease of an hour, whichever way it is settled, and by whomever."""
    for end in ("complete", "fail", "release"):
        [claim] = taken(queue, lease=3600)
        kept = asyncio.create_task(anext(ZkmqLeaseTrigger(claims=[claim], lease=3600).run()))
        await until(lambda: shared.users() == [1])
        arguments = ["why"] if end == "fail" else []
        await asyncio.to_thread(getattr(queue, end), *claim[1:], *arguments)
        await asyncio.wait_for(kept, 60)
        queue.cancel(claim[1]) if end != "complete" else None
    assert shared.users() == []


async def test_a_claim_of_another_is_not_extended(queue, shared, monkeypatch):
    """What was lost is left at once: the other's lease is his own."""
    ids = extended(monkeypatch)
    [claim] = taken(queue)
    queue.release(*claim[1:])
    other = queue.claim(lease=600)
    assert isinstance(await anext(ZkmqLeaseTrigger(claims=[claim], lease=LEASE).run()), TaskSuccessEvent)
    assert ids == ["task-0"]
    other.complete()


async def test_zookeepers_absence_ends_nothing(queue, shared, monkeypatch):
    """It is tried again before the lease runs out, and told in one line."""
    lines, failures = [], []
    extend = AsyncQueue.extend

    async def away(queue, task_id, token, lease):
        if len(failures) < 3:
            failures.append(task_id)
            raise Unavailable("nobody answers")
        await extend(queue, task_id, token, lease)

    monkeypatch.setattr(AsyncQueue, "extend", away)
    monkeypatch.setattr(
        ZkmqLeaseTrigger, "log", SimpleNamespace(warning=lambda text, *values: lines.append(text % values), info=print)
    )
    [claim] = taken(queue, lease=600)
    kept = asyncio.create_task(anext(ZkmqLeaseTrigger(claims=[claim], lease=LEASE).run()))
    await until(lambda: len(failures) == 3)
    await asyncio.to_thread(queue.complete, *claim[1:])
    assert isinstance(await kept, TaskSuccessEvent)
    assert [line for line in lines if "nobody answers" in line] == lines
    assert len(lines) == 1


@pytest.mark.full
async def test_a_claim_outlives_zookeepers_absence(tmp_path, monkeypatch, shared):
    """Killed when it is to be extended, and back before the lease has run out: the same trigger extends it again."""
    with EmbeddedServer(tmp_path, force_sync=False) as server:
        define(monkeypatch, host=server.hosts, extra={"connect_timeout": 1, "session_timeout": 4, "request_timeout": 2})
        async with AsyncZkmq.connect(server.hosts, connect_timeout=30) as zk:
            jobs = zk.queue("jobs")
            await jobs.enqueue(b"x", task_id="mine")
            claim = await jobs.claim(lease=600)
            ids = extended(monkeypatch)
            trigger = ZkmqLeaseTrigger(claims=[["jobs", "mine", claim.token]], lease=15)
            kept = asyncio.create_task(anext(trigger.run()))
            await until(lambda: ids)
            await asyncio.to_thread(server.kill, 0)
            await asyncio.to_thread(server.restart, 0)
            ids.clear()
            await until(lambda: ids)
            assert (await jobs.task("mine")).attempt == 1
            await jobs.complete("mine", claim.token)
            assert isinstance(await asyncio.wait_for(kept, 90), TaskSuccessEvent)


async def test_pauses_are_shorter_than_what_is_left_of_a_lease(monkeypatch):
    """However long ZooKeeper is away."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(keeping, "HeldSession", lambda _conn_id, backoff: backoff)
    pause = keeping.Keeping("zkmq_default", [], 6.0, None, SimpleNamespace(warning=lambda *_: None))._session
    for _ in range(20):
        await pause.after(Unavailable("nobody answers"))
    assert max(pauses) <= 2


@pytest.mark.full
@pytest.mark.parametrize(("state", "over"), [("failed", True), ("upstream_failed", True), (None, False)])
async def test_where_nobody_settles_any_more_the_tasks_are_delivered_again(queue, shared, monkeypatch, state, over):
    """An Airflow task that failed to settle leaves the claims to their leases; one that has not run yet does not."""
    asked = []

    def states(**wanted):
        asked.append(wanted)
        return {"r": {"settle_3": state}}

    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", staticmethod(states))
    [claim] = taken(queue)
    kept = asyncio.create_task(
        anext(ZkmqLeaseTrigger(claims=[claim], lease=LEASE, settle=["d", "r", "settle", 3]).run())
    )
    await until(lambda: len(asked) > 1 or kept.done())
    assert kept.done() is over
    assert asked[0] == {"dag_id": "d", "task_ids": ["settle"], "run_ids": ["r"], "map_index": 3}
    if over:
        again = await asyncio.to_thread(queue.claim, timeout=60)
        assert again.task.attempt == 2
        with pytest.raises(ClaimLost):
            queue.complete(*claim[1:])
    else:
        await asyncio.to_thread(queue.complete, *claim[1:])
        await kept


async def test_a_trigger_that_is_ended_settles_nothing(queue, shared):
    """Airflow moves it to another triggerer, say: it gives its session back, and the claim stays."""
    [claim] = taken(queue, lease=600)
    trigger = ZkmqLeaseTrigger(claims=[claim], lease=600)
    kept = asyncio.create_task(anext(trigger.run()))
    await until(lambda: shared.users() == [1])
    kept.cancel()
    await asyncio.gather(kept, return_exceptions=True)
    await trigger.on_kill()
    await trigger.cleanup()
    assert shared.users() == []
    queue.complete(*claim[1:])


async def test_two_triggerers_do_no_harm(queue, shared):
    """Both extend, and both end."""
    [claim] = taken(queue)
    runs = [asyncio.create_task(anext(ZkmqLeaseTrigger(claims=[claim], lease=LEASE).run())) for _ in range(2)]
    await until(lambda: shared.users() == [2])
    await asyncio.to_thread(queue.complete, *claim[1:])
    assert {type(event) for event in await asyncio.gather(*runs)} == {TaskSuccessEvent}


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


def test_keeping_defers_at_once():
    """To a trigger that knows the claims, and who is to settle them; its priority is above that of work."""
    told = {"queue": "jobs", "id": "mine", "token": 7, "attempt": 1, "filters": {}}
    operator = ZkmqKeepOperator(task_id="keep", claims=[told], lease="30s", settle="settle")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(instance())
    trigger = deferred.value.trigger
    assert (trigger.claims, trigger.lease, trigger.settle) == ([["jobs", "mine", 7]], 30.0, ["d", "r", "settle", 3])
    assert (operator.is_teardown, operator.on_failure_fail_dagrun, operator.priority_weight) == (True, False, 1000)
    with pytest.raises(AirflowSkipException):
        ZkmqKeepOperator(task_id="keep", claims=[]).execute(instance())


def test_the_triggers_bring_little_into_the_triggerer():
    """Their module is imported on the loop, which stands still meanwhile: no kazoo, and nothing of others."""
    code = (
        "import sys, airflow.triggers.base, airflow.sdk; before = set(sys.modules); "
        "import airflow_provider_zkmq.triggers.leases; print(*sorted(set(sys.modules) - before))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    new = [name for name in told.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    assert {name.partition(".")[0] for name in new} <= {"airflow", "airflow_provider_zkmq"}
    assert not [name for name in new if ".engine.zk" in name or ".engine.fronts" in name]
