"""`ZkmqEventTrigger`: events for DAGs that are scheduled on an asset, on a real event loop and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging

import pytest
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.serialization.serialized_objects import BaseSerialization, DagSerialization
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_zkmq.engine import AsyncZkmq, ClaimLost, ConfigError, Integer, RetryPolicy, String, Unavailable
from airflow_provider_zkmq.hooks.connection_options import OneAMinute
from airflow_provider_zkmq.hooks.outages import Backoff
from airflow_provider_zkmq.triggers import asset_watcher as watches
from airflow_provider_zkmq.triggers import sessions
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger
from tests.airflow.conftest import Heard, define, example, finish, until


@pytest.fixture
def shared(shared, monkeypatch):
    """Sessions of the test's own, and watches that look often, also where they claim."""
    monkeypatch.setattr(watches, "_SOONEST", 0.05)
    monkeypatch.setattr(watches, "_LATEST", 0.3)
    return shared


@pytest.fixture
def log(monkeypatch):
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


async def of(call, *arguments, **more):
    """A call of the test's own client, beside the loop."""
    return await asyncio.to_thread(call, *arguments, **more)


async def by_token(queue, claim, verb, *arguments):
    """What a run does with a claim that it was told of, beside the loop."""
    await asyncio.to_thread(lambda: getattr(queue.claim_handle(claim["id"], claim["token"]), verb)(*arguments))


def leases(queue):
    return queue.counts()["claimed"]


def put(queue, count):
    for number in range(count):
        queue.enqueue(f"marker-payload {number}", {"size": number}, task_id=f"t{number}")


async def test_it_tells_of_work_that_fits_and_claims_nothing(queue, shared, caplog):
    """One event with the queue, the selector and the counts; the task stays pending, and its payload is nowhere."""
    caplog.set_level(logging.DEBUG)
    async with watching_with(zkmq_queue="jobs", selector="size>0", refire=3600) as events:
        await of(put, queue, 2)
        event = await events.get()
        counts = event.pop("counts")
        assert event == {"queue": "jobs", "selector": "size>0"}
        assert (counts["inserted"], counts["claimed"]) == (2, 0)
        assert json.loads(json.dumps(counts)) == counts
    assert (queue.task("t1").state, queue.task("t1").attempt, queue.counts()["inserted"]) == ("inserted", 0, 2)
    assert "marker-payload" not in caplog.text + str(event)
    assert shared.users() == []


async def test_it_tells_again_while_any_is_pending(queue, shared):
    """After `refire` seconds, long as they may be; what comes after there was none is told of at once."""
    queue.enqueue("a")
    async with watching_with(refire=1) as events:
        assert [(await events.get())["counts"]["inserted"] for _ in range(3)] == [1, 1, 1]
    async with watching_with(refire=3600) as events:
        await events.get()
        await of(finish, queue)
        await until(lambda: events.trigger._silent_until is None)
        await of(queue.enqueue, "b")
        event = await events.get()
        assert (event["counts"]["inserted"], event["counts"]["finished"]) == (1, 1)
        assert events.empty()


async def test_tasks_that_are_leased_or_delayed_wake_it_when_they_may_be_delivered(queue, shared, subtests):
    """A lease that runs out, and a delay that is over, are work, and not before; nobody else need look after them."""
    for delay in (None, 3):
        with subtests.test(delay=delay):
            queue.enqueue("a", delay=delay)
            assert (queue.claim(lease=1) is None) == (delay is not None)
            async with watching_with(refire=3600) as events:
                assert (await events.get())["counts"]["inserted"] == 1
            claim = queue.claim()
            assert claim is not None, "it may be delivered"
            claim.complete()


