"""Moments: what a caller gives has a zone, the server's clock decides, and a task tells its times as pendulum's."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zkmq.engine import ConfigError, CorruptRecord, Message, Zkmq, parse_moment
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.model.moments import milliseconds, moment_of
from airflow_provider_zkmq.engine.core.protocol.ops import Op
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, Multi
from airflow_provider_zkmq.engine.core.reading.inspect import read_task
from airflow_provider_zkmq.engine.core.tasks import batches, enqueue, putting, transaction
from airflow_provider_zkmq.engine.core.tasks.repeat import content
from tests.unit.world import Client, new_queue

#: What is no moment of ours, and what the error says of it.
WRONG: list[tuple[Any, str]] = [
    (datetime(2026, 11, 22), "has no zone"),  # noqa: DTZ001
    (pendulum.naive(2026, 11, 22), "has no zone"),
    (date(2026, 11, 22), "is not allowed: a moment is a datetime with a zone"),
    (1_700_000_000, "is not allowed: a moment is"),
    ("2026-11-22T10:00:00Z", "is not allowed: a moment is"),
    (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "outside the years"),
]


def at(client: Client, seconds: float) -> pendulum.DateTime:
    """The moment so many seconds after the server's present."""
    return pendulum.from_timestamp(client.zk.ms / 1000 + seconds)


def take(client: Client) -> str | None:
    claimed = client.take()
    return None if claimed is None else claimed.task_id


# --- not_before


def test_a_task_is_not_handled_before_its_moment() -> None:
    """It is scheduled for exactly that moment of the server's clock, whatever this machine's says, and then claimed."""
    client = new_queue()
    when = at(client, 5)
    task_id = client.put(not_before=when)
    task = client.do(read_task(client.context, task_id))
    assert (task.status, task.due_ms, task.due_at) == ("queued-with-backoff", client.zk.ms + 5_000, when)
    client.zk.advance(4.9)
    assert take(client) is None
    client.zk.advance(0.2 + 0.3)
    assert client.work() == [task_id]
    client.check()


def test_a_moment_of_the_past_is_now() -> None:
    """A moment that the server's clock has passed puts the task into its lane at once."""
    client = new_queue()
    client.put(task_id="a", not_before=at(client, -5))
    client.put(task_id="b", not_before=datetime(1, 1, 1, tzinfo=UTC))
    assert client.state("a").due is client.state("b").due is None
    assert client.work() == ["a", "b"]
    client.check()


def test_a_moment_between_two_milliseconds_is_the_later_one() -> None:
    """Nothing comes early, not even by a part of a millisecond."""
    client = new_queue()
    task_id = client.put(not_before=at(client, 1).add(microseconds=1))
    assert client.state(task_id).due == client.zk.ms + 1_001


def test_the_last_moment_there_is() -> None:
    """A task may wait to the end of the calendar: it is listed like any other, and can be cancelled."""
    client = new_queue()
    client.put(task_id="a", not_before=datetime.max.replace(tzinfo=UTC))
    assert take(client) is None
    assert str(client.do(read_task(client.context, "a")).due_at) == "9999-12-31 23:59:59.999000+00:00"
    client.cancel("a")
    client.check()


@pytest.mark.parametrize(("wrong", "told"), WRONG)
def test_what_is_no_moment_is_refused(wrong: Any, told: str) -> None:
    """A naive datetime could mean many moments: refused with the parameter's name, before anything is written."""
    client = new_queue()
    with pytest.raises(ConfigError, match=f"not_before .*{told}"):
        client.put(not_before=wrong)
    assert client.check() == {}
    assert client.put(task_id="next") == "next"


@pytest.mark.parametrize("delay", [0, 5, timedelta(seconds=5)])
def test_a_delay_and_a_moment_are_refused_together(delay: Any) -> None:
    """Which of them should hold? One clear error, and nothing is written, also of the others in the call."""
    client = new_queue()
    both = Message("x", delay=delay, not_before=at(client, 5))
    with pytest.raises(ConfigError, match=r"a delay .* or not_before .*, not both"):
        client.do(enqueue.enqueue_many(client.context, [Message("y"), both]))
    assert client.check() == {}


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_an_update_sets_another_moment(order: str) -> None:
    """A moment replaces the time of what is queued; one of the past brings it forward; without one the time stays."""
    client = new_queue(order=order)
    client.put(task_id="a", delay=60)
    client.put(task_id="a", update=True, not_before=at(client, 5))
    assert client.state("a").due == client.zk.ms + 5_000
    client.put(task_id="a", update=True)
    assert client.state("a").due == client.zk.ms + 5_000
    client.put(task_id="a", update=True, not_before=at(client, -1))
    assert client.work() == ["a"]
    client.check()


