"""What an enqueue costs its client: each task's record is encoded once, whatever the record is needed for."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.tasks import enqueue
from tests.fake_zookeeper import FakeZooKeeper, drive, new_context

TASKS = 50


@pytest.mark.parametrize("delay", [None, 60])
def test_a_task_s_record_is_encoded_once(monkeypatch: pytest.MonkeyPatch, delay: float | None) -> None:
    """Judging the size, grouping into transactions and sending share one encoding."""
    encode, encoded = TaskState.encode, []
    monkeypatch.setattr(TaskState, "encode", lambda state: encoded.append(state.nonce) or encode(state))
    zk = FakeZooKeeper()
    session = zk.connect()
    context = new_context(zk, session)
    ids = drive(zk, session, enqueue.enqueue_many(context, [Message(b"x", delay=delay) for _ in range(TASKS)]))
    assert len(ids) == len(set(encoded)) == TASKS
    assert len(encoded) == TASKS