async def test_a_queue_that_comes_later(queue, shared, zookeeper, log):
    """It is waited for, also after it was deleted, and the log says once that it is not there."""
    async with watching_with(zkmq_queue="later", refire=1) as events:
        async with AsyncZkmq.connect(zookeeper, queue.root, gc=False) as zk:
            later = zk.queue("later")
            await until(lambda: log.warnings)
            for count in (1, 2):
                for _ in range(count):
                    await later.enqueue("x")
                while (event := await events.get())["counts"]["inserted"] != count:
                    pass  # it was told of again meanwhile
                assert event["queue"] == "later"
                await later.delete(confirm=True, force=True)
    assert len(log.warnings) == 1
    assert "later" in log.warnings[0]


async def test_what_is_mended_later_is_found_without_a_restart(queue, shared, zookeeper, monkeypatch, log, met):
    """A connection that is missing, then one that is not understood, then a filter that is not declared."""
    async with watching_with(zkmq_conn_id="other", zkmq_queue="jobs", selector="colour==red") as events:
        await until(lambda: "other" in str(met))
        define(monkeypatch, "other", host=zookeeper, extra={"no_such": 1})
        await until(lambda: "no_such" in str(met))
        define(monkeypatch, "other", host=zookeeper, extra={"root": queue.root, "connect_timeout": 20})
        await until(lambda: "colour" in str(met))
        assert events.empty()
        await of(queue.configure, filters={"size": Integer(), "colour": String()})
        await of(queue.enqueue, "y", {"colour": "red"})
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
    await of(mortal.kill, 0)
    async with watching_with(refire=3600) as events:
        await until(lambda: log.warnings)
        await of(mortal.restart, 0)
        await events.get()
        async with AsyncZkmq.connect(mortal.hosts, root, connect_timeout=30) as zk:
            claim = await zk.queue("queue").claim(timeout=60)
            await claim.complete()
            await until(lambda: events.trigger._silent_until is None)  # it has seen that "a" is gone
            await of(mortal.restart, 0)
            await zk.queue("queue").enqueue("b")
            assert (await events.get())["counts"]["finished"] == 1
    assert len(log.warnings) <= 2
    assert sum(record.name == "airflow_provider_zkmq.kazoo" for record in caplog.records) <= 2


async def test_it_claims_no_more_than_may_be_in_flight(queue, shared, caplog):
    """The event names claims that can be begun by id and token, and no payload; more come when one is settled."""
    caplog.set_level(logging.DEBUG)
    put(queue, 5)
    async with watching_with(mode="claim", max_in_flight=3, lease=600, selector="size>0") as events:
        event = await events.get()
        assert (event["queue"], event["selector"], len(event["claims"])) == ("jobs", "size>0", 3)
        assert json.loads(json.dumps(event)) == event
        first, *others = event["claims"]
        assert set(first) == {"queue", "id", "token", "attempt", "filters"}
        assert (first["queue"], first["attempt"], set(first["filters"])) == ("jobs", 1, {"size"})
        assert await of(leases, queue) == 3
        await by_token(queue, first, "begin")
        await by_token(queue, first, "extend", 60)
        await by_token(queue, first, "complete", "done")
        (more,) = (await events.get())["claims"]
        assert more["id"] not in {first["id"], *(other["id"] for other in others)}
        assert (await of(queue.task, first["id"])).attempt == 1
        assert events.empty()
    assert "marker-payload" not in caplog.text + str(event)
    assert leases(queue) == 3, "what ends the trigger gives nothing back: others may have been told"


async def test_what_no_run_accepts_comes_back_uncounted_and_is_told_of_again(queue, shared):
    """With one attempt only, nothing is buried; the older token begins nothing any more."""
    queue.configure(policy=RetryPolicy(attempts=1))
    put(queue, 1)
    said = []
    for lease, count in ((1, 2), (600, 1)):
        async with watching_with(mode="claim", lease=lease) as events:
            said += [(await events.get())["claims"][0] for _ in range(count)]
    assert [claim["attempt"] for claim in said] == [1, 1, 1]
    with pytest.raises(ClaimLost):
        queue.claim_handle("t0", said[0]["token"]).begin()
    queue.claim_handle("t0", said[2]["token"]).begin()
    queue.claim_handle("t0", said[2]["token"]).fail("broken")
    task = queue.task("t0")
    assert (task.state, task.attempt, task.error) == ("dead", 1, "broken")