def test_a_run_in_escrow_keeps_its_moment() -> None:
    """What waits for the end of the run under way comes at its own moment, not earlier."""
    client = new_queue()
    client.put(task_id="a")
    claimed = client.claimed()
    client.put(task_id="a", requeue=True, not_before=at(client, 60))
    client.complete(claimed)
    assert client.state("a").due == client.zk.ms + 60_000
    client.zk.advance(61)
    assert client.work() == ["a"]
    client.check()


def test_what_follows_a_batch_keeps_its_moment() -> None:
    """The task that is enqueued at the end of a batch waits for its moment; one that has passed by then is now."""
    client = new_queue()
    for name, seconds in (("late", 60), ("early", 2)):
        then = Message(b"then", task_id=f"after-{name}", not_before=at(client, seconds))
        client.do(enqueue.enqueue_batch(client.context, [Message(b"x")], name, then))
    when = client.zk.ms + 60_000
    client.zk.advance(5)
    for _ in range(2):
        client.complete(client.claimed())
    assert client.state("after-late").due == when
    assert client.work() == ["after-early"]
    assert client.do(batches.read_batch(client.context, "late")).open == 0
    client.check()


def test_what_a_transaction_puts_waits_for_its_time() -> None:
    """A put with a delay or a moment is scheduled by the commit, the delay counted from then; nothing runs early."""
    client = new_queue()
    client.put(task_id="in")
    unit = transaction.Transaction(taken=[(client.context, client.claimed())])
    for options in ({"task_id": "a", "delay": 10}, {"task_id": "b", "not_before": at(client, 20)}):
        putting.put(unit.put, client.context, Message(b"x", **options))
    begun = client.zk.ms
    client.zk.advance(5)
    assert client.do(transaction.commit(unit)) == ["a", "b"]
    assert client.state("a").due == pytest.approx(client.zk.ms + 10_000, abs=50)
    assert client.state("b").due == begun + 20_000
    assert client.work() == []
    client.zk.advance(20)
    assert client.work() == ["a", "b"]
    assert client.state("in").state == "finished"
    client.check()


def test_a_commit_whose_time_bucket_was_cleared_away_is_carried_out() -> None:
    """The server takes an empty bucket away between the plan and the commit: it is made anew, and all of it happens."""
    client = new_queue()
    client.put(task_id="in")
    unit = transaction.Transaction(taken=[(client.context, client.claimed())])
    putting.put(unit.put, client.context, Message(b"x", task_id="a", delay=600))
    cleared: list[str] = []

    def clear_away(op: Op) -> None:
        if isinstance(op, Multi) and len(op.ops) > 3 and not cleared:
            index = client.context.paths.at("scheduled")
            cleared.extend(f"{index}/{bucket}" for bucket in client.zk.names(index))
            client.zk.multi(0, tuple(map(Delete, cleared)))

    assert client.do(transaction.commit(unit), clear_away) == ["a"]
    assert cleared
    assert (client.state("in").state, client.state("a").state) == ("finished", "inserted")
    client.zk.advance(601)
    assert client.work() == ["a"]
    client.check()


def test_a_repeated_call_with_another_moment_is_another_call() -> None:
    """Two messages that differ in their moment alone are two tasks, also where the first one's outcome is unknown."""
    client = new_queue()
    first = client.do(enqueue.prepare_many(client.context, [Message(b"x", not_before=at(client, 5))]))[0]
    other = client.do(enqueue.prepare_many(client.context, [Message(b"x", not_before=at(client, 6))]))[0]
    again = client.do(enqueue.prepare_many(client.context, [Message(b"x", not_before=at(client, 5))]))[0]
    assert content(first) == content(again) != content(other)


def test_queue_files_keep_moments(tmp_path: Any) -> None:
    """In a file a task waits for its moment, too; what is no moment is refused there alike."""
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        q = zk.queue("jobs")
        when = pendulum.now("UTC").add(hours=1).replace(microsecond=0)
        q.enqueue("x", task_id="a", not_before=when)
        q.enqueue("x", task_id="b", not_before=when.subtract(hours=2))
        task = q.task("a")
        assert (task.status, task.due_at) == ("queued-with-backoff", when)
        claim = q.claim()
        assert claim is not None
        assert claim.task.id == "b"
        assert q.claim() is None
        for wrong, told in WRONG:
            with pytest.raises(ConfigError, match=told):
                q.enqueue("x", not_before=wrong)
        with pytest.raises(ConfigError, match="not both"):
            q.enqueue("x", delay=1, not_before=when)
        assert sorted(q.ids()) == ["a", "b"]


