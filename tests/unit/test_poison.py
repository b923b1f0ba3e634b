"""Any znode of a queue damaged in any way: it is reported once and stepped over, and everybody else goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Exists
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, SetData
from airflow_provider_zkmq.engine.core.reading import counts, explain, inspect
from airflow_provider_zkmq.engine.core.tasks import batches, enqueue, operate
from airflow_provider_zkmq.engine.core.upkeep import collect, rescue
from airflow_provider_zkmq.engine.core.writing import closing, escrow
from airflow_provider_zkmq.engine.errors import ClaimLost, CorruptRecord, Unavailable
from tests.unit.world import Client, copy_of, new_queue

CONTENTS = (b"", b"[]", b'{"v":1}', b"\xff")
STRANGERS = ("foreign", "00000001", "0028333333", "000000000000001~x", "p00000;#abc", "000000000000001~..", "~x")
#: Where strangers are looked for, and the parts of a tree, by the first name below the queue.
TOPS = (
    "queue", "scheduled", "tasks", "consumers", "live", "leases", "locks", "requeued", "finished", "cancelled", "dlq",
    "batches", "batches-done", "lock", "clock", "gc",
)  # fmt: skip


def message(task_id: str, **options: Any) -> Message:
    return Message(b"x", task_id=task_id, **options)


@cache
def everything() -> Client:
    """A queue with a task in each state and place, and batches at each stage."""
    client = new_queue()
    client.put(task_id="finished")
    client.complete(client.claimed())
    client.put(task_id="dead")
    client.fail(client.claimed(), retry=False)
    for task_id, window in (("escrow", None), ("window", 50)):
        client.put(task_id=task_id)
        claimed = client.claimed()
        client.put(task_id=task_id, requeue=True)
        if window:
            client.complete(claimed, dedupe=window)
    client.put(task_id="cancelled")
    client.cancel("cancelled")
    client.put(task_id="leased")
    client.claimed(lease=1000)
    client.put(task_id="locked", lock=1000)
    client.claimed()
    client.put(task_id="delayed", delay=5)
    client.put(task_id="backoff")
    client.fail(client.claimed(), backoff=5)
    for name, members, then in (("open", ("m1", "m2"), "then"), ("done", ("d1",), None), ("ended", ("e1",), "then2")):
        following = None if then is None else message(then, delay=3)
        client.do(enqueue.enqueue_batch(client.context, [message(it) for it in members], name, following))
    client.cancel("m2")
    client.cancel("d1")
    left = client.context.paths.batch("ended", "open")
    unseen = lambda op: Unavailable("cut") if isinstance(op, Exists) and op.path == left else None
    client.do(operate.cancel(client.context, "e1"), unseen)
    client.put(task_id="pending")
    return client


def damages(top: str) -> Iterator[Any]:
    """Each way of damaging each znode below one of the queue's parts."""
    client = everything()
    base = f"{client.context.paths.base}/{top}"
    for path, node in client.zk.nodes.items():
        if path != base and not path.startswith(base + "/"):
            continue
        if not node.owner:
            names = STRANGERS if path == base else STRANGERS[:1]
            yield from (Create(f"{path}/{name}", b"strange") for name in names if name not in node.children)
        if path != base or top in {"lock", "clock", "gc"}:
            yield from (SetData(path, data, -1) for data in CONTENTS)
        if path != base and not node.children:
            yield Delete(path)


def survive(client: Client, damage: Any) -> None:
    """Everything that everybody does, with another task in the queue; nothing may raise."""
    context = client.context
    client.put(task_id="good")
    client.zk.advance(200)
    done = []
    while (claimed := client.take()) is not None:
        done.append(claimed.task_id)
        _complete(client, claimed, damage)
    assert "good" in done, damage
    for procedure in (counts.counts(context), inspect.list_tasks(context), explain.explain(context, "good")):
        client.do(procedure)
    if "/batches/done" not in damage.path:
        assert client.do(batches.wait_batch(context, "done", 1)).done
    for procedure in (
        collect.collect_garbage(context, 1000),
        collect.collect_garbage(context, 0),
        rescue.tend(context),
    ):
        client.do(procedure)
    client.do(operate.clear(context))
    context.configuration.watch = context.census.watch = None
    context.listings.readings.clear()
    assert client.do(collect.collect_garbage(context, 0)).ran or "/lock" in damage.path
    client.put(task_id="later")
    assert "later" in client.work(), damage
    twice = [path for path, times in Counter(path for path, _ in client.reports).items() if times > 1]
    assert not twice, (damage, [report for report in client.reports if report[0] in twice])


