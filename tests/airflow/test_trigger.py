"""`ZkmqTaskTrigger` and the sessions that triggers share, on a real event loop and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import AsyncZkmq, ConnectionConfig, Message, Tls
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.triggers import sessions, waiting
from airflow_provider_zkmq.triggers.sessions import SharedSessions
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger
from tests.airflow.conftest import Heard, define, finish, kill


@pytest.fixture
def shared(monkeypatch):
    """A registry of the test's own."""
    made = SharedSessions()
    monkeypatch.setattr(waiting, "SESSIONS", made)
    return made


async def fire(trigger):
    return [event.payload async for event in trigger.run()]


async def until(condition):
    """Let the loop turn until `condition` holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


async def test_fires_once_when_the_tasks_are_done(queue, shared):
    """One event with the ids, whichever way the tasks ended, and the session is closed behind it."""
    ids = [queue.enqueue("a"), queue.enqueue("b")]
    firing = asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=ids, queue="jobs")))
    await until(lambda: shared.users() == [1])
    await asyncio.to_thread(finish, queue)
    await asyncio.to_thread(kill, queue, "x")
    assert await firing == [{"status": "done", "ids": ids}]
    assert shared.users() == []


async def test_claim_and_selector(queue, shared):
    """The trigger waits for a claim of tasks it knows only by their filters, enqueued after it began."""
    firing = asyncio.create_task(fire(ZkmqTaskTrigger(selector="size>5", event="claim")))
    await until(lambda: shared.users() == [1])
    wanted = await asyncio.to_thread(queue.enqueue, "big", {"size": 9})
    claim = await asyncio.to_thread(queue.claim)
    assert claim is not None
    assert await firing == [{"status": "done", "ids": [wanted]}]


async def test_batch(queue, shared):
    """For a batch the trigger fires once when the last member has ended, and names the batch only."""
    ids = queue.enqueue_many([zkmq_message(n) for n in range(3)], batch="b")
    firing = asyncio.create_task(fire(ZkmqTaskTrigger(batch="b")))
    await until(lambda: shared.users() == [1])
    await asyncio.to_thread(finish, queue)
    await asyncio.to_thread(kill, queue, "x")
    assert not firing.done()
    await asyncio.to_thread(queue.cancel, ids[2])
    assert await firing == [{"status": "done", "batch": "b"}]
    assert shared.users() == []


async def test_progress_is_logged(queue, shared, monkeypatch):
    """With `log_progress`, the trigger logs what the handlers of its tasks report."""
    task_id = queue.enqueue("a")
    claim = await asyncio.to_thread(queue.claim)
    log = Heard()
    monkeypatch.setattr(ZkmqTaskTrigger, "log", log)
    firing = asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=[task_id], log_progress=True)))
    await asyncio.to_thread(claim.progress, 0.4, "half way")
    await until(lambda: log.lines == [f"Task {task_id}: 40 %, half way"])
    await asyncio.to_thread(claim.complete)
    assert await firing == [{"status": "done", "ids": [task_id]}]


async def test_deadline_of_a_batch(queue, shared):
    """At its deadline the trigger fires a time-out that names the batch."""
    queue.enqueue_many([zkmq_message(0)], batch="b")
    [event] = await fire(ZkmqTaskTrigger(batch="b", deadline=time.time() + 0.3))
    assert event["status"] == "timeout"
    assert "batch 'b'" in event["message"]


async def test_deadline(queue, shared):
    """At its deadline the trigger fires a time-out that names the task."""
    queue.enqueue("a", task_id="slow")
    [event] = await fire(ZkmqTaskTrigger(task_ids=["slow"], deadline=time.time() + 0.3))
    assert event["status"] == "timeout"
    assert "slow" in event["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"task_ids": ["nobody"]}, "nobody"),
        ({"task_ids": ["a"], "zkmq_conn_id": "no_such_conn"}, "no_such_conn"),
        ({"selector": "unknown_filter==1"}, "unknown_filter"),
        ({"task_ids": ["a"], "event": "lunch"}, "lunch"),
        ({"batch": "nothing"}, "nothing"),
        ({"batch": "no name"}, "not allowed"),
        ({"task_ids": []}, "there is nothing to wait for"),
        ({"selector": "all()", "min_tasks": 0}, "at_least 0 is not allowed"),
        ({"selector": "all()", "since": "2026-11-22T10:00:00"}, "since '2026-11-22T10:00:00' has no zone"),
    ],
)
async def test_what_waiting_cannot_mend_is_an_error_event(queue, shared, arguments, told):
    """An unknown task, connection or filter ends the wait with one event that says so."""
    [event] = await fire(ZkmqTaskTrigger(**arguments))
    assert event["status"] == "error"
    assert told in event["message"]
    assert shared.users() == []


async def test_two_hundred_triggers_share_one_session(queue, shared, monkeypatch):
    """Triggers that start together look once for the connection and open one session; the last one closes it."""
    closed = []

    class Counted(AsyncZkmq):
        async def close(self):
            closed.append(self)
            await super().close()

    monkeypatch.setattr(sessions, "load_client", lambda: Counted)
    looked = []
    monkeypatch.setattr(sessions, "async_connection_options", counting(sessions.async_connection_options, looked))
    ids = queue.enqueue_many([zkmq_message(n) for n in range(200)])
    firing = [asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=[task_id]))) for task_id in ids]
    await until(lambda: shared.users() == [200])
    for _ in ids:
        await asyncio.to_thread(finish, queue)
    events = await asyncio.gather(*firing)
    assert [event["ids"] for [event] in events] == [[task_id] for task_id in ids]
    assert (shared.opened, len(closed), shared.users()) == (1, 1, [])
    assert looked == ["zkmq_default"]


def counting(real, looked):
    """A look-up that notes whose it was."""

    async def looking(conn_id):
        looked.append(conn_id)
        return await real(conn_id)

    return looking


async def test_a_connection_is_looked_up_again_when_its_session_ended_or_the_look_up_failed(
    queue, shared, zookeeper, monkeypatch
):
    """What one trigger was told holds for those that come soon after, unless it is known not to hold any more."""
    looked = []
    monkeypatch.setattr(sessions, "async_connection_options", counting(sessions.async_connection_options, looked))
    for forgotten in (False, True, False):
        async with shared.lease("zkmq_default") as lease:
            if forgotten:
                lease.forget()
    assert len(looked) == 2
    for _ in range(2):
        with pytest.raises(AirflowNotFoundException):
            async with shared.lease("other"):
                pass
    define(monkeypatch, "other", host=zookeeper, extra={"root": "/elsewhere", "connect_timeout": 20})
    async with shared.lease("other") as lease:
        assert lease.default_queue == "queue"
    assert looked[2:] == ["other"] * 3


def zkmq_message(number):
    return Message(f"{number}")


async def test_a_changed_connection_opens_another_session(queue, shared, zookeeper, monkeypatch):
    """What an Airflow connection is changed to holds for later triggers; those that wait keep what they have."""
    monkeypatch.setattr(sessions, "_FRESH", 0.0)
    async with shared.lease("zkmq_default") as first:
        async with shared.lease("zkmq_default") as second:
            assert second.client is first.client
        define(monkeypatch, host=zookeeper, extra={"root": "/elsewhere", "connect_timeout": 20})
        async with shared.lease("zkmq_default") as third:
            assert third.client is not first.client
            assert third.default_queue == "queue"
    assert shared.users() == []


async def test_nothing_that_is_shown_or_logged_has_a_password(zookeeper, root, shared, monkeypatch, caplog):
    """Neither the shared sessions nor what they hold, nor the log at its most talkative, shows a secret of theirs."""
    secrets = ("s3cret-password", "s3cret-key")
    tls = {"tls": False, "tls_key_password": secrets[1]}
    define(
        monkeypatch,
        host=zookeeper,
        login="ann",
        password=secrets[0],
        extra={"root": root, "connect_timeout": 20, **tls},
    )
    caplog.set_level(logging.DEBUG)
    async with shared.lease("zkmq_default") as lease:
        await lease.client.queue("jobs").enqueue("x")
        table = next(iter(shared._tables.values()))
        config = lease.client.config
        hook = ZkmqHook()
        conn = hook.get_conn()
        shown = [
            shared, lease, lease._entry, lease._entry.opening, table, [*table], lease._lookups, config, lease.client,
            conn, hook, vars(hook), conn.queue("jobs"), lease.client.queue("jobs"),
            ZkmqTaskTrigger(task_ids=["a"]).serialize(),
            ConnectionConfig.of(auth=("ann", secrets[0]), tls={"key_password": secrets[1]}), conn._session, Tls(),
        ]  # fmt: skip
        hook.close()
    texts = [*map(repr, shown), *map(str, shown), caplog.text]
    assert not [text for text in texts if any(secret in text for secret in secrets)]
    assert len(next(iter(table), ("", "x" * 32))[1]) == 32


async def test_the_same_connection_is_the_same_session_however_often_it_is_read(queue, shared, zookeeper, monkeypatch):
    """What is kept of a connection tells it from another one, also where only the password differs."""
    monkeypatch.setattr(sessions, "_FRESH", 0.0)
    extra = {"root": "/elsewhere", "connect_timeout": 20}
    async with contextlib.AsyncExitStack() as stack:
        for password in ("one", "two", "two"):
            define(monkeypatch, "other", host=zookeeper, login="ann", password=password, extra=extra)
            await stack.enter_async_context(shared.lease("other"))
        assert (shared.users(), shared.opened) == ([1, 2], 2)
    assert shared.users() == []


async def test_cancelled_triggers_leave_nothing(queue, shared):
    """A trigger that is cancelled, waiting or still connecting, gives the session back."""
    task_id = queue.enqueue("a")
    waiting = asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=[task_id])))
    await until(lambda: shared.users() == [1] and shared.opened == 1)
    connecting = asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=[task_id])))
    await until(lambda: shared.users() == [2])
    for task in (connecting, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert shared.users() == []
    early = asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=[task_id])))
    await until(lambda: shared.users() == [1])
    early.cancel()
    with pytest.raises(asyncio.CancelledError):
        await early
    await until(lambda: not shared._closing)
    assert shared.users() == []


async def test_survives_a_restart_of_zookeeper(tmp_path, shared, monkeypatch):
    """Tasks completed after ZooKeeper was killed and started again fire the triggers that wait since before."""
    with EmbeddedServer(tmp_path, force_sync=False) as server:
        define(monkeypatch, host=server.hosts, extra={"connect_timeout": 30, "session_timeout": 4})
        async with AsyncZkmq.connect(server.hosts, connect_timeout=30) as zk:
            queue = zk.queue("queue")
            task_id = await queue.enqueue("a")
            await queue.enqueue_many([Message("b")], batch="b")
            firing = asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=[task_id])))
            batch = asyncio.create_task(fire(ZkmqTaskTrigger(batch="b")))
            await until(lambda: shared.opened == 1)
            await asyncio.to_thread(server.restart, 0)
            for _ in range(2):
                claim = await queue.claim(timeout=60)
                assert claim is not None
                await claim.complete("r")
        async with asyncio.timeout(60):
            assert await firing == [{"status": "done", "ids": [task_id]}]
            assert await batch == [{"status": "done", "batch": "b"}]


async def test_waits_for_a_zookeeper_that_comes_later(tmp_path, shared, monkeypatch):
    """A trigger that starts while ZooKeeper is down waits until it is there, or until its deadline."""
    with EmbeddedServer(tmp_path, force_sync=False) as server:
        define(monkeypatch, host=server.hosts, extra={"connect_timeout": 0.5, "request_timeout": 1})
        async with AsyncZkmq.connect(server.hosts, connect_timeout=30) as zk:
            task_id = await zk.queue("queue").enqueue("a")
            claim = await zk.queue("queue").claim()
            assert claim is not None
            await claim.complete()
        await asyncio.to_thread(server.kill, 0)
        [event] = await fire(ZkmqTaskTrigger(task_ids=[task_id], deadline=time.time() + 0.2))
        assert event["status"] == "timeout"
        firing = asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=[task_id])))
        await asyncio.to_thread(server.restart, 0)
        async with asyncio.timeout(60):
            assert await firing == [{"status": "done", "ids": [task_id]}]


def test_the_trigger_brings_little_into_the_triggerer():
    """Its module is imported on the loop, which stands still meanwhile: no kazoo, and few and small modules of ours."""
    code = (
        "import sys, airflow.triggers.base, airflow.sdk; before = set(sys.modules); assert 'pendulum' in before; "
        "import airflow_provider_zkmq.triggers.zkmq; print(*sorted(set(sys.modules) - before))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    new = [name for name in told.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    ours = [name for name in new if name.startswith("airflow_provider_zkmq")]
    assert {name.partition(".")[0] for name in new} <= {"airflow", "airflow_provider_zkmq"}
    assert not [name for name in ours if ".engine.zk" in name or ".engine.fronts" in name]
    assert len(ours) <= 24


async def test_what_opens_sessions_is_imported_beside_the_loop(queue, shared, monkeypatch):
    """kazoo and the fronts come into the triggerer in a thread of their own, while its loop serves other triggers."""
    threads, real = [], sessions.load_client

    def load():
        threads.append(threading.get_ident())
        return real()

    monkeypatch.setattr(sessions, "load_client", load)
    async with shared.lease("zkmq_default"):
        assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_arguments_survive_airflows_serialisation():
    """What Airflow stores of the trigger makes an equal one, and holds no tuple (Airflow would recreate it forever)."""
    from airflow.serialization.serialized_objects import BaseSerialization

    since = {"selector": "a==b", "min_tasks": 2, "since": "2026-11-22T10:00:00+00:00"}
    for arguments in ({"task_ids": ["a"], "log_progress": True}, {"batch": "b"}, since):
        path, kwargs = ZkmqTaskTrigger(deadline=5.0, queue="q", **arguments).serialize()
        assert (
            json.loads(json.dumps(kwargs))
            == BaseSerialization.deserialize(BaseSerialization.serialize(kwargs))
            == kwargs
        )
        assert path == f"{ZkmqTaskTrigger.__module__}.{ZkmqTaskTrigger.__qualname__}"
        assert ZkmqTaskTrigger(**kwargs).serialize() == (path, kwargs)


async def test_triggers_stored_before_there_were_batches(queue, shared):
    """The arguments that an earlier version stored still make a trigger, which waits as it did."""
    task_id = queue.enqueue("a")
    await asyncio.to_thread(finish, queue)
    stored = {"task_ids": [task_id], "selector": None, "min_tasks": 1, "event": "completion", "queue": None}
    stored |= {"zkmq_conn_id": "zkmq_default", "deadline": None}
    assert await fire(ZkmqTaskTrigger(**stored)) == [{"status": "done", "ids": [task_id]}]


async def test_a_selector_waits_for_a_queue_that_comes_later(queue, shared, zookeeper):
    """In the triggerer, too; where tasks are named, a missing queue is an error event that names what comes close."""
    firing = asyncio.create_task(fire(ZkmqTaskTrigger(selector="all()", event="claim", queue="later")))
    await until(lambda: shared.users() == [1])
    async with AsyncZkmq.connect(zookeeper, queue.root, gc=False) as zk:
        await zk.queue("later").enqueue("x", task_id="a")
        assert await zk.queue("later").claim() is not None
        assert await firing == [{"status": "done", "ids": ["a"]}]
    ((event),) = await fire(ZkmqTaskTrigger(task_ids=["a"], queue="jbos"))
    assert event["status"] == "error"
    assert "did you mean 'jobs'" in event["message"]


@pytest.mark.parametrize(("option", "frozen"), [("True", True), ("False", False), ("", True)])
def test_the_collector_passes_by_what_was_imported(option, frozen):
    """Once in a process, before its first session: no full collection of all of Airflow stops the loop."""
    code = (
        "import gc\nfrom airflow_provider_zkmq.triggers import sessions\nsessions.load_client()\n"
        "first = gc.get_freeze_count()\nmore = [[] for _ in range(100_000)]\nsessions.load_client()\n"
        "print(first > 10_000, gc.get_freeze_count() < first + 1_000)"
    )
    environment = {**os.environ, "AIRFLOW__ZKMQ__FREEZE_IMPORTS": option} if option else {**os.environ}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == [str(frozen), "True"]