async def test_several_triggers_share_the_bound(queue, shared):
    """Three of them, as in triggerers that overlap: together they claim what one may, each task once."""
    put(queue, 12)
    said = []
    async with contextlib.AsyncExitStack() as stack:
        several = [
            await stack.enter_async_context(watching_with(mode="claim", max_in_flight=4, lease=600)) for _ in range(3)
        ]
        while len(said) < 12:
            await until(lambda: not all(events.empty() for events in several))
            for events in several:
                for claim in [] if events.empty() else events.get_nowait()["claims"]:
                    assert await of(leases, queue) <= 4
                    said.append(claim["id"])
                    await by_token(queue, claim, "begin")
                    await by_token(queue, claim, "complete")
    assert sorted(said) == sorted(f"t{number}" for number in range(12))
    assert {task.attempt for task in queue.tasks()} == {1}


async def test_a_restarted_trigger_counts_what_the_earlier_one_claimed(queue, shared):
    """It claims nothing while the leases of the one before stand, and tells of what then comes back, uncounted."""
    put(queue, 4)
    async with watching_with(mode="claim", max_in_flight=2, lease=2) as events:
        assert len((await events.get())["claims"]) == 2
    seen = []
    async with watching_with(mode="claim", max_in_flight=2, lease=600) as events:
        while len(seen) < 4:
            claims = (await events.get())["claims"]
            assert await of(leases, queue) <= 2
            for claim in claims:
                await by_token(queue, claim, "begin")
                await by_token(queue, claim, "complete")
                seen.append(claim["id"])
    assert sorted(seen) == ["t0", "t1", "t2", "t3"]
    assert {task.attempt for task in queue.tasks()} == {1}


async def test_payloads_are_told_on_demand_as_far_as_they_fit(queue, shared, monkeypatch):
    """In base64; what does not fit any more is left out, and the claim is told. A paused queue's, when it goes on."""
    monkeypatch.setattr(watches, "DATA_BYTES", 100)
    queue.configure(order="fifo")
    for name, size in (("a", 60), ("b", 60), ("c", 5)):
        queue.enqueue(b"x" * size, task_id=name)
    queue.pause()
    async with watching_with(mode="claim", include_data=True) as events:
        await until(lambda: shared.users() == [1] and shared.opened == 1)
        assert (await of(leases, queue), events.empty()) == (0, True)
        await of(queue.resume)
        claims = (await events.get())["claims"]
    payloads = {claim["id"]: base64.b64decode(claim.get("data", "")) for claim in claims}
    assert payloads == {"a": b"x" * 60, "b": b"", "c": b"x" * 5}


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


@pytest.fixture
def stand_in(shared, monkeypatch):
    """The watch meets `Servers`; its connection is looked up anew each time."""
    monkeypatch.setattr(sessions, "load_client", lambda: Servers)
    monkeypatch.setattr(sessions, "_FRESH", 0.0)


async def test_other_servers_of_a_connection_are_found_while_the_old_are_away(stand_in, shared, monkeypatch, met):
    """A session of servers that are gone for good would wait for them for ever; all who hold it learn it at once."""
    define(monkeypatch, host="old")
    async with watching_with() as one, watching_with(refire=2) as two:
        await until(lambda: len(met) > 2)
        assert shared.users() == [2]
        define(monkeypatch, host="new")
        for events in (one, two):
            assert (await events.get())["queue"] == "new"
        await until(lambda: shared.users() == [2])
    assert {type(error) for error in met} == {Unavailable}
    assert (shared.opened, shared.users()) == (2, [])


