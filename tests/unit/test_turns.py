"""When clean-up is due: once an interval whoever makes it, and as soon as the configuration says so."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, Multi, SetData
from airflow_provider_zkmq.engine.core.reading.nodes import AT_ONCE
from airflow_provider_zkmq.engine.core.tasks import configure
from airflow_provider_zkmq.engine.core.tasks.enqueue import enqueue_many
from airflow_provider_zkmq.engine.core.upkeep import collect, turns
from airflow_provider_zkmq.engine.errors import Unavailable
from tests.unit.world import Client, new_queue


def look(client: Client, fault: Any = lambda _op: None) -> turns.Turn:
    return client.do(turns.collect_if_due(client.context), fault)


def configured(client: Client, **options: Any) -> None:
    client.do(configure.configure(client.context, **options))


def finished(client: Client) -> None:
    client.put()
    client.work()


def test_a_queue_that_was_never_cleaned_up_is_due() -> None:
    """The first look of whoever comes first makes the first run; the next is due an interval later."""
    client = new_queue(task_gc_interval=20, task_gc_lifetime=0)
    finished(client)
    client.zk.advance(1)
    assert look(client) == turns.Turn(collect.Collected(collected=1), 20)


def test_between_two_runs_an_interval_passes_whoever_makes_them() -> None:
    """Another client's look, and a new one's, says how long it is to the next run; the one after it makes it."""
    client = new_queue(task_gc_interval=20)
    look(client)
    client.zk.advance(15)
    for other in (client, Client(client.zk)):
        turn = look(other)
        assert (turn.report.ran, round(turn.due_in)) == (False, 5)
    client.zk.advance(6)
    assert look(Client(client.zk)).report.ran
    assert not look(client).report.ran


def test_a_look_that_finds_nothing_due_is_one_read() -> None:
    """Where the server's clock is known, as after an enqueue: a short-lived producer pays no more than that."""
    client, ops = new_queue(task_gc_interval=20), []
    look(client)
    client.put()
    assert not look(client, lambda op: ops.append(op)).report.ran
    assert len(ops) == 1


@pytest.mark.parametrize(("before", "after"), [(20, 1), (3600, 1), (1e9, 0)])
def test_a_shorter_interval_counts_from_the_last_run(before: float, after: float) -> None:
    """The old one is not waited out: the run is due as soon as the new one has passed since the last."""
    client = new_queue(task_gc_interval=before)
    other = Client(client.zk)
    assert look(client).due_in == before
    client.zk.advance(0.4)
    configured(other, task_gc_interval=after)
    assert look(client).due_in <= 1
    client.zk.advance(0.8)
    assert after == 0 or look(client).report.ran


def test_a_longer_interval_is_waited_for() -> None:
    """What would have been due by the old interval is not due by the new one."""
    client = new_queue(task_gc_interval=10)
    look(client)
    configured(client, task_gc_interval=100)
    client.zk.advance(60)
    turn = look(client)
    assert (turn.report.ran, round(turn.due_in)) == (False, 40)


def test_a_shorter_lifetime_makes_a_run_due_at_once_and_once() -> None:
    """What was kept for an hour may go now: the first look deletes it, the others find it done."""
    client = new_queue(task_gc_interval=3600, task_gc_lifetime=3600)
    other = Client(client.zk)
    finished(client)
    client.zk.advance(100)
    assert look(other).report.collected == 0
    assert not look(client).report.ran
    configured(client, task_gc_lifetime=50)
    assert look(other).report == collect.Collected(collected=1)
    assert not look(client).report.ran
    configured(client, task_gc_lifetime=50)
    assert not look(other).report.ran
    configured(client, task_gc_lifetime=500)
    assert not look(other).report.ran


def test_an_operator_s_run_for_less_covers_a_shorter_lifetime() -> None:
    """Everything that had ended was deleted: nothing is due before the interval has passed."""
    client = new_queue(task_gc_interval=3600, task_gc_lifetime=3600)
    client.do(collect.collect_garbage(client.context, 0))
    configured(client, task_gc_lifetime=50)
    assert not look(client).report.ran
    client.do(collect.collect_garbage(client.context, 100))
    assert look(client).report.ran


def test_a_run_under_way_elsewhere_is_looked_at_again_soon() -> None:
    """Its client may die over it: nobody waits for another interval."""
    client = new_queue(task_gc_interval=3600)
    lock = client.context.paths.at("lock")
    client.zk.multi(0, (Create(lock, b"another's"),))
    assert look(client) == turns.Turn(collect.Collected(ran=False), turns.BUSY_SECONDS)
    client.zk.multi(0, (Delete(lock),))
    assert look(client).report.ran


def test_two_that_look_at_the_same_time_make_one_run() -> None:
    """Both find it due; who comes second sees that the first has been there."""
    client = new_queue(task_gc_interval=20)
    other, first = Client(client.zk), iter([True])
    lock = client.context.paths.at("lock")

    def overtaken(op: Any) -> None:
        if isinstance(op, Multi) and op.ops[0].path == lock and next(first, False):
            assert look(other).report.ran

    assert not look(client, overtaken).report.ran
    assert client.zk.nodes[client.context.paths.at("gc")].version == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"lifetime":"long"}', b'{"lifetime":true}', b"[" * 100_000])
def test_a_damaged_note_of_the_last_run_leaves_it_to_the_interval(data: bytes) -> None:
    """Nobody cleans up without end, and nobody stops doing so."""
    client = new_queue(task_gc_interval=20)
    look(client)
    client.zk.multi(0, (SetData(client.context.paths.at("gc"), data),))
    assert not look(client).report.ran
    client.zk.advance(21)
    assert look(client).report.ran


def test_a_run_that_is_cut_off_is_due_for_the_next() -> None:
    """What it has deleted is gone; it did not say that it has run, and somebody else goes on where it was."""
    client = new_queue(task_gc_interval=3600, task_gc_lifetime=0)
    finished(client)
    client.zk.advance(1)
    notes = client.context.paths.at("gc")
    gone = lambda op: Unavailable("closed") if isinstance(op, Multi) and op.ops[0].path == notes else None
    with pytest.raises(Unavailable):
        look(client, gone)
    assert client.check() == {}
    client.zk.expire(client.session)
    assert look(Client(client.zk)).report == collect.Collected()


def test_a_run_whose_client_is_being_closed_ends_where_it_is() -> None:
    """It deletes no further chunk, gives its lock back and does not say that it has run: the next one goes on."""
    client = new_queue(task_gc_interval=3600, task_gc_lifetime=0)
    count = 3 * AT_ONCE
    client.do(enqueue_many(client.context, [Message(b"x") for _ in range(count)]))
    client.work()
    client.zk.advance(1)

    def leaves(op: Any) -> None:
        deletes = isinstance(op, Multi) and isinstance(op.ops[0], Delete) and "/tasks/" in op.ops[0].path
        client.context.maintenance.leaving = client.context.maintenance.leaving or deletes

    report = look(client, leaves).report
    assert 0 < report.collected < count
    assert client.context.paths.at("lock") not in client.zk.nodes
    assert look(Client(client.zk)).report.collected == count - report.collected
