"""`ZkmqSettleOperator`: what becomes of a run's claims by what became of its work."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_zkmq.engine import Message, RetryPolicy, Unavailable
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.operators.settling import ZkmqSettleOperator
from airflow_provider_zkmq.operators.verdicts import ERROR_KEY, Work, instances, judge, note_error

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


class Instance(SimpleNamespace):
    """A task instance whose run's other tasks are in these states, with these XComs."""

    def get_task_states(self, dag_id, task_ids, run_ids):
        assert (dag_id, run_ids) == ("d", ["r"])
        assert task_ids
        return {"r": self.states}

    def xcom_pull(self, task_ids, map_indexes, key="return_value"):
        assert key == ERROR_KEY
        return self.errors.get((task_ids, map_indexes))


class Store(dict):
    """Airflow's task state store."""

    def set(self, key, value, **_retention):
        """Keep it as JSON would."""
        self[key] = json.loads(json.dumps(value))


def run(states, store=None, number=1, errors=None, map_index=-1):
    """The context of a settle task in a run whose work is in these states."""
    ti = Instance(
        dag_id="d", run_id="r", task_id="settle", map_index=map_index, try_number=number, states=states,
        errors=errors or {},
    )  # fmt: skip
    return {"ti": ti, "task_state_store": Store() if store is None else store}


def taken(queue, *names):
    """Enqueue and claim tasks of these ids, in this order."""
    queue.enqueue_many([Message(b"x", task_id=name) for name in names])
    claims = [queue.claim_task(name, lease=600) for name in names]
    return [
        {"queue": "jobs", "id": each.task.id, "token": each.token, "attempt": each.task.attempt, "filters": {}}
        for each in claims
    ]


def settle(claims, context, work=("work",), **arguments):
    return ZkmqSettleOperator(task_id="settle", claims=claims, work=list(work), **arguments).execute(context)


def test_work_that_succeeded_completes_the_tasks(queue):
    """All of them, with the result, which may be JSON."""
    claims = taken(queue, "a", "b")
    done = settle(claims, run({"work": "success", "other": "failed"}), result={"rows": 3})
    assert done == {"completed": 2, "failed": 0, "released": 0, "lost": 0}
    assert [queue.task(name).result for name in "ab"] == [b'{"rows": 3}'] * 2


@pytest.mark.parametrize("claims", [None, "", "None", "[{}]", 7])
def test_claims_that_are_not_known_are_no_success(queue, claims):
    """As where the task that claims pushes no XCom: the run is red at once, as no other try would find more."""
    with pytest.raises(AirflowFailException, match="nothing is settled: "):
        settle(claims, run({"work": "success"}))
    assert settle([], run({"work": "success"}))["completed"] == 0


