"""The engine's calls on a real server."""

from __future__ import annotations

import inspect
from pathlib import Path

import pendulum
import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import (
    AllOf,
    AnyOf,
    Claim,
    ClaimLost,
    ConfigError,
    ConsumeTimes,
    DuplicateTask,
    IllegalTransition,
    Integer,
    Message,
    OrderedEnum,
    Queue,
    RetryPolicy,
    String,
    TaskNotFound,
    TaskTooLarge,
    WaitTimeout,
    Zkmq,
)
from tests.support import eventually

STANDARD = {"performance_class": "standard"}


def test_a_task_goes_from_enqueue_to_result(q: Queue) -> None:
    """inserted → claimed → finished, with the words of zkmq and of Carmine, and the result kept."""
    task_id = q.enqueue(b"work", filters=STANDARD, metadata={"who": "me"})
    assert (q.task(task_id).state, q.task(task_id).status) == ("inserted", "queued")
    claim = q.claim(node={"performance_class": "high_performance"}, filter_method="at_least", timeout=5)
    assert claim is not None
    assert (claim.task.id, claim.task.data, claim.task.attempt) == (task_id, b"work", 1)
    assert claim.task.metadata == {"who": "me"}
    assert (q.task(task_id).state, q.task(task_id).status) == ("claimed", "locked")
    claim.complete(result=b"done")
    task = q.task(task_id)
    assert (task.state, task.status, task.result) == ("finished", "done-awaiting-gc", b"done")
    assert task.enqueued_ms <= (task.claimed_ms or 0) <= (task.ended_ms or 0)


def test_an_enqueue_is_one_transaction(q: Queue) -> None:
    """Every znode of the tree has the same czxid, and a warm enqueue sends exactly one request."""
    q.enqueue(b"warm up", filters=STANDARD)
    before = q._session.requests.copy()
    task_id = q.enqueue(b"x", filters=STANDARD)
    sent = {name: n - before.get(name, 0) for name, n in q._session.requests.items() if n != before.get(name, 0)}
    assert sent == {"Multi": 1}
    tree = q.tree(task_id)
    assert {node.path.rpartition("/")[2] for node in tree} == {
        task_id, "data", "state", "filters", "performance_class",
    }  # fmt: skip
    assert len({node.czxid for node in tree}) == 1


def test_a_warm_claim_and_completion_are_three_requests(q: Queue) -> None:
    """One read of the candidate, one transaction to claim it, one to complete it."""
    q.enqueue_many([Message(b"x") for _ in range(5)])
    first = q.claim()
    assert first is not None
    first.complete()
    before = q._session.requests.copy()
    claim = q.claim()
    assert claim is not None
    claim.complete()
    sent = {name: n - before.get(name, 0) for name, n in q._session.requests.items() if n != before.get(name, 0)}
    assert sent == {"GetMany": 1, "Multi": 2}


def test_a_foreign_backlog_costs_a_filtered_claim_nothing(zookeeper: str, root: str, q: Queue) -> None:
    """10 000 pending tasks that do not match: as many requests as on an empty queue, for a cold and a warm client."""

    def cost(name: str) -> list[int]:
        with Zkmq.connect(zookeeper, root=root, gc=False) as client:
            queue, costs = client.queue(name), []
            for _ in range(2):
                before = sum(client.requests.values())
                assert queue.claim(node={"performance_class": "low"}, filter_method="at_least") is None
                costs.append(sum(client.requests.values()) - before)
            return costs

    q._context  # noqa: B018  the fixture's queue is the full one
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        client.queue("empty").configure(filters={"performance_class": OrderedEnum("low", "standard", "high")})
    q.enqueue_many([Message(b"", filters=STANDARD) for _ in range(10_000)])
    assert cost("census") == cost("empty")
    assert q.counts()["inserted"] == 10_000


def test_priority_then_enqueue_order(q: Queue) -> None:
    """Higher priorities come first; within one, tasks come in the order one producer wrote them."""
    q.enqueue_many([Message(b"a"), Message(b"b"), Message(b"c", priority=5)])
    order = []
    while (claim := q.claim()) is not None:
        order.append(claim.task.data)
        claim.complete()
    assert order == [b"c", b"a", b"b"]


