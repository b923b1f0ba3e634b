"""`ZkmqClaimOperator` after a clear: what is mapped over the claims, and what fails in between."""

from __future__ import annotations

from logging import getLogger
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_zkmq.engine import Message, OutcomeUnknown, TlsRefused, Unavailable
from airflow_provider_zkmq.engine.fronts.queue import Queue
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
    [told] = claim(tries(Store(), triggering_asset_events=foreign), from_events=True)
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
    monkeypatch.setattr(claiming, "_PATIENCE", 0.0)
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


@pytest.mark.parametrize("error", [TlsRefused("their certificate"), OutcomeUnknown("its reply was lost")])
def test_what_no_wait_mends_ends_the_claim_at_once(queue, monkeypatch, error):
    """A claim whose outcome is not known may hold a task: another one would be one too many."""
    queue.enqueue(b"x", task_id="a")
    pauses = claim_many_raises(monkeypatch, error)
    with pytest.raises(type(error)):
        claim(tries(Store()))
    assert (pauses, queue.counts()["claimed"]) == ([], 0)
    assert claim(tries(Store(), 2))[0]["id"] == "a"


def test_a_wait_of_hours_outlives_an_outage_as_one_that_has_just_begun(monkeypatch):
    """What counts is for how long nobody has answered, not for how long it has waited."""
    now, asked = [0.0], []
    monkeypatch.setattr(taking, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=lambda _: None))

    def take():
        asked.append(now[0])
        now[0] += 10_000.0 if len(asked) == 1 else 10.0
        raise Unavailable("nobody answers")

    with pytest.raises(Unavailable):
        taking.outlast(getLogger("t"), 100.0, take)
    assert asked == [0.0, *(10_000.0 + 10 * n for n in range(10))]
