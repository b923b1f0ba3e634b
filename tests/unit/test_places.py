"""Where a task stands among the pending when it is updated, and what a tightened policy does to it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Multi, SetData
from airflow_provider_zkmq.engine.core.reading import configuration
from airflow_provider_zkmq.engine.core.reading.claims import current_claim
from airflow_provider_zkmq.engine.core.tasks import configure, enqueue, exhaust, settle
from airflow_provider_zkmq.engine.core.upkeep import rescue
from airflow_provider_zkmq.engine.core.writing import place
from airflow_provider_zkmq.engine.core.writing.record import Current
from tests.unit.world import Client, new_queue

ORDERS = ("default", "fifo")
COLOUR = {"colour": String()}


def update(client: Client, task_id: str, data: bytes = b"new", **options: Any) -> None:
    client.do(enqueue.enqueue(client.context, Message(data, task_id=task_id, update=True, **options)))


def in_backoff(client: Client, task_id: str, seconds: float = 5, **options: Any) -> None:
    client.put(task_id=task_id, **options)
    client.fail(client.claimed(), backoff=seconds)


@pytest.mark.parametrize("order", ORDERS)
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
    other = Client(client.zk)
    assert other.work() == ["first", "third"]
    client.check()


def test_a_task_that_leaves_its_lane_for_a_time_comes_back_to_its_place() -> None:
    """Strict order: a delay given to a task that nobody has claimed yet takes its rank along."""
    client = new_queue(order="fifo")
    for task_id in ("a", "b"):
        client.put(task_id=task_id)
    rank = client.zk.nodes[client.context.paths.entry(client.state("a").place)].czxid
    update(client, "a", delay=5)
    assert client.state("a").rank == rank
    update(client, "a", delay=0)
    assert client.work() == ["a", "b"]


def test_a_place_without_a_segment_is_never_gone_back_to() -> None:
    """A record that has a rank and no segment, as written by an update before, is promoted to the end of its lane."""
    client = new_queue(order="fifo")
    in_backoff(client, "a")
    path, state = client.context.paths.task("a", "state"), client.state("a")
    lane, _, entry = state.place.split("/")
    client.zk.multi(0, (SetData(path, state.encode().replace(state.place.encode(), f"{lane}//{entry}".encode()), -1),))
    client.put(task_id="b")
    client.zk.advance(6)
    assert sorted(client.work()) == ["a", "b"]
    client.check()


@pytest.mark.parametrize("order", ORDERS)
def test_who_never_read_the_configuration_writes_into_a_lane_by_its_order(order: str) -> None:
    """A claim completed by its token elsewhere: in strict order its next run is checked against the lane's version."""
    client = new_queue(order=order)
    client.put(task_id="a")
    token = client.claimed().token
    client.put(task_id="a", requeue=True)
    other = Client(client.zk)
    claimed = other.do(current_claim(other.context, "a", token))
    sent: list[Any] = []
    other.do(settle.complete(other.context, claimed), lambda op: sent.extend(op.ops) if isinstance(op, Multi) else None)
    lane = client.context.paths.at("queue", client.state("a").place.split("/")[0])
    assert any(isinstance(op, Check) and op.path == lane for op in sent) is (order == "fifo")
    assert client.work() == ["a"]
    client.check()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("delayed", [False, True])
