"""`ZkmqClaimOperator`: what a run takes, what its later tries take back, and what outages leave of it."""

from __future__ import annotations

import json
import threading
import time
from logging import getLogger
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, AirflowTaskTimeout, TaskDeferred
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_zkmq.engine import (
    ConfigError,
    Message,
    OutcomeUnknown,
    RetryPolicy,
    SessionLost,
    TlsRefused,
    Unavailable,
    Zkmq,
)
from airflow_provider_zkmq.engine.api.queue import Claim, Queue
from airflow_provider_zkmq.hooks import outages
from airflow_provider_zkmq.hooks.claim_references import MOST, claim_reference, read_claims
from airflow_provider_zkmq.operators import claiming
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.triggers.zkmq import ZkmqReadyTrigger
from tests.airflow.conftest import define, instance
from tests.faulty import CutAfter, Faulty, Once, is_write
from tests.support import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner
#: The servers are away for longer than a call waits, and than a session lives.
AWAY_S = 3.0


class Store(dict):
    """Airflow's task state store, for as long as the test lasts: it outlives a try."""

    def set(self, key, value, *, retention=None):
        """Keep it as JSON would."""
        assert retention is NEVER_EXPIRE, "a run that is cleared later would know nothing of it"
        self[key] = json.loads(json.dumps(value))


def tries(store, number=1):
    return instance(try_number=number) | {"task_state_store": store}


def started_by(*payloads):
    """The context of a run that events with these payloads started, each of another asset."""
    found = [SimpleNamespace(extra={"from_trigger": True, "payload": payload}) for payload in payloads]
    events = {Asset(f"orders-{number}"): [each] for number, each in enumerate(found)}
    return tries(Store()) | {"triggering_asset_events": events}


def claim(context=None, **arguments):
    return ZkmqClaimOperator(task_id="claim", lease=30, **arguments).execute(context or tries(Store()))


def put(queue, *names):
    queue.enqueue_many([Message(b"x", task_id=name) for name in names])


def test_what_is_taken_is_told_without_its_payload(queue):
    """Claims of the tasks that fit, as many as there are, that hold after the session has ended."""
    queue.enqueue("marker", {"size": 9}, task_id="big")
    queue.enqueue("marker", {"size": 1}, task_id="small")
    [taken] = claim(selector="size>5", max_tasks=100)
    task = queue.task("big")
    assert (task.state, task.attempt, queue.task("small").state) == ("claimed", 1, "inserted")
    assert {**taken, "token": 0} == {"queue": "jobs", "id": "big", "token": 0, "attempt": 1, "filters": {"size": "9"}}
    queue.claim_handle("big", taken["token"]).complete()
    assert queue.task("big").state == "finished"


def test_as_many_as_asked_for_are_taken(queue, monkeypatch):
    """More than the engine claims together, or none where it is told to end in between: nobody would know of some."""
    queue.enqueue_many([Message(b"x")] * (MOST + 5))
    claim_many, requested = Queue.claim_many, []

    def interrupted(self, *given, **named):
        requested.append(given)
        if len(requested) == 2:
            raise AirflowTaskTimeout("too long")
        return claim_many(self, *given, **named)

    monkeypatch.setattr(Queue, "claim_many", interrupted)
    with pytest.raises(AirflowTaskTimeout):
        claim(max_tasks=MOST)
    assert (queue.counts()["inserted"], {task.attempt for task in queue.tasks()}) == (MOST + 5, {0})
    assert len({each["id"] for each in claim(max_tasks=MOST)}) == MOST
    assert queue.counts()["inserted"] == 5