def _complete(client: Client, claimed: Any, damage: Any) -> None:
    """Only the damaged task itself may refuse."""
    try:
        client.complete(claimed)
    except (ClaimLost, CorruptRecord):
        assert f"/tasks/{claimed.task_id}/" in damage.path
        client.context.claims.in_hand.clear()


@pytest.mark.parametrize("top", TOPS)
@pytest.mark.parametrize("dies", [False, True])
def test_a_damaged_znode_stops_nobody(top: str, dies: bool) -> None:
    """Claims, completions, clean-up, counts, listings, explanations and waits go on, and each path is reported once.

    Also where the consumers of what is in flight have died, so that it is to be rescued.
    """
    for damage in damages(top):
        zk = copy_of(everything().zk)
        assert zk.multi(0, (damage,)).committed
        if dies:
            zk.expire(everything().session)
        survive(Client(zk), damage)


def escrowed(damage: bytes | None, *, window: float | None = None) -> tuple[Client, Any]:
    client = new_queue()
    client.put(task_id="a")
    claimed = client.claimed()
    client.put(b"again", task_id="a", requeue=True)
    if window:
        client.complete(claimed, dedupe=window)
    path = client.context.paths.task("a", "requeue")
    client.zk.multi(0, (Delete(path) if damage is None else SetData(path, damage, -1),))
    return client, claimed


OTHER_RUN = (
    b'{"task_id":"b","metadata":"{}","filters":{},"priority":0,"delay":0,"policy":null,"lock":null,"stamp":"0"}\n'
)
BAD_PRIORITY = OTHER_RUN.replace(b'"b"', b'"a"').replace(b'"priority":0', b'"priority":"x"')
RUNS = (b"", b"not json", b"[]", b"{}", OTHER_RUN, BAD_PRIORITY, None)


@pytest.mark.parametrize("damage", RUNS)
def test_a_completion_with_a_damaged_run_in_escrow_finishes_the_task(damage: bytes | None) -> None:
    """Its caller hears success, the damage is reported once, the run is dropped, and the id can be used again."""
    client, claimed = escrowed(damage)
    client.complete(claimed, result=b"r")
    state = client.check()["a"]
    assert (state.state, state.requeue, state.result) == (State.FINISHED, False, True)
    assert [path for path, _ in client.reports] == [client.context.paths.task("a", "requeue")]
    client.put(task_id="a")
    assert client.work() == ["a"]


@pytest.mark.parametrize("damage", RUNS)
def test_a_final_failure_with_a_damaged_run_in_escrow_is_a_dead_letter(damage: bytes | None) -> None:
    """The task ends as it would without another run: dead, with its error."""
    client, claimed = escrowed(damage)
    assert client.fail(claimed, "boom", retry=False) is State.DEAD
    state = client.check()["a"]
    assert (state.state, state.error, state.requeue) == (State.DEAD, "boom", False)
    client.do(operate.redrive(client.context, "a"))
    assert client.work() == ["a"]


@pytest.mark.parametrize("damage", RUNS)
def test_the_end_of_a_window_with_a_damaged_run_leaves_the_task_finished(damage: bytes | None) -> None:
    """Claims go on; the task stays finished, listed for clean-up, which deletes it."""
    client, _ = escrowed(damage, window=5)
    client.zk.advance(6)
    client.put(task_id="b")
    assert client.work() == ["b"]
    assert client.check()["a"].state is State.FINISHED
    client.zk.advance(10)
    assert client.do(collect.collect_garbage(client.context, 0)).collected == 2
    assert client.check() == {}


