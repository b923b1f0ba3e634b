"""`ZkmqSettleOperator`: what becomes of a run's claims; none is completed, and no run green, without its work."""

from __future__ import annotations

from types import SimpleNamespace

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_zkmq.engine import CorruptRecord, Message, RetryPolicy, Unavailable
from airflow_provider_zkmq.engine.api.queue import Claim
from airflow_provider_zkmq.hooks.claim_references import claim_reference
from airflow_provider_zkmq.operators import settling
from airflow_provider_zkmq.operators.dag_run_work import (
    END_KEY,
    ERROR_KEY,
    Work,
    apart,
    instances,
    judge,
    note_error,
    share,
)
from airflow_provider_zkmq.operators.settling import ZkmqSettleOperator
from tests.airflow.test_claiming import Store

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow warns of `execute` outside of its task runner
#: The work of two claims, each done by an instance of its own.
BOTH = {"work_0": "success", "work_1": "success"}


class Instance(SimpleNamespace):
    """A task instance whose run's other tasks are in these states, with these XComs."""

    def get_task_states(self, dag_id, task_ids, run_ids):
        """Return the states as Airflow does: by names that a task may have, too, and of the asked tasks alone."""
        assert (dag_id, run_ids) == ("d", ["r"])
        assert task_ids
        if isinstance(self.states, dict):
            return {"r": self.states}
        requested = [(work, state) for work, state in self.states if work[0] in task_ids]
        return {"r": {name if index < 0 else f"{name}_{index}": state for (name, index), state in requested}}

    def xcom_pull(self, task_ids, key="return_value", map_indexes=None):
        if key == END_KEY:
            return self.ended
        if key != ERROR_KEY:
            return self.returned
        return self.errors.get((task_ids, map_indexes))


def run(states, store=None, number=1, errors=None, map_index=-1, returned=None):
    """The context of a settle task in a run whose work is in these states."""
    origin = {"dag_id": "d", "run_id": "r", "task_id": "settle", "map_index": map_index, "try_number": number}
    ti = Instance(**origin, states=states, errors=errors or {}, returned=returned)
    return {"ti": ti, "task_state_store": Store() if store is None else store}


def taken(queue, *names, attempts=1):
    """Enqueue and claim tasks of these ids, in this order; what fails with attempts left is tried again much later."""
    queue.configure(policy=RetryPolicy(attempts=attempts, factor=3600, max_backoff=7200))
    queue.enqueue_many([Message(b"x", task_id=name) for name in names])
    return [claim_reference("jobs", queue.claim_task(name, lease=600)) for name in names]


def settle(claims, context, work=("work",), **arguments):
    return ZkmqSettleOperator(task_id="settle", claims=claims, work=list(work), **arguments).execute(context)


def refused(match, *given, **arguments):
    """Settle; the run is red at once, since no other try would find more."""
    with pytest.raises(AirflowFailException, match=match):
        settle(*given, **arguments)


def states(queue, names):
    return [str(queue.task(name).state) for name in names]


def results(queue, names):
    return [queue.task(name).result for name in names]


@pytest.fixture
def complete_raises(monkeypatch):
    """Completing the task of an id raises the error that stands here for it."""
    errors, complete = {}, Claim.complete

    def sometimes(self, result=None):
        if self.task.id in errors:
            raise errors[self.task.id]
        complete(self, result)

    monkeypatch.setattr(Claim, "complete", sometimes)
    return errors


def test_work_that_succeeded_completes_the_tasks(queue):
    """All of them, with the result, which may be JSON."""
    done = settle(taken(queue, "a", "b"), run({"work": "success", "other": "failed"}), result={"rows": 3})
    assert done == {"completed": 2, "failed": 0, "released": 0, "lost": 0}
    assert results(queue, "ab") == [b'{"rows": 3}'] * 2


def test_claims_that_are_not_known_are_no_success(queue, subtests):
    """As where the task that claims pushes no XCom: the run is red at once, as no other try would find more."""
    for claims in (None, "", "None", "[{}]", 7):
        with subtests.test(claims=claims):
            refused("nothing is settled: ", claims, run({"work": "success"}))
    assert settle([], run({"work": "success"}))["completed"] == 0