def test_a_later_try_claims_anew_what_is_pending_and_leaves_out_the_rest(queue, subtests):
    """What holds is extended. Released: claimed with a new token, noted for the next try. Finished, another's: out.

    Where work is mapped, these keep their places: else the success of the first instance, which is not run again,
    would be taken for the second task's.
    """
    for in_place in (False, True):
        with subtests.test(in_place=in_place):
            store = Store()
            queue.enqueue_many([Message(b"x")] * 4)
            first = a, b, c = claim(tries(store), max_tasks=3, in_place=in_place)
            assert claim(tries(store, 2), max_tasks=3, in_place=in_place) == first
            queue.claim_handle(a["id"], a["token"]).complete()
            queue.claim_handle(b["id"], b["token"]).release()
            queue.claim_handle(c["id"], c["token"]).release()
            other = queue.claim_task(c["id"])
            again = claim(tries(store, 3), max_tasks=3, in_place=in_place)
            anew = again[in_place]
            assert (anew["id"], anew["token"] > b["token"]) == (b["id"], True)
            assert again == ([a, anew, c] if in_place else [anew])
            assert claim(tries(store, 4), max_tasks=3, in_place=in_place) == again
            other.complete()
            queue.claim_handle(anew["id"], anew["token"]).complete()
            with pytest.raises(AirflowSkipException, match="nothing is left"):
                claim(tries(store, 5), max_tasks=3, in_place=in_place)
            assert queue.claim().task.id not in {each["id"] for each in first}


def test_a_cleared_run_whose_tasks_have_ended_takes_no_other(queue):
    """It skips, and says why; what is pending stays so, also a task that was enqueued anew by the id of the first."""
    store = Store()
    put(queue, "mine")
    [taken] = claim(tries(store))
    queue.claim_handle("mine", taken["token"]).complete()
    for number, name in ((2, "another"), (3, "mine")):
        put(queue, name)
        with pytest.raises(AirflowSkipException, match="nothing is left"):
            claim(tries(store, number))
        assert (queue.task(name).state, queue.task(name).attempt) == ("inserted", 0)


def test_where_airflow_forgets_what_succeeded_a_cleared_run_claims_nothing(queue, monkeypatch):
    """A retry of a try that had found nothing does: nothing was forgotten of it."""
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
    store = Store()
    with pytest.raises(AirflowSkipException, match="no task of queue 'jobs'"):
        claim(tries(store))
    put(queue, *"ab")
    assert len(claim(tries(store, 2))) == 1
    store.clear()
    with pytest.raises(AirflowSkipException, match="clear_on_success"):
        claim(tries(store, 3))
    assert queue.counts()["inserted"] == 1


def test_what_cannot_be_noted_is_given_back(queue):
    """Else the next try would take another. Where there is no store, as in a call by hand, it claims all the same."""

    class Broken(Store):
        def set(self, key, value, **_retention):
            raise OSError(f"no database for {key}, {value}")

    put(queue, "mine")
    with pytest.raises(OSError, match="no database"):
        claim(tries(Broken()))
    assert (queue.task("mine").state, queue.task("mine").attempt) == ("inserted", 0)
    assert [(each["id"], each["attempt"]) for each in claim(instance())] == [("mine", 1)]


def test_nothing_to_take(queue):
    """The work is skipped, the task fails, or it waits in the triggerer; woken, it claims, or waits again."""
    with pytest.raises(AirflowSkipException, match="no task of queue 'jobs'"):
        claim()
    with pytest.raises(AirflowException, match="no task of queue 'jobs'"):
        claim(on_empty="fail")
    operator = ZkmqClaimOperator(task_id="claim", on_empty="wait", deferrable=True, selector="size>5")
    for wait in (operator.execute, lambda context: operator.execute_complete(context, {"status": "done"})):
        with pytest.raises(TaskDeferred) as deferred:
            wait(tries(Store()))
        assert isinstance(deferred.value.trigger, ZkmqReadyTrigger)
        assert (deferred.value.trigger.selector, deferred.value.method_name) == ("size>5", "execute_complete")
    with pytest.raises(AirflowException, match="nothing came"):
        operator.execute_complete(tries(Store()), {"status": "timeout", "message": "nothing came"})
    queue.enqueue(b"x", {"size": 9}, task_id="mine")
    assert [each["id"] for each in operator.execute_complete(tries(Store()), {"status": "done"})] == ["mine"]