# --- the times of tasks


def test_a_task_tells_its_times_as_pendulum_s() -> None:
    """Aware, in UTC, the same as the milliseconds beside them; None where there is none."""
    client = new_queue()
    enqueued = client.zk.ms
    client.put(task_id="a")

    def task() -> Any:
        return client.do(read_task(client.context, "a"))

    assert (task().claimed_at, task().ended_at, task().due_at) == (None, None, None)
    client.zk.advance(1)
    claimed: Claimed = client.claimed()
    at_claim = task().claimed_ms
    client.zk.advance(1)
    client.complete(claimed)
    done = task()
    for at, ms in ((done.enqueued_at, enqueued), (done.claimed_at, at_claim), (done.ended_at, done.ended_ms)):
        assert isinstance(at, pendulum.DateTime)
        assert at.timezone_name == "UTC"
        assert round(at.timestamp() * 1000) == ms
    assert done.enqueued_at < done.claimed_at < done.ended_at
    assert done.enqueued_at.add(seconds=1) <= done.claimed_at


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_milliseconds_and_moments_are_the_same(ms: int) -> None:
    """Each millisecond of the calendar comes back exactly."""
    assert milliseconds("when", moment_of(ms)) == ms


@pytest.mark.parametrize("ms", [10**15, -(10**15), 10**400])
def test_a_record_s_impossible_time_is_corrupt(ms: int) -> None:
    """What stands in a damaged record is one error of ours, not one of the calendar's."""
    with pytest.raises(CorruptRecord, match="milliseconds since 1970 are no time"):
        moment_of(ms)


def test_pendulum_is_imported_at_the_first_time_that_is_told() -> None:
    """Whoever only enqueues and claims does not pay for it, nor does the start of the command line."""
    code = (
        "import sys; from airflow_provider_zkmq.engine import Queue, Task, Zkmq, parse_duration, parse_moment; "
        "parse_moment('2026-11-22T10:31:05Z'); sys.exit('pendulum' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- text


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22T10:31:05Z",
        "2026-11-22 10:31:05+00:00",
        "2026-11-22T11:31:05+01:00",
        "20261122T103105Z",
        " 2026-11-22 10:31:05 UTC ",
        "2026-11-22T10:31:05.000000+00:00",
    ],
)
def test_text_of_moments(text: str) -> None:
    """ISO 8601 with a zone, as Airflow's templates and this command line write it."""
    assert parse_moment(text) == datetime(2026, 11, 22, 10, 31, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2026-11-22T10:31:05", "has no zone: end it with Z"),
        ("2026-11-22", "has no zone: end it with Z"),
        ("soon", "is no moment: write ISO 8601"),
        ("", "is no moment"),
        ("None", "is no moment"),
        ("UTC", "is no moment"),
        ("1763807465", "is no moment"),
        ("2026-11-22T10:31:05 Europe/Paris", "is no moment"),
        ("2026-02-30T10:31:05Z", "is no moment"),
        ("0001-01-01T00:00:00+01:00", "outside the years"),
    ],
)
def test_text_that_is_no_moment_is_refused(text: str, told: str) -> None:
    """One error that shows the text and what is missing."""
    with pytest.raises(ConfigError, match=f"since .*{told}"):
        parse_moment(text, "since")


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.timezones()))  # noqa: DTZ001
def test_what_python_writes_is_read(moment: datetime) -> None:
    """A moment's ISO text is that moment again, whatever its zone."""
    assert milliseconds("text", parse_moment(moment.isoformat())) == milliseconds("moment", moment)


@given(st.text(max_size=60) | st.text("0123456789-:T+ZU C.W", max_size=30))
def test_hostile_text_is_a_moment_or_one_error(text: str) -> None:
    """Whatever stands there: an aware datetime, or `ConfigError`."""
    try:
        moment = parse_moment(text)
    except ConfigError:
        return
    assert moment.utcoffset() is not None


def test_everything_is_claimed_in_the_end() -> None:
    """Tasks with and without moments leave the queue in the order of their times."""
    client = new_queue()
    for name, seconds in (("c", 3), ("a", -1), ("b", 1)):
        client.put(task_id=name, not_before=at(client, seconds))
    other = Client(client.zk, "other")
    done = []
    while len(done) < 3:
        done += other.work()
        client.zk.advance(1)
    assert done == ["a", "b", "c"]
    client.check()