def test_work_that_failed_fails_the_tasks_and_the_run(queue):
    """The reason is Airflow's error; the run is red and not retried, its log says when the task is tried again."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    claims = taken(queue, "a")
    states = {"work_0": "success", "work_1": "failed", "after": "upstream_failed"}
    with pytest.raises(AirflowFailException, match=r"task 'a' of queue 'jobs' is tried again at .*, after attempt 1"):
        settle(claims, run(states, errors={("work", 1): "ValueError: no such order"}), ["work", "after"])
    task = queue.task("a")
    assert (task.state, task.attempt, task.due_ms > 0) == ("inserted", 1, True)
    assert task.error == "work[1]: ValueError: no such order; after upstream_failed"


def test_a_task_whose_attempts_are_used_up_is_dead(queue):
    """With its reason, which names what failed where no exception is known."""
    queue.configure(policy=RetryPolicy(attempts=1))
    with pytest.raises(AirflowFailException, match="task 'a' of queue 'jobs' is dead after attempt 1: work failed"):
        settle(taken(queue, "a"), run({"work": "failed"}))
    assert (queue.task("a").state, queue.task("a").error) == ("dead", "work failed")


@pytest.mark.parametrize(
    ("on_skipped", "state", "attempt"), [("release", "inserted", 0), ("complete", "finished", 1), ("fail", "dead", 1)]
)
def test_work_that_was_skipped(queue, on_skipped, state, attempt):
    """It is given back, unless told otherwise, and the delivery counts no attempt; then the run is red."""
    queue.configure(policy=RetryPolicy(attempts=1))
    claims, context = taken(queue, "a"), run({"work": "success", "more": "skipped"})
    if on_skipped != "complete":
        with pytest.raises(AirflowFailException, match="skipped: more"):
            settle(claims, context, ["work", "more"], on_skipped=on_skipped)
    else:
        settle(claims, context, ["work", "more"], on_skipped=on_skipped)
    assert (queue.task("a").state, queue.task("a").attempt) == (state, attempt)


def test_each_claim_by_its_own_work(queue):
    """Instances of mapped tasks are told apart by their index, as are the results; what is not mapped is for all."""
    queue.configure(policy=RetryPolicy(attempts=1))
    claims = taken(queue, "a", "b", "c")
    states = {"work_0": "success", "work_1": "failed", "work_2": "success", "first": "success"}
    with pytest.raises(AirflowFailException, match="task 'b'"):
        settle(claims, run(states), ["work", "first"], each=True, result=["A", "B", "C"])
    assert [queue.task(name).state for name in "abc"] == ["finished", "dead", "finished"]
    assert [queue.task(name).result for name in "abc"] == [b"A", None, b"C"]


def test_in_a_mapped_group_the_work_is_that_of_its_own_index(queue):
    """What failed beside it is none of its business."""
    settle(taken(queue, "a"), run({"work_0": "failed", "work_1": "success"}, map_index=1))
    assert queue.task("a").state == "finished"


def test_a_late_settlement_fails_the_run(queue):
    """Another has the task now, and keeps it; the other claims are settled."""
    claims = taken(queue, "a", "b")
    queue.release("a", claims[0]["token"])
    other = queue.claim_task("a")
    with pytest.raises(AirflowFailException, match="1 of 2 settled too late: ClaimLost: claim"):
        settle(claims, run({"work": "success"}))
    assert queue.task("b").state == "finished"
    other.complete("the other's")
    assert queue.task("a").result == b"the other's"


def test_a_late_settlement_may_be_told_only(queue):
    """For work that may be done twice."""
    claims = taken(queue, "a")
    queue.cancel("a")
    done = settle(claims, run({"work": "success"}), on_lost="ignore")
    assert (done["lost"], done["completed"], queue.task("a").state) == (1, 0, "cancelled")


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "killed before it was noted"])
@pytest.mark.parametrize("state", ["success", "skipped"])
def test_what_an_earlier_try_settled_is_settled_once(queue, noted, state):
    """A retry, and a clear, of the settling alone: no error, and nothing changes."""
    store, claims = Store(), taken(queue, "a")
    told = [] if state == "success" else [AirflowFailException]
    with contextlib.suppress(*told):
        assert settle(claims, run({"work": state}, store))["completed"] == 1
    version = queue.task("a").version
    if not noted:
        store.clear()
    with contextlib.suppress(*told):
        assert settle(claims, run({"work": state}, store, number=2))["completed"] == 1
    assert queue.task("a").version == version


def test_what_an_earlier_try_failed_stays_so(queue):
    """The run is red again, and the task has no attempt more."""
    queue.configure(policy=RetryPolicy(attempts=3, factor=3600, max_backoff=7200))
    store, claims = Store(), taken(queue, "a")
    for number in (1, 2):
        with pytest.raises(AirflowFailException, match="the work failed"):
            settle(claims, run({"work": "failed"}, store, number))
    assert (queue.task("a").attempt, len(queue.task("a").history)) == (1, 1)


def test_zookeepers_absence_keeps_only_what_it_hits(queue, monkeypatch):
    """Airflow tries again, and the rest is settled then; what was settled is left."""
    store, claims, away = Store(), taken(queue, "a", "b"), ["a"]
    complete = Queue.complete

    def sometimes(self, task_id, token, result=None):
        if task_id in away:
            raise Unavailable("nobody answers")
        complete(self, task_id, token, result)

    monkeypatch.setattr(Queue, "complete", sometimes)
    with pytest.raises(AirflowException, match="not settled: task 'a' .*nobody answers") as refused:
        settle(claims, run({"work": "success"}, store))
    assert not isinstance(refused.value, AirflowFailException)
    assert [queue.task(name).state for name in "ab"] == ["claimed", "finished"]
    away.clear()
    assert settle(claims, run({"work": "success"}, store, number=2))["completed"] == 2
    assert queue.task("a").state == "finished"


def test_a_result_that_is_too_large_fails_its_task(queue):
    """It is no reason to keep the task for ever."""
    queue.configure(policy=RetryPolicy(attempts=1))
    with pytest.raises(AirflowFailException, match="the result of task 'a' has"):
        settle(taken(queue, "a"), run({"work": "success"}), result="x" * 2_000_000)
    assert queue.task("a").state == "dead"


@pytest.mark.parametrize("result", [{"at": pendulum.datetime(2026, 1, 1)}, "\ud800"], ids=["JSON", "text"])
def test_a_result_that_is_none_fails_its_task(queue, result):
    """As one that is too large does: by its queue's policy, with the reason, and the run is red."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=3600, max_backoff=7200))
    store, claims = Store(), taken(queue, "a")
    for number in (1, 2):
        with pytest.raises(AirflowFailException, match="'a' .* is tried again .*neither bytes, text nor JSON"):
            settle(claims, run({"work": "success"}, store, number), result=result)
    task = queue.task("a")
    assert (task.state, task.attempt) == ("inserted", 1)
    assert task.error.startswith("result is neither bytes, text nor JSON: ")


