"""`ZkmqClaimOperator` after a clear: what is mapped over the claims, and what fails in between."""

from __future__ import annotations

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_zkmq.engine import Message, Unavailable
from airflow_provider_zkmq.engine.fronts.queue import Queue
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
    with pytest.raises(Unavailable):
        claim(tries(store, 2), max_tasks=2)
    assert (queue.task("a").state, queue.task("a").attempt) == ("inserted", 0)
    away.clear()
    assert [(told["id"], told["attempt"]) for told in claim(tries(store, 3), max_tasks=2)] == [("a", 1), ("b", 1)]
