"""`ZkmqTaskTrigger` and the sessions that triggers share, on a real event loop and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRescheduleException, AirflowSensorTimeout

from airflow_provider_zkmq.engine import AsyncZkmq, ConnectionConfig, Message, Tls
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from airflow_provider_zkmq.triggers import sessions
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger
from tests.airflow.conftest import Heard, batch_of, deferral, define, finish, fire, kill, sensor, until


async def started(shared, **arguments):
    """A trigger that has begun to wait, as a task of the loop."""
    firing, before = asyncio.create_task(fire(ZkmqTaskTrigger(**arguments))), sum(shared.users())
    await until(lambda: sum(shared.users()) == before + 1)
    return firing


async def test_it_fires_once_when_the_tasks_are_done(queue, shared):
    """One event with the ids, or the batch's name, whichever way they ended; the session is closed behind it."""
    for name in (None, "b"):
        ids = batch_of(queue, name, 3)
        firing = await started(shared, **({"batch": name} if name else {"task_ids": ids, "queue": "jobs"}))
        await asyncio.to_thread(finish, queue)
        await asyncio.to_thread(kill, queue, "x")
        assert not firing.done()
        await asyncio.to_thread(queue.cancel, ids[2])
        assert await firing == [{"status": "done", **({"batch": name} if name else {"ids": ids})}]
        assert shared.users() == []


async def test_progress_is_logged(queue, shared, context, monkeypatch):
    """With `log_progress`, trigger and waiting sensor log what a handler reports, once each; without it never."""
    task_id = queue.enqueue("a")
    claim = queue.claim()
    claim.progress(0.4, "half way")
    first, second = [f"At 40 %, half way: task {task_id}"], [f"At 75 %: task {task_id}"]
    triggered, sensed, silent = Heard(), Heard(), Heard()
    monkeypatch.setattr(ZkmqTaskTrigger, "log", triggered)
    firing = await started(shared, task_ids=[task_id], log_progress=True)
    executing = []
    for log, progress in ((sensed, True), (silent, False)):
        waiting = sensor(task_ids=task_id, log_progress=progress)
        waiting._cached_logger = log
        executing.append(asyncio.create_task(asyncio.to_thread(waiting.execute, context)))
    await until(lambda: triggered.lines == sensed.lines == first)
    claim.progress(0.75)
    await until(lambda: triggered.lines == sensed.lines == first + second)
    claim.complete()
    assert await firing == [{"status": "done", "ids": [task_id]}]
    await asyncio.gather(*executing)
    assert [line for line in [*sensed.lines[2:], *silent.lines] if "%" in line] == []


async def test_a_deadline_and_what_waiting_cannot_mend_end_the_wait(queue, shared, subtests):
    """With one event that names what was waited for, or what is wrong: a task, connection, filter or queue."""
    queue.enqueue_many([Message("a", task_id="slow")], batch="b")
    soon = {"deadline": time.time() + 2}
    for arguments, said in (
        ({"task_ids": ["slow"]} | soon, "slow"),
        ({"batch": "b"} | soon, "batch 'b'"),
        ({"task_ids": ["nobody"]}, "nobody"),
        ({"task_ids": ["a"], "zkmq_conn_id": "no_such_conn"}, "no_such_conn"),
        ({"task_ids": ["a"], "queue": "jbos"}, "did you mean 'jobs'"),
        ({"selector": "unknown_filter==1"}, "unknown_filter"),
        ({"task_ids": ["a"], "event": "lunch"}, "lunch"),
        ({"batch": "nothing"}, "nothing"),
        ({"batch": "no name"}, "not allowed"),
        ({"task_ids": []}, "there is nothing to wait for"),
        ({"selector": "all()", "min_tasks": 0}, "at_least 0 is not allowed"),
        ({"selector": "all()", "since": "2026-11-22T10:00:00"}, "since '2026-11-22T10:00:00' has no zone"),
    ):
        with subtests.test(arguments=arguments):
            [event] = await fire(ZkmqTaskTrigger(**arguments))
            assert event["status"] == ("timeout" if "deadline" in arguments else "error")
            assert said in event["message"]
            assert shared.users() == []


