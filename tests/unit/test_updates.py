"""An id that is there is enqueued again: where it stands then, what a tightened policy does, and runs in escrow."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.maintenance import collect, due_work
from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read import completion_log, configuration, inspect, server_clock
from airflow_provider_zkmq.engine.core.read.claim_status import current_claim
from airflow_provider_zkmq.engine.core.tasks import admin, batches, enqueue, interventions, settle
from airflow_provider_zkmq.engine.core.write import commit
from airflow_provider_zkmq.engine.core.write.next_run import ESCROW_ROOM
from airflow_provider_zkmq.engine.core.write.transitions import Current
from airflow_provider_zkmq.engine.core.zk_operations import MAX_REQUEST, Check, Multi, SetData
from airflow_provider_zkmq.engine.errors import DuplicateTask, TaskTooLarge
from tests.unit.claiming import ORDERS, another, in_hand, queue_of, refused
from tests.unit.world import Client, new_queue

IN_BOTH_ORDERS = pytest.mark.parametrize("order", ORDERS)
COLOUR = {"colour": String()}


def batch_of(client: Client) -> batches.Batch:
    return client.do(batches.read_batch(client.context, "b"))


def update(client: Client, task_id: str = "a", **options: Any) -> None:
    client.put(b"new", task_id=task_id, on_conflict="replace", **options)


def in_backoff(client: Client, task_id: str = "a", seconds: float = 5) -> None:
    client.put(task_id=task_id)
    client.fail(client.claimed(), backoff=seconds)


@IN_BOTH_ORDERS
def test_an_updated_delay_keeps_the_place_and_the_queue_goes_on(order: str) -> None:
    """A task in backoff gets another delay: it comes back where it was when it is due, and everybody claims on."""
    client = new_queue(order=order)
    in_backoff(client, "first")
    before = client.state("first")
    update(client, "first", delay=7)
    after = client.state("first")
    assert (after.place, after.rank, after.index == before.index) == (before.place, before.rank, False)
    client.put(task_id="second")
    assert client.claimed().task_id == "second"
    client.zk.advance(8)
    client.put(task_id="third")
    assert another(client).work() == ["first", "third"]
    client.check()


def test_a_task_that_leaves_its_lane_for_a_time_comes_back_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict order: a delay given to a task that nobody has claimed yet takes its rank along; so does a backoff.

    A record that has a rank and no segment, as written by an update before, is promoted to the end of its lane.
    """
    client = queue_of("ab", order="fifo")
    rank = client.zk.nodes[client.context.paths.entry(client.state("a").place)].czxid
    update(client, delay=5)
    assert client.state("a").rank == rank
    update(client, delay=0)
    assert client.work() == ["a", "b"]
    client = new_queue(order="fifo")
    in_backoff(client)
    path, state = client.context.paths.task("a", "state"), client.state("a")
    lane, _, entry = state.place.split("/")
    client.zk.multi(0, (SetData(path, state.encode().replace(state.place.encode(), f"{lane}//{entry}".encode()), -1),))
    client.put(task_id="b")
    client.zk.advance(6)
    assert sorted(client.work()) == ["a", "b"]
    client.check()
    monkeypatch.setattr(commit, "SEGMENT_ENTRIES", 1)
    client = new_queue(order="fifo")
    in_backoff(client)
    for name in "bc":
        client.put(task_id=name)
    client.zk.advance(6)
    assert client.work() == ["a", "b", "c"]


@IN_BOTH_ORDERS
def test_who_never_read_the_configuration_writes_into_a_lane_by_its_order(order: str) -> None:
    """A claim completed by its token elsewhere: in strict order its next run is checked against the lane's version."""
    client = queue_of("a", order=order)
    token = client.claimed().token
    client.put(task_id="a", on_conflict="requeue")
    other, sent = another(client), []
    claimed = other.do(current_claim(other.context, "a", token))
    other.do(settle.complete(other.context, claimed), lambda op: sent.extend(op.ops) if isinstance(op, Multi) else None)
    lane = client.context.paths.at("queue", client.state("a").place.split("/")[0])
    assert any(isinstance(op, Check) and op.path == lane for op in sent) is (order == "fifo")
    assert client.work() == ["a"]
    client.check()


