"""`ZkmqKeepOperator` on queue files, which no trigger can use: a worker extends the claims, again and again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRescheduleException, TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.triggers.base import TaskFailedEvent

from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    ClaimLost,
    ConfigError,
    CorruptRecord,
    Unavailable,
    Unsupported,
    Zkmq,
)
from airflow_provider_zkmq.filequeue.queue import FileQueue
from airflow_provider_zkmq.hooks.claims import told
from airflow_provider_zkmq.operators.keeping import ZkmqKeepOperator
from airflow_provider_zkmq.triggers.leases import ZkmqLeaseTrigger

from .conftest import define, instance

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """A queue of the files that the connection ``zkmq_default`` names, with two tasks."""
    define(monkeypatch, host=f"textqueue://{tmp_path}")
    with Zkmq.connect(f"textqueue://{tmp_path}") as files:
        made = files.queue("jobs")
        for name in ("a", "b"):
            made.enqueue("x", task_id=name)
        yield made


@pytest.fixture
def lent(monkeypatch):
    """For how long the claims of each task were extended, one after the other."""
    leases, extend = [], FileQueue.extend

    def noted(self, task_id, token, lease):
        extend(self, task_id, token, lease)
        leases.append((task_id, lease))

    monkeypatch.setattr(FileQueue, "extend", noted)
    return leases


def taken(jobs):
    return [told("jobs", jobs.claim_task(name, lease=60)) for name in ("a", "b")]


def keep(claims, lease=900, settle=None):
    ZkmqKeepOperator(task_id="keep", claims=claims, lease=lease, settle=settle).execute(instance())


@pytest.mark.parametrize(("lease", "pause"), [(900, 30), (12, 4)])
def test_the_claims_are_extended_and_the_task_comes_again(jobs, lent, lease, pause):
    """It asks Airflow for that, a third of the lease later at the latest, and holds no slot meanwhile."""
    before = datetime.now(UTC)
    with pytest.raises(AirflowRescheduleException) as again:
        keep(taken(jobs), lease)
    assert lent == [("a", lease), ("b", lease)]
    assert again.value.reschedule_date <= datetime.now(UTC) + timedelta(seconds=pause)
    assert again.value.reschedule_date >= before + timedelta(seconds=pause)


def test_it_ends_when_none_of_the_claims_holds(jobs, lent):
    """One that was settled, or is another's, is left; the other's claim is not extended."""
    first, second = taken(jobs)
    jobs.complete("a", first["token"])
    with pytest.raises(AirflowRescheduleException):
        keep([first, second])
    jobs.release("b", second["token"])
    other = jobs.claim_task("b", lease=60)
    keep([first, second])
    assert lent == [("b", 900)]
    other.complete("the other's")


@pytest.mark.parametrize("state", ["failed", "running"])
def test_it_ends_when_nobody_settles_any_more(jobs, monkeypatch, state):
    """Then the claims are left to their leases; while what settles is to come, they are kept."""
    monkeypatch.setattr(
        task_runner.RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_asked: {"r": {"settle_3": state}})
    )
    claims = taken(jobs)
    if state == "failed":
        keep(claims, settle="settle")
    else:
        with pytest.raises(AirflowRescheduleException):
            keep(claims, settle="settle")
    assert [jobs.task(name).state for name in ("a", "b")] == ["claimed"] * 2
    jobs.complete("a", claims[0]["token"])


def test_airflow_that_does_not_answer_ends_nothing(jobs, monkeypatch):
    """Whether somebody settles is asked again by the next round: work that goes on is not to be delivered again."""

    def silent(**_asked):
        raise RuntimeError("the API server restarts")

    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", staticmethod(silent))
    claims = taken(jobs)
    with pytest.raises(AirflowRescheduleException):
        keep(claims, settle="settle")
    jobs.complete("a", claims[0]["token"])


@pytest.mark.parametrize("error", [Unavailable("the file's lock is held"), CorruptRecord("a line is damaged")])
def test_a_file_that_another_process_holds_ends_nothing(jobs, monkeypatch, error):
    """Nor does what somebody has edited: the others are extended, and it comes again."""
    extend, tried = FileQueue.extend, []

    def held(self, task_id, token, lease):
        tried.append(task_id)
        if task_id == "a":
            raise error
        extend(self, task_id, token, lease)

    monkeypatch.setattr(FileQueue, "extend", held)
    claims = taken(jobs)
    with pytest.raises(AirflowRescheduleException):
        keep(claims)
    assert tried == ["a", "b"]
    jobs.complete("a", claims[0]["token"])


def test_a_trigger_on_queue_files_ends_as_a_failure(jobs):
    """It would try for ever; the claim is left as it is, for who holds it."""
    [first, _] = taken(jobs)

    async def run():
        trigger = ZkmqLeaseTrigger(claims=[["jobs", "a", first["token"]]], lease=3.0)
        async with asyncio.timeout(60):
            events = [event async for event in trigger.run()]
        await trigger.cleanup()
        return events

    assert [type(event) for event in asyncio.run(run())] == [TaskFailedEvent]
    jobs.complete("a", first["token"])
    with pytest.raises(ClaimLost):
        jobs.complete("a", first["token"] + 1)
    with pytest.raises(Unsupported, match="no asynchronous use"):
        AsyncZkmq.connect("textqueue:///somewhere")


def test_a_connection_that_is_not_known_here_is_the_triggers_to_try(monkeypatch):
    """As where the secrets backend does not answer the worker for a moment."""

    def away(_conn_id):
        raise ConfigError("the vault is sealed")

    monkeypatch.setattr(BaseHook, "get_connection", away)
    with pytest.raises(TaskDeferred):
        keep([{"queue": "jobs", "id": "a", "token": 7}])


def test_who_settles_is_named_by_an_id():
    """Not by the operator: refused where the DAG is parsed."""
    with pytest.raises(ValueError, match="settle 5 is not allowed"):
        ZkmqKeepOperator(task_id="keep", claims=[], settle=5)
