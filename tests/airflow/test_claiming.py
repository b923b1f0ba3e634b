"""`ZkmqClaimOperator`: what a run takes, and what its later tries take back."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_zkmq.engine import ConfigError, Message
from airflow_provider_zkmq.hooks.claims import MOST, read_claims
from airflow_provider_zkmq.operators import claiming
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.triggers.zkmq import ZkmqReadyTrigger
from tests.support import eventually

from .conftest import instance

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


class Store(dict):
    """Airflow's task state store, for as long as the test lasts: it outlives a try."""

    def set(self, key, value, *, retention=None):
        """Keep it as JSON would."""
        assert retention is NEVER_EXPIRE, "a run that is cleared later would claim another task"
        self[key] = json.loads(json.dumps(value))


def tries(store, number=1, **fields):
    return instance(try_number=number) | {"task_state_store": store} | fields


def claim(context=None, **arguments):
    return ZkmqClaimOperator(task_id="claim", lease=30, **arguments).execute(
        tries(Store()) if context is None else context
    )


def test_what_is_taken_is_told_without_its_payload(queue):
    """Claims of the tasks that fit, as many as there are, that hold after the session has ended."""
    queue.enqueue("marker", {"size": 9}, task_id="big")
    queue.enqueue("marker", {"size": 1}, task_id="small")
    [told] = claim(selector="size>5", max_tasks=100)
    task = queue.task("big")
    assert (task.state, task.attempt, queue.task("small").state) == ("claimed", 1, "inserted")
    assert {**told, "token": 0} == {"queue": "jobs", "id": "big", "token": 0, "attempt": 1, "filters": {"size": "9"}}
    queue.complete("big", told["token"])
    assert queue.task("big").state == "finished"


def test_as_many_as_asked_for_are_taken(queue):
    """More than the engine claims together, and no more than `max_tasks`."""
    queue.enqueue_many([Message(b"x")] * (MOST + 5))
    assert len({told["id"] for told in claim(max_tasks=MOST)}) == MOST
    assert queue.counts()["inserted"] == 5


def test_a_later_try_has_the_same_tasks_as_they_are(queue):
    """It extends what still holds, and takes no other."""
    store = Store()
    queue.enqueue_many([Message(b"x")] * 3)
    first = claim(tries(store), max_tasks=2)
    assert claim(tries(store, 2), max_tasks=2) == first
    assert queue.counts()["inserted"] == 1


def test_a_later_try_claims_anew_what_is_pending_and_leaves_out_the_rest(queue):
    """Released: claimed with a new token, which is what the third try knows. Finished, or another's: left out."""
    store = Store()
    ids = queue.enqueue_many([Message(b"x")] * 4)
    by_id = {told["id"]: told for told in claim(tries(store), max_tasks=3)}
    queue.release(ids[0], by_id[ids[0]]["token"])
    queue.complete(ids[1], by_id[ids[1]]["token"])
    queue.release(ids[2], by_id[ids[2]]["token"])
    other = queue.claim_task(ids[2])
    [again] = claim(tries(store, 2), max_tasks=3)
    assert (again["id"], again["token"] > by_id[ids[0]]["token"]) == (ids[0], True)
    assert claim(tries(store, 3), max_tasks=3) == [again]
    assert other.task.id == ids[2]
    other.release()
    assert queue.counts()["inserted"] == 2


def test_a_cleared_run_whose_tasks_have_ended_takes_no_other(queue):
    """It skips, and says why; what is pending stays so."""
    store = Store()
    queue.enqueue(b"x", task_id="mine")
    [told] = claim(tries(store))
    queue.complete("mine", told["token"])
    queue.enqueue(b"y", task_id="another")
    with pytest.raises(AirflowSkipException, match="nothing is left"):
        claim(tries(store, 2))
    assert queue.task("another").state == "inserted"


