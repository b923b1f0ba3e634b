"""`ZkmqEventTrigger(mode="claim")`: claims taken for runs to come, on a real event loop and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import base64
import json
import logging

import pytest

from airflow_provider_zkmq.engine import ClaimLost, RetryPolicy
from airflow_provider_zkmq.triggers import backoff, claiming, held
from airflow_provider_zkmq.triggers.events import ZkmqEventTrigger
from airflow_provider_zkmq.triggers.sessions import SharedSessions
from tests.airflow.test_events import until, watching_with


@pytest.fixture
def shared(monkeypatch):
    """A registry of the test's own, and watches that look often and pause little."""
    made = SharedSessions()
    monkeypatch.setattr(held, "SESSIONS", made)
    monkeypatch.setattr(claiming, "_SOONEST", 0.05)
    monkeypatch.setattr(claiming, "_LATEST", 0.3)
    monkeypatch.setattr(backoff, "_LONGEST_PAUSE", 0.1)
    return made


def put(queue, count):
    for number in range(count):
        queue.enqueue(f"marker-payload {number}", {"size": number}, task_id=f"t{number}")


async def of(call, *arguments):
    """A call of the test's own client, beside the loop."""
    return await asyncio.to_thread(call, *arguments)


def leases(queue):
    return queue.counts()["claimed"]


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
        await of(queue.begin, first["id"], first["token"])
        await of(queue.extend, first["id"], first["token"], 60)
        await of(queue.complete, first["id"], first["token"], "done")
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
    async with watching_with(mode="claim", lease=1) as events:
        tokens = [(await events.get())["claims"][0] for _ in range(3)]
        assert [claim["attempt"] for claim in tokens] == [1, 1, 1]
        with pytest.raises(ClaimLost):
            await of(queue.begin, "t0", tokens[0]["token"])
        while True:  # the latest one may expire in this moment, too
            last = tokens[-1]
            try:
                await of(queue.begin, "t0", last["token"])
                break
            except ClaimLost:
                tokens.append((await events.get())["claims"][0])
        await of(queue.fail, "t0", last["token"], "broken")
    task = queue.task("t0")
    assert (task.state, task.attempt, task.error) == ("dead", 1, "broken")


async def test_several_triggers_share_the_bound(queue, shared):
    """Three of them, as in triggerers that overlap: together they claim what one may, each task once."""
    put(queue, 12)
    told = []
    async with (
        watching_with(mode="claim", max_in_flight=4, lease=600) as one,
        watching_with(mode="claim", max_in_flight=4, lease=600) as two,
        watching_with(mode="claim", max_in_flight=4, lease=600) as three,
    ):
        while len(told) < 12:
            await until(lambda: not (one.empty() and two.empty() and three.empty()))
            for events in (one, two, three):
                for claim in [] if events.empty() else events.get_nowait()["claims"]:
                    assert await of(leases, queue) <= 4
                    told.append(claim["id"])
                    await of(queue.begin, claim["id"], claim["token"])
                    await of(queue.complete, claim["id"], claim["token"])
    assert sorted(told) == sorted(f"t{number}" for number in range(12))
    assert {task.attempt for task in queue.tasks()} == {1}


async def test_a_restarted_trigger_counts_what_the_earlier_one_claimed(queue, shared):
    """It claims nothing while the leases of the one before stand, and tells of what then comes back."""
    put(queue, 4)
    async with watching_with(mode="claim", max_in_flight=2, lease=3) as events:
        early = {claim["id"] for claim in (await events.get())["claims"]}
    async with watching_with(mode="claim", max_in_flight=2, lease=3) as events:
        assert await of(leases, queue) == 2
        seen = set()
        while not early <= seen:
            seen |= {claim["id"] for claim in (await events.get())["claims"]}
            assert await of(leases, queue) <= 2
    assert {queue.task(name).attempt - (queue.task(name).state == "claimed") for name in early} == {0}


async def test_payloads_are_told_on_demand_as_far_as_they_fit(queue, shared, monkeypatch):
    """In base64; what does not fit any more is left out, and the claim is told all the same."""
    monkeypatch.setattr(claiming, "DATA_BYTES", 100)
    queue.configure(order="fifo")
    for name, size in (("a", 60), ("b", 60), ("c", 5)):
        queue.enqueue(b"x" * size, task_id=name)
    async with watching_with(mode="claim", include_data=True) as events:
        claims = (await events.get())["claims"]
    assert {claim["id"]: base64.b64decode(claim.get("data", "")) for claim in claims} == {
        "a": b"x" * 60,
        "b": b"",
        "c": b"x" * 5,
    }


async def test_a_paused_queue_is_left_alone(queue, shared):
    """It is claimed from when it goes on."""
    put(queue, 1)
    queue.pause()
    async with watching_with(mode="claim") as events:
        await until(lambda: shared.users() == [1] and shared.opened == 1)
        await of(queue.resume)
        assert len((await events.get())["claims"]) == 1


def test_arguments_of_both_modes_survive_airflows_serialisation():
    """Each mode stores what it reads, so that equal watchers stay one, and makes an equal trigger."""
    from airflow.triggers.base import BaseEventTrigger

    wake = ZkmqEventTrigger(zkmq_queue="q").serialize()[1]
    assert set(wake) == {"zkmq_queue", "selector", "mode", "refire", "zkmq_conn_id"}
    made = ZkmqEventTrigger(zkmq_queue="q", mode="claim", max_in_flight=3, lease="5m")
    path, kwargs = made.serialize()
    assert (kwargs["max_in_flight"], kwargs["lease"], kwargs["include_data"]) == (3, 300, False)
    assert "refire" not in kwargs
    again = ZkmqEventTrigger(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == (path, kwargs)
    assert BaseEventTrigger.hash(*again.serialize()) == BaseEventTrigger.hash(path, kwargs)
