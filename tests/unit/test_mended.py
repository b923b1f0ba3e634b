"""What is mended without asking anybody, since nothing else than what was there can have stood there."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Pipeline, Procedure, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, Multi, SetData
from airflow_provider_zkmq.engine.core.reading import settings
from airflow_provider_zkmq.engine.core.tasks import enqueue, holding, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import collect, rescue
from airflow_provider_zkmq.engine.core.writing.commit import commit
from airflow_provider_zkmq.engine.core.writing.pieces import notes_of
from airflow_provider_zkmq.engine.core.writing.plan import Change, Plan, Refusal, one
from airflow_provider_zkmq.engine.errors import ClaimLost, CorruptRecord
from airflow_provider_zkmq.engine.working import rules
from airflow_provider_zkmq.engine.working.options import Options
from airflow_provider_zkmq.engine.working.rules import Working
from tests.stepping import Stepper
from tests.unit.world import Client, new_queue


def delete(client: Client, path: str) -> None:
    """Delete a znode with all below, as an operator would."""
    for name in client.zk.names(path):
        delete(client, f"{path}/{name}")
    assert client.zk.multi(0, (Delete(path),)).committed


@pytest.mark.parametrize("lease", [None, 100])
@pytest.mark.parametrize("lock", [None, 100])
@pytest.mark.parametrize("verb", [settle.complete, settle.release, holding.extend, holding.progress])
def test_a_claim_whose_note_is_missing_is_settled_all_the_same(verb: Any, lease: Any, lock: Any) -> None:
    """Its record, its znode and its session say that it is ours: the note is made anew and reported, once."""
    client = new_queue()
    client.put(task_id="a", lock=lock)
    claimed = client.claimed(lease=lease)
    notes = notes_of(client.context, "a", claimed.state)
    for note in notes:
        client.zk.multi(0, (Delete(note),))
    arguments: dict[Any, tuple[Any, ...]] = {holding.extend: (50,), holding.progress: (0.5, "half")}
    client.do(verb(client.context, claimed, *arguments.get(verb, ())))
    if claimed.lost:
        assert client.state("a").state in {State.FINISHED, State.INSERTED}
    else:
        client.complete(claimed)
    client.check()
    assert sorted(path for path, _ in client.reports) in (sorted(notes), sorted(notes)[:1], [])
    client.put(task_id="b")
    assert "b" in client.work()


@pytest.mark.parametrize("there", [True, False])
def test_a_result_is_kept_whether_one_stands_there_or_not(there: bool) -> None:
    """The record tells otherwise: the task is finished with its result, and the damage is reported."""
    client = new_queue()
    client.put(task_id="a")
    claimed = client.claimed()
    path = client.context.paths.task("a", "result")
    if there:
        client.zk.multi(0, (Create(path, b"strange"),))
    else:
        client.put(task_id="a", requeue=True)
        client.complete(claimed, result=b"first")
        claimed = client.claimed()
        delete(client, path)
    client.complete(claimed, result=b"mine")
    assert client.check()["a"].result
    assert client.zk.nodes[path].data == b"mine"
    assert [reported for reported, _ in client.reports] == [path]


PERMANENT = (
    "queue", "tasks", "consumers", "live", "leases", "locks", "scheduled", "requeued", "finished", "cancelled", "dlq",
    "batches", "batches-done", "clock", "gc",
)  # fmt: skip


@pytest.mark.parametrize("name", PERMANENT)
def test_a_permanent_znode_that_is_missing_is_made_anew(name: str) -> None:
    """Whatever a queue is used for, by a client that knew it before and by one that comes later; it is told once."""
    first = new_queue()
    first.put(task_id="before")
    first.work()
    path = first.context.paths.at(name)
    for client in (first, Client(first.zk, "later")):
        if path in client.zk.nodes:
            delete(client, path)
        client.reports.clear()
        client.put(task_id=f"{client.name}1", lock=50)
        client.put(task_id=f"{client.name}2", delay=1)
        client.do(enqueue.enqueue_batch(client.context, [Message(b"x")], client.name))
        client.zk.advance(2)
        done = client.work()
        assert {f"{client.name}1", f"{client.name}2"} <= set(done)
        client.put(task_id=f"{client.name}3")
        client.fail(client.claimed(), retry=False)
        assert client.do(collect.collect_garbage(client.context, 0)).ran
        assert path in client.zk.nodes or name in {"cancelled", "requeued"}, "which nobody needed"
        assert [reported for reported, _ in client.reports].count(path) <= 1
        client.context.quarantine.paths.clear()


def test_what_was_deleted_as_a_whole_does_not_come_back_in_parts() -> None:
    """A worker of a queue that was deleted makes nothing of it anew."""
    client = new_queue()
    client.put(task_id="a")
    claimed = client.claimed()
    delete(client, client.context.paths.base)
    with pytest.raises(Exception, match="'a'"):
        client.complete(claimed)
    assert client.context.paths.base not in client.zk.nodes


def test_three_refusals_alike_are_no_race() -> None:
    """The same operation refused for the same reason: after the second the server catches up, the third is the last."""
    client = new_queue()
    path = client.context.paths.at("queue", "none", "nothing")
    plan = one(Change(client.context, "a", [Delete(path)]))

    def again(_refusal: Refusal) -> Procedure[Plan | None]:
        return plan
        yield

    ops: list[Any] = []
    with pytest.raises(CorruptRecord, match=path):
        client.do(commit(plan, again), lambda op: ops.append(op))
    assert [type(op) for op in ops] == [Multi, Multi, Sync, Multi]


def test_a_claim_whose_deadline_is_missing_is_given_back_when_its_consumer_dies() -> None:
    """The lock of a session-bound claim is gone: its consumer's death alone gives the task back."""
    owner = new_queue()
    owner.put(task_id="a", lock=100)
    lock = notes_of(owner.context, "a", owner.claimed().state)[1]
    owner.zk.multi(0, (Delete(lock),))
    owner.zk.expire(owner.session)
    client = Client(owner.zk, "other")
    assert client.work() == ["a"]
    client.check()
    assert [path for path, _ in client.reports] == [lock]


