"""`ZkmqEnqueueOperator`: what it enqueues, what it refuses, and how it waits, with a real ZooKeeper."""

from __future__ import annotations

import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import Mock

import pendulum
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine import ConfigError, Message, RetryPolicy
from airflow_provider_zkmq.engine.core.tasks import enqueue
from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
from tests.airflow.conftest import deferral, enqueuing, finish, instance, kill

RUN_ID = "manual__2026-01-02T03:04:05.678901+00:00"
MOMENT = pendulum.datetime(2096, 11, 22, 10, 31, 5)


def test_what_is_given_is_in_the_tasks(queue, context):
    """Of one payload, whose id is the XCom, and of many in whatever form; what they leave out is the operator's."""
    one = enqueuing(data="x", filters={"size": 2}, priority="7", zkmq_task_id="mine", metadata={"k": 1})
    task = queue.task(one.execute(context))
    assert (task.id, task.data, task.priority, task.filters) == ("mine", b"x", 7, {"size": "2"})
    origin = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 3, "try_number": 2}
    assert task.metadata == {"k": 1, "airflow": origin}
    assert queue.task(enqueuing(data="x", add_origin=False).execute(context)).metadata == {}
    messages = [b"\xff", "text", {"data": "m", "task_id": "own", "priority": 1}, Message("o", task_id="other")]
    ids = enqueuing(messages=messages, priority=5).execute(instance(task_id="many"))
    said = [(task.data, task.priority) for task in map(queue.task, ids)]
    assert said == [(b"\xff", 5), (b"text", 5), (b"m", 1), (b"o", 0)]
    assert ids[2:] == ["own", "other"]
    assert enqueuing(messages=[], wait_for_completion=True).execute(context) == [], "and that is no error"


def test_templates_and_mapping(queue, context):
    """Fields are templates; each value of a dynamic mapping is a task, or a batch named with its map index."""
    with DAG("d", schedule=None):
        operator = enqueuing(data="{{ word }}", zkmq_task_id="id-{{ word }}")
        mapped = ZkmqEnqueueOperator.partial(task_id="m", zkmq_queue="jobs").expand(data=["a", "b"])
        batches = ZkmqEnqueueOperator.partial(task_id="b", batch="{{ run_id }}.{{ ti.map_index }}")
        batches = batches.expand(messages=[["a", "b"], ["c"]])
    operator.render_template_fields({"word": "hello"})
    ids, names = [operator.execute(context)], []
    for at, (data, messages) in enumerate((("a", ["a", "b"]), ("b", ["c"]))):
        ids.append(mapped.unmap({"data": data, "task_id": "m", "zkmq_queue": "jobs"}).execute(instance(map_index=at)))
        one = batches.unmap({"messages": messages, "task_id": "b", "batch": batches.partial_kwargs["batch"]})
        one.render_template_fields({"run_id": RUN_ID, **instance(map_index=at)})
        names.append(one.execute(instance(map_index=at)))
    assert ids[0] == "id-hello"
    assert [queue.task(task_id).data for task_id in ids] == [b"hello", b"a", b"b"]
    assert names == [f"{RUN_ID}.0", f"{RUN_ID}.1"]
    assert [queue.batch(name).total for name in names] == [2, 1]


def test_contradictions_are_found_when_the_dag_is_parsed(subtests):
    """Wrong combinations of arguments, and values that are not known, fail while the DAG is built."""
    for arguments, said in (
        ({}, "give"),
        ({"data": "x", "messages": []}, "give"),
        ({"data": {"x": 1}}, "data is a dict: give bytes or text"),
        ({"messages": ["x"], "zkmq_task_id": "i"}, "give"),
        ({"messages": ["x"], "then": {"data": "y"}}, "give"),
        ({"data": "x", "delay": "5m", "not_before": "2026-11-22T10:00:00Z"}, "give"),
        *(({"data": "x", "idempotency": wrong}, "is not known: give") for wrong in ("once", ["run"])),
        *(({"data": "x", "on_duplicate": wrong}, "is not known: give") for wrong in ("ignore", ["fail"])),
        ({"data": "x", "timeout": "soon"}, "timeout 'soon' is no duration"),
    ):
        wrong = ConfigError if "timeout" in arguments else ValueError
        with subtests.test(arguments=arguments), pytest.raises(wrong, match=said):
            enqueuing(**arguments)