def test_a_released_task_comes_back_at_its_old_place(q: Queue) -> None:
    """release counts no attempt, and the task is handed out again before those behind it."""
    q.enqueue_many([Message(b"a"), Message(b"b")])
    claim = q.claim()
    assert claim is not None
    claim.release()
    again = q.claim()
    assert again is not None
    assert (again.task.data, again.task.attempt) == (b"a", 1)


def test_failures_back_off_and_end_in_the_dead_letters(q: Queue) -> None:
    """fail schedules by the policy; the last attempt, or retry=False, ends dead; redrive starts anew."""
    q.configure(policy=RetryPolicy(attempts=2, factor=0.2))
    task_id = q.enqueue(b"x")
    for attempt in (1, 2):
        claim = q.claim(timeout=10)
        assert claim is not None
        assert claim.task.attempt == attempt
        state = claim.fail(f"broken {attempt}")
        assert state == ("inserted" if attempt == 1 else "dead")
        assert q.task(task_id).status == ("queued-with-backoff" if attempt == 1 else "dead")
    task = q.task(task_id)
    assert task.error == "broken 2"
    assert [done.error for done in task.history] == ["broken 1", "broken 2"]
    assert [dead.id for dead in q.tasks(state="dead")] == [task_id]
    q.redrive(task_id)
    assert (q.task(task_id).state, q.task(task_id).attempt) == ("inserted", 0)
    claim = q.claim()
    assert claim is not None
    assert claim.fail("no use", retry=False) == "dead"


def test_delay_is_kept(q: Queue) -> None:
    """A delayed task is not claimable before its time and is claimed without polling once it has come."""
    task_id = q.enqueue(b"later", delay=pendulum.duration(milliseconds=700))
    assert q.task(task_id).status == "queued-with-backoff"
    assert q.claim() is None
    claim = q.claim(timeout=10)
    assert claim is not None
    assert claim.task.id == task_id
    claim.complete()
    task = q.task(task_id)
    assert (task.claimed_ms or 0) - task.enqueued_ms >= 700


def test_duplicates_are_refused_with_their_status(q: Queue) -> None:
    """A task id in use is refused; the error names the id and carries the status; the others are written."""
    q.enqueue(b"1", task_id="order-7")
    with pytest.raises(DuplicateTask, match="order-7") as caught:
        q.enqueue_many([Message(b"2", task_id="order-7"), Message(b"3", task_id="order-8")])
    assert (caught.value.status, caught.value.duplicates, caught.value.enqueued) == (
        "queued", ("order-7",), ("order-8",),
    )  # fmt: skip
    assert q.task("order-7").data == b"1"


def test_tokens_settle_from_elsewhere_and_stale_ones_are_refused(zookeeper: str, root: str, q: Queue) -> None:
    """A leased claim outlives its client; its token completes the task from another; once only."""
    task_id = q.enqueue(b"x")
    with Zkmq.connect(zookeeper, root=root, gc=False) as other:
        claim = other.queue("census").claim(lease=60)
        assert claim is not None
    q.extend(task_id, claim.token, 30)
    with pytest.raises(ClaimLost, match="not the current one"):
        q.complete(task_id, claim.token + 1)
    q.complete(task_id, claim.token, result="ok")
    with pytest.raises(ClaimLost):
        q.fail(task_id, claim.token, error="late")
    assert q.task(task_id).result == b"ok"


def test_an_expired_lease_is_handed_out_again(q: Queue) -> None:
    """Past its lease a claim is given back with the attempt counted, and its late owner is refused."""
    q.enqueue(b"x")
    late = q.claim(lease=0.4)
    assert late is not None
    again = q.claim(timeout=15)
    assert again is not None
    assert again.task.attempt == 2
    with pytest.raises(ClaimLost):
        late.complete()
    again.complete()


def test_selectors_decide_and_conditionals_combine(zk: Zkmq) -> None:
    """Integer, String and OrderedEnum conditions, AllOf and AnyOf, as text and as objects."""
    q = zk.queue("typed")
    q.configure(filters={"size": Integer(), "region": String(), "grade": OrderedEnum("b", "a")})
    small = q.enqueue("s", filters={"size": 3, "region": "eu", "grade": "b"})
    large = q.enqueue("l", filters={"size": 30, "region": "us", "grade": "a"})
    bare = q.enqueue("n")

    def ids(selector: object) -> set[str]:
        return {task.id for task in q.tasks(selector=selector)}

    assert ids("size>=10") == {large}
    assert ids("size<10, region==eu") == {small}
    assert ids(AnyOf(2, "size>10", "grade>=a", "region==eu")) == {large}
    assert ids(AllOf()) == {small, large, bare}
    claim = q.claim(selector="region==us")
    assert claim is not None
    assert claim.task.id == large