@pytest.fixture
def looked(monkeypatch):
    """Which connections were looked up, in their order."""
    kept, real = [], sessions.async_connection_options

    async def looking(conn_id):
        kept.append(conn_id)
        return await real(conn_id)

    monkeypatch.setattr(sessions, "async_connection_options", looking)
    return kept


async def test_two_hundred_triggers_share_one_session(queue, shared, looked, monkeypatch):
    """They look once for the connection and open one session, imported beside the loop; the last one closes it."""
    closed, threads = [], []

    class Counted(AsyncZkmq):
        async def close(self):
            closed.append(self)
            await super().close()

    monkeypatch.setattr(sessions, "load_client", lambda: threads.append(threading.get_ident()) or Counted)
    ids = batch_of(queue, None, 200)
    firing = [asyncio.create_task(fire(ZkmqTaskTrigger(task_ids=[task_id]))) for task_id in ids]
    await until(lambda: shared.users() == [200])
    for _ in ids:
        await asyncio.to_thread(finish, queue)
    events = await asyncio.gather(*firing)
    assert [event["ids"] for [event] in events] == [[task_id] for task_id in ids]
    assert (shared.opened, len(closed), shared.users()) == (1, 1, [])
    assert looked == ["zkmq_default"]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_look_up_is_made_again_if_it_failed_or_its_session_ended(queue, shared, looked, zookeeper, monkeypatch):
    """What one trigger was told holds for those that come soon after, unless it is known not to hold any more."""
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


async def test_a_connection_is_one_session_until_it_is_changed(shared, zookeeper, root, monkeypatch):
    """However often it is read; a change, also of the password alone, is for later triggers: who waits keeps his."""
    monkeypatch.setattr(sessions, "_FRESH", 0.0)
    leases = []
    async with contextlib.AsyncExitStack() as stack:
        for password, where, name in (("one", root, "a"), ("two", root, "a"), ("two", root, "b"), ("two", "/e", "b")):
            extra = {"root": where, "queue": name, "connect_timeout": 20}
            define(monkeypatch, "other", host=zookeeper, login="ann", password=password, extra=extra)
            leases.append(await stack.enter_async_context(shared.lease("other")))
        assert (shared.users(), shared.opened) == ([1, 2, 1], 3)
        assert leases[1].client is leases[2].client is not leases[3].client
        assert [lease.default_queue for lease in leases] == ["a", "a", "b", "b"]
    assert shared.users() == []


async def test_nothing_that_is_shown_or_logged_has_a_password(zookeeper, root, shared, monkeypatch, caplog):
    """Neither the shared sessions nor what they hold, nor the log at its most talkative, shows a secret of theirs."""
    secrets = ("s3cret-password", "s3cret-key")
    extra = {"root": root, "connect_timeout": 20, "tls": False, "tls_key_password": secrets[1]}
    define(monkeypatch, host=zookeeper, login="ann", password=secrets[0], extra=extra)
    caplog.set_level(logging.DEBUG)
    async with shared.lease("zkmq_default") as lease:
        await lease.client.queue("jobs").enqueue("x")
        table = next(iter(shared._loops.values())).entries
        config = lease.client.config
        hook = ZkmqHook()
        conn = hook.get_conn()
        shown = [
            shared, lease, lease.entry, lease.entry.connecting, table, [*table], lease.of_loop, config, lease.client,
            conn, hook, vars(hook), conn.queue("jobs"), lease.client.queue("jobs"),
            ZkmqTaskTrigger(task_ids=["a"]).serialize(),
            ConnectionConfig.of(auth=("ann", secrets[0]), tls={"key_password": secrets[1]}), conn._session, Tls(),
        ]  # fmt: skip
        hook.close()
    texts = "\n".join([*map(repr, shown), *map(str, shown), caplog.text])
    assert not [secret for secret in secrets if secret in texts]
    assert len(next(iter(table), ("", "x" * 32))[1]) == 32


async def test_cancelled_triggers_leave_nothing(queue, shared):
    """A trigger that is cancelled, waiting or still connecting, gives the session back."""
    wanted = {"task_ids": [queue.enqueue("a")]}
    waiting = await started(shared, **wanted)
    await until(lambda: shared.opened == 1)
    connecting = await started(shared, **wanted)
    for task in (connecting, waiting, None):
        ended = task or await started(shared, **wanted)
        ended.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended
        assert shared.users() == [1] * (task is connecting)
    await until(lambda: not sessions._GOING_ON)
    assert shared.users() == []


