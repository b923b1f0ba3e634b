"""`ZkmqEnqueueOperator`, executed against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from datetime import timedelta

import pendulum
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from airflow_provider_zkmq.engine import ConfigError, DuplicateTask, Message, OutcomeUnknown, RetryPolicy, SessionLost
from airflow_provider_zkmq.engine.core.tasks import enqueue, enqueue_new
from airflow_provider_zkmq.hooks import deferring
from airflow_provider_zkmq.hooks.origins import origin_of
from airflow_provider_zkmq.operators import once, patience
from airflow_provider_zkmq.operators.zkmq import ZkmqEnqueueOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from airflow_provider_zkmq.triggers import zkmq
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger
from tests.airflow.conftest import finish, instance, kill
from tests.support import eventually


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


def test_an_enqueue_makes_an_overdue_clean_up(queue, context):
    """Nobody else is there, and the operator's connection lives for one enqueue: what is over its lifetime goes."""
    queue.configure(task_gc_lifetime=0, task_gc_interval=0)
    queue.enqueue("x", task_id="old")
    finish(queue)

    def gone():
        ZkmqEnqueueOperator(task_id="t", data="x", idempotency="none").execute(context)
        return "old" not in queue.ids()

    eventually(gone)


def test_templates_and_mapping(queue, context):
    """Fields are templates, and each value of a dynamic mapping is a task of its own."""
    with DAG("d", schedule=None):
        mapped = ZkmqEnqueueOperator.partial(task_id="m", zkmq_queue="jobs").expand(data=["a", "b"])
        operator = ZkmqEnqueueOperator(task_id="t", data="{{ word }}", zkmq_task_id="id-{{ word }}")
    operator.render_template_fields({"word": "hello"})
    assert operator.execute(context) == "id-hello"
    ids = [
        mapped.unmap({"data": data, "task_id": "m", "zkmq_queue": "jobs"}).execute(instance(map_index=at))
        for at, data in enumerate(["a", "b"])
    ]
    assert [queue.task(task_id).data for task_id in ["id-hello", *ids]] == [b"hello", b"a", b"b"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"data": "x", "messages": []},
        {"messages": ["x"], "zkmq_task_id": "i"},
        {"messages": ["x"], "then": {"data": "y"}},
        {"data": "x", "delay": "5m", "not_before": "2026-11-22T10:00:00Z"},
    ],
)
def test_contradictions_are_found_when_the_dag_is_parsed(arguments):
    """Wrong combinations of arguments fail while the DAG is built."""
    with pytest.raises(ValueError, match="give"):
        ZkmqEnqueueOperator(task_id="t", **arguments)


@pytest.mark.parametrize(
    "messages",
    [
        "[x",
        [{"dta": "x"}],
        [{"priority": 1}],
        [5],
        {"data": "x"},
        [{"data": "x", "policy": {"atempts": 3}}],
        [{"data": "x", "lock": "long"}],
        [{"data": "x", "update": "perhaps"}],
        [{"data": "y"}, {"data": "x", "delay": "1 month"}],
        [{"data": "y"}, {"data": "x", "not_before": "2026-11-22T10:00:00"}],
        [{"data": "y"}, {"data": "x", "not_before": "2026-11-22T10:00:00Z", "delay": 0}],
        [{"data": "x", "policy": {"max_backoff": "soon"}}],
    ],
)
def test_messages_not_understood(queue, context, messages):
    """What is no message is refused, and nothing is enqueued."""
    with pytest.raises(ConfigError):
        ZkmqEnqueueOperator(task_id="t", messages=messages).execute(context)
    assert queue.counts()["inserted"] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"messages": "[marker, 1"}, "messages is not a list, but str of 10 characters"),
        ({"messages": {"marker": 1}}, "messages must be a list, not dict"),
        ({"messages": [["marker"]]}, "data must be bytes or text, not list"),
        ({"data": {"marker": 1}}, "data must be bytes or text, not dict"),
        ({"data": "marker\ud800"}, "data is no valid text"),
        ({"messages": ["x"], "batch": "b", "then": ["marker"]}, "data must be bytes or text, not list"),
        ({"data": "x", "metadata": "marker"}, "metadata must be a mapping, not str of 6 characters"),
        ({"messages": [{"data": "x", "metadata": [("marker", 1)]}]}, "metadata must be a mapping, not list"),
        ({"data": "x", "metadata": {"k": b"marker"}}, "metadata"),
        ({"data": "x", "zkmq_queue": ["marker"]}, "a queue's name is text, not list"),
        ({"data": "x", "filters": "marker"}, "filters must be a mapping, not str of 6 characters"),
    ],
)
def test_an_error_shows_no_payload(queue, context, arguments, says):
    """Airflow logs each error: one about what was to be enqueued says of what type it is, and how long."""
    with pytest.raises(ConfigError) as refused:
        ZkmqEnqueueOperator(task_id="t", **arguments).execute(context)
    assert says in str(refused.value)
    assert "marker" not in "".join(traceback.format_exception(refused.value))
    assert queue.tasks() == []


