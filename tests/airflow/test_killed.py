"""`cancel_on_kill`: what a user's end of a waiting operator cancels, and that no other end cancels anything."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.serialization.serialized_objects import BaseSerialization
from cryptography.fernet import Fernet

from airflow_provider_zkmq.engine.api.queue import Queue
from airflow_provider_zkmq.hooks import compact_task_ids
from airflow_provider_zkmq.hooks.compact_task_ids import series_ids
from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
from tests.airflow.conftest import Heard, deferral, enqueuing, finish, instance, rebuilt
from tests.support import eventually


@pytest.fixture
def airflow_says(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Airflow answers to the question for the task instance's state, what it was asked, and when it answers."""
    said: dict[str, Any] = {"state": "failed", "requested": [], "answers": threading.Event()}
    said["answers"].set()

    def states(**requested: Any) -> dict[str, dict[str, Any]]:
        said["requested"].append(requested)
        said["answers"].wait(60)
        return {"r": {"t_3": said["state"]}} if said["state"] != "unknown" else {}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
    return said


@pytest.fixture
def killers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which operators do what their end asks for."""
    started: list[threading.Thread] = []

    def thread(**given: Any) -> threading.Thread:
        started.append(threading.Thread(**given))
        return started[-1]

    monkeypatch.setattr("airflow_provider_zkmq.operators.enqueuing.threading", SimpleNamespace(Thread=thread))
    return started


def waiting(**arguments: Any) -> ZkmqEnqueueOperator:
    requested = {"messages": ["a", "b", "c"], "wait_for_completion": True, "cancel_on_kill": True}
    return enqueuing(**requested | arguments)


def begun(queue: Queue, operator: ZkmqEnqueueOperator, context: dict[str, Any]) -> tuple[threading.Thread, list[str]]:
    """The operator waits for its three tasks in a thread of its own; with what its failure will say."""
    raised: list[str] = []

    def execute() -> None:
        try:
            operator.execute(context)
        except AirflowException as error:
            raised.append(str(error))

    running = threading.Thread(target=execute, daemon=True)
    running.start()
    eventually(lambda: queue.counts()["inserted"] == 3 and operator._held is not None)
    return running, raised


def test_a_user_s_end_on_the_worker_cancels_what_is_open(queue, context, airflow_says, subtests):
    """What has ended stays as it is; the operator fails, naming the first, when all are; the log says it beforehand."""
    for number, arguments in enumerate(({}, {"batch": "b"}), 1):
        with subtests.test(arguments=arguments):
            airflow_says["requested"].clear()
            operator = waiting(**arguments)
            operator._cached_logger = log = Heard()
            running, raised = begun(queue, operator, context)
            finish(queue)
            operator.on_kill()
            running.join(60)
            expected = {"finished": number, "cancelled": 2 * number, "inserted": 0}
            assert queue.counts() | expected == queue.counts()
            assert "cancelled" in raised[0]
            assert [line.partition(":")[0] for line in log.warnings][-2:] == ["Told to end", "Ended by a user"]
            assert airflow_says["requested"] == [{"dag_id": "d", "run_ids": ["r"], "task_ids": ["t"], "map_index": 3}]


def test_another_end_of_a_worker_cancels_nothing(queue, airflow_says, killers, subtests):
    """A worker that is shut down, a task that is cleared, and an operator that was not asked to cancel anything."""
    for number, state in enumerate(("running", "up_for_retry", "unknown", "failed"), 1):
        with subtests.test(state=state):
            airflow_says.update(state=state, requested=[])
            operator = waiting(cancel_on_kill=state != "failed")
            running, raised = begun(queue, operator, instance(run_id=state))
            operator.on_kill()
            for thread in killers:
                thread.join(60)
            assert len(airflow_says["requested"]) == (state != "failed")
            assert (queue.counts()["inserted"], queue.counts()["cancelled"]) == (3, 0)
            for _ in range(3):
                finish(queue)
            running.join(60)
            assert (queue.counts()["finished"], raised) == (3 * number, [])


async def test_a_deferred_operator_is_cancelled_by_a_user_alone(queue, context, airflow_says, subtests):
    """Airflow's own reassignment calls `on_kill`, too: then the task is deferred still, and nothing is cancelled.

    Without `cancel_on_kill` the trigger does not even ask.
    """
    await deferral(waiting(deferrable=True, cancel_on_kill=False).execute, context).trigger.on_kill()
    assert (airflow_says["requested"], queue.counts()["inserted"]) == ([], 3)
    own = {"messages": [{"data": "x", "task_id": "own"}, "y", "z"]}
    for arguments, state in itertools.product(({}, {"batch": "b"}, own), ("deferred", None, "failed")):
        with subtests.test(arguments=arguments, state=state):
            airflow_says.update(state=state, requested=[])
            trigger = deferral(waiting(**arguments, deferrable=True).execute, context).trigger
            await rebuilt(trigger).on_kill()
            assert queue.counts()["cancelled" if state == "failed" else "inserted"] == 3
            assert len(airflow_says["requested"]) == 1
        if state == "failed":
            for task in queue.tasks():
                queue.drop(task.id)


async def test_what_a_trigger_cancels_outlives_its_own_cancellation(queue, context, airflow_says):
    """Airflow cancels `on_kill` again while it waits for the state: the tasks are cancelled all the same."""
    trigger = deferral(waiting(deferrable=True).execute, context).trigger
    airflow_says["answers"].clear()
    killing = asyncio.create_task(trigger.on_kill())
    await asyncio.to_thread(eventually, lambda: bool(airflow_says["requested"]))
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing
    airflow_says["answers"].set()
    await asyncio.to_thread(eventually, lambda: queue.counts()["cancelled"] == 3)


def test_a_batch_that_is_deferred_again_is_cancelled_as_before(queue, context):
    """The event names no ids of a batch's members: they are known all the same."""
    operator = waiting(batch="b", deferrable=True)
    first = deferral(operator.execute, context)
    again = deferral(operator.execute_complete, context, {"status": "done", "batch": "b"}, **first.kwargs)
    assert again.trigger.cancels == first.trigger.cancels
    assert len(again.trigger.cancels["task_ids"]) == 3