def test_an_error_shows_no_payload(queue, context, subtests):
    """Airflow logs each error: it says of what type the wrong value is, and how long; nothing is enqueued."""
    moment = {"not_before": "2026-11-22T10:00:00"}
    for arguments, says in (
        ({"messages": "[marker, 1"}, "messages is not a list, but str of 10 characters"),
        ({"messages": {"marker": 1}}, "messages must be a list, not dict"),
        ({"messages": [["marker"]]}, "data must be bytes or text, not list"),
        ({"messages": ["marker", None]}, "messages[1] is None"),
        ({"data": "marker\ud800"}, "data is no valid text"),
        ({"messages": ["x"], "batch": "b", "then": ["marker"]}, "data must be bytes or text, not list"),
        ({"data": "x", "metadata": "marker"}, "metadata must be a mapping, not str of 6 characters"),
        ({"messages": [{"data": "x", "metadata": [("marker", 1)]}]}, "metadata must be a mapping, not list"),
        ({"data": "x", "metadata": {"k": b"marker"}}, "metadata"),
        ({"data": "x", "zkmq_queue": ["marker"]}, "a queue's name is text, not list"),
        ({"data": "x", "filters": "marker"}, "filters must be a mapping, not str of 6 characters"),
        *(({"messages": [wrong]}, "") for wrong in ({"dta": "x"}, {"priority": 1}, 5)),
        *(({"messages": [{"data": "x", "policy": wrong}]}, "") for wrong in ({"atempts": 3}, {"max_backoff": "soon"})),
        *(({"messages": [{"data": "x", **wrong}]}, "") for wrong in ({"lock": "long"}, {"on_conflict": "perhaps"})),
        *(
            ({"messages": [{"data": "y"}, {"data": "x", **wrong}]}, "")
            for wrong in ({"delay": "1 month"}, moment, {"not_before": "2026-11-22T10:00:00Z", "delay": 0})
        ),
        *(
            ({"messages": ["a"], "batch": name}, "not allowed")
            for name in ("manual~1", "by hand", "x" * 122, "{{ no }}")
        ),
        ({"messages": [], "batch": "b", "then": {"data": "x"}}, "has no tasks"),
    ):
        with subtests.test(arguments=arguments):
            operator = enqueuing(**arguments)
            if "batch" in arguments:
                operator.render_template_fields({"no": ""})
            with pytest.raises(ConfigError) as refused:
                operator.execute(context)
            assert says in str(refused.value)
            assert "marker" not in "".join(traceback.format_exception(refused.value))
            assert queue.tasks() == []


def test_what_a_message_asks_for(queue, context, monkeypatch):
    """Lock, policy and on_conflict of a mapping arrive in the task, as values or as the texts that templates make."""
    prepared = Mock(wraps=enqueue.prepare_new)
    monkeypatch.setattr(enqueue, "prepare_new", prepared)
    plain = {"data": "a", "priority": 1, "lock": 30, "policy": {"attempts": 2}}
    changed = {"data": "new", "task_id": queue.enqueue("old", priority=-1), "on_conflict": "replace"}
    enqueuing(messages=[plain, {"data": "b", "lock": "7", "on_conflict": "raise"}, changed]).execute(context)
    made = [call.args[3] for call in prepared.call_args_list]
    assert [(each.lock, each.policy) for each in made] == [(30, RetryPolicy(attempts=2)), (7.0, None)]
    assert {each.on_conflict for each in made} == {"raise"}
    assert queue.task(changed["task_id"]).data == b"new"
    for _ in range(2):
        claim = queue.claim()
        claim.fail("again", backoff=0)
    assert queue.task(claim.task.id).state == "dead"


def test_times_are_objects_or_their_texts(queue, context, subtests):
    """Delays, moments and time-outs: numbers, timedelta, pendulum's and the texts that templates make are the same."""
    for delay in ("PT1H", "1h", "3600", 3600, timedelta(hours=1), pendulum.duration(hours=1)):
        with subtests.test(delay=delay):
            policy = {"max_backoff": "2m", "attempts": 3}
            task = queue.task(enqueuing(data="x", delay=delay, policy=policy, idempotency="none").execute(context))
            assert 3_590_000 < task.due_ms - task.enqueued_ms < 3_610_000
    for moment in (MOMENT, MOMENT.isoformat(), str(MOMENT), MOMENT.in_timezone("Asia/Tokyo")):
        with subtests.test(moment=moment):
            rendered = enqueuing(data="x", not_before="{{ data_interval_end }}", idempotency="none")
            rendered.render_template_fields({"data_interval_end": moment})
            for operator in (rendered, enqueuing(data="x", not_before=moment, idempotency="none")):
                task = queue.task(operator.execute(context))
                assert (task.due_at, task.status) == (MOMENT, "queued-with-backoff")
    for timeout in ("5m", 300, timedelta(minutes=5), pendulum.duration(minutes=5)):
        with subtests.test(timeout=timeout):
            waiting = enqueuing(data="a", wait_for_completion=True, deferrable=True, timeout=timeout)
            assert timedelta(minutes=4) < deferral(waiting.execute, context).timeout <= timedelta(minutes=5)


