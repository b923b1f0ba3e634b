"""Metrics of Airflow's own stats, as their backend is given them."""

from __future__ import annotations

import asyncio

import pytest
from airflow.sdk._shared.observability.metrics import stats as backends
from airflow.sdk.observability import stats

from airflow_provider_zkmq.decorators import consuming
from airflow_provider_zkmq.decorators.zkmq import zkmq_task
from airflow_provider_zkmq.engine import Message, RetryPolicy
from airflow_provider_zkmq.hooks import settings, telemetry
from tests.airflow.conftest import kill
from tests.airflow.test_events import watching_with


@pytest.fixture
def told():
    """What a backend of Airflow's stats is given, in order, while the test runs."""
    kept = []

    class Backend:
        def incr(self, stat, count=1, *, tags=None):
            kept.append((stat, count, tags))

        timing = incr

    before = (backends._factory, backends._backend, backends._export_legacy_names)
    stats.initialize(factory=Backend, export_legacy_names=True)
    yield kept
    backends._factory, backends._backend, backends._export_legacy_names = before


JOBS = {"queue": "jobs"}


def test_counters_and_times_have_their_names_and_tags(queue, told):
    """Enqueued, claimed, settled, dead; wait and run in milliseconds; each with its queue. None is not sent."""
    telemetry.count_enqueued("jobs", 3)
    telemetry.count_enqueued("jobs", 0)
    queue.enqueue("x")
    claim = queue.claim(timeout=20)
    telemetry.count_claimed("jobs", [claim.task])
    claim.complete()
    telemetry.count_settled("jobs", "completed", run_ms=12)
    telemetry.count_dead("jobs", 2)
    waited = ("zkmq.wait_time", claim.task.claimed_ms - claim.task.enqueued_ms, JOBS)
    settled = ("zkmq.settled", 1, {"queue": "jobs", "outcome": "completed"})
    assert told[:3] == [("zkmq.enqueued", 3, JOBS), ("zkmq.claimed", 1, JOBS), waited]
    assert told[3:] == [settled, ("zkmq.run_time", 12, JOBS), ("zkmq.dead", 2, JOBS)]
    told.clear()
    task, never, dead = queue.task(claim.task.id), queue.enqueue("never"), queue.enqueue("y", priority=1)
    kill(queue, "no")
    queue.cancel(never)
    telemetry.tell_ended("jobs", [task, queue.task(never)])
    assert told == [waited, ("zkmq.run_time", task.ended_ms - task.claimed_ms, JOBS)], "and nothing of one unclaimed"
    telemetry.tell_ended("jobs", [queue.task(dead)])
    assert told[-1] == ("zkmq.dead", 1, JOBS)


def test_all_that_are_dead_are_counted_however_few_have_a_line(queue, told, context, monkeypatch):
    """Of what `@task.zkmq` handled: the others are read in parts, and those that are tried again are not dead."""
    monkeypatch.setattr(consuming, "_AT_ONCE", 8)
    once, again = RetryPolicy(attempts=1), RetryPolicy(attempts=2, factor=3600, max_backoff=7200)
    queue.enqueue_many([Message(b"x", policy=again if number % 10 == 0 else once) for number in range(50)])

    def handle(job):
        raise ValueError("no")

    summary = zkmq_task(handle, task_id="t")().operator.execute(context)
    assert (summary["failed"], queue.counts()["dead"]) == (50, 45)
    assert sum(number for name, number, _ in told if name == "zkmq.dead") == 45


async def test_what_a_trigger_claims_is_counted(queue, told, shared):
    """Once for each claim, with how long the task had waited: the runs that accept them claim nothing."""
    await asyncio.to_thread(queue.enqueue_many, [Message("x") for _ in range(3)])
    async with watching_with(mode="claim", max_in_flight=3) as events:
        left = 3
        while left:
            left -= len((await events.get())["claims"])
    assert sum(number for name, number, _ in told if name == "zkmq.claimed") == 3
    assert sum(name == "zkmq.wait_time" for name, _, _ in told) == 3


def test_they_can_be_switched_off_and_a_wrong_option_fails_nothing(told, monkeypatch, caplog):
    """By the section ``[zkmq]``; the option is asked for once the work is done: a warning names it, once."""
    monkeypatch.setenv("AIRFLOW__ZKMQ__STATS", "False")
    telemetry.count_enqueued("jobs", 1)
    telemetry.count_settled("jobs", "failed", run_ms=1)
    assert told == []
    monkeypatch.setenv("AIRFLOW__ZKMQ__STATS", "perhaps")
    settings._warn.cache_clear()
    for number in (2, 1):
        telemetry.count_enqueued("jobs", number)
    assert told == [("zkmq.enqueued", 2, JOBS), ("zkmq.enqueued", 1, JOBS)], "the default holds"
    [warning] = [each.message for each in caplog.records if "[zkmq] stats" in each.message]
    assert "perhaps" in warning
