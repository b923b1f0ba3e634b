"""`ZkmqClaimOperator` after a clear: what is mapped over the claims, and what fails in between."""

from __future__ import annotations

from logging import getLogger
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException, AirflowTaskTimeout

from airflow_provider_zkmq.engine import Message, RetryPolicy, SessionLost, TlsRefused, Unavailable, Zkmq
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.hooks.claims import MOST
from airflow_provider_zkmq.operators import claiming, taking
from airflow_provider_zkmq.triggers import backoff
from tests.airflow.test_claiming import Store, claim, event, tries

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner


def test_what_has_ended_keeps_its_place_among_mapped_work(queue):
    """Else the success of the first instance, which is not run again, would be taken for the second task's."""
    store = Store()
    queue.enqueue_many([Message(b"x", task_id=name) for name in "abc"])
    first = claim(tries(store), max_tasks=3, in_place=True)
    queue.complete("a", first[0]["token"])
    queue.release("b", first[1]["token"])
    again = claim(tries(store, 2), max_tasks=3, in_place=True)
    assert [told["id"] for told in again] == ["a", "b", "c"]
    assert (again[0], again[2], again[1]["token"] > first[1]["token"]) == (first[0], first[2], True)
    for told in again[1:]:
        queue.complete(told["id"], told["token"])
    with pytest.raises(AirflowSkipException, match="nothing is left"):
        claim(tries(store, 3), max_tasks=3, in_place=True)


def test_events_of_others_are_passed_over(queue):
    """Airflow merges the events of all assets that start a run; a foreign one may have claims of its own kind."""
    queue.enqueue(b"x", task_id="a")
    foreign = event({"claims": [{"policy": 7}]}) | {Asset("b"): event({"claims": 5})[Asset("orders")]}
    foreign |= {Asset("d"): event({"counts": 5, "queue": ["no", "name"]})[Asset("orders")]}
    [told] = claim(tries(Store(), triggering_asset_events=foreign), from_events=True, zkmq_queue="jobs")
    mine = foreign | {Asset("c"): event({"claims": [told]})[Asset("orders")]}
    assert claim(tries(Store(), triggering_asset_events=mine), from_events=True) == [told]


def test_what_was_claimed_anew_is_given_back_where_the_rest_cannot_be(queue, monkeypatch):
    """The try after that takes both, and no attempt is counted for the first one's short delivery."""
    store, away = Store(), ["b"]
    queue.enqueue_many([Message(b"x", task_id=name) for name in "ab"])
    for told in claim(tries(store), max_tasks=2):
        queue.release(told["id"], told["token"])
    extend = Queue.extend

    def sometimes(self, task_id, token, lease):
        if task_id in away:
            raise Unavailable("nobody answers")
        extend(self, task_id, token, lease)

    monkeypatch.setattr(Queue, "extend", sometimes)
    monkeypatch.setattr(claiming, "PATIENCE", 0.0)
    with pytest.raises(Unavailable):
        claim(tries(store, 2), max_tasks=2)
    assert (queue.task("a").state, queue.task("a").attempt) == ("inserted", 0)
    away.clear()
    assert [(told["id"], told["attempt"]) for told in claim(tries(store, 3), max_tasks=2)] == [("a", 1), ("b", 1)]


def claim_many_raises(monkeypatch, *errors):
    """The next calls of the engine's raise these; how long the operator pauses after each try."""
    pauses, claim_many = [], Queue.claim_many

    def troubled(self, *given, **named):
        if coming:
            raise coming.pop(0)
        return claim_many(self, *given, **named)

    coming = list(errors)
    monkeypatch.setattr(Queue, "claim_many", troubled)
    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=pauses.append))
    return pauses


def test_a_claim_outlives_an_outage_at_a_run_s_start(queue, monkeypatch):
    """It is tried again without a try of Airflow's, and takes what it would have taken, once."""
    queue.enqueue_many([Message(b"x", task_id=name) for name in "ab"])
    pauses = claim_many_raises(monkeypatch, *[Unavailable("nobody answers")] * 3)
    [told] = claim(tries(Store()))
    assert (told["id"], told["attempt"], queue.counts()["claimed"], len(pauses)) == ("a", 1, 1, 3)
    assert 0 < pauses[0] <= 2
    assert max(pauses) <= 15


@pytest.mark.parametrize("error", [TlsRefused("their certificate"), SessionLost("closed")])
def test_what_no_wait_mends_ends_the_claim_at_once(queue, monkeypatch, error):
    """Certificates that are refused, and a client that was closed; the next try takes what it would have taken."""
    queue.enqueue(b"x", task_id="a")
    pauses = claim_many_raises(monkeypatch, error)
    with pytest.raises(type(error)):
        claim(tries(Store()))
    assert (pauses, queue.counts()["claimed"]) == ([], 0)
    assert claim(tries(Store(), 2))[0]["id"] == "a"