def test_a_message_s_own_time_comes_before_the_operator_s(queue, context):
    """What a message, or what follows a batch, says of its time replaces what the operator says, in either way."""
    messages = ["a", {"data": "b", "delay": "0"}, {"data": "c", "not_before": str(MOMENT.add(days=1))}]
    ids = enqueuing(messages=messages, not_before=MOMENT).execute(context)
    assert [queue.task(task_id).due_at for task_id in ids] == [MOMENT, None, MOMENT.add(days=1)]
    finish(queue)
    ids = enqueuing(messages=["a", Message("b", not_before=MOMENT)], delay=0).execute(instance(task_id="u"))
    assert [queue.task(task_id).due_at for task_id in ids] == [None, MOMENT]
    finish(queue)
    then = {"data": "c", "task_id": "then", "not_before": MOMENT}
    enqueuing(messages=["a"], batch="b", then=then, delay=0).execute(context)
    finish(queue)
    assert queue.task("then").due_at == MOMENT


def test_batch(queue, context):
    """The messages are one batch of the rendered name, the XCom; what follows comes when the last has ended."""
    with DAG("d", schedule=None):
        operator = enqueuing(
            messages=["a", {"data": "b", "priority": 1}],
            batch="{{ dag.dag_id }}.{{ run_id }}",
            then={"data": "sum of {{ run_id }}", "task_id": "sum", "metadata": {"k": "{{ run_id }}"}},
        )
    operator.render_template_fields({"run_id": RUN_ID, "dag": operator.dag})
    name = operator.execute(context)
    assert (name, queue.batch(name).total, queue.batch(name).open) == (f"d.{RUN_ID}", 2, 2)
    finish(queue)
    kill(queue, "no")
    assert finish(queue, "total") == "sum"
    following = queue.task("sum")
    assert (following.data.decode(), following.metadata["k"]) == (f"sum of {RUN_ID}", RUN_ID)
    assert following.metadata["airflow"]["run_id"] == "r"


def test_it_waits_on_the_worker(queue, context):
    """For its tasks or its batch, no longer than its time-out; those that ended dead fail it, each named."""

    def executed(timeout=60, **arguments):
        return enqueuing(**arguments, wait_for_completion=True, deferrable=False, timeout=timeout).execute(context)

    def consume():
        for end in (*[finish] * 4, *[kill] * 2, finish):
            end(queue, "no such file")

    two = ["a", "b"]
    with ThreadPoolExecutor(1) as consumer:
        consumer.submit(consume)
        assert [queue.task(task_id).state for task_id in executed(messages=two)] == ["finished", "finished"]
        assert executed(messages=two, batch="good") == "good"
        with pytest.raises(AirflowException, match=r"bad is dead \(no such file\)"):
            executed(data="a", zkmq_task_id="bad")
        with pytest.raises(AirflowException, match=r"1 of 2 task\(s\) of batch 'bad' .* cancelled: bad.000000"):
            executed(messages=two, batch="bad")
    for late in ({"data": "a", "zkmq_task_id": "late"}, {"messages": ["a"], "batch": "late"}):
        with pytest.raises(AirflowException, match="late"):
            executed(timeout=0.2, **late)


def test_what_has_ended_is_not_deferred(queue, context):
    """The operator looks before it defers: an adopted task that is done, or dead, tells at once."""
    operator = enqueuing(data="x", wait_for_completion=True, deferrable=True)
    deferral(operator.execute, instance(try_number=1))
    task_id = finish(queue)
    assert operator.execute(instance(try_number=2)) == task_id
    deferral(operator.execute, instance(run_id="s", try_number=1))
    kill(queue, "no such file")
    with pytest.raises(AirflowException, match="no such file"):
        operator.execute(instance(run_id="s", try_number=2))