def test_work_that_failed_fails_the_tasks_and_the_run(queue):
    """The reason is Airflow's error, or names what failed; the log says when the task is tried again, or that not.

    With ``on_retry="succeed"`` the run is red where it is dead alone.
    """
    claims = taken(queue, "a", attempts=2)
    failed = run({"work_0": "success", "work_1": "failed", "after": "upstream_failed"})
    failed["ti"].errors = {("work", 1): "ValueError: no such order"}
    refused(r"task 'a' of queue 'jobs' is tried again at .*, after attempt 1", claims, failed, ["work", "after"])
    task = queue.task("a")
    assert (task.state, task.attempt, task.due_ms > 0) == ("inserted", 1, True)
    assert task.error == "work[1]: ValueError: no such order; after upstream_failed"
    claims = taken(queue, "b")
    refused("task 'b' of queue 'jobs' is dead after attempt 1: work failed", claims, run({"work": "failed"}))
    assert (queue.task("b").state, queue.task("b").error) == ("dead", "work failed")
    claims = taken(queue, "c", attempts=2)
    assert settle(claims, run({"work": "failed"}), on_retry="succeed")["failed"] == 1
    assert queue.task("c").state == "inserted"
    refused("^the work failed: task 'd'", taken(queue, "d"), run({"work": "failed"}), on_retry="succeed")


def test_work_that_was_skipped(queue, subtests):
    """It is given back, unless told otherwise, and the delivery counts no attempt; then the run is red."""
    work = ({"work": "success", "more": "skipped"}, ["work", "more"])
    for on_skipped, state, attempt in (("release", "inserted", 0), ("complete", "finished", 1), ("fail", "dead", 1)):
        with subtests.test(on_skipped=on_skipped):
            claims, context = taken(queue, on_skipped), run(work[0])
            if on_skipped == "complete":
                settle(claims, context, work[1], on_skipped=on_skipped)
            else:
                refused("skipped: more", claims, context, work[1], on_skipped=on_skipped)
            assert (queue.task(on_skipped).state, queue.task(on_skipped).attempt) == (state, attempt)


def test_work_that_a_user_marked_is_given_back(queue, monkeypatch):
    """It is a success that has not noted its end, as what Airflow runs to its end does, be it a moment later."""
    monkeypatch.setattr(settling, "_NOTED", 0.1)
    made = ZkmqSettleOperator(task_id="settle", claims=taken(queue, *"abc"), work="work", each=True)
    made.noting = ["work"]
    context = run({**BOTH, "work_2": "failed"})
    context["ti"].ended = 0
    with pytest.raises(AirflowFailException, match=r"the work failed: task 'c'"):
        made.execute(context)
    assert (states(queue, "abc"), queue.task("b").attempt) == (["finished", "inserted", "dead"], 0)


def test_each_claim_by_its_own_work(queue):
    """Instances of mapped tasks are told apart by their index, as are the results; what is not mapped is for all.

    So is a mapped task that was skipped before it was expanded. A list that one task returns is as one that is given.
    """
    work = {"work_0": "success", "work_1": "failed", "work_2": "success", "first": "success"}
    refused("task 'b'", taken(queue, *"abc"), run(work), ["work", "first"], each=True, result=["A", "B", "C"])
    assert states(queue, "abc") == ["finished", "dead", "finished"]
    assert results(queue, "abc") == [b"A", None, b"C"]
    skipped = {"work": "skipped", "first_0": "success", "first_1": "success"}
    settle(taken(queue, *"de"), run(skipped), ["work", "first"], each=True, on_skipped="complete")
    made = ZkmqSettleOperator(task_id="settle", claims=taken(queue, *"fg"), work="work", each=True)
    made.result_of = ("total", "return_value", False)
    made.execute(run(BOTH, returned=["F", "G"]))
    assert (states(queue, "defg"), results(queue, "fg")) == (["finished"] * 4, [b"F", b"G"])


def test_where_instances_are_not_one_for_each_claim_none_is_completed(queue):
    """By its index, an instance could be another claim's: its own failures and skips are told as they are."""
    claims, context = taken(queue, *"ab"), run({"work_0": "success", "first": "success"})
    refused(r"'b' .* is dead after attempt 1: work\[1\] not done", claims, context, ["work", "first"], each=True)
    why = "whose work it is is not known: work has 1 instance(s) for 2 claim(s)"
    assert states(queue, "ab") == ["dead", "dead"]
    assert [queue.task(name).error for name in "ab"] == [why, "work[1] not done"]
    assert share([Work("none", -1, None)], 1) == [Work("none", -1, None)]
    refused(r"work has 2 instance\(s\) for 1 claim\(s\)", taken(queue, "c"), run(BOTH), each=True)
    assert (states(queue, "c"), results(queue, "c")) == (["dead"], [None])


