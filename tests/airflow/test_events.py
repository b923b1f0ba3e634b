"""`ZkmqEventTrigger`: events for DAGs that are scheduled on an asset, on a real event loop and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.serialization.serialized_objects import BaseSerialization, DagSerialization
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    ConfigError,
    Integer,
    QueueNotFound,
    RetryPolicy,
    SessionLost,
    String,
    Unavailable,
)
from airflow_provider_zkmq.hooks.quiet import OneAMinute, keep_kazoo_quiet
from airflow_provider_zkmq.triggers import held, sessions
from airflow_provider_zkmq.triggers.backoff import Backoff
from airflow_provider_zkmq.triggers.events import ZkmqEventTrigger
from tests.airflow.conftest import Heard, define, finish, until


@pytest.fixture
def log(monkeypatch):
    """What the trigger logs."""
    heard = Heard()
    monkeypatch.setattr(ZkmqEventTrigger, "log", heard)
    return heard


@pytest.fixture
def met(monkeypatch):
    """The errors after which the watch pauses."""
    errors, after = [], Backoff.after

    async def noted(self, error):
        errors.append(error)
        await after(self, error)

    monkeypatch.setattr(Backoff, "after", noted)
    return errors


class Servers:
    """Stands in for a session: the servers "old" are away, others have work."""

    def __init__(self, hosts):
        self.name = hosts

    @classmethod
    async def connect(cls, *, hosts, **_options):
        return cls(hosts)

    def queue(self, _name):
        return self

    async def ready(self, **_asked):
        if self.name.startswith("old"):
            raise Unavailable("away")
        return True

    async def exists(self, **_asked):
        return True

    async def counts(self):
        return {"inserted": 1}

    async def close(self):
        pass


@contextlib.asynccontextmanager
async def watching_with(**arguments):
    """The events of a trigger, as they come; it is cancelled at the end, as the triggerer does it."""
    trigger, events = ZkmqEventTrigger(**arguments), asyncio.Queue()
    events.trigger = trigger

    async def run():
        async for event in trigger.run():
            events.put_nowait(event.payload)

    running = asyncio.create_task(run())
    try:
        async with asyncio.timeout(90):
            yield events
        assert not running.done()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await trigger.cleanup()


async def test_it_tells_of_work_that_fits_and_claims_nothing(queue, shared, caplog):
    """One event with the queue, the selector and the counts; the task stays pending, and its payload is nowhere."""
    caplog.set_level(logging.DEBUG)
    async with watching_with(zkmq_queue="jobs", selector="size>5", refire=3600) as events:
        await asyncio.to_thread(queue.enqueue, "small", {"size": 1})
        wanted = await asyncio.to_thread(queue.enqueue, "marker-payload", {"size": 9})
        event = await events.get()
        counts = event.pop("counts")
        assert event == {"queue": "jobs", "selector": "size>5"}
        assert (counts["inserted"], counts["claimed"]) == (2, 0)
        assert json.loads(json.dumps(counts)) == counts
    assert (queue.task(wanted).state, queue.task(wanted).attempt) == ("inserted", 0)
    assert queue.counts()["inserted"] == 2
    assert "marker-payload" not in caplog.text + str(event)
    assert shared.users() == []


async def test_it_tells_again_while_any_is_pending(queue, shared):
    """After `refire` seconds, long as they may be; what comes after there was none is told of at once."""
    queue.enqueue("a")
    async with watching_with(refire=1) as events:
        told = [await events.get() for _ in range(3)]
    assert [event["counts"]["inserted"] for event in told] == [1, 1, 1]
    async with watching_with(refire=3600) as events:
        await events.get()
        await asyncio.to_thread(finish, queue)
        await until(lambda: events.trigger._watch._quiet_until is None)
        await asyncio.to_thread(queue.enqueue, "b")
        event = await events.get()
        assert (event["counts"]["inserted"], event["counts"]["finished"]) == (1, 1)
        assert events.empty()


@pytest.mark.parametrize("delay", [None, 1])
async def test_tasks_that_are_leased_or_delayed_wake_it_when_they_may_be_delivered(queue, shared, delay):
    """A lease that runs out, and a delay that is over, are work; nobody else need look after them."""
    queue.enqueue("a", delay=delay)
    assert (queue.claim(lease=1) is None) == (delay is not None)
    async with watching_with(refire=3600) as events:
        assert (await events.get())["counts"]["inserted"] == 1


async def test_a_queue_that_comes_later(queue, shared, zookeeper, log):
    """It is waited for, and the log says once that it is not there."""
    async with watching_with(zkmq_queue="later") as events:
        async with AsyncZkmq.connect(zookeeper, queue.root, gc=False) as zk:
            await until(lambda: log.warnings)
            await zk.queue("later").enqueue("x")
            assert (await events.get())["queue"] == "later"
    assert [line for line in log.warnings if "later" not in line] == []
    assert len(log.warnings) == 1


async def test_what_is_mended_later_is_found_without_a_restart(queue, shared, zookeeper, monkeypatch, log, met):
    """A connection that is missing, then one that is not understood, then a filter that is not declared."""
    async with watching_with(zkmq_conn_id="other", zkmq_queue="jobs", selector="colour==red") as events:
        await until(lambda: "other" in str(met))
        define(monkeypatch, "other", host=zookeeper, extra={"no_such": 1})
        await until(lambda: "no_such" in str(met))
        define(monkeypatch, "other", host=zookeeper, extra={"root": queue.root, "connect_timeout": 20})
        await until(lambda: "colour" in str(met))
        assert events.empty()
        await asyncio.to_thread(lambda: queue.configure(filters={"size": Integer(), "colour": String()}))
        await asyncio.to_thread(queue.enqueue, "y", {"colour": "red"})
        await events.get()
    assert len(log.warnings) == 1
    assert shared.users() == []


@pytest.mark.full
async def test_zookeeper_may_go_and_come_back(mortal, root, shared, monkeypatch, log, caplog):
    """Down at the start, killed while the watch waits: work that comes afterwards is told of, with a line a minute."""
    times = {"connect_timeout": 1, "session_timeout": 4, "request_timeout": 2}
    define(monkeypatch, host=mortal.hosts, extra={"root": root, **times})
    async with AsyncZkmq.connect(mortal.hosts, root, connect_timeout=30) as zk:
        await zk.queue("queue").enqueue("a")
    await asyncio.to_thread(mortal.kill, 0)
    async with watching_with(refire=3600) as events:
        await until(lambda: log.warnings)
        await asyncio.to_thread(mortal.restart, 0)
        await events.get()
        async with AsyncZkmq.connect(mortal.hosts, root, connect_timeout=30) as zk:
            claim = await zk.queue("queue").claim(timeout=60)
            await claim.complete()
            await until(lambda: events.trigger._watch._quiet_until is None)  # it has seen that "a" is gone
            await asyncio.to_thread(mortal.restart, 0)
            await zk.queue("queue").enqueue("b")
            assert (await events.get())["counts"]["finished"] == 1
    assert len(log.warnings) <= 2
    assert sum(record.name == "airflow_provider_zkmq.kazoo" for record in caplog.records) <= 2


def test_kazoo_logs_a_line_a_minute_and_each_error():
    """It tries a connection that is away each second, and says so each time."""
    now = [0.0]
    thinned = OneAMinute(clock=lambda: now[0])
    passed = []
    for second in range(300):
        now[0] = second
        passed += [second] * thinned.filter(logging.makeLogRecord({"levelno": logging.WARNING}))
    assert passed == [0, 60, 120, 180, 240]
    assert all(thinned.filter(logging.makeLogRecord({"levelno": logging.ERROR})) for _ in range(3))
    for _ in range(2):
        keep_kazoo_quiet()
    filters = logging.getLogger("airflow_provider_zkmq.kazoo").filters
    assert sum(isinstance(each, OneAMinute) for each in filters) == 1


async def test_a_session_that_ended_is_replaced(shared, log, monkeypatch):
    """The watch leaves an ended session to nobody; where servers are only away, it keeps it."""
    raised = [Unavailable("away"), SessionLost("over"), RuntimeError("a bug"), QueueNotFound("q"), None]
    stood_in, forgotten = [], []

    class Lease(Servers):
        """Lease, client and queue in one."""

        default_queue = "q"
        client = property(lambda self: self)

        async def ready(self, **_asked):
            stood_in.append(self)
            if (error := raised.pop(0)) is not None:
                raise error
            return True

        async def outdated(self):
            return False

        def forget(self):
            forgotten.append(self)

    class Sessions:
        @contextlib.asynccontextmanager
        async def lease(self, _conn_id):
            yield Lease("q")

    monkeypatch.setattr(held, "SESSIONS", Sessions())
    async with watching_with() as events:
        assert await events.get() == {"queue": "q", "selector": None, "counts": {"inserted": 1}}
    first, second, third, fourth, fifth = stood_in
    assert (first is second, second is third, third is fourth, fourth is fifth) == (True, False, False, True)
    assert len(forgotten) == 1


async def test_a_connection_that_names_other_servers_is_found_while_the_old_ones_are_away(shared, monkeypatch, met):
    """A session of servers that are gone for good would wait for them for ever; all who hold it learn it at once."""
    monkeypatch.setattr(sessions, "load_client", lambda: Servers)
    monkeypatch.setattr(sessions, "_FRESH", 0.0)
    define(monkeypatch, host="old")
    async with watching_with() as one, watching_with(refire=2) as two:
        await until(lambda: len(met) > 2)
        assert shared.users() == [2]
        define(monkeypatch, host="new")
        for events in (one, two):
            assert (await events.get())["queue"] == "new"
        await until(lambda: shared.users() == [2])
    assert {type(error) for error in met} == {Unavailable}
    assert shared.opened == 2
    assert shared.users() == []


async def test_it_gives_its_session_back_however_it_ends(queue, shared):
    """Cancelled while it waits, and dropped between two events, as where the triggerer stops."""
    async with watching_with():
        await until(lambda: shared.users() == [1] and shared.opened == 1)
    assert shared.users() == []
    await asyncio.to_thread(queue.enqueue, "a")
    trigger = ZkmqEventTrigger()
    events = trigger.run()
    await anext(events)
    assert shared.users() == [1]
    await trigger.on_kill()
    await trigger.cleanup()
    await trigger.cleanup()
    assert shared.users() == []
    await events.aclose()
    assert queue.counts()["inserted"] == 1


async def test_pauses_grow_and_the_log_has_a_line_a_minute(monkeypatch):
    """An hour without ZooKeeper: first pauses of a second or two, later of a minute at most, at most 60 lines."""
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


def test_what_is_not_understood_is_refused_where_the_dag_is_parsed(subtests):
    """Each with the argument's name."""
    for arguments, told in (
        ({"mode": "claim", "max_in_flight": 65}, "max_in_flight 65 is not allowed: a whole number from 1 to 64"),
        ({"mode": "claim", "max_in_flight": True}, "max_in_flight True is not allowed"),
        ({"mode": "claim", "lease": 0.5}, "lease 0.5 is not allowed: 1 second or more"),
        ({"mode": "claim", "include_data": "yes"}, "include_data 'yes' is not allowed"),
        ({"mode": "sleep"}, "'sleep' is not allowed"),
        ({"mode": ["wake"]}, r"mode \['wake'\] is not allowed"),
        ({"max_in_flight": 65}, "max_in_flight 65 is not allowed"),
        ({"include_data": True}, "include_data would go with mode='claim'"),
        ({"refire": 0.5}, "1 second or more"),
        ({"refire": None}, "1 second or more"),
        ({"refire": "soon"}, "refire 'soon' is no duration"),
        ({"selector": "size>"}, "selector"),
        ({"selector": 5}, "must be text"),
        ({"zkmq_queue": "a/b"}, "queue 'a/b' is not allowed"),
    ):
        with subtests.test(arguments=arguments), pytest.raises(ConfigError, match=told):
            ZkmqEventTrigger(**arguments)


