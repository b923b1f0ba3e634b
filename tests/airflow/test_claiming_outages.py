"""`ZkmqClaimOperator` while ZooKeeper goes and comes back: what it takes is its run's, or anybody's."""

from __future__ import annotations

from logging import getLogger
from types import SimpleNamespace

import pytest

from airflow_provider_zkmq.engine import Message, OutcomeUnknown, Unavailable
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.operators import patience
from airflow_provider_zkmq.triggers import backoff
from tests.airflow.conftest import define
from tests.airflow.test_claiming import Store, claim, event, tries
from tests.faulty import CutAfter, Faulty, Once, is_write

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner
#: The servers are away for longer than a call waits, and than a session lives.
AWAY_S = 5.0


@pytest.fixture
def proxy(queue, zookeeper, root, monkeypatch):
    """The operators' way to ZooKeeper, by which the test itself does not go."""
    made = Faulty(zookeeper)
    limits = {"connect_timeout": 2, "request_timeout": 2, "session_timeout": 4}
    define(monkeypatch, host=made.hosts, extra={"root": root, "queue": queue.name} | limits)
    yield made
    made.close()


def away_after_the_write(proxy, number):
    """The reply to this write of the operator's is lost, and nobody answers for a while."""
    proxy.plan = Once(is_write, CutAfter(AWAY_S), number)


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 1])
def test_a_claim_of_unknown_outcome_is_found_again(queue, proxy, number):
    """Its reply was lost: the same client gives back what it took, or hands it out; the run has the task, once."""
    queue.enqueue_many([Message(b"x", task_id=name) for name in "ab"])
    away_after_the_write(proxy, number)
    [told] = claim(tries(Store()))
    assert proxy.faults == {"CutAfter": 1}
    task = queue.task(told["id"])
    assert (task.state, task.attempt, told["attempt"], queue.counts()["claimed"]) == ("claimed", 1, 1, 1)
    queue.complete(told["id"], told["token"])
    assert (queue.claim().task.attempt, queue.claim()) == (1, None)


@pytest.mark.parametrize("number", [0, 1])
def test_claims_are_taken_over_through_an_outage(queue, proxy, number):
    """That their handling begins, and for how long they hold, may be said twice; each has one attempt."""
    queue.enqueue_many([Message(b"x", task_id=name) for name in "ab"])
    ahead = queue.claim_many(2, lease=600, ahead="all")
    claims = [{"queue": "jobs", "id": each.task.id, "token": each.token, "attempt": 1} for each in ahead]
    away_after_the_write(proxy, number)
    got = claim(tries(Store(), triggering_asset_events=event({"claims": claims})), from_events=True)
    assert [(each["id"], each["token"]) for each in got] == [(each["id"], each["token"]) for each in claims]
    assert proxy.faults == {"CutAfter": 1}
    for each in got:
        queue.fail(each["id"], each["token"], "tried")
    assert {task.attempt for task in queue.tasks()} == {1}


def test_what_it_has_claimed_itself_is_its_own_after_an_outage(queue, proxy, monkeypatch):
    """One of two tasks is claimed anew, and then the servers go: its new claim is not taken for another's."""
    store = Store()
    queue.enqueue_many([Message(b"x", task_id=name) for name in "ab"])
    for told in claim(tries(store), max_tasks=2):
        queue.release(told["id"], told["token"])
    extend, gone = Queue.extend, []

    def going(self, task_id, token, lease):
        if task_id == "b" and not gone:
            gone.append(task_id)
            proxy.down(AWAY_S)
        extend(self, task_id, token, lease)

    monkeypatch.setattr(Queue, "extend", going)
    got = claim(tries(store, 2), max_tasks=2)
    assert [(each["id"], each["attempt"], queue.task(each["id"]).attempt) for each in got] == [("a", 1, 1), ("b", 1, 1)]
    for each in got:
        queue.complete(each["id"], each["token"])
    assert queue.counts()["finished"] == 2


def outlasting(monkeypatch, seconds, work):
    """`outlast`, on a clock that only `work` moves."""
    now = [0.0]
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=lambda _: None))
    return patience.outlast(getLogger("t"), "Claiming", seconds, lambda reached: work(now, reached))


@pytest.mark.parametrize("error", [Unavailable("nobody answers"), OutcomeUnknown("its reply was lost")])
def test_patience_counts_from_the_outage_s_first_failure(monkeypatch, error):
    """However long each try takes until it gives up."""
    asked = []

    def work(now, _):
        asked.append(now[0])
        now[0] += 70.0
        raise error

    with pytest.raises(type(error)):
        outlasting(monkeypatch, 200.0, work)
    assert asked == [0.0, 70.0, 140.0, 210.0]


def test_a_wait_of_hours_outlives_an_outage_as_one_that_has_just_begun(monkeypatch):
    """What counts is for how long nobody has answered, not for how long it has waited."""
    asked = []

    def work(now, reached):
        asked.append(now[0])
        now[0] += 50.0
        if len(asked) in {3, 4}:
            reached()
        if len(asked) == 6:
            return "done"
        raise Unavailable("nobody answers")

    assert outlasting(monkeypatch, 100.0, work) == "done"
    assert len(asked) == 6
