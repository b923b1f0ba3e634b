"""What a deferral stores, and since when its event counts: without Airflow's processes and without ZooKeeper."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from airflow.models.crypto import get_fernet
from airflow.models.trigger import Trigger
from cryptography.fernet import Fernet

from airflow_provider_zkmq.hooks import deferring
from airflow_provider_zkmq.hooks.deferring import awaited_ids, deferral_limit, hold_back
from airflow_provider_zkmq.hooks.naming import ARGUMENT_BYTES, first_fitting, fits, series_ids
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger
from tests.airflow.conftest import fire

#: MySQL's column for the encrypted arguments holds so many bytes.
COLUMN = 65_535
MANY = 10_000


@pytest.fixture
def encrypting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Airflow has a key to encrypt with."""
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
    get_fernet.cache_clear()
    assert get_fernet().is_encrypted
    yield
    get_fernet.cache_clear()


def test_stored_arguments_are_bounded(encrypting, subtests):
    """With 10 000 tasks the arguments, serialised and encrypted as Airflow stores them, fit into MySQL's column."""
    for name, ids in (
        ("series", series_ids("0" * 32, MANY)),
        ("generated", [f"{number:016x}-{number:08x}" for number in range(MANY)]),
        ("longest", ["x" * 115 + f"{number:06d}" for number in range(MANY)]),
    ):
        with subtests.test(ids=name):
            awaited = awaited_ids(ids, "0" * 32)
            trigger = ZkmqTaskTrigger(**awaited, queue="q" * 121, deadline=time.time(), deferred_at=time.time())
            _, kwargs = trigger.serialize()
            stored = Trigger.encrypt_kwargs(kwargs)
            assert len(stored) < COLUMN
            assert "task_ids" not in stored
            assert Trigger._decrypt_kwargs(stored) == kwargs


def test_the_first_of_many_are_as_many_as_fit():
    """They take at most the room that there is, one at least; few take it all."""
    ids = series_ids("k", 5)
    assert [first_fitting(ids, room) for room in (0, 12, 24, 1000)] == [ids[:1], ids[:1], ids[:2], ids]
    assert len(json.dumps(first_fitting(series_ids("k" * 32, MANY), ARGUMENT_BYTES))) <= ARGUMENT_BYTES
    assert (fits(ids, 60), fits(ids, 59)) == (True, False)


def test_those_that_are_left_are_waited_for_first():
    """Of many ids that make no series, the trigger is given those that have not ended."""
    ids = [f"{number:0100d}" for number in range(MANY)]
    awaited = awaited_ids(ids, None, ids[500:])
    assert awaited["partial"]
    assert awaited["task_ids"][0] == ids[500]
    assert awaited_ids(ids[:3], None) == {"task_ids": ids[:3]}


def test_an_event_is_held_back_for_seconds_at_the_most(monkeypatch):
    """Until some seconds after the deferral, and never longer, whatever the worker's clock says."""
    monkeypatch.setattr(deferring, "HELD_BACK", 6.0)
    told = [hold_back(deferred_at, 100.0) for deferred_at in (None, 99.0, 94.0, 10.0, 100.0, 5000.0)]
    assert told == [0.0, 5.0, 0.0, 0.0, 6.0, 6.0]


def test_airflow_waits_longer_than_an_event_is_held_back(monkeypatch):
    """A wait of a second ends by the trigger's event, not by Airflow's time-out, which would forget it."""
    monkeypatch.setattr(deferring, "HELD_BACK", 6.0)
    assert deferral_limit(None) is None
    now = time.time()
    assert deferral_limit(now + 1).total_seconds() == 10
    assert 300 <= deferral_limit(now + 300).total_seconds() <= 301


async def test_the_trigger_holds_its_event_back(monkeypatch):
    """What has happened already is told only when the deferral's process has surely ended."""
    pauses = []

    async def pause(seconds):
        pauses.append(seconds)

    async def happened(_):
        return {"status": "done", "ids": ["a"]}

    monkeypatch.setattr(deferring, "HELD_BACK", 6.0)
    monkeypatch.setattr("airflow_provider_zkmq.triggers.waiting.asyncio.sleep", pause)
    monkeypatch.setattr(ZkmqTaskTrigger, "_outcome", happened)
    trigger = ZkmqTaskTrigger(task_ids=["a"], deferred_at=time.time())
    assert await fire(trigger) == [{"status": "done", "ids": ["a"]}]
    (pause_,) = pauses
    assert 0 < pause_ <= 6