def test_in_a_mapped_group_the_work_is_that_of_its_own_index(queue):
    """What failed beside it is none of its business. There claims are not told apart: with `each` nothing is settled.

    As where the settling was moved into the group: who holds them may go on.
    """
    settle(taken(queue, "a"), run({"work_0": "failed", "work_1": "success"}, map_index=1))
    assert states(queue, "a") == ["finished"]
    claims = taken(queue, *"bc")
    refused("nothing is settled: each=True has no meaning", claims, run(BOTH, map_index=1), each=True)
    assert states(queue, "bc") == ["claimed"] * 2
    for claim in claims:
        queue.claim_handle(claim["id"], claim["token"]).complete()


def test_an_instance_that_is_named_as_another_task_is_not_taken_for_it(queue):
    """Airflow tells of both by one name; the failed one is seen all the same."""
    context = run([(("load", 0), "success"), (("load", 1), "failed"), (("load_1", -1), "success")])
    refused(r"load\[1\] failed", taken(queue, "a"), context, ["load", "load_1"])
    assert states(queue, "a") == ["dead"]
    assert apart(["a", "a_1", "a_1_2", "b_1", "a_x"]) == [["a", "a_x", "b_1"], ["a_1"], ["a_1_2"]]


def test_a_late_settlement_fails_the_run(queue):
    """Another has the task now, and keeps it; the other claims are settled. Work done twice may be told only."""
    claims = taken(queue, *"ab")
    queue.claim_handle("a", claims[0]["token"]).release()
    other = queue.claim_task("a")
    refused("1 of 2 settled too late: ClaimLost: claim", claims, run({"work": "success"}))
    assert states(queue, "b") == ["finished"]
    other.complete("the other's")
    assert results(queue, "a") == [b"the other's"]
    claims = taken(queue, "c")
    queue.cancel("c")
    done = settle(claims, run({"work": "success"}), on_lost="ignore")
    assert (done["lost"], done["completed"], states(queue, "c")) == (1, 0, ["cancelled"])


def test_work_that_is_no_claim_s_fails_the_run(queue):
    """Airflow judges the run by the settling alone: also where a claim was lost, or there is none."""
    claims = taken(queue, "b")
    queue.cancel("b")
    for state in ("failed", "skipped"):
        refused("the work was not done: ", claims, run({"work": state}), on_lost="ignore")
    refused("the work was not done: work failed", None, run({"work": "failed"}))
    refused(r"the work was not done: work\[1\] failed", None, run(BOTH | {"work_1": "failed"}), each=True)


def test_what_an_earlier_try_settled_is_settled_once(queue, subtests):
    """A retry, and a clear, of the settling alone, also of one that was killed before it noted what it had done.

    No error where there was none, and nothing changes: what failed has no attempt more.
    """
    for number, (state, error, noted) in enumerate(
        (state, error, noted)
        for state, error in (("success", None), ("skipped", "skipped: work"), ("failed", "the work failed"))
        for noted in (True, False)
    ):
        with subtests.test(state=state, noted=noted):
            store, claims, name = Store(), taken(queue, f"t{number}", attempts=3), f"t{number}"
            versions = set()
            for attempt in (1, 2):
                if error is None:
                    assert settle(claims, run({"work": state}, store, attempt))["completed"] == 1
                elif attempt == 1 or noted:
                    refused(error, claims, run({"work": state}, store, attempt))
                else:
                    with pytest.raises(AirflowFailException):
                        settle(claims, run({"work": state}, store, attempt))
                versions.add(queue.task(name).version)
                if not noted:
                    store.clear()
            assert len(versions) == 1


def test_what_failed_is_not_told_as_done_where_its_work_was_marked_since(queue):
    """A user marks the work as success and clears the settling: the queue's task stays failed, and the run red."""
    store, claims = Store(), taken(queue, "a", attempts=2)
    refused("the work failed", claims, run({"work": "failed"}, store))
    refused("so an earlier try settled it", claims, run({"work": "success"}, store, number=2))
    assert states(queue, "a") == ["inserted"]


def test_what_cannot_be_settled_now_keeps_no_other_from_it(queue, complete_raises, subtests):
    """ZooKeeper is away, or a record is damaged: Airflow tries again, and the rest is settled then; the others stay."""
    for names, error in (("ab", Unavailable("nobody answers")), ("cd", CorruptRecord("'c' is no JSON"))):
        with subtests.test(error=error):
            store, claims = Store(), taken(queue, *names)
            complete_raises[names[0]] = error
            with pytest.raises(AirflowException, match=f"not settled: task '{names[0]}' .*{error}") as claim_reference:
                settle(claims, run({"work": "success"}, store))
            assert not isinstance(claim_reference.value, AirflowFailException)
            assert (states(queue, names), len(store["zkmq_settled"])) == (["claimed", "finished"], 1)
            complete_raises.clear()
            assert settle(claims, run({"work": "success"}, store, number=2))["completed"] == 2
            assert states(queue, names) == ["finished"] * 2