def own_ids(count: int) -> list[str]:
    return [f"order-{number:06d}-with-a-name-of-its-own" for number in range(count)]


@pytest.mark.parametrize("batch", [None, "b"])
async def test_more_tasks_than_a_trigger_can_name_are_cancelled_all(queue, context, airflow_says, monkeypatch, batch):
    """Those that it does not name note who enqueued them; another instance's stay."""
    for room in ("EVENT_BYTES", "ARGUMENT_BYTES"):
        monkeypatch.setattr(compact_task_ids, room, 1_000)
    messages = [{"data": "x", "task_id": task_id} for task_id in own_ids(60)]
    trigger = deferral(waiting(messages=messages, batch=batch, deferrable=True).execute, context).trigger
    waiting(messages=["theirs"], wait_for_completion=False).execute(instance(map_index=4))
    assert queue.claim(lease=600) is not None
    await rebuilt(trigger).on_kill()
    assert queue.counts() | {"cancelled": 60, "inserted": 1, "claimed": 0} == queue.counts()


def test_ten_thousand_tasks_that_are_cancelled_with_their_task_fit_a_row(context, subtests):
    """Encrypted, as Airflow stores them with a key: MySQL's column holds 65 535 bytes."""
    for batch, ids in itertools.product((None, "b"), (own_ids(10_000), series_ids("0" * 32, 10_000))):
        with subtests.test(batch=batch, first=ids[0]):
            operator = waiting(batch=batch, deferrable=True)
            trigger = deferral(operator._defer, context, ids, "0" * 32, None).trigger
            kwargs = BaseSerialization.serialize(trigger.serialize()[1])
            stored = Fernet(Fernet.generate_key()).encrypt(json.dumps(kwargs).encode())
            assert len(stored) < 65_535