def test_an_id_that_was_enqueued_anew_is_another_task(queue):
    """A cleared run does not take it."""
    store = Store()
    queue.enqueue(b"x", task_id="mine")
    [told] = claim(tries(store))
    queue.complete("mine", told["token"])
    queue.enqueue(b"y", task_id="mine")
    with pytest.raises(AirflowSkipException, match="nothing is left"):
        claim(tries(store, 2))
    assert (queue.task("mine").state, queue.task("mine").attempt) == ("inserted", 0)


def test_where_airflow_forgets_what_succeeded_a_cleared_run_claims_nothing(queue, monkeypatch):
    """A retry of a try that had found nothing does: nothing was forgotten of it."""
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
    store = Store()
    with pytest.raises(AirflowSkipException, match="no task of queue 'jobs'"):
        claim(tries(store))
    queue.enqueue_many([Message(b"x")] * 2)
    assert len(claim(tries(store, 2))) == 1
    store.clear()
    with pytest.raises(AirflowSkipException, match="clear_on_success"):
        claim(tries(store, 3))
    assert queue.counts()["inserted"] == 1


def test_what_cannot_be_noted_is_given_back(queue):
    """Else the next try would take another, and this one would wait for its lease; it counts no attempt."""

    class Broken(Store):
        def set(self, key, value, **_retention):
            raise OSError(f"no database for {key}, {value}")

    queue.enqueue(b"x", task_id="mine")
    with pytest.raises(OSError, match="no database"):
        claim(tries(Broken()))
    assert (queue.task("mine").state, queue.task("mine").attempt) == ("inserted", 0)
    [told] = claim()
    assert told["attempt"] == 1


def test_without_a_store_it_claims_all_the_same(queue, context):
    """Such as where its `execute` is called by hand."""
    queue.enqueue(b"x", task_id="mine")
    assert [told["id"] for told in claim(context)] == ["mine"]


def test_nothing_to_take(queue):
    """The work is skipped, the task fails, or it waits: in the triggerer if it may."""
    with pytest.raises(AirflowSkipException, match="no task of queue 'jobs'"):
        claim()
    with pytest.raises(AirflowException, match="no task of queue 'jobs'"):
        claim(on_empty="fail")
    with pytest.raises(TaskDeferred) as deferred:
        claim(on_empty="wait", deferrable=True, selector="size>5")
    assert isinstance(deferred.value.trigger, ZkmqReadyTrigger)
    assert (deferred.value.trigger.selector, deferred.value.method_name) == ("size>5", "execute_complete")


def test_after_the_trigger_it_claims_or_waits_again(queue):
    """Others may have been faster; what is there then is taken."""
    operator = ZkmqClaimOperator(task_id="claim", on_empty="wait", deferrable=True)
    store = Store()
    with pytest.raises(TaskDeferred):
        operator.execute_complete(tries(store), {"status": "done"})
    with pytest.raises(AirflowException, match="nothing came"):
        operator.execute_complete(tries(store), {"status": "timeout", "message": "nothing came"})
    queue.enqueue(b"x", task_id="mine")
    assert [told["id"] for told in operator.execute_complete(tries(store), {"status": "done"})] == ["mine"]


def test_it_waits_on_the_worker(queue):
    """What comes is claimed by the one who waits for it."""
    import threading

    comes = threading.Timer(0.5, lambda: queue.enqueue(b"x", task_id="late"))
    comes.start()
    assert [told["id"] for told in claim(on_empty="wait")] == ["late"]
    comes.join()


def test_claims_of_another_are_taken_over(queue):
    """Those that hold, with the lease of this run; the others are left out, and where none is left, it skips."""
    ids = queue.enqueue_many([Message(b"x")] * 2)
    first, second = (
        {"queue": "jobs", "id": each.task.id, "token": each.token, "attempt": 1, "filters": {}}
        for each in queue.claim_many(2, lease=600)
    )
    queue.release(second["id"], second["token"])
    assert claim(claims=json.dumps([first, second])) == [first]
    with pytest.raises(AirflowSkipException, match="none of the claims holds"):
        claim(claims=[second])
    with pytest.raises(AirflowException, match="none of the claims holds"):
        claim(claims=[second], on_empty="fail")
    assert {queue.task(each).state for each in ids} == {"claimed", "inserted"}