async def test_a_sensor_outlives_zookeeper_being_away(mortal, root, shared, context, monkeypatch):
    """Its trigger, begun before or meanwhile; itself at its first look, on resume, at a poke, and on the worker."""
    context["ti"].get_first_reschedule_date = lambda _context: None
    for conn_id, seconds in (("before", 30), ("zkmq_default", 0.5)):
        extra = {"root": root, "connect_timeout": seconds, "request_timeout": 1, "session_timeout": 4}
        define(monkeypatch, conn_id, host=mortal.hosts, extra=extra)
    monkeypatch.setattr(ZkmqTaskSensor, "log", log := Heard())
    async with AsyncZkmq.connect(mortal.hosts, root, connect_timeout=30) as zk:
        queue = zk.queue("queue")
        ended, open_ = {"task_ids": [await queue.enqueue("a")]}, {"task_ids": [await queue.enqueue("b")]}
        await queue.enqueue_many([Message("c")], batch="b")
        await (await queue.claim(timeout=60)).complete("r")
        before = [await started(shared, **each, zkmq_conn_id="before") for each in (open_, {"batch": "b"})]
        await until(lambda: shared.opened == 1)
        await asyncio.to_thread(mortal.kill, 0)
        [event] = await fire(ZkmqTaskTrigger(**open_, deadline=time.time() + 0.2))
        assert event["status"] == "timeout"
        meanwhile = await started(shared, **open_)
        deferrable = sensor(**ended, deferrable=True)
        await asyncio.to_thread(deferral, deferrable.execute, context)
        event = {"status": "done", "ids": ended["task_ids"]}
        await asyncio.to_thread(deferral, deferrable.execute_complete, context, event)
        for arguments, error in (
            ({"mode": "reschedule"}, AirflowRescheduleException),
            ({"timeout": 0.1}, AirflowSensorTimeout),
        ):
            with pytest.raises(error):
                await asyncio.to_thread(sensor(**ended, **arguments).execute, context)
        log.warnings.clear()
        on_the_worker = asyncio.create_task(asyncio.to_thread(sensor(**ended).execute, context))
        await until(lambda: paused(log))
        await asyncio.to_thread(mortal.restart, 0)
        for _ in range(2):
            await (await queue.claim(timeout=60)).complete()
        async with asyncio.timeout(60):
            done = {"status": "done", "ids": open_["task_ids"]}
            assert await asyncio.gather(*before, meanwhile) == [[done], [{"status": "done", "batch": "b"}], [done]]
            assert [each["result"] for each in await on_the_worker] == ["r"]
    assert len(paused(log)) == 1


def paused(log: Heard) -> list[str]:
    """Return the lines that say that ZooKeeper is away (Airflow, too, warns: out of its runner)."""
    return [line for line in log.warnings if "Waiting goes on" in line]


def test_arguments_survive_airflows_serialisation():
    """What Airflow stores of the trigger makes an equal one, and holds no tuple (Airflow would recreate it forever)."""
    from airflow.serialization.serialized_objects import BaseSerialization

    since = {"selector": "a==b", "min_tasks": 2, "since": "2026-11-22T10:00:00+00:00"}
    for arguments in ({"task_ids": ["a"], "log_progress": True}, {"batch": "b"}, since):
        path, kwargs = ZkmqTaskTrigger(deadline=5.0, queue="q", **arguments).serialize()
        stored = json.loads(json.dumps(kwargs))
        assert stored == BaseSerialization.deserialize(BaseSerialization.serialize(kwargs)) == kwargs
        assert path == f"{ZkmqTaskTrigger.__module__}.{ZkmqTaskTrigger.__qualname__}"
        assert ZkmqTaskTrigger(**kwargs).serialize() == (path, kwargs)
    before_batches = {"task_ids": ["a"], "selector": None, "min_tasks": 1, "event": "completion", "queue": None}
    made = ZkmqTaskTrigger(**before_batches, zkmq_conn_id="zkmq_default", deadline=None)
    assert made.serialize() == ZkmqTaskTrigger(task_ids=["a"]).serialize()