def test_what_was_delivered_before_waits_for_a_policy_that_can_be_read() -> None:
    """Nobody knows how often it may be: it is neither handed out nor buried; new tasks are. No restart is needed."""
    first = new_queue(policy=RetryPolicy(attempts=3, factor=0))
    first.put(task_id="own", policy=RetryPolicy(attempts=3, factor=0))
    first.put(task_id="before")
    for claimed in (first.claimed(), first.claimed()):
        first.fail(claimed)
    path = first.context.paths.conf("policy")
    good = first.zk.nodes[path].data
    first.zk.multi(0, (SetData(path, b'{"attempts":1e999}'),))
    client = Client(first.zk, "later")
    client.put(task_id="new")
    assert sorted(client.work()) == ["new", "own"]
    client.put(task_id="fails")
    client.fail(client.claimed())
    client.zk.advance(5)
    assert client.take() is None
    with pytest.raises(CorruptRecord, match=path):
        client.do(settings.conf(client.context))
    assert [reported for reported, _ in client.reports] == [path]
    client.zk.multi(0, (SetData(path, good),))
    assert sorted(client.work()) == ["before", "fails"]


class _Queue:
    name, closed = "q", False


def test_a_worker_tells_of_the_same_damage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on claiming, and meets it again until somebody puts it right; other errors are told each time."""
    options = Options.of(
        threads=1, node=None, filter_method="absolute", selector=None, grace=1, transactional=False,
        lease=None, heartbeat=True, throttle=0, prefetch=0,
    )  # fmt: skip
    working: Working[Any, Any] = Working(_Queue(), print, options)
    told: list[str] = []
    monkeypatch.setattr(rules.log, "warning", lambda *arguments, **_: told.append(str(arguments[-1])))
    for error in (CorruptRecord("/q/conf/layout"), CorruptRecord("/q/conf/layout"), OSError("odd"), OSError("odd")):
        assert not working._ended_by(error)
    assert told == ["/q/conf/layout", "odd", "odd"]


def test_a_claim_whose_znode_was_deleted_comes_back_while_its_session_lives() -> None:
    """Its holder is told that it was lost; the next look of the same client gives the task back, counted."""
    client = new_queue()
    client.put(task_id="a")
    claimed = client.claimed()
    delete(client, client.context.paths.task("a", "claim"))
    with pytest.raises(ClaimLost):
        client.complete(claimed)
    again = client.claimed()
    assert (again.task_id, again.state.attempt, again.state.history[0].outcome) == ("a", 2, "rescued")
    client.complete(again)
    client.check()
    assert (client.context.debts.orphans, client.take()) == ({}, None)


def test_a_promotion_leaves_another_task_of_the_same_id_alone() -> None:
    """Dropped and enqueued anew while it is promoted: the new one's record has the old version, and is left alone."""
    client = new_queue()
    client.put(task_id="t", delay=1)
    client.zk.ms += 60_000
    other = Client(client.zk, "other")
    stepper = Stepper(client.zk, client.session, rescue.tend(client.context))
    stepper.until(Pipeline, "t/state")
    assert not stepper.over
    other.do(operate.drop(other.context, "t"))
    other.put(task_id="t", filters=None, priority=3)
    stepper.finish()
    assert [(state.state, state.priority) for state in other.check().values()] == [(State.INSERTED, 3)]
    assert not client.reports
    assert other.work() == ["t"]