def test_what_was_taken_ahead_counts_when_it_is_taken_over(queue, monkeypatch):
    """When the leases have run out, what a run took over is on its second attempt, and what nobody did on its first."""
    monkeypatch.setattr(claiming, "_UNTIL_KEPT", 3.0)
    queue.enqueue_many([Message(b"x")] * 2)
    [first, second] = ZkmqClaimOperator(task_id="claim", lease=3, max_tasks=2, ahead=True).execute(tries(Store()))
    assert ZkmqClaimOperator(task_id="claim", lease=3, claims=[first]).execute(tries(Store())) == [first]
    again = [queue.claim(timeout=60).task for _ in range(2)]
    assert {each.id: each.attempt for each in again} == {first["id"]: 2, second["id"]: 1}


def event(payload):
    return {Asset("orders"): [SimpleNamespace(extra={"from_trigger": True, "payload": payload})]}


def test_claims_come_from_the_events_that_started_the_run(queue):
    """Each once, as far as it holds; an event without claims says that there is work to claim."""
    queue.enqueue_many([Message(b"x")] * 2)
    held = queue.claim(lease=600)
    told = {"queue": "jobs", "id": held.task.id, "token": held.token, "attempt": 1, "filters": {}}
    lost = told | {"token": 1}
    events = event({"queue": "jobs", "selector": None, "claims": [told, lost, told]})
    assert claim(tries(Store(), triggering_asset_events=events), from_events=True) == [told]
    woken = event({"queue": "jobs", "selector": None, "counts": {"inserted": 1}})
    [other] = claim(tries(Store(), triggering_asset_events=woken), from_events=True)
    assert other["id"] != told["id"]


def test_claims_of_events_begin_when_they_are_taken_over(queue):
    """What a trigger took ahead counts an attempt once a run has it, and none before."""
    queue.enqueue_many([Message(b"x")] * 2)
    taken = queue.claim_many(2, lease=600, ahead="all")
    told = [{"queue": "jobs", "id": each.task.id, "token": each.token, "attempt": 1, "filters": {}} for each in taken]
    events = event({"queue": "jobs", "selector": None, "claims": told[:1]})
    assert claim(tries(Store(), triggering_asset_events=events), from_events=True) == told[:1]
    for each in taken:
        queue.extend(each.task.id, each.token, 0.01)
    eventually(lambda: (queue.look_after(), queue.counts()["claimed"] == 0)[1])
    assert [queue.task(each["id"]).attempt for each in told] == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_tasks": 0}, "from 1 to 100"),
        ({"max_tasks": 101}, "from 1 to 100"),
        ({"on_empty": "sleep"}, "on_empty 'sleep' is not known"),
        ({"lease": 1}, "3 seconds or more"),
        ({"claims": [], "from_events": True}, "no events"),
    ],
)
def test_what_is_not_understood_is_refused_where_the_dag_is_parsed(arguments, told):
    """Each with what would be."""
    with pytest.raises(ValueError, match=told):
        ZkmqClaimOperator(task_id="claim", **arguments)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (["x"], r"claims\[0\] is no claim"),
        ([{"queue": "q", "id": "i"}], "token"),
        ([{"queue": "a/b", "id": "i", "token": 1}], "not allowed"),
        ([{"queue": "q", "id": "i", "token": 1}] * 101, "at most 100"),
        ('[{"queue": "q", "id": "i", "token": Infinity}]', r"claims\[0\] is no claim"),
        ("{'queue': 'q'}", "id"),
    ],
)
def test_what_is_no_claim_is_refused(value, told):
    """Before anything is asked of ZooKeeper."""
    with pytest.raises(ConfigError, match=told):
        read_claims("claims", value)


def test_the_text_of_one_claim_is_that_claim():
    """As a template makes it of a run's configuration, by Jinja or as JSON."""
    one = {"queue": "q", "id": "i", "token": 7, "attempt": 1, "filters": {"size": "9"}}
    for text in (str(one), json.dumps(one), f" {one} ", str([one])):
        assert read_claims("claims", text) == [one]
