"""`ZkmqEnqueueOperator`, executed against a real ZooKeeper."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from airflow_provider_zkmq.engine import ConfigError, DuplicateTask, Message
from airflow_provider_zkmq.operators.zkmq import ZkmqEnqueueOperator
from tests.airflow.conftest import finish, kill


def test_one_message(queue, context):
    """One payload is one task with all that was given, and its id is the XCom."""
    task_id = ZkmqEnqueueOperator(
        task_id="t", data="x", filters={"size": 2}, priority="7", zkmq_task_id="mine", metadata={"k": 1}
    ).execute(context)
    task = queue.task(task_id)
    assert (task_id, task.data, task.priority, task.filters) == ("mine", b"x", 7, {"size": "2"})
    origin = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 3, "try_number": 2}
    assert task.metadata == {"k": 1, "airflow": origin}


def test_origin_can_be_left_out(queue, context):
    """Without `add_origin` the metadata is the caller's alone."""
    task_id = ZkmqEnqueueOperator(task_id="t", data="x", add_origin=False).execute(context)
    assert queue.task(task_id).metadata == {}


def test_many_messages(queue, context):
    """Bytes, texts, mappings and messages go together; what they leave out is the operator's."""
    ids = ZkmqEnqueueOperator(
        task_id="t",
        messages=[b"\xff", "text", {"data": "m", "task_id": "own", "priority": 1}, Message("o", task_id="other")],
        priority=5,
    ).execute(context)
    tasks = [queue.task(task_id) for task_id in ids]
    assert [task.data for task in tasks] == [b"\xff", b"text", b"m", b"o"]
    assert [task.priority for task in tasks] == [5, 5, 1, 0]
    assert ids[2:] == ["own", "other"]


def test_no_messages(queue, context):
    """An empty list, as a mapped task may give it, enqueues nothing and is no error."""
    assert ZkmqEnqueueOperator(task_id="t", messages=[], wait_for_completion=True).execute(context) == []


def test_templates_and_mapping(queue, context):
    """Fields are templates, and each value of a dynamic mapping is a task of its own."""
    with DAG("d", schedule=None):
        mapped = ZkmqEnqueueOperator.partial(task_id="m", zkmq_queue="jobs").expand(data=["a", "b"])
        operator = ZkmqEnqueueOperator(task_id="t", data="{{ word }}", zkmq_task_id="id-{{ word }}")
    operator.render_template_fields({"word": "hello"})
    assert operator.execute(context) == "id-hello"
    ids = [mapped.unmap({"data": data, "task_id": "m", "zkmq_queue": "jobs"}).execute(context) for data in ("a", "b")]
    assert [queue.task(task_id).data for task_id in ["id-hello", *ids]] == [b"hello", b"a", b"b"]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"data": "x", "messages": []}, {"messages": ["x"], "zkmq_task_id": "i"}],
)
def test_contradictions_are_found_when_the_dag_is_parsed(arguments):
    """Wrong combinations of arguments fail while the DAG is built."""
    with pytest.raises(ValueError, match="give"):
        ZkmqEnqueueOperator(task_id="t", **arguments)


@pytest.mark.parametrize("messages", ["[x", [{"dta": "x"}], [{"priority": 1}], [5], {"data": "x"}])
def test_messages_not_understood(queue, context, messages):
    """What is no message is refused, and nothing is enqueued."""
    with pytest.raises(ConfigError):
        ZkmqEnqueueOperator(task_id="t", messages=messages).execute(context)
    assert queue.counts()["inserted"] == 0


def test_own_id_makes_a_second_try_harmless(queue, context):
    """A second try with the same id enqueues nothing."""
    operator = ZkmqEnqueueOperator(task_id="t", data="x", zkmq_task_id="once")
    operator.execute(context)
    with pytest.raises(DuplicateTask):
        operator.execute(context)
    assert queue.counts()["inserted"] == 1


def test_wait_on_the_worker(queue, context):
    """With `wait_for_completion` the operator returns when a consumer has finished its tasks."""
    consumer = threading.Thread(target=lambda: [finish(queue) for _ in range(2)])
    consumer.start()
    operator = ZkmqEnqueueOperator(
        task_id="t", messages=["a", "b"], wait_for_completion=True, deferrable=False, timeout=60
    )
    ids = operator.execute(context)
    consumer.join()
    assert [queue.task(task_id).state for task_id in ids] == ["finished", "finished"]


def test_dead_task_fails_the_waiting_operator(queue, context):
    """A task that ends dead fails the operator with the task's id and error."""
    consumer = threading.Thread(target=lambda: kill(queue, "no such file"))
    consumer.start()
    operator = ZkmqEnqueueOperator(
        task_id="t", data="a", zkmq_task_id="bad", wait_for_completion=True, deferrable=False, timeout=60
    )
    with pytest.raises(AirflowException, match=r"bad is dead \(no such file\)"):
        operator.execute(context)
    consumer.join()


def test_wait_times_out_on_the_worker(queue, context):
    """The operator waits no longer than its time-out, and says which task it waited for."""
    operator = ZkmqEnqueueOperator(
        task_id="t", data="a", zkmq_task_id="slow", wait_for_completion=True, deferrable=False, timeout=0.2
    )
    with pytest.raises(AirflowException, match="slow"):
        operator.execute(context)


def test_wait_deferred(queue, context):
    """Deferrable, it defers with its time-out and goes on with the ids of the event."""
    operator = ZkmqEnqueueOperator(
        task_id="t",
        data="a",
        wait_for_completion=True,
        deferrable=True,
        timeout=timedelta(minutes=5),
    )
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    assert deferred.value.timeout == timedelta(minutes=5)
    task_id = finish(queue)
    assert operator.execute_complete(context, {"status": "done", "ids": [task_id]}) == task_id
    with pytest.raises(AirflowException, match="too late"):
        operator.execute_complete(context, {"status": "timeout", "message": "too late"})