def test_a_run_that_cannot_be_inserted_is_given_up() -> None:
    """A stranger under the task's data leaves no room for the next run: the present one is finished all the same."""
    client, claimed = escrowed(escrow.pack(_tree()))
    client.zk.multi(0, (Create(client.context.paths.task("a", "data") + "/foreign"),))
    client.complete(claimed)
    assert client.check()["a"].state is State.FINISHED
    assert "given up" in client.reports[0][1]


def _tree() -> Any:
    client = new_queue()
    return client.do(enqueue.prepare_many(client.context, [message("a")]))[0]


@pytest.mark.parametrize("damage", [b"", b"not json", b'{"total":"x"}', b'{"then":5}'])
def test_a_damaged_batch_is_named_by_who_waits_for_it_and_by_nobody_else(damage: bytes) -> None:
    """An empty ``open`` beside a damaged record: claims and clean-up go on, `wait_batch` names the path."""
    client = new_queue()
    client.do(enqueue.enqueue_batch(client.context, [message("a")], "b"))
    claimed = client.claimed()
    base = client.context.paths.batch("b")
    client.zk.multi(0, (SetData(base, damage, -1),))
    client.complete(claimed)
    client.put(task_id="c")
    assert client.work() == ["c"]
    assert client.do(collect.collect_garbage(client.context)).ran
    assert [path for path, _ in client.reports] == [base]
    with pytest.raises(CorruptRecord, match=base):
        client.do(batches.wait_batch(client.context, "b", 1))


@pytest.mark.parametrize("damage", [b"", b"[]", BAD_PRIORITY, None])
def test_a_batch_whose_follower_is_damaged_ends_without_it(damage: bytes | None) -> None:
    """The batch ends, says why nothing followed, and clean-up deletes it."""
    client = new_queue()
    client.do(enqueue.enqueue_batch(client.context, [message("a")], "b", message("then")))
    path = client.context.paths.batch("b", "then")
    client.zk.multi(0, (Delete(path) if damage is None else SetData(path, damage, -1),))
    assert client.work() == ["a"]
    ended = client.do(batches.wait_batch(client.context, "b", 1))
    assert (ended.done, path in str(ended.refused)) == (True, True)
    assert [reported for reported, _ in client.reports] == [path]
    client.zk.advance(200)
    client.do(collect.collect_garbage(client.context, 0))
    assert client.zk.names(client.context.paths.at("batches")) == []


def test_a_stranger_among_the_segments_takes_no_entries() -> None:
    """A foreign name that sorts last is not taken for the newest segment, and its lane is not deleted under it."""
    client = new_queue()
    lane = client.context.paths.at("queue", "p09999")
    client.zk.multi(0, (Create(lane), Create(f"{lane}/zzz")))
    client.put(task_id="a")
    assert (client.zk.names(f"{lane}/zzz"), client.work()) == ([], ["a"])
    client.zk.advance(8000)
    client.do(collect.collect_garbage(client.context))
    assert "zzz" in client.zk.names(lane)


def test_what_lacks_a_part_is_reported_by_clean_up_and_kept() -> None:
    """A finished task without its data is not tried in silence for ever, and keeps nobody from being collected."""
    client = new_queue()
    for task_id in ("a", "b"):
        client.put(task_id=task_id)
    client.work()
    missing = client.context.paths.task("a", "data")
    client.zk.multi(0, (Delete(missing),))
    client.zk.advance(10)
    for _ in range(2):
        report = client.do(collect.collect_garbage(client.context, 0))
        assert report.kept_changed == 1
    assert [path for path, _ in client.reports] == [missing]
    assert client.zk.names(client.context.paths.at("tasks")) == ["a"]


def test_the_end_of_one_batch_is_not_held_up_by_another() -> None:
    """Among batches that nobody closed a damaged one is stepped over: the one after it is closed."""
    client = new_queue()
    for name in ("a", "b"):
        client.do(enqueue.enqueue_batch(client.context, [message(f"{name}1")], name))
        client.zk.multi(0, (Delete(client.context.paths.batch(name, "open", f"{name}1")),))
    client.zk.multi(0, (SetData(client.context.paths.batch("a"), b"", -1),))
    client.do(closing.close_batches(client.context))
    assert client.do(batches.read_batch(client.context, "b")).done