@IN_BOTH_ORDERS
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("delayed", [{}, {"delay": 6}], ids=["as it was", "delayed"])
def test_changed_filters_decide_who_gets_a_task_in_backoff(
    order: str, mixed: bool, delayed: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for the new value gets it when it is due, who wants the old does not; lanes spelt out, or mixed."""
    monkeypatch.setattr(commit, "MAX_LANES", 0 if mixed else 256)
    client = new_queue(order=order, filters=COLOUR)
    for task_id in ("task", "other"):
        client.put(task_id=task_id, filters={"colour": "red"})
    for _ in range(2):
        client.fail(client.claimed(selector="colour==red"), backoff=5)
    old = client.state("task")
    update(client, "task", filters={"colour": "blue"}, **delayed)
    assert (client.state("task").rank, client.state("task").entry == old.entry) == (None, False)
    client.zk.advance(8)
    assert client.claimed(selector="colour==red").task_id == "other"
    assert client.take("colour==red") is None
    assert client.claimed(selector="colour==blue").task_id == "task"
    client.check()


@IN_BOTH_ORDERS
def test_a_changed_priority_decides_when_a_task_in_backoff_comes(order: str) -> None:
    """It is claimed by its new priority when it is due, and has no rank of its old lane."""
    client = new_queue(order=order)
    in_backoff(client)
    update(client, priority=5)
    assert client.state("a").rank is None
    client.put(task_id="b", priority=3)
    client.zk.advance(6)
    assert client.work() == ["a", "b"]
    client.check()


def test_filters_changed_many_times_make_names_that_stay_short() -> None:
    """Each change gives the entry another name; the name does not grow with their number."""
    client = new_queue(filters=COLOUR)
    client.put(task_id="a", filters={"colour": "0"})
    names = set()
    for number in range(1, 40):
        update(client, filters={"colour": str(number)})
        names.add(client.state("a").entry)
    assert (len(names), max(map(len, names)) <= 22 + 2 + len("~a")) == (39, True)
    assert client.work() == ["a"]


@IN_BOTH_ORDERS
def test_no_delay_brings_an_update_forward(order: str) -> None:
    """``delay=0`` is a delay that is given: it is to be had at once, also a new one; without one its time stays."""
    client = new_queue(order=order)
    client.put(task_id="a", delay=50)
    in_backoff(client, "b", 50)
    due = client.state("b").due
    update(client, "b")
    assert (client.state("b").due, client.take()) == (due, None)
    for task_id in ("a", "b"):
        update(client, task_id, delay=0)
        assert (client.state(task_id).due, client.state(task_id).index) == (None, None)
    client.put(task_id="c", delay=0)
    assert sorted(client.work()) == ["a", "b", "c"]
    client.check()


# --- a tightened policy


def tightened(client: Client) -> tuple[Current, int]:
    client.do(admin.configure(client.context, policy=RetryPolicy(attempts=1, factor=0)))
    node = client.zk.node(client.context.paths.task("a", "state"))
    assert node is not None
    return Current("a", node.stat.version, client.state("a")), client.zk.ms


def test_a_tightened_policy_buries_what_used_up_its_attempts() -> None:
    """A pending task with as many deliveries as are allowed by now becomes a dead letter that says why."""
    client = new_queue()
    client.do(enqueue.enqueue_batch(client.context, [Message(b"x", task_id="a")], "b"))
    client.fail(client.claimed(), "boom")
    current, now = tightened(client)
    assert settle.attempts_exhausted(client.do(configuration.read_conf(client.context)), current.state)
    assert client.do(settle.kill_exhausted(client.context, current, now))
    dead = client.check()["a"]
    assert (dead.state, dead.attempt, dead.ended) == (State.DEAD, 1, now)
    assert all(part in str(dead.error) for part in ("delivered 1 times", "boom"))
    assert batch_of(client) == batches.Batch("b", 1, 0, ("a",), done=True)
    assert client.take() is None


def test_burying_changes_no_other_run() -> None:
    """What another has ended meanwhile stays as that one left it; a run in escrow is inserted, with new attempts."""
    client = queue_of("a")
    client.fail(client.claimed())
    seen = tightened(client)
    client.cancel("a")
    assert not client.do(settle.kill_exhausted(client.context, *seen))
    assert client.check()["a"].state is State.CANCELLED
    client = queue_of("a")
    claimed = client.claimed()
    client.put(b"again", task_id="a", on_conflict="requeue")
    client.fail(claimed)
    assert client.do(settle.kill_exhausted(client.context, *tightened(client)))
    assert (client.check()["a"].state, client.state("a").attempt) == (State.INSERTED, 0)
    assert client.claimed().data == b"again"


# --- an id that is done and in its dedupe window: the run waits in escrow for the window's end


def done(dedupe: float = 60, **conf: Any) -> Client:
    """The client of a task that has finished, in its window."""
    client = queue_of("a", b"old", **conf)
    client.complete(client.claimed(), result=b"r", dedupe=dedupe)
    return client


def requeue(client: Client, data: bytes = b"new", on_conflict: str = "requeue", **options: Any) -> None:
    client.put(data, task_id="a", on_conflict=on_conflict, **options)


def seen(client: Client) -> tuple[str, bytes, bytes | None]:
    read = client.do(inspect.read_task(client.context, "a"))
    return (str(read.status), read.data, read.result)


def status(client: Client, **options: Any) -> str:
    again = enqueue.enqueue(client.context, Message(b"newer", task_id="a", **options))
    return str(refused(client, DuplicateTask, again).status)


def test_a_second_requeue_in_the_window_needs_an_update() -> None:
    """The slot is one: the second is refused with done-with-requeue; with `update` it takes the first one's place.

    Also that of one that was asked for while the run was under way: locked-with-requeue became done-with-requeue.
    """
    for under_way in (False, True):
        client, claimed = in_hand()
        if under_way:
            requeue(client, b"first")
        client.complete(claimed, dedupe=60)
        if not under_way:
            requeue(client, b"first")
        assert {status(client, on_conflict="requeue"), status(client, on_conflict="replace")} == {"done-with-requeue"}
        due = client.state("a").due
        requeue(client, b"third", "replace-or-requeue")
        assert (client.state("a").due, seen(client)[0]) == (due, "done-with-requeue")
        client.zk.advance(61)
        assert (client.claimed().data, client.take()) == (b"third", None)
        client.check()


def test_a_run_in_escrow_is_kept_by_clean_up_and_goes_with_its_task() -> None:
    """The task has finished long ago, and is not collected before its next run; dropped, neither comes back.

    A run that is too large for escrow is refused, and changes nothing.
    """
    client = done(500)
    with pytest.raises(TaskTooLarge, match="a requeue takes"):
        requeue(client, b"x" * (MAX_REQUEST - ESCROW_ROOM + 1))
    assert seen(client)[0] == "done-with-backoff"
    requeue(client)
    client.zk.advance(400)
    assert client.do(collect.collect_garbage(client.context, 0)).collected == 0
    client.zk.advance(101)
    assert client.claimed().data == b"new"
    client = done()
    requeue(client)
    client.do(interventions.drop(client.context, "a"))
    client.zk.advance(61)
    assert (client.check(), client.take()) == ({}, None)


def test_a_requeue_makes_no_member_of_a_batch() -> None:
    """The batch has ended with its member's first run, whatever comes after it."""
    client = new_queue()
    client.do(enqueue.enqueue_batch(client.context, [Message(b"x", task_id="a")], "b"))
    client.complete(client.claimed(), dedupe=60)
    requeue(client)
    client.zk.advance(61)
    client.fail(client.claimed(), retry=False)
    assert batch_of(client) == batches.Batch("b", 1, 0, (), done=True)


@pytest.mark.parametrize("escrow", ["runs", "is damaged"])
def test_a_run_is_told_to_the_archive_once_although_its_record_is_written_again(escrow: str) -> None:
    """Archived in its window, then requeued: the second archive run does not get it again; its end stays what it was.

    Where the run in escrow cannot be inserted, the record is written a third time; and the next run is one of its own.
    """
    client = done()
    now = lambda: client.do(server_clock.zxid(client.context))
    told = lambda after, until: [
        each.id for each in client.do(completion_log.ended_between(client.context, after, until))
    ]
    ended = lambda: client.do(inspect.read_task(client.context, "a")).ended_ms or 0
    first, before = now(), ended()
    client.zk.advance(10)
    requeue(client)
    if escrow == "is damaged":
        client.zk.multi(0, (SetData(client.context.paths.task("a", "requeue"), b"{"),))
        client.zk.advance(61)
        client.do(due_work.maintain(client.context))
        assert seen(client)[0] == "done-awaiting-gc"
    second = now()
    assert (told(0, first), told(first, second), told(0, second)) == (["a"], [], ["a"])
    assert abs(ended() - before) <= 1000
    if escrow == "runs":
        client.zk.advance(61)
        client.complete(client.claimed())
        assert told(second, now()) == ["a"]
        assert client.state("a").ended_zxid is None