def test_the_states_of_mapped_tasks_are_read_by_their_names():
    """Also where one task is named as another one's instance; what is missing counts as not done."""
    states = {"a_0": "success", "a_1": "removed", "a_b": "success", "a_b_2": "failed", "x_1": "success"}
    assert instances(states, ["a", "a_b", "x_1", "none"]) == [
        Work("a", 0, "success"),
        Work("a_b", -1, "success"),
        Work("a_b", 2, "failed"),
        Work("none", -1, None),
        Work("x_1", -1, "success"),
    ]
    assert judge([Work("none", -1, None)], "release", {}).reason == "none not done"


def test_the_exception_of_a_failed_task_is_kept():
    """Its type and the first 2 000 characters of its text; where it cannot be kept, that is a warning."""
    kept, warned = {}, []
    ti = SimpleNamespace(
        xcom_push=lambda key, value: kept.update({key: value}),
        log=SimpleNamespace(warning=lambda text, *values: warned.append(text % values)),
    )
    note_error({"ti": ti, "exception": ValueError("x" * 5_000)})
    assert kept[ERROR_KEY] == ("ValueError: " + "x" * 5_000)[:2_000]
    note_error({"ti": ti, "exception": ValueError("a\0b")})
    assert kept[ERROR_KEY] == "ValueError: a\ufffdb", "PostgreSQL refuses an XCom with a NUL"
    note_error({"ti": ti})

    def refuse(key, value):
        raise OSError(key, value)

    ti.xcom_push = refuse
    note_error({"ti": ti, "exception": "killed"})
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"work": []}, "names no task"),
        ({"work": "a", "on_skipped": "x"}, "on_skipped 'x'"),
        ({"work": "a", "on_lost": "x"}, "on_lost 'x'"),
        ({"work": "a", "each": "yes"}, "each 'yes' is not allowed"),
        ({"work": 5}, "work 5 is no operator"),
        ({"work": None}, "work None is no operator"),
        ({"work": ["a", {"b": 1}]}, "is no operator"),
    ],
)
def test_what_is_not_understood_is_refused_where_the_dag_is_parsed(arguments, told):
    """Each with what would be."""
    with pytest.raises(ValueError, match=told):
        ZkmqSettleOperator(task_id="settle", claims=[], **arguments)