def test_own_id_makes_a_second_try_harmless(queue, context):
    """A second try with the same id adopts the task that notes it; another operator's or run's is refused."""
    arguments = {"task_id": "t", "data": "x", "zkmq_task_id": "once"}
    operator = ZkmqEnqueueOperator(**arguments)
    assert operator.execute(context) == operator.execute(instance(try_number=3)) == "once"
    refused = [
        (ZkmqEnqueueOperator(**arguments, on_duplicate="fail"), context),
        (ZkmqEnqueueOperator(**arguments, idempotency="none"), context),
        (ZkmqEnqueueOperator(**arguments, idempotency="try"), instance(try_number=3)),
        *((operator, instance(**other)) for other in ({"run_id": "s"}, {"map_index": 4}, {"task_id": "u"})),
    ]
    for each, where in refused:
        with pytest.raises(DuplicateTask):
            each.execute(where)
    assert queue.counts()["inserted"] == 1


def test_an_own_id_that_has_ended_runs_again_for_another_run_only(queue, context):
    """A retry leaves what its first try has had done; the next run does the work of the same id anew."""
    operator = ZkmqEnqueueOperator(task_id="t", data="x", zkmq_task_id="nightly")
    operator.execute(instance(try_number=1))
    finish(queue)
    operator.execute(instance(try_number=2))
    assert queue.task("nightly").state == "finished"
    operator.execute(instance(run_id="next", try_number=1))
    assert queue.task("nightly").state == "inserted"


def test_what_a_try_wrote_is_adopted_by_the_next(queue, context):
    """Killed after its write, cleared, tried again: the tasks of a run are enqueued once, whatever became of them."""
    operator = ZkmqEnqueueOperator(task_id="t", messages=["a", {"data": "b", "task_id": "own"}, "c"])
    ids = operator.execute(instance(try_number=1))
    finish(queue)
    assert operator.execute(instance(try_number=2)) == operator.execute(instance(try_number=3)) == ids
    assert sorted(task.id for task in queue.tasks()) == sorted(ids)
    assert queue.counts()["inserted"] == 2
    others = [{"run_id": "s"}, {"dag_id": "e"}, {"map_index": 4}, {"task_id": "u"}]
    plain = ZkmqEnqueueOperator(task_id="t", messages=["a", "c"])
    told = [tuple(plain.execute(instance(**fields))) for fields in ({}, *others)]
    assert len({task_id for each in told for task_id in each}) == 2 * len(told)


def test_what_is_missing_is_written_by_the_next_try(queue, context, monkeypatch):
    """A try that was cut off half way leaves tasks that are adopted; the others come once."""
    operator = ZkmqEnqueueOperator(task_id="t", messages=["a", "b", "c"])
    ids = [message.task_id for message in once.named([Message("x")] * 3, key_of(context))]
    queue.enqueue_new([Message("b", task_id=ids[1])])
    assert operator.execute(context) == ids
    assert sorted(queue.task(task_id).data for task_id in ids) == [b"a", b"b", b"c"]
    assert len(queue.tasks()) == 3