def test_it_waits_on_the_worker(queue, monkeypatch):
    """What comes is claimed by the one who waits for it."""
    block, waits, taken = claiming.block_until_ready, threading.Event(), []
    monkeypatch.setattr(claiming, "block_until_ready", lambda *given: (waits.set(), block(*given)))
    waiting = threading.Thread(target=lambda: taken.extend(claim(on_empty="wait")), daemon=True)
    waiting.start()
    assert waits.wait(60)
    put(queue, "late")
    waiting.join(60)
    assert [each["id"] for each in taken] == ["late"]


def test_claims_of_another_are_taken_over(queue):
    """Those that hold, with the lease of this run; the others are left out, and where none is left, it skips."""
    put(queue, *"ab")
    first, second = (claim_reference("jobs", each) for each in queue.claim_many(2, lease=600))
    queue.claim_handle(second["id"], second["token"]).release()
    assert claim(claims=json.dumps([first, second])) == [first]
    for on_empty, raised in (("skip", AirflowSkipException), ("fail", AirflowException)):
        with pytest.raises(raised, match="none of the claims holds"):
            claim(claims=[second], on_empty=on_empty)
    assert [queue.task(each["id"]).state for each in (first, second)] == ["claimed", "inserted"]


def test_a_dispatcher_that_is_cleared_claims_ahead_again(queue):
    """What no run takes over counts no attempt, whichever try of the dispatcher claimed it.

    What one takes over, by its claims or by an event that tells of them, does: with its lease its only attempt ends.
    """
    queue.configure(policy=RetryPolicy(attempts=1))
    put(queue, *"abc")
    store = Store()
    for taken_over, pending in (("", "abc"), ("", "abc"), ("ab", "c")):
        taken = sorted(claim(tries(store, 2 if store else 1), prefetch=True, max_tasks=3), key=lambda each: each["id"])
        assert [(each["id"], each["attempt"]) for each in taken] == [("a", 1), ("b", 1), ("c", 1)]
        if taken_over:
            assert claim(claims=taken[:1]) == taken[:1]
            assert claim(started_by({"queue": "jobs", "claims": taken[1:2]}), from_events=True) == taken[1:2]
        for each in taken:
            queue.claim_handle(each["id"], each["token"]).extend(0.01)
        eventually(lambda: (queue.ready(timeout=0.1), queue.counts()["claimed"] == 0)[1])
        attempts = {name: queue.task(name).attempt for name in "abc"}
        assert attempts == dict.fromkeys(taken_over, 1) | dict.fromkeys(pending, 0)
    assert [queue.task(name).state for name in "abc"] == ["dead", "dead", "inserted"]


def test_claims_come_from_the_events_that_started_the_run(queue, zookeeper, root, subtests):
    """Each once, as far as it holds, and those of its own queue; an event without claims says that there is work.

    Airflow merges the events of all assets that start a run: other queues' are left to whoever takes those, and
    foreign ones, which may have claims of their own kind, are passed over.
    """
    with Zkmq.connect(zookeeper, root, gc=False) as zk:
        held = {}
        for each in (queue, zk.queue("others")):
            put(each, "held")
            held[each.name] = claim_reference(each.name, each.claim_many(1, lease=600, prefetch="all")[0])
        put(queue, "new")
        mine, theirs, gone = held["jobs"], held["others"], held["jobs"] | {"id": "gone"}
        wake = {"queue": "jobs", "selector": None, "counts": {"inserted": 1}}
        foreign = [{"claims": [{"policy": 7}]}, {"claims": 5}, {"counts": 5, "queue": ["no", "name"]}]
        none = "none of the claims"
        for payloads, arguments, expected in (
            ([{"claims": [mine, mine | {"token": 1}, mine]}], {}, [mine]),
            ([wake], {}, "new"),
            (foreign, {"zkmq_queue": "jobs"}, "new"),
            ([*foreign, {"claims": [mine]}], {}, [mine]),
            ([{"claims": [mine]}, {"claims": [theirs]}], {"zkmq_queue": "jobs"}, [mine]),
            ([{"claims": [mine]}, {"claims": [theirs]}], {"zkmq_queue": "others"}, [theirs]),
            ([{"claims": [mine]}, {"claims": [theirs]}], {}, [mine, theirs]),
            ([{"claims": [theirs]}, wake], {"zkmq_queue": "jobs"}, "new"),
            ([{"claims": [theirs]}], {"zkmq_queue": "jobs"}, none),
            ([{"claims": [gone]}], {}, none),
            ([{"claims": [gone]}], {"on_empty": "wait"}, "new"),
        ):
            with subtests.test(payloads=payloads, **arguments):
                context = started_by(*payloads)
                if expected == none:
                    with pytest.raises(AirflowSkipException, match=none):
                        claim(context, from_events=True, **arguments)
                elif expected == "new":
                    [taken] = claim(context, from_events=True, **arguments)
                    queue.claim_handle("new", taken["token"]).release()
                else:
                    assert claim(context, from_events=True, **arguments) == expected