def test_changed_filters_decide_who_gets_a_task_in_backoff(
    order: str, mixed: bool, delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for the new value gets it when it is due, who wants the old does not; lanes spelt out, or mixed."""
    monkeypatch.setattr(place, "MAX_LANES", 0 if mixed else 256)
    client = new_queue(order=order, filters=COLOUR)
    for task_id in ("task", "other"):
        client.put(task_id=task_id, filters={"colour": "red"})
    for _ in range(2):
        client.fail(client.claimed(selector="colour==red"), backoff=5)
    old = client.state("task")
    update(client, "task", filters={"colour": "blue"}, **({"delay": 6} if delayed else {}))
    assert (client.state("task").rank, client.state("task").entry == old.entry) == (None, False)
    client.zk.advance(8)
    assert client.claimed(selector="colour==red").task_id == "other"
    assert client.take("colour==red") is None
    assert client.claimed(selector="colour==blue").task_id == "task"
    client.check()


@pytest.mark.parametrize("order", ORDERS)
def test_a_changed_priority_decides_when_a_task_in_backoff_comes(order: str) -> None:
    """It is claimed by its new priority when it is due, and has no rank of its old lane."""
    client = new_queue(order=order)
    in_backoff(client, "a")
    update(client, "a", priority=5)
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
        update(client, "a", filters={"colour": str(number)})
        names.add(client.state("a").entry)
    assert (len(names), max(map(len, names)) <= 22 + 2 + len("~a")) == (39, True)
    assert client.work() == ["a"]


@pytest.mark.parametrize("order", ORDERS)
def test_no_delay_brings_an_update_forward(order: str) -> None:
    """``delay=0`` is a delay that is given: the task is to be had at once; without one its time stays."""
    client = new_queue(order=order)
    client.put(task_id="a", delay=50)
    in_backoff(client, "b", 50)
    due = client.state("b").due
    update(client, "b")
    assert (client.state("b").due, client.take()) == (due, None)
    for task_id in ("a", "b"):
        update(client, task_id, delay=0)
        assert (client.state(task_id).due, client.state(task_id).index) == (None, None)
    assert sorted(client.work()) == ["a", "b"]
    client.check()


@pytest.mark.parametrize("delay", [None, 0])
def test_a_new_task_without_a_delay_is_to_be_had_at_once(delay: float | None) -> None:
    client = new_queue()
    client.put(task_id="a", delay=delay)
    assert client.work() == ["a"]


def tightened(client: Client) -> tuple[Current, int]:
    client.do(configure.configure(client.context, policy=RetryPolicy(attempts=1, factor=0)))
    node = client.zk.node(client.context.paths.task("a", "state"))
    assert node is not None
    return Current("a", node.stat.version, client.state("a")), client.zk.ms


def test_a_tightened_policy_buries_what_used_up_its_attempts() -> None:
    """A pending task with as many deliveries as are allowed by now becomes a dead letter that says why."""
    client = new_queue()
    client.do(enqueue.enqueue_batch(client.context, [Message(b"x", task_id="a")], "b"))
    client.fail(client.claimed(), "boom")
    current, now = tightened(client)
    conf = client.do(configuration.read_conf(client.context))
    assert exhaust.used_up(conf, current.state)
    assert client.do(exhaust.bury_exhausted(client.context, current, now))
    dead = client.check()["a"]
    assert (dead.state, dead.attempt, dead.ended) == (State.DEAD, 1, now)
    assert "delivered 1 times" in str(dead.error)
    assert "boom" in str(dead.error)
    assert client.zk.names(client.context.paths.batch("b", "failed")) == ["a"]
    assert client.zk.node(client.context.paths.batch("b", "open")) is None
    assert client.take() is None


def test_burying_what_changed_meanwhile_changes_nothing() -> None:
    """Another consumer was faster: False, and the task is as that one left it."""
    client = new_queue()
    client.put(task_id="a")
    client.fail(client.claimed())
    seen = tightened(client)
    client.cancel("a")
    assert not client.do(exhaust.bury_exhausted(client.context, *seen))
    assert client.check()["a"].state is State.CANCELLED


def test_burying_a_task_inserts_its_run_in_escrow() -> None:
    """The end of a run, whichever way, inserts the run held in escrow: its attempts begin again."""
    client = new_queue()
    client.put(task_id="a")
    claimed = client.claimed()
    client.put(b"again", task_id="a", requeue=True)
    client.fail(claimed)
    assert client.do(exhaust.bury_exhausted(client.context, *tightened(client)))
    assert (client.check()["a"].state, client.state("a").attempt) == (State.INSERTED, 0)
    assert client.claimed().data == b"again"


def test_a_promotion_in_a_damaged_place_stops_nobody() -> None:
    """A place that is no path is a damaged record: reported, stepped over."""
    client = new_queue()
    in_backoff(client, "a")
    client.put(task_id="b")
    path, state = client.context.paths.task("a", "state"), client.state("a")
    client.zk.multi(0, (SetData(path, state.encode().replace(state.place.encode(), b"x/../y"), -1),))
    client.zk.advance(6)
    other = Client(client.zk)
    other.do(rescue.tend(other.context))
    assert other.work() == ["b"]
    assert (len(other.reports), path in str(other.reports)) == (1, True)
