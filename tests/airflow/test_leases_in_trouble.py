"""`ZkmqLeaseTrigger` where a claim cannot be extended: it ends all the same when nobody settles any more."""

from __future__ import annotations

import asyncio

from airflow.sdk.execution_time import task_runner
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_zkmq.engine import AccessDenied
from airflow_provider_zkmq.engine.fronts.aqueue import AsyncQueue
from airflow_provider_zkmq.triggers import held
from airflow_provider_zkmq.triggers.leases import ZkmqLeaseTrigger
from airflow_provider_zkmq.triggers.sessions import SharedSessions
from tests.airflow.test_leases import LEASE, taken


async def test_what_cannot_be_extended_does_not_keep_the_rest_for_ever(queue, monkeypatch):
    """The run ends, too: it would go on for as long as its task is deferred."""

    async def refused(_queue, _task_id, _token, _lease):
        raise AccessDenied("you may not write")

    monkeypatch.setattr(held, "SESSIONS", SharedSessions())
    monkeypatch.setattr(AsyncQueue, "extend", refused)
    ended = staticmethod(lambda **_asked: {"r": {"settle": "failed"}})
    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", ended)
    claims = await asyncio.to_thread(taken, queue)
    trigger = ZkmqLeaseTrigger(claims=claims, lease=LEASE, settle=["d", "r", "settle", -1])
    async with asyncio.timeout(60):
        assert isinstance(await anext(trigger.run()), TaskSuccessEvent)