def troubled(monkeypatch, verb, *errors, task_id=None):
    """The next calls of the queue's (those for one task) raise these; how long the operator pauses after each try."""
    pauses, real, coming = [], getattr(Queue, verb), list(errors)

    def called(self, *given, **named):
        if coming and task_id in {None, *given}:
            raise coming.pop(0)
        return real(self, *given, **named)

    monkeypatch.setattr(Queue, verb, called)
    monkeypatch.setattr(outages, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic))
    return pauses


def test_a_claim_outlives_an_outage_at_a_run_s_start(queue, monkeypatch):
    """It is tried again without a try of Airflow's, and takes what it would have taken, once.

    What no wait mends ends it at once: certificates that are refused, and a client that was closed.
    """
    put(queue, *"ab")
    for error in (TlsRefused("their certificate"), SessionLost("closed")):
        pauses = troubled(monkeypatch, "claim_many", error)
        with pytest.raises(type(error)):
            claim()
        assert (pauses, queue.counts()["claimed"]) == ([], 0)
    pauses = troubled(monkeypatch, "claim_many", *[Unavailable("nobody answers")] * 3)
    [taken] = claim()
    assert (taken["attempt"], queue.counts()["claimed"], len(pauses)) == (1, 1, 3)
    assert 0 < pauses[0] <= 2
    assert max(pauses) <= 15


def test_what_was_claimed_anew_is_given_back_where_the_rest_cannot_be(queue, monkeypatch):
    """The try after that takes both, and no attempt is counted for the first one's short delivery."""
    store = Store()
    put(queue, *"ab")
    for each in claim(tries(store), max_tasks=2):
        queue.claim_handle(each["id"], each["token"]).release()
    troubled(monkeypatch, "claim_handle", Unavailable("nobody answers"), task_id="b")
    monkeypatch.setattr("airflow_provider_zkmq.hooks.outages.RETRY_SECONDS", 0.0)
    with pytest.raises(Unavailable):
        claim(tries(store, 2), max_tasks=2)
    assert (queue.task("a").state, queue.task("a").attempt) == ("inserted", 0)
    assert [(each["id"], each["attempt"]) for each in claim(tries(store, 3), max_tasks=2)] == [("a", 1), ("b", 1)]


def test_giving_back_ends_with_an_outage(queue, monkeypatch):
    """Whoever is told to end does not wait once for each of a hundred claims."""
    put(queue, *"abc")
    taken = [claiming.Taken(each, 0) for each in claim(max_tasks=3)]
    troubled(monkeypatch, "claim_handle", Unavailable("nobody answers"))
    claiming.give_back(lambda _: queue, taken, getLogger("t"))
    assert queue.counts()["claimed"] == 3


@pytest.fixture
def proxy(queue, zookeeper, root, monkeypatch):
    """The operators' way to ZooKeeper, by which the test itself does not go."""
    limits = {"connect_timeout": 1, "request_timeout": 1, "session_timeout": 2}
    monkeypatch.setattr(outages, "LONGEST_OF_A_WAIT", 0.2)
    with Faulty(zookeeper) as made:
        define(monkeypatch, host=made.hosts, extra={"root": root, "queue": queue.name} | limits)
        yield made