def test_what_the_other_mode_alone_reads_is_a_warning_and_no_other_trigger(caplog):
    """One set of arguments goes with both modes; what is stored does not have what is not read."""
    for mode, told, read in (
        ("wake", "max_in_flight, lease", {"refire": 30}),
        ("claim", "refire", {"max_in_flight": 4, "lease": 30}),
    ):
        made = ZkmqEventTrigger(zkmq_queue="q", mode=mode, refire=30, max_in_flight=4, lease=30)
        warned = f"ZkmqEventTrigger: {told}: of no use with mode='{mode}'"
        assert [record.getMessage() for record in caplog.records] == [warned]
        assert made.serialize() == ZkmqEventTrigger(zkmq_queue="q", mode=mode, **read).serialize()
        caplog.clear()


def test_arguments_survive_airflows_serialisation():
    """What Airflow stores makes an equal trigger with an equal hash, is small, and no attribute is named `queue`."""
    made = ZkmqEventTrigger(zkmq_queue="q", selector="size>5", refire="5m", max_in_flight=16, zkmq_conn_id="c")
    path, kwargs = made.serialize()
    stored = json.loads(json.dumps(kwargs))
    assert stored == BaseSerialization.deserialize(BaseSerialization.serialize(kwargs)) == kwargs
    assert path == f"{ZkmqEventTrigger.__module__}.{ZkmqEventTrigger.__qualname__}"
    again = ZkmqEventTrigger(**stored)
    assert again.serialize() == (path, kwargs)
    assert BaseEventTrigger.hash(*again.serialize()) == BaseEventTrigger.hash(path, kwargs)
    assert kwargs["refire"] == 300
    assert len(json.dumps(kwargs)) < 200
    assert not hasattr(made, "queue")
    assert repr(again) == repr(made)
    with DAG("d", schedule=Asset("a", watchers=[AssetWatcher(name="w", trigger=made)])) as dag:
        pass
    assert path in json.dumps(DagSerialization.to_dict(dag)), "a DAG that is scheduled on it has it, to be made again"


