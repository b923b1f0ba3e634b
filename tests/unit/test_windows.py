"""A requeue of an id that is done and in its dedupe window: the run waits in escrow for the window's end."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, SetData
from airflow_provider_zkmq.engine.core.reading import archiving, inspect, log
from airflow_provider_zkmq.engine.core.tasks import batches, operate
from airflow_provider_zkmq.engine.core.tasks.enqueue import enqueue_batch
from airflow_provider_zkmq.engine.core.upkeep import collect, rescue
from airflow_provider_zkmq.engine.core.writing.escrow import ESCROW_ROOM
from airflow_provider_zkmq.engine.errors import DuplicateTask, TaskTooLarge
from tests.unit.world import Client, new_queue


def done(client: Client, *, dedupe: float = 60) -> None:
    """A task that has finished, in its window."""
    client.put(b"old", task_id="a")
    client.complete(client.claimed(), result=b"r", dedupe=dedupe)


def task(client: Client) -> inspect.Task:
    return client.do(inspect.read_task(client.context, "a"))


def seen(client: Client) -> tuple[str, bytes, bytes | None]:
    read = task(client)
    return (str(read.status), read.data, read.result)


def refused(client: Client, **options: Any) -> str | None:
    with pytest.raises(DuplicateTask) as refusal:
        client.put(b"newer", task_id="a", **options)
    return refusal.value.status


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_requeue_in_the_window_waits_for_its_end(order: str) -> None:
    """done-with-backoff → done-with-requeue, the old run told as before → queued with the new data, attempt 1."""
    client = new_queue(order=order)
    done(client)
    assert refused(client) == "done-with-backoff"
    client.put(b"new", task_id="a", requeue=True)
    assert seen(client) == ("done-with-requeue", b"old", b"r")
    assert client.take() is None
    client.check()
    client.zk.advance(50)
    assert client.do(rescue.tend(client.context)) == 0
    client.zk.advance(11)
    claimed = client.claimed()
    assert (claimed.data, claimed.state.attempt) == (b"new", 1)
    assert [attempt.outcome for attempt in claimed.state.history] == ["finished"]
    client.complete(claimed)
    assert seen(client)[0] == "done-awaiting-gc"
    client.check()


def test_a_consumer_that_sleeps_is_woken_by_the_end_of_the_window() -> None:
    """It waits for the queue when the run is put into escrow, and gets it without anybody's help."""
    client = new_queue()
    done(client)
    client.put(b"new", task_id="a", requeue=True)
    claimed = Client(client.zk).claimed(timeout=100)
    assert claimed.data == b"new"


def test_a_second_requeue_in_the_window_needs_an_update() -> None:
    """The slot is one: the second is refused with done-with-requeue; with `update` it takes the first one's place."""
    client = new_queue()
    done(client)
    client.put(b"first", task_id="a", requeue=True)
    assert refused(client, requeue=True) == "done-with-requeue"
    assert refused(client, update=True) == "done-with-requeue"
    due = client.state("a").due
    client.put(b"third", task_id="a", requeue=True, update=True)
    assert (client.state("a").due, seen(client)[0]) == (due, "done-with-requeue")
    client.zk.advance(61)
    assert client.claimed().data == b"third"
    assert client.take() is None


def test_a_second_requeue_may_replace_the_one_that_was_asked_for_while_the_run_was_under_way() -> None:
    """locked-with-requeue became done-with-requeue with the end of the run: the slot is the same."""
    client = new_queue()
    client.put(b"old", task_id="a")
    claimed = client.claimed()
    client.put(b"first", task_id="a", requeue=True)
    client.complete(claimed, dedupe=60)
    client.put(b"second", task_id="a", requeue=True, update=True)
    client.zk.advance(61)
    assert client.work() == ["a"]
    assert task(client).data == b"second"
    client.check()


def test_an_update_alone_is_refused_in_the_window() -> None:
    """There is nothing queued that could be updated."""
    client = new_queue()
    done(client)
    assert refused(client, update=True) == "done-with-backoff"
    assert seen(client)[0] == "done-with-backoff"


def test_a_requeue_after_the_window_is_a_new_run_at_once() -> None:
    """done-awaiting-gc → queued, as without the option."""
    client = new_queue()
    done(client)
    client.zk.advance(61)
    client.put(b"new", task_id="a", requeue=True)
    assert seen(client) == ("queued", b"new", None)


def test_clean_up_keeps_a_run_in_escrow() -> None:
    """The task has finished long ago, and is not to be collected before its next run."""
    client = new_queue()
    done(client, dedupe=500)
    client.put(b"new", task_id="a", requeue=True)
    client.zk.advance(400)
    assert client.do(collect.collect_garbage(client.context, 0)).collected == 0
    client.zk.advance(101)
    assert client.claimed().data == b"new"


def test_a_run_that_is_too_large_for_escrow_is_refused() -> None:
    """Nothing is changed: the task stays in its window."""
    client = new_queue()
    done(client)
    with pytest.raises(TaskTooLarge, match="a requeue takes"):
        client.put(b"x" * (MAX_REQUEST - ESCROW_ROOM + 1), task_id="a", requeue=True)
    assert seen(client)[0] == "done-with-backoff"
    client.check()


def test_a_requeue_makes_no_member_of_a_batch() -> None:
    """The batch has ended with its member's first run, whatever comes after it."""
    client = new_queue()
    client.do(enqueue_batch(client.context, [Message(b"x", task_id="a")], "b"))
    client.complete(client.claimed(), dedupe=60)
    client.put(b"new", task_id="a", requeue=True)
    client.zk.advance(61)
    client.fail(client.claimed(), retry=False)
    batch = client.do(batches.read_batch(client.context, "b"))
    assert (batch.done, batch.failed) == (True, ())


def test_what_is_done_with_requeue_can_be_dropped() -> None:
    """With its run in escrow: nothing of it is left, and it does not come back."""
    client = new_queue()
    done(client)
    client.put(b"new", task_id="a", requeue=True)
    client.do(operate.drop(client.context, "a"))
    client.zk.advance(61)
    assert (client.check(), client.take()) == ({}, None)


@pytest.mark.parametrize("escrow", ["runs", "is damaged"])
def test_a_run_is_told_to_the_archive_once_although_its_record_is_written_again(escrow: str) -> None:
    """Archived in its window, then requeued: the second archive run does not get it again; its end stays what it was.

    Where the run in escrow cannot be inserted, the record is written a third time; and the next run is one of its own.
    """
    client = new_queue()
    done(client)
    first = client.do(archiving.zxid(client.context))
    before = task(client)
    client.zk.advance(10)
    client.put(b"new", task_id="a", requeue=True)
    if escrow == "is damaged":
        client.zk.multi(0, (SetData(client.context.paths.task("a", "requeue"), b"{"),))
        client.zk.advance(61)
        client.do(rescue.tend(client.context))
        assert seen(client)[0] == "done-awaiting-gc"
    second = client.do(archiving.zxid(client.context))
    told = lambda after, until: client.do(log.ended_between(client.context, after, until))
    assert (len(told(0, first)), told(first, second)) == (1, [])
    assert [each.id for each in told(0, second)] == ["a"]
    assert abs((task(client).ended_ms or 0) - (before.ended_ms or 0)) <= 1000
    if escrow == "runs":
        client.zk.advance(61)
        client.complete(client.claimed())
        third = client.do(archiving.zxid(client.context))
        assert [each.id for each in told(second, third)] == ["a"]
        assert client.state("a").ended_zxid is None