def test_what_was_taken_is_given_back_where_it_is_told_to_end(queue, monkeypatch):
    """By `execution_timeout`, between two claims of the same try: nobody would know of the first one's tasks."""
    queue.enqueue_many([Message(b"x")] * MOST)
    claim_many, asked = Queue.claim_many, []

    def interrupted(self, *given, **named):
        asked.append(given)
        if len(asked) == 2:
            raise AirflowTaskTimeout("too long")
        return claim_many(self, *given, **named)

    monkeypatch.setattr(Queue, "claim_many", interrupted)
    with pytest.raises(AirflowTaskTimeout):
        claim(tries(Store()), max_tasks=MOST)
    assert queue.counts()["inserted"] == MOST
    assert {task.attempt for task in queue.tasks()} == {0}


def test_giving_back_ends_with_an_outage(queue, monkeypatch):
    """Whoever is told to end does not wait once for each of a hundred claims."""
    queue.enqueue_many([Message(b"x")] * 3)
    taken = [taking.Taken(each, 0) for each in claim(tries(Store()), max_tasks=3)]
    asked = []

    def away(self, task_id, token):
        asked.append(task_id)
        raise Unavailable("nobody answers")

    monkeypatch.setattr(Queue, "release", away)
    taking.give_back(lambda _: queue, taken, getLogger("t"))
    assert asked == [taken[0].claim["id"]]


@pytest.mark.full
def test_a_dispatcher_that_is_cleared_claims_ahead_again(queue, monkeypatch):
    """What no run takes over counts no attempt, whichever try of the dispatcher claimed it."""
    monkeypatch.setattr(claiming, "_UNTIL_KEPT", 3.0)
    queue.configure(policy=RetryPolicy(attempts=1))
    queue.enqueue(b"x", task_id="a")
    store = Store()
    for number in (1, 2):
        [told] = claiming.ZkmqClaimOperator(task_id="claim", lease=3, ahead=True).execute(tries(store, number))
        assert (told["id"], queue.task("a").attempt) == ("a", 1)
        assert queue.ready(timeout=60)
        assert queue.task("a").attempt == 0


def test_claims_of_other_queues_are_left_to_whoever_takes_those(queue, zookeeper, root):
    """Two queues' events start one run: each operator takes the claims of its own queue; one without a queue, all."""
    with Zkmq.connect(zookeeper, root, gc=False) as zk:
        others = zk.queue("others")
        told = {}
        for each in (queue, others):
            each.enqueue(b"x", task_id=f"of-{each.name}")
            [taken] = each.claim_many(1, lease=600, ahead="all")
            told[each.name] = {"queue": each.name, "id": taken.task.id, "token": taken.token, "attempt": 1}
        events = event({"claims": [told["jobs"]]}) | {Asset("z"): event({"claims": [told["others"]]})[Asset("orders")]}
        for name in ("jobs", "others"):
            got = claim(tries(Store(), triggering_asset_events=events), from_events=True, zkmq_queue=name)
            assert [(each["queue"], each["id"]) for each in got] == [(name, f"of-{name}")]
        every = claim(tries(Store(), triggering_asset_events=events), from_events=True)
        assert {each["queue"] for each in every} == {"jobs", "others"}


def test_who_was_asked_to_wait_waits_where_the_events_claims_are_over(queue):
    """It takes what is there; who was not asked to skips, as its tasks are told of again."""
    queue.enqueue(b"x", task_id="a")
    stale = event({"claims": [{"queue": "jobs", "id": "gone", "token": 7, "attempt": 1}]})
    with pytest.raises(AirflowSkipException, match="none of the claims"):
        claim(tries(Store(), triggering_asset_events=stale), from_events=True)
    [told] = claim(tries(Store(), triggering_asset_events=stale), from_events=True, on_empty="wait")
    assert told["id"] == "a"


def test_who_is_woken_claims_although_the_run_has_another_queue_s_claims(queue):
    """A run that two queues' events started, of one mode each: each operator goes by those of its own."""
    queue.enqueue(b"x", task_id="a")
    others = {"claims": [{"queue": "others", "id": "b", "token": 7, "attempt": 1}]}
    counts = {"queue": "jobs", "selector": None, "counts": {"inserted": 1}}
    events = event(others) | {Asset("z"): event(counts)[Asset("orders")]}
    [told] = claim(tries(Store(), triggering_asset_events=events), from_events=True, zkmq_queue="jobs")
    assert told["id"] == "a"
    queue.release("a", told["token"])
    with pytest.raises(AirflowSkipException, match="none of the claims"):  # it was started for others alone
        claim(tries(Store(), triggering_asset_events=event(others)), from_events=True, zkmq_queue="jobs")