EXAMPLE = Path(__file__).parents[2] / "example_dags" / "zkmq_events.py"


@pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core
def test_the_example_takes_what_is_there(queue, monkeypatch):
    """The DAG processor finds a DAG that is scheduled on what our trigger watches, with one run at a time.

    Each task is settled by its own outcome; a run that finds nothing, since another one took it, is a success.
    """
    monkeypatch.setenv("ZKMQ_EVENTS_QUEUE", "jobs")
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    found = DagBag(shutil.copy(EXAMPLE, folder))
    assert not found.import_errors
    example = found.dags["zkmq_events"]
    (watcher,) = example.timetable.asset_condition.watchers
    assert example.max_active_runs == 1
    assert watcher.trigger.serialize() == ZkmqEventTrigger(zkmq_queue="jobs", refire=60).serialize()
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    for number in range(3):
        queue.enqueue(f"order {number}", task_id=f"good-{number}")
    queue.enqueue("", task_id="bad")
    handle = example.get_task("handle").python_callable
    assert handle() == {"done": 3, "failed": 1}
    assert [queue.task(f"good-{number}").result for number in range(3)] == [b"ORDER 0", b"ORDER 1", b"ORDER 2"]
    bad = queue.task("bad")
    assert (bad.state, bad.attempt, bad.error) == ("inserted", 1, "ValueError: an empty order")
    assert handle() == {"done": 0, "failed": 0}