def test_bad_input_is_one_clear_error_and_nothing_is_written(q: Queue) -> None:
    """What the library refuses it refuses before it writes."""
    for bad in ("", "a/b", "..", "a..b", "nul\0", "x" * 129, "\ud800", "."):
        with pytest.raises(ConfigError, match="task id"):
            q.enqueue(b"x", task_id=bad)
        with pytest.raises(ConfigError, match="filter name"):
            q.enqueue(b"x", filters={bad: "standard"})
    with pytest.raises(ConfigError, match="'gold' is not declared"):
        q.enqueue(b"x", filters={"performance_class": "gold"})
    with pytest.raises(ConfigError, match="not declared on this queue"):
        q.enqueue(b"x", filters={"colour": "red"})
    with pytest.raises(TaskTooLarge, match="ZooKeeper takes"):
        q.enqueue(b"x" * 1_048_576)
    with pytest.raises(ConfigError, match="data must be bytes or text"):
        q.enqueue(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stands twice"):
        q.enqueue_many([Message(b"", task_id="t"), Message(b"", task_id="t")])
    with pytest.raises(TaskNotFound):
        q.task("nowhere")
    assert q.counts() == {"inserted": 0, "scheduled": 0, "claimed": 0, "finished": 0, "dead": 0, "cancelled": 0}
    assert q.tasks() == []
    q.enqueue(b"x" * 1_030_000)


def test_cancel_pause_and_illegal_transitions(q: Queue) -> None:
    """A cancelled task is handed out no more, a paused queue hands out nothing, and the table is obeyed."""
    task_id = q.enqueue(b"x")
    assert q.pause() is True
    assert q.claim() is None
    assert q.resume() is True
    q.cancel(task_id)
    assert q.claim() is None
    assert q.task(task_id).status == "cancelled"
    with pytest.raises(IllegalTransition, match="cancelled"):
        q.cancel(task_id)
    q.redrive(task_id)
    claim = q.claim()
    assert claim is not None
    claim.complete()
    with pytest.raises(IllegalTransition, match="finished"):
        q.cancel(task_id)


def test_waiting_returns_tasks_however_they_end(q: Queue) -> None:
    """wait returns finished and dead tasks in order, times out with the names of those left."""
    one, two = q.enqueue(b"1"), q.enqueue(b"2")
    first, second = q.claim(), q.claim()
    assert first is not None
    assert second is not None
    first.complete("r")
    with pytest.raises(WaitTimeout, match=two):
        q.wait([one, two], "completion", timeout=0.2)
    assert [task.state for task in q.wait([one, two], "claim", timeout=5)] == ["finished", "claimed"]
    second.fail("no", retry=False)
    assert [task.state for task in q.wait([two, one], timeout=5)] == ["dead", "finished"]


def test_garbage_is_collected_by_age_only(q: Queue) -> None:
    """What ended long enough ago is deleted whole; pending, claimed and dead tasks and fresh ends stay."""
    ids = q.enqueue_many([Message(b"x", filters=STANDARD) for _ in range(50)])
    for _ in ids[:-3]:
        claim = q.claim()
        assert claim is not None
        claim.complete(b"r")
    q.claim()
    dead = q.claim()
    assert dead is not None
    dead.fail("x", retry=False)
    assert q.collect_garbage().collected == 0
    assert q.collect_garbage(lifetime=0).collected == 47
    assert q.counts() == {"inserted": 1, "scheduled": 0, "claimed": 1, "finished": 0, "dead": 1, "cancelled": 0}
    assert len(q.tasks()) == 3


def test_a_transaction_moves_between_queues_or_does_nothing(zk: Zkmq, q: Queue) -> None:
    """commit finishes what was taken and writes what was put, at once; leaving without commit gives back."""
    q.enqueue(b"in")
    with zk.transaction() as tx:
        task = tx.try_take("census")
        assert task is not None
        tx.put("out", b"never written")
    assert zk.queue("census").counts()["inserted"] == 1
    with zk.transaction() as tx:
        task = tx.try_take("census")
        assert task is not None
        tx.put("out", b"Hello, " + task.data)
        (put,) = tx.commit()
    assert zk.queue("out").task(put).data == b"Hello, in"
    assert q.task(task.id).state == "finished"


def test_a_transaction_keeps_the_times_of_what_it_puts(zk: Zkmq) -> None:
    """A put with a delay or a moment is scheduled by the commit, and does not run at once."""
    moment = pendulum.now("UTC").add(hours=1)
    with zk.transaction() as tx:
        tx.put("out", b"x", task_id="a", delay=pendulum.duration(minutes=1))
        tx.put("out", b"x", task_id="b", not_before=moment)
        tx.put("out", b"x", task_id="c", not_before=moment.subtract(hours=2))
        tx.commit()
    out = zk.queue("out")
    assert {task.id: str(task.status) for task in out.tasks()} == {
        "a": "queued-with-backoff",
        "b": "queued-with-backoff",
        "c": "queued",
    }
    assert moment <= (out.task("b").due_at or moment.subtract(days=1)) <= moment.add(microseconds=1000)
    claim = out.claim()
    assert claim is not None
    assert claim.task.id == "c"
    assert out.claim() is None


def test_a_moment_is_kept(q: Queue) -> None:
    """A task with a moment is claimed once the server's clock has come to it; both fronts' reads tell it."""
    now = q.task(q.enqueue(b"now")).enqueued_at
    claim = q.claim()
    assert claim is not None
    claim.complete()
    moment = now.add(seconds=1)
    q.enqueue(b"later", task_id="later", not_before=moment)
    assert q.task("later").status == "queued-with-backoff"
    claim = q.claim(timeout=pendulum.duration(seconds=20))
    assert claim is not None
    assert claim.task.claimed_at is not None
    assert claim.task.claimed_at >= moment


def test_consume_times_bounds_deliveries(q: Queue) -> None:
    """Under ConsumeTimes(2) a task is handed out at most twice."""
    q.configure(policy=ConsumeTimes(2))
    q.enqueue(b"x")
    for _ in range(2):
        claim = q.claim(timeout=5)
        assert claim is not None
        claim.fail("no")
    assert q.claim() is None
    assert q.counts()["dead"] == 1


def test_a_client_sees_its_own_writes(q: Queue) -> None:
    """What a client enqueued it can claim in its very next call, though it remembers an empty queue."""
    for _ in range(300):
        assert q.claim() is None
        q.enqueue(b"x")
        claim = q.claim()
        assert claim is not None
        claim.complete()


def test_emptied_index_buckets_vanish_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lists tasks by time are containers: the server clears them away, and a client that knew them goes on."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dznode.container.checkIntervalMs=200")
    with EmbeddedServer(tmp_path / "zk", force_sync=False) as server, Zkmq.connect(server.hosts, gc=False) as zk:
        q, client = zk.queue("q"), zk._session.client
        for _ in range(2):
            task_id = q.enqueue(b"x", delay=600)
            assert len(client.get_children("/zkmq/q/scheduled")) == 1
            q.cancel(task_id)
            eventually(lambda: client.get_children("/zkmq/q/scheduled") == [])
        assert q.counts()["cancelled"] == 2