def key_of(context):
    return once.series_key("run", origin_of(context))


def test_each_try_or_each_call_enqueues_again_where_asked(queue, context):
    """``try``: once by each try; ``none``: by each call. Both let what an earlier try wrote alone."""
    for idempotency, told in (("try", 2), ("none", 3)):
        operator = ZkmqEnqueueOperator(task_id="t", data="x", idempotency=idempotency)
        tries = [instance(task_id=idempotency, try_number=number) for number in (1, 1, 2)]
        assert len({operator.execute(each) for each in tries}) == told


def test_a_duplicate_fails_where_asked(queue, context):
    """With ``on_duplicate="fail"`` a second try tells what stands there, and enqueues nothing twice."""
    operator = ZkmqEnqueueOperator(task_id="t", messages=["a", "b"], on_duplicate="fail")
    first, _ = operator.execute(context)
    with pytest.raises(DuplicateTask, match=rf"2 task\(s\) of queue 'jobs' .* the first is {first}") as caught:
        operator.execute(context)
    assert len(caught.value.duplicates) == len(queue.tasks()) == 2


@pytest.mark.parametrize(
    "arguments",
    [{"idempotency": "once"}, {"idempotency": ["run"]}, {"on_duplicate": "ignore"}, {"on_duplicate": ["fail"]}],
)
def test_unknown_ways_are_found_when_the_dag_is_parsed(arguments):
    """What is neither known is refused with what is."""
    with pytest.raises(ValueError, match="is not known: give"):
        ZkmqEnqueueOperator(task_id="t", data="x", **arguments)


def test_names_are_short_whatever_the_run_is_called(queue):
    """A DAG, run and task with the longest names Airflow takes still make ids that the queue takes."""
    far = instance(dag_id="d" * 250, run_id="r" * 250, task_id="t" * 250)
    assert len(ZkmqEnqueueOperator(task_id="t", data="x").execute(far)) < 121


def test_what_has_ended_is_not_deferred(queue, context):
    """The operator looks before it defers: an adopted task that is done, or dead, tells at once."""
    operator = ZkmqEnqueueOperator(task_id="t", data="x", wait_for_completion=True, deferrable=True)
    with pytest.raises(TaskDeferred):
        operator.execute(instance(try_number=1))
    task_id = finish(queue)
    assert operator.execute(instance(try_number=2)) == task_id
    with pytest.raises(TaskDeferred):
        operator.execute(instance(run_id="s", try_number=1))
    kill(queue, "no such file")
    with pytest.raises(AirflowException, match="no such file"):
        operator.execute(instance(run_id="s", try_number=2))