@pytest.mark.parametrize("number", [0, 1])
def test_claims_are_taken_over_through_an_outage(queue, proxy, number):
    """That their handling begins, and for how long they hold, may be said twice; each has one attempt."""
    put(queue, *"ab")
    claims = [claim_reference("jobs", each) for each in queue.claim_many(2, lease=600, prefetch="all")]
    proxy.plan = Once(is_write, CutAfter(AWAY_S), number)
    assert claim(started_by({"claims": claims}), from_events=True) == claims
    assert proxy.faults == {"CutAfter": 1}
    for each in claims:
        queue.claim_handle(each["id"], each["token"]).fail("tried")
    assert {task.attempt for task in queue.tasks()} == {1}


def test_what_it_has_claimed_itself_is_its_own_after_an_outage(queue, proxy, monkeypatch):
    """One of two tasks is claimed anew, and then the servers go: its new claim is not taken for another's."""
    store = Store()
    put(queue, *"ab")
    for each in claim(tries(store), max_tasks=2):
        queue.claim_handle(each["id"], each["token"]).release()
    extend, gone = Claim.extend, []

    def going(self, lease):
        if self.task.id == "b" and not gone:
            gone.append(self.task.id)
            proxy.down(AWAY_S)
        extend(self, lease)

    monkeypatch.setattr(Claim, "extend", going)
    taken = claim(tries(store, 2), max_tasks=2)
    expected = [("a", 1, 1), ("b", 1, 1)]
    assert [(each["id"], each["attempt"], queue.task(each["id"]).attempt) for each in taken] == expected
    for each in taken:
        queue.claim_handle(each["id"], each["token"]).complete()
    assert queue.counts()["finished"] == 2


def test_patience_counts_for_how_long_nobody_has_answered(monkeypatch, subtests):
    """However long each try takes until it gives up, and for however long it has waited when the outage comes."""
    now, requested = [0.0], []
    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    for error in (Unavailable("nobody answers"), OutcomeUnknown("its reply was lost")):
        for answered in ([], [3, 4]):
            with subtests.test(error=error, answered=answered):
                requested.clear()

                def work(reached, error=error, answered=answered):
                    requested.append(now[0])
                    now[0] += 70.0
                    if len(requested) in answered:
                        reached()
                    raise error

                with pytest.raises(type(error)):
                    outages.outlast(getLogger("t"), "Claiming", 200.0, work)
                assert len(requested) == (7 if answered else 4)


def test_what_is_not_understood_is_refused_where_the_dag_is_parsed(subtests):
    """Each with what would be."""
    for arguments, why in (
        ({"max_tasks": 0}, "from 1 to 100"),
        ({"max_tasks": 101}, "from 1 to 100"),
        ({"on_empty": "sleep"}, "on_empty 'sleep' is not known"),
        ({"lease": 1}, "3 seconds or more"),
        ({"claims": [], "from_events": True}, "no events"),
    ):
        with subtests.test(arguments=arguments), pytest.raises(ValueError, match=why):
            ZkmqClaimOperator(task_id="claim", **arguments)


def test_what_is_no_claim_is_refused(subtests):
    """Before anything is asked of ZooKeeper. A template may make one of a run's configuration, as Jinja or as JSON."""
    for value, why in (
        (["x"], r"claims\[0\] is no claim"),
        ([{"queue": "q", "id": "i"}], "token"),
        ([{"queue": "a/b", "id": "i", "token": 1}], "not allowed"),
        ([{"queue": "q", "id": "i", "token": 1}] * 101, "at most 100"),
        ('[{"queue": "q", "id": "i", "token": Infinity}]', r"claims\[0\] is no claim"),
        ("{'queue': 'q'}", "id"),
    ):
        with subtests.test(value=value), pytest.raises(ConfigError, match=why):
            read_claims("claims", value)
    one = {"queue": "q", "id": "i", "token": 7, "attempt": 1, "filters": {"size": "9"}}
    for text in (str(one), json.dumps(one), f" {one} ", str([one])):
        assert read_claims("claims", text) == [one]