async def test_it_gives_its_session_back_however_it_ends(queue, shared):
    """Cancelled while it waits, and dropped between two events, as where the triggerer stops."""
    async with watching_with():
        await until(lambda: shared.users() == [1] and shared.opened == 1)
    assert shared.users() == []
    await of(queue.enqueue, "a")
    trigger = ZkmqEventTrigger()
    events = trigger.run()
    await anext(events)
    assert shared.users() == [1]
    for end in (trigger.on_kill, trigger.cleanup, trigger.cleanup):
        await end()
    assert shared.users() == []
    await events.aclose()
    assert queue.counts()["inserted"] == 1


def test_what_is_not_understood_is_refused_where_the_dag_is_parsed(subtests):
    """Each with the argument's name."""
    for arguments, said in (
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
        with subtests.test(arguments=arguments), pytest.raises(ConfigError, match=said):
            ZkmqEventTrigger(**arguments)


def test_arguments_survive_airflows_serialisation(caplog, subtests):
    """What Airflow stores makes an equal trigger with an equal hash, is small, and has what its mode reads alone.

    So equal watchers stay one; what the other mode alone reads is a warning and no other trigger.
    """
    given = {"zkmq_queue": "q", "selector": "size>5", "zkmq_conn_id": "c"}
    for mode, reads, unread, why in (
        ("wake", {"refire": 300}, {"max_in_flight": 4, "lease": "5m"}, "max_in_flight, lease"),
        ("claim", {"max_in_flight": 3, "lease": 300, "include_data": False}, {"refire": "5m"}, "refire"),
    ):
        with subtests.test(mode=mode):
            made = ZkmqEventTrigger(mode=mode, **given, **{n: "5m" if v == 300 else v for n, v in reads.items()})
            path, kwargs = made.serialize()
            assert path == f"{ZkmqEventTrigger.__module__}.{ZkmqEventTrigger.__qualname__}"
            assert kwargs == given | reads | {"mode": mode}
            assert json.loads(json.dumps(kwargs)) == kwargs
            assert BaseSerialization.deserialize(BaseSerialization.serialize(kwargs)) == kwargs
            assert len(json.dumps(kwargs)) < 200
            again = ZkmqEventTrigger(**kwargs)
            assert (again.serialize(), repr(again)) == ((path, kwargs), repr(made))
            assert BaseEventTrigger.hash(*again.serialize()) == BaseEventTrigger.hash(path, kwargs)
            assert not hasattr(made, "queue"), "newer releases of Airflow choose a trigger's triggerer by it"
            assert caplog.records == []
            assert ZkmqEventTrigger(**kwargs, **unread).serialize() == (path, kwargs)
            warned = f"ZkmqEventTrigger: {why}: of no use with mode='{mode}'"
            assert [record.getMessage() for record in caplog.records] == [warned]
            caplog.clear()
            with DAG("d", schedule=Asset("a", watchers=[AssetWatcher(name="w", trigger=made)])) as dag:
                pass
            assert path in json.dumps(DagSerialization.to_dict(dag)), "such a DAG has it, to be made again"


@pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core
def test_the_example_takes_what_is_there(queue, monkeypatch):
    """The DAG processor finds a DAG that is scheduled on what our trigger watches, with one run at a time.

    Each task is settled by its own outcome; a run that finds nothing, since another one took it, is a success.
    """
    monkeypatch.setenv("ZKMQ_EVENTS_QUEUE", "jobs")
    dag = example("zkmq_events")
    (watcher,) = dag.timetable.asset_condition.watchers
    assert dag.max_active_runs == 1
    assert watcher.trigger.serialize() == ZkmqEventTrigger(zkmq_queue="jobs", refire=60).serialize()
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    for number in range(3):
        queue.enqueue(f"order {number}", task_id=f"good-{number}")
    queue.enqueue("", task_id="bad")
    handle = dag.get_task("handle").python_callable
    assert handle() == {"done": 3, "failed": 1}
    assert [queue.task(f"good-{number}").result for number in range(3)] == [b"ORDER 0", b"ORDER 1", b"ORDER 2"]
    bad = queue.task("bad")
    assert (bad.state, bad.attempt, bad.error) == ("inserted", 1, "ValueError: an empty order")
    assert handle() == {"done": 0, "failed": 0}