def test_a_later_try_tells_how_a_task_was_settled(queue, complete_raises):
    """One that failed, as its result was too large, stays so, also where the other is settled by the later try."""
    store, claims = Store(), taken(queue, *"ab")
    complete_raises["b"] = Unavailable("nobody answers")
    given = {"each": True, "result": ["x" * 2_000_000, "B"]}
    with pytest.raises(AirflowException, match="not settled: task 'b'"):
        settle(claims, run(BOTH, store), **given)
    assert queue.task("a").error.startswith("the result of task 'a' has")
    complete_raises.clear()
    refused("task 'a' of queue 'jobs' is dead", claims, run(BOTH, store, number=2), **given)
    assert states(queue, "ab") == ["dead", "finished"]


def test_a_result_that_is_none_fails_its_task(queue, subtests):
    """By its queue's policy, with the reason, and the run is red; a later try says so again."""
    for name, result in (("JSON", {"at": pendulum.datetime(2026, 1, 1)}), ("text", "\ud800")):
        with subtests.test(name):
            store, claims = Store(), taken(queue, name, attempts=2)
            for number in (1, 2):
                why = f"'{name}' .* is tried again .*neither bytes, text nor JSON"
                refused(why, claims, run({"work": "success"}, store, number), result=result)
            task = queue.task(name)
            assert (task.state, task.attempt) == ("inserted", 1)
            assert task.error.startswith("result is neither bytes, text nor JSON: ")


def test_no_task_gets_a_result_that_may_be_another_s(queue, subtests):
    """Where the values are not one for each claim, in order, what succeeded is failed with that for its reason."""
    for at, values in enumerate((["B"], ["A", "B", "C"], [], {"A", "B"})):
        with subtests.test(values=values):
            good, bad = names = [f"{at}-good", f"{at}-bad"]
            context = run(BOTH | {"work_1": "failed"})
            why = f"'{good}' of queue 'jobs' is dead after attempt 1: result "
            refused(why, taken(queue, *names), context, each=True, result=values)
            assert (states(queue, names), results(queue, names)) == (["dead"] * 2, [None] * 2)
            assert queue.task(good).error.startswith("result is a set" if isinstance(values, set) else "result has ")
            assert queue.task(bad).error == "work[1] failed"
    queue.redrive("0-good")
    queue.claim_task("0-good").complete("its own")


def test_what_is_no_list_is_kept_by_each(queue, subtests):
    """As the result of all of them."""
    for at, (value, kept) in enumerate(
        ((None, b""), ("text", b"text"), (b"bytes", b"bytes"), ({"rows": 1}, b'{"rows": 1}'), (5, b"5"))
    ):
        with subtests.test(value=value):
            names = [f"{at}-a", f"{at}-b"]
            settle(taken(queue, *names), run(BOTH), each=True, result=value)
            assert results(queue, names) == [kept] * 2


def test_the_states_of_mapped_tasks_are_read_by_their_names():
    """Also where one task is named as another one's instance; what is missing counts as not done."""
    told_of = {"a_0": "success", "a_1": "removed", "a_b": "success", "a_b_2": "failed", "x_1": "success"}
    assert instances(told_of, ["a", "a_b", "x_1", "none"]) == [
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
        task=SimpleNamespace(log=SimpleNamespace(warning=lambda text, *values: warned.append(text % values))),
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


def test_what_is_not_understood_is_refused_where_the_dag_is_parsed(subtests):
    """Each with what would be."""
    for arguments, why in (
        ({"work": []}, "names no task"),
        ({"work": "a", "on_skipped": "x"}, "on_skipped 'x'"),
        ({"work": "a", "on_lost": "x"}, "on_lost 'x'"),
        ({"work": "a", "each": "yes"}, "each 'yes' is not allowed"),
        ({"work": 5}, "work 5 is no operator"),
        ({"work": None}, "work None is no operator"),
        ({"work": ["a", {"b": 1}]}, "is no operator"),
    ):
        with subtests.test(arguments=arguments), pytest.raises(ValueError, match=why):
            ZkmqSettleOperator(task_id="settle", claims=[], **arguments)