def test_what_exceeds_a_request_is_refused_wherever_it_comes_from(q: Queue) -> None:
    """A result beside a run in escrow too large for one request is one error at once; a smaller one is taken."""
    q.enqueue(b"1", task_id="a")
    claim = q.claim()
    assert claim is not None
    with pytest.raises(TaskTooLarge, match="requeue takes"):
        q.enqueue(b"x" * 1_000_000, task_id="a", requeue=True)
    q.enqueue(b"x" * 900_000, task_id="a", requeue=True)
    with pytest.raises(TaskTooLarge, match="not sent"):
        claim.complete(b"y" * 300_000)
    claim.complete(b"y" * 100_000)
    again = q.claim()
    assert again is not None
    assert len(again.task.data) == 900_000


def test_a_member_whose_run_failed_has_failed_though_another_follows(q: Queue) -> None:
    """A batch counts the run it was enqueued with: its failure is told, and the run in escrow is no member."""
    q.enqueue_many([Message(b"1", task_id="a")], batch="b")
    claim = q.claim()
    assert claim is not None
    q.enqueue(b"2", task_id="a", requeue=True)
    claim.fail("no", retry=False)
    batch = q.wait_batch("b", timeout=20)
    assert (batch.failed, batch.done) == (("a",), True)
    assert (q.task("a").data, q.task("a").batch) == (b"2", None)