async def test_a_series_is_deferred_in_little_room(queue, context, monkeypatch):
    """Many tasks go by their key and number; the event names none, and the Airflow task knows them all the same."""
    for module in (deferring, zkmq):
        monkeypatch.setattr(module, "EVENT_BYTES", 100)
    operator = ZkmqEnqueueOperator(task_id="t", messages=["x"] * 20, wait_for_completion=True, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        await asyncio.to_thread(operator.execute, context)
    kwargs = json.loads(json.dumps(deferred.value.trigger.serialize()[1]))
    assert (kwargs["series"], kwargs["task_ids"]) == ([key_of(context), 20], None)
    done = await asyncio.to_thread(lambda: [finish(queue) for _ in range(20)])
    (event,) = [event.payload async for event in ZkmqTaskTrigger(**kwargs).run()]
    assert event == {"status": "done", "count": 20}
    told = await asyncio.to_thread(operator.execute_complete, context, event, **deferred.value.kwargs)
    assert sorted(told) == sorted(done)


def test_own_ids_are_waited_for_in_rounds(queue, context, monkeypatch):
    """Those that the trigger was given have ended: the Airflow task defers for the others, within the same time."""
    monkeypatch.setattr(deferring, "EVENT_BYTES", 20)
    monkeypatch.setattr(deferring, "ARGUMENT_BYTES", 20)
    messages = [{"data": "x", "task_id": f"own-{at}"} for at in range(4)]
    operator = ZkmqEnqueueOperator(
        task_id="t", messages=messages, wait_for_completion=True, deferrable=True, timeout=600
    )
    asked = []

    def deferral(call, *arguments, **more):
        with pytest.raises(TaskDeferred) as deferred:
            call(*arguments, **more)
        asked.append(deferred.value.trigger.task_ids)
        return deferred.value

    deferred = deferral(operator.execute, context)
    deadline = deferred.kwargs["deadline"]
    for _ in range(2):
        finish(queue)
    deferred = deferral(operator.execute_complete, context, {"status": "done", "count": 2}, **deferred.kwargs)
    assert deferred.kwargs["deadline"] == deadline == deferred.trigger.deadline
    for _ in range(2):
        finish(queue)
    told = operator.execute_complete(context, {"status": "done", "count": 2}, **deferred.kwargs)
    assert asked == [["own-0", "own-1"], ["own-2", "own-3"]]
    assert told == [f"own-{at}" for at in range(4)]


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


def test_what_a_message_asks_for(queue, context, monkeypatch):
    """Lock and policy of a mapping arrive in the task, spelled as values or as the texts that templates make."""
    made = []
    monkeypatch.setattr(enqueue_new, "prepare_new", spying(enqueue_new.prepare_new, made))
    plain = {"data": "a", "priority": 1, "lock": 30, "policy": {"attempts": 2}}
    ZkmqEnqueueOperator(task_id="t", messages=[plain, {"data": "b", "lock": "7", "requeue": "False"}]).execute(context)
    assert [(m.lock, m.policy, m.update, m.requeue) for m in made] == [
        (30, RetryPolicy(attempts=2), False, False),
        (7.0, None, False, False),
    ]
    for _ in range(2):
        claim = queue.claim()
        claim.fail("again", backoff=0)
    assert queue.task(claim.task.id).state == "dead"


MOMENT = pendulum.datetime(2096, 11, 22, 10, 31, 5)


@pytest.mark.parametrize("delay", ["PT1H", "1h", "3600", 3600, timedelta(hours=1), pendulum.duration(hours=1)])
def test_a_delay_is_a_duration_or_its_text(queue, context, delay):
    """Numbers, timedelta, pendulum's and the texts that templates make are the same hour; so are locks and policies."""
    operator = ZkmqEnqueueOperator(task_id="t", data="x", delay=delay, policy={"max_backoff": "2m", "attempts": 3})
    task = queue.task(operator.execute(context))
    assert 3_590_000 < task.due_ms - task.enqueued_ms < 3_610_000


@pytest.mark.parametrize("moment", [MOMENT, MOMENT.isoformat(), str(MOMENT), MOMENT.in_timezone("Asia/Tokyo")])
def test_a_moment_is_a_template_too(queue, context, moment):
    """`not_before` is a moment or its text, such as a template makes of a date of the DAG run."""
    operator = ZkmqEnqueueOperator(task_id="t", data="x", not_before="{{ data_interval_end }}")
    operator.render_template_fields({"data_interval_end": moment})
    task = queue.task(operator.execute(context))
    assert (task.due_at, task.status) == (MOMENT, "queued-with-backoff")
    again = ZkmqEnqueueOperator(task_id="t", data="x", not_before=moment, idempotency="none")
    assert queue.task(again.execute(context)).due_at == MOMENT


def test_a_message_s_own_time_comes_before_the_operator_s(queue, context):
    """What a message says of its time replaces what the operator says, whichever way each says it."""
    messages = ["a", {"data": "b", "delay": "0"}, {"data": "c", "not_before": str(MOMENT.add(days=1))}]
    ids = ZkmqEnqueueOperator(task_id="t", messages=messages, not_before=MOMENT).execute(context)
    assert [queue.task(task_id).due_at for task_id in ids] == [MOMENT, None, MOMENT.add(days=1)]
    others = ["a", Message("b", not_before=MOMENT)]
    ids = ZkmqEnqueueOperator(task_id="t", messages=others, delay=0).execute(instance(task_id="u"))
    assert [queue.task(task_id).due_at for task_id in ids] == [None, MOMENT]


def test_what_follows_a_batch_has_a_time_of_its_own(queue, context):
    """The operator's delay holds for what follows, too, unless that says when it is due."""
    operator = ZkmqEnqueueOperator(
        task_id="t", messages=["a"], batch="b", then={"data": "c", "task_id": "then", "not_before": MOMENT}, delay=0
    )
    operator.execute(context)
    finish(queue)
    assert queue.task("then").due_at == MOMENT


@pytest.mark.parametrize("timeout", ["5m", 300, timedelta(minutes=5), pendulum.duration(minutes=5)])
def test_how_long_to_wait_is_a_duration_or_its_text(queue, context, timeout):
    """The time-out of the deferral is the same, however it was written; nonsense fails while the DAG is built."""
    operator = ZkmqEnqueueOperator(task_id="t", data="a", wait_for_completion=True, deferrable=True, timeout=timeout)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    assert timedelta(minutes=4) < deferred.value.timeout <= timedelta(minutes=5)
    with pytest.raises(ConfigError, match="timeout 'soon' is no duration"):
        ZkmqEnqueueOperator(task_id="t", data="a", timeout="soon")


def spying(real, made):
    def prepared(context, conf, position, message, batch):
        made.append(message)
        return real(context, conf, position, message, batch)

    return prepared


def test_update_and_requeue(queue, context):
    """A message with update replaces what is still queued; one with requeue runs once more after the run under way."""
    queue.enqueue("old", task_id="mine")
    ZkmqEnqueueOperator(task_id="t", messages=[{"data": "new", "task_id": "mine", "update": "true"}]).execute(context)
    claim = queue.claim()
    assert claim.task.data == b"new"
    ZkmqEnqueueOperator(task_id="t", messages=[{"data": "more", "task_id": "mine", "requeue": True}]).execute(context)
    claim.complete()
    assert queue.claim(timeout=20).task.data == b"more"


RUN_ID = "manual__2026-01-02T03:04:05.678901+00:00"


def test_batch(queue, context):
    """The messages are one batch of the rendered name, the XCom; what follows comes when the last has ended."""
    with DAG("d", schedule=None):
        operator = ZkmqEnqueueOperator(
            task_id="t",
            messages=["a", {"data": "b", "priority": 1}],
            batch="{{ dag.dag_id }}.{{ run_id }}",
            then={"data": "sum of {{ run_id }}", "task_id": "sum", "metadata": {"k": "{{ run_id }}"}},
        )
    operator.render_template_fields({"run_id": RUN_ID, "dag": operator.dag})
    name = operator.execute(context)
    assert name == f"d.{RUN_ID}"
    assert (queue.batch(name).total, queue.batch(name).open) == (2, 2)
    finish(queue)
    kill(queue, "no")
    assert finish(queue, "total") == "sum"
    following = queue.task("sum")
    assert following.data.decode() == f"sum of {RUN_ID}"
    assert following.metadata["k"] == RUN_ID
    assert following.metadata["airflow"]["run_id"] == "r"


@pytest.mark.parametrize("run_id", ["manual~1", "by hand", "x" * 122, ""])
def test_a_batch_name_that_is_not_allowed(queue, context, run_id):
    """A name with other characters, too long or empty is refused, and nothing is enqueued."""
    operator = ZkmqEnqueueOperator(task_id="t", messages=["a"], batch="{{ run_id }}")
    operator.render_template_fields({"run_id": run_id})
    with pytest.raises(ConfigError, match="not allowed"):
        operator.execute(context)
    assert queue.tasks() == []


def test_a_batch_of_nothing(queue, context):
    """A batch needs a message: without one, nobody could wait for it, and what should follow would be forgotten."""
    with pytest.raises(ConfigError, match="has no tasks"):
        ZkmqEnqueueOperator(task_id="t", messages=[], batch="b", then={"data": "x"}).execute(context)


@pytest.mark.parametrize("step", ["write_trees", "seal_batch"])
def test_a_second_try_goes_on_with_a_half_written_batch(queue, context, monkeypatch, step):
    """Whatever the first try had written, the second leaves each member once; a third adopts the batch, or fails."""
    operator = ZkmqEnqueueOperator(task_id="t", messages=["a", "b", "c"], batch="b", then={"data": "d"})
    with monkeypatch.context() as patch:
        patch.setattr(enqueue, step, dying(getattr(enqueue, step)))
        patch.setattr(patience, "PATIENCE", 0.0)
        with pytest.raises(OutcomeUnknown, match="the worker died"):
            operator.execute(context)
    assert operator.execute(context) == "b"
    assert [finish(queue) for _ in range(3)] == ["b.000000", "b.000001", "b.000002"]
    assert queue.batch("b").done
    assert queue.claim().task.data == b"d"
    assert queue.claim() is None
    assert operator.execute(context) == "b"
    operator.on_duplicate = "fail"
    with pytest.raises(DuplicateTask, match="enqueued before, completely"):
        operator.execute(context)


def dying(real):
    """A step of the engine that dies after the first of the trees it was given, or before its work."""

    def died(context, what, *rest):
        if isinstance(what, list):
            yield from real(context, what[:1], *rest)
        raise SessionLost("the worker died")
        yield

    return died


def test_a_complete_batch_is_told_as_it_stands(queue, context):
    """A batch that another run wrote is refused, with how it stands; so is one that does not note who wrote it."""
    arguments = {"task_id": "t", "messages": ["a", "b"], "batch": "b"}
    ZkmqEnqueueOperator(**arguments).execute(context)
    bad = kill(queue, "x")
    refused = [
        (ZkmqEnqueueOperator(**arguments), instance(run_id="s")),
        (ZkmqEnqueueOperator(**arguments, on_duplicate="fail"), context),
        (ZkmqEnqueueOperator(**arguments, idempotency="none"), context),
    ]
    for operator, where in refused:
        with pytest.raises(DuplicateTask, match=rf"2 task\(s\), 1 open, 1 failed \(first: {bad}\)"):
            operator.execute(where)
    plain = ZkmqEnqueueOperator(task_id="t", messages=["a"], batch="plain", add_origin=False)
    plain.execute(context)
    with pytest.raises(DuplicateTask, match="enqueued before, completely"):
        plain.execute(context)
    assert len(queue.tasks()) == 3


def test_a_batch_is_adopted_and_waited_for(queue, context):
    """A retry of the same run goes on waiting for the batch that its first try wrote."""
    operator = ZkmqEnqueueOperator(
        task_id="t", messages=["a", "b"], batch="b", wait_for_completion=True, deferrable=True
    )
    for number in (1, 2):
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(instance(try_number=number))
        assert deferred.value.trigger.batch == "b"
    assert [finish(queue), finish(queue)] == ["b.000000", "b.000001"]
    assert operator.execute(instance(try_number=3)) == "b"
    assert queue.claim() is None


def test_an_id_in_use_is_no_batch_in_use(queue, context):
    """Where a member's own id is taken, the error names that id; the try after it was freed goes on."""
    queue.enqueue("other", task_id="own", priority=1)
    operator = ZkmqEnqueueOperator(task_id="t", messages=["a", {"data": "b", "task_id": "own"}], batch="b")
    with pytest.raises(DuplicateTask, match="'own'"):
        operator.execute(context)
    assert finish(queue) == "own"
    operator.execute(context)
    assert {finish(queue), finish(queue)} == {"b.000000", "own"}
    assert queue.batch("b").done


def test_mapped_batches(queue, context):
    """Each instance of a mapped operator writes the batch whose name holds its map index."""
    messages = [["a", "b"], ["c"]]
    with DAG("d", schedule=None):
        mapped = ZkmqEnqueueOperator.partial(task_id="m", batch="{{ run_id }}.{{ ti.map_index }}").expand(
            messages=messages
        )
    names = []
    for at, given in enumerate(messages):
        operator = mapped.unmap({"messages": given, "task_id": "m", "batch": mapped.partial_kwargs["batch"]})
        context["ti"].map_index = at
        operator.render_template_fields({"run_id": RUN_ID, **context})
        names.append(operator.execute(context))
    assert names == [f"{RUN_ID}.0", f"{RUN_ID}.1"]
    assert [queue.batch(name).total for name in names] == [2, 1]


def test_wait_for_a_batch_on_the_worker(queue, context):
    """The operator waits for its batch; members that ended dead fail it by their ids, and the sensor likewise."""
    arguments = {"wait_for_completion": True, "deferrable": False, "timeout": 60}
    consumer = threading.Thread(target=lambda: [finish(queue), finish(queue), finish(queue), kill(queue, "x")])
    consumer.start()
    good = ZkmqEnqueueOperator(task_id="t", messages=["a", "b"], batch="good", **arguments).execute(context)
    assert ZkmqTaskSensor(task_id="s", batch=good, deferrable=False).execute(context)["total"] == 2
    bad = ZkmqEnqueueOperator(task_id="t", messages=["a", "b"], batch="bad", **arguments)
    with pytest.raises(AirflowException, match=r"1 of 2 task\(s\) of batch 'bad' .* dead or cancelled: bad.000001"):
        bad.execute(context)
    consumer.join()
    late = ZkmqEnqueueOperator(task_id="t", messages=["a"], batch="late", **{**arguments, "timeout": 0.2})
    with pytest.raises(AirflowException, match="late"):
        late.execute(context)


def test_wait_for_a_batch_deferred(queue, context):
    """The trigger is given the batch's name, not its tasks' ids; afterwards the failed members are found."""
    operator = ZkmqEnqueueOperator(
        task_id="t", messages=["a", "b"], batch="b", wait_for_completion=True, deferrable=True
    )
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    trigger = deferred.value.trigger
    assert (trigger.batch, trigger.task_ids) == ("b", None)
    finish(queue)
    queue.cancel("b.000001")
    with pytest.raises(AirflowException, match=r"b\.000001"):
        operator.execute_complete(context, {"status": "done", "batch": "b"})
    ZkmqEnqueueOperator(task_id="t", messages=["a"], batch="c").execute(context)
    finish(queue)
    fine = ZkmqEnqueueOperator(task_id="t", messages=["a"], batch="c")
    assert fine.execute_complete(context, {"status": "done", "batch": "c"}) == "c"


@pytest.mark.parametrize("batch", ["b", None])
def test_what_was_redriven_since_the_trigger_looked_is_waited_for(queue, context, batch):
    """Batch or tasks: an operator redrives one between the trigger's event and the task's going on: it defers again."""
    operator = ZkmqEnqueueOperator(
        task_id="t", messages=["a"], batch=batch, wait_for_completion=True, deferrable=True, timeout=60
    )
    with pytest.raises(TaskDeferred):
        operator.execute(context)
    task_id = kill(queue, "broken")
    queue.redrive(task_id)
    event = {"status": "done", **({"batch": batch} if batch else {"ids": [task_id]})}
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute_complete(context, event)
    assert (deferred.value.trigger.batch, deferred.value.trigger.task_ids) == (batch, None if batch else [task_id])
    finish(queue)
    assert operator.execute_complete(context, event) == (batch or [task_id])