def test_a_batch_takes_only_what_it_can_keep(q: Queue) -> None:
    """The same call again is fine until it is written; another message for a member's id, or an update, is refused."""
    with pytest.raises(ConfigError, match="update or requeue"):
        q.enqueue_many([Message(b"1")], batch="b", then=Message(b"2", task_id="x", update=True))
    q.enqueue(b"in use", task_id="taken")
    messages = [Message(b"1"), Message(b"2", task_id="taken")]
    with pytest.raises(DuplicateTask):
        q.enqueue_many(messages, batch="b")
    with pytest.raises(WaitTimeout, match="never written to its end"):
        q.wait_batch("b", timeout=0)
    with pytest.raises(DuplicateTask):
        q.enqueue_many([Message(b"other data")], batch="b")
    q.cancel("taken")
    assert q.enqueue_many(messages, batch="b") == ["b.000000", "taken"]
    with pytest.raises(WaitTimeout) as caught:
        q.wait_batch("b", timeout=0)
    assert caught.value.left == ("b.000000", "taken")


def test_a_batch_nobody_finished_writing_is_collected(q: Queue) -> None:
    """Once its members have ended and been kept long enough, an unfinished batch is deleted, then they are."""
    q.enqueue(b"in use", task_id="taken")
    with pytest.raises(DuplicateTask):
        q.enqueue_many([Message(b"1"), Message(b"2", task_id="taken")], batch="b", then=Message(b"3", task_id="then"))
    q.cancel("b.000000")
    q.collect_garbage(3600)
    assert q.batch("b").written is False
    eventually(lambda: q.collect_garbage(0).ran and not _there(q, "b"))
    eventually(lambda: q.collect_garbage(0).ran and q.ids() == ["taken"])  # members of such a batch are kept until then


def _there(q: Queue, batch: str) -> bool:
    try:
        q.batch(batch)
    except TaskNotFound:
        return False
    return True


def test_an_operator_s_change_is_refused_when_the_task_changed(q: Queue) -> None:
    """redrive, replace and drop with a version: done while the task is what was read, refused and harmless after."""
    q.configure(policy=RetryPolicy(attempts=1))
    for name in ("a", "b"):
        q.enqueue(b"old", task_id=name)
        claim = q.claim()
        assert claim is not None
        claim.fail("no")
    version = q.task("a").version
    q.redrive("a", version, b"new")
    assert (q.task("a").status, q.task("a").data) == ("queued", b"new")
    for late in (lambda: q.redrive("a", version), lambda: q.drop("a", version), lambda: q.replace("a", b"x", version)):
        with pytest.raises(IllegalTransition, match="has changed since"):
            late()
    q.replace("a", b"newer", q.task("a").version)
    claim = q.claim()
    assert claim is not None
    assert claim.task.data == b"newer"
    for late in (lambda: q.drop("a"), lambda: q.replace("a", b"x"), lambda: q.redrive("a")):
        with pytest.raises(IllegalTransition, match="claimed"):
            late()
    q.drop("b", q.task("b").version)
    with pytest.raises(TaskNotFound):
        q.drop("b")
    assert q.counts()["dead"] == 0


def test_what_is_settled_from_elsewhere_may_be_named(q: Queue) -> None:
    """The settling methods take their arguments by name, and show them."""
    q.enqueue(b"x", task_id="a")
    claim = q.claim(lease=60)
    assert claim is not None
    q.extend(task_id="a", token=claim.token, lease=60)
    q.complete(task_id="a", token=claim.token, result=b"r")
    assert q.task(task_id="a").result == b"r"
    assert list(inspect.signature(Queue.fail).parameters) == ["self", "task_id", "token", "error", "retry", "backoff"]
    assert list(inspect.signature(Claim.fail).parameters) == ["self", "error", "retry", "backoff"]
