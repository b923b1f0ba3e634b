"""Durations and moments: every call takes them alike, one error tells what is none, and the server's clock decides."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from airflow_provider_zkmq import engine
from airflow_provider_zkmq.engine import ConfigError, Message, RetryPolicy, Zkmq, parse_duration, parse_moment
from airflow_provider_zkmq.engine.core.claim import claim as ask
from airflow_provider_zkmq.engine.core.client_state import Clock, ServerTime
from airflow_provider_zkmq.engine.core.maintenance import collect, due_work
from airflow_provider_zkmq.engine.core.model.values import LONGEST, milliseconds, moment_of, seconds
from airflow_provider_zkmq.engine.core.read import configuration, inspect, watch_tasks
from airflow_provider_zkmq.engine.core.read.columnar_read import scan
from airflow_provider_zkmq.engine.core.tasks import admin, batches, enqueue, settle, transaction
from airflow_provider_zkmq.engine.core.tasks.settle import begin
from airflow_provider_zkmq.engine.core.zk_operations import Delete, Multi, Op, SetData
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.unit.world import Client, new_queue

#: What is no duration, by a name for it.
NO_DURATIONS: dict[str, Any] = {
    "negative": -1, "a little negative": -0.001, "no number": math.nan, "endless": math.inf, "too long": 9e9,
    "an integer too large for a float": 10**5000, "a truth value": True, "text": "5m", "bytes": b"5", "a list": [],
    "negative timedelta": timedelta(seconds=-1),
}  # fmt: skip
NO_DURATION = r"is not allowed: a duration is seconds \(0 or more\)"
TWO_SECONDS = [2, 2.0, timedelta(seconds=2), pendulum.duration(seconds=2)]
#: Every call that takes a duration, after the name of the parameter.
PROCEDURES: list[tuple[str, Callable[[Client, Any], Any]]] = [
    ("delay", lambda it, span: it.put(delay=span)),
    ("delay", lambda it, span: it.do(settle.release(it.context, it.claimed(), span))),
    ("delay", lambda it, span: it.do(settle.snooze(it.context, it.claimed(), span))),
    ("lock", lambda it, span: it.put(lock=span)),
    ("lock", lambda it, span: it.do(admin.configure(it.context, lock=span))),
    ("task_gc_lifetime", lambda it, span: it.do(admin.configure(it.context, task_gc_lifetime=span))),
    ("task_gc_interval", lambda it, span: it.do(admin.configure(it.context, task_gc_interval=span))),
    ("lifetime", lambda it, span: it.do(collect.collect_garbage(it.context, span))),
    ("lease", lambda it, span: it.do(ask.wanted(it.context, lease=span))),
    ("lease", lambda it, span: it.do(settle.extend(it.context, it.claimed(lease=9), span))),
    ("dedupe", lambda it, span: it.complete(it.claimed(), dedupe=span)),
    ("backoff", lambda it, span: it.fail(it.claimed(), backoff=span)),
    ("timeout", lambda it, span: it.do(ask.request_claim(it.context, timeout=span))),
    ("timeout", lambda it, span: it.do(watch_tasks.wait(it.context, [], timeout=span))),
    ("timeout", lambda it, span: it.do(watch_tasks.find_matching(it.context, "all()", timeout=span))),
    ("timeout", lambda it, span: it.do(watch_tasks.follow(it.context, "a", id, timeout=span))),
    ("timeout", lambda it, span: it.do(batches.wait_batch(it.context, "b", span))),
    ("timeout", lambda it, span: it.do(due_work.wait_for_change(it.context, 0, span))),
]
#: What else takes durations, and by which names.
OBJECTS: list[tuple[Callable[..., Any], list[str]]] = [
    (
        partial(engine.Worker, SimpleNamespace(name="q", __internals__=lambda: None), print),
        ["grace", "throttle", "lease"],
    ),
    (
        partial(engine.AsyncWorker, SimpleNamespace(name="q", __internals__=lambda: None), AsyncMock()),
        ["grace", "throttle"],
    ),
    (engine.monitor, ["period"]),
    (RetryPolicy, ["factor", "min_backoff", "max_backoff"]),
    (engine.ConnectionConfig.of, ["session_timeout", "connect_timeout", "request_timeout"]),
]
#: What is no moment of ours, and what the error says of it.
NO_MOMENTS: list[tuple[Any, str]] = [
    (datetime(2026, 11, 22), "has no zone"),  # noqa: DTZ001
    (pendulum.naive(2026, 11, 22), "has no zone"),
    (date(2026, 11, 22), "is not allowed: a moment is a datetime with a zone"),
    (1_700_000_000, "is not allowed: a moment is"),
    ("2026-11-22T10:00:00Z", "is not allowed: a moment is"),
    (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "outside the years"),
]


def queue_with(*ids: str, **conf: Any) -> Client:
    made = new_queue(**conf)
    for task_id in ids:
        made.put(task_id=task_id)
    return made


def at(client: Client, after: float) -> pendulum.DateTime:
    """The moment so many seconds after the server's present."""
    return pendulum.from_timestamp(client.zk.ms / 1000 + after)


# --- durations


def test_every_call_takes_the_same_durations(subtests: pytest.Subtests) -> None:
    """One error for all, which names the parameter; nothing is changed, and the queue goes on."""
    for number, (name, call) in enumerate(PROCEDURES):
        client = queue_with(*(f"t{each}" for each in range(len(NO_DURATIONS))))
        tasks, conf = client.check().keys(), client.do(configuration.conf(client.context))
        for case, wrong in NO_DURATIONS.items():
            with subtests.test(call=number, name=name, case=case):
                with pytest.raises(ConfigError, match=f"{name} .* {NO_DURATION}"):
                    call(client, wrong)
                assert client.check().keys() == tasks
        assert client.do(configuration.conf(client.context)) == conf
        for span in TWO_SECONDS:
            with subtests.test(call=number, name=name, span=span):
                told = ""
                try:
                    call(queue_with("a", "b"), span)
                except engine.ZkmqError as error:  # there being no such batch, say
                    told = str(error)
                assert "duration" not in told


def test_objects_refuse_what_is_no_duration_alike(subtests: pytest.Subtests) -> None:
    """Workers, monitors, policies and connections take durations by the same rule; what takes text takes them, too."""
    for make, names in OBJECTS:
        for name, (case, wrong) in itertools.product(names, NO_DURATIONS.items()):
            with subtests.test(name=name, case=case), pytest.raises(ConfigError, match=f"{name} .* {NO_DURATION}"):
                make(**{name: wrong})
    assert parse_duration(timedelta(minutes=1)) == parse_duration(60) == parse_duration("1m") == 60.0
    with pytest.raises(ConfigError, match="pause None is not allowed"):
        parse_duration(None, "pause")  # type: ignore[arg-type]


def test_a_duration_is_kept_in_seconds(subtests: pytest.Subtests) -> None:
    """What is written and remembered is a number, whatever it was given as. A thread can wait for the longest."""
    for span in TWO_SECONDS:
        with subtests.test(span=span):
            client = new_queue(lock=span, task_gc_lifetime=span, policy=RetryPolicy(min_backoff=span, factor=span))
            conf = client.do(configuration.conf(client.context))
            kept = (conf.lock, conf.task_gc_lifetime, conf.policy.min_backoff, conf.policy.factor)
            task_id = client.put(delay=span, lock=span)
            assert (*kept, client.state(task_id).lock) == (2.0,) * 5
            assert client.take() is None
            client.zk.advance(2.5)
            assert client.claimed().task_id == task_id
            outcomes = engine.Success(dedupe=span), engine.Retry(backoff=span), engine.Snooze(span)
            assert [outcomes[0].dedupe, outcomes[1].backoff, outcomes[2].delay] == [span] * 3
            assert engine.ConnectionConfig.of(connect_timeout=span).connect_timeout == 2.0
            assert OBJECTS[0][0](grace=span).grace == 2.0
    assert threading.Lock().acquire(timeout=seconds("throttle", math.nextafter(LONGEST, 0)))


# --- moments


def test_a_task_is_not_handled_before_its_moment() -> None:
    """Not by a part of a millisecond, by the server's clock; what is past comes at once, a far one is listed."""
    client = new_queue()
    when = at(client, 5)
    later, due = client.put(not_before=when), client.zk.ms + 5_000
    task = client.do(inspect.read_task(client.context, later))
    assert (task.status, task.due_ms, task.due_at) == ("queued-with-backoff", due, when)
    even_later = client.put(not_before=when.add(microseconds=1))
    assert client.state(even_later).due == due + 1
    client.put(task_id="last", not_before=datetime.max.replace(tzinfo=UTC))
    client.put(task_id="a", not_before=at(client, -5))
    client.put(task_id="b", not_before=datetime(1, 1, 1, tzinfo=UTC))
    assert client.state("a").due is client.state("b").due is None
    assert client.work() == ["a", "b"]
    client.zk.advance(4.9)
    assert client.take() is None
    client.zk.advance(0.2 + 0.3)
    due_too = client.claimed()
    assert inspect.task_of_claim(client.context, due_too).due_at == when
    client.complete(due_too)
    assert (client.do(inspect.read_task(client.context, later)).due_ms, client.work()) == (due, [even_later])
    last = client.do(inspect.read_task(client.context, "last"))
    assert str(last.due_at) == "9999-12-31 23:59:59.999000+00:00"
    client.cancel("last")
    client.check()


def test_a_deadline_is_judged_by_the_earliest_time_that_an_unsure_clock_allows() -> None:
    """Told by a write that took 5 s, the time may be 5 s ahead: nothing is over before it certainly is."""
    clock = Clock(lambda: 105.0, ServerTime(1_000_000, 100.0, 5.0))
    assert (clock.now(), clock.exact()) == (1_005_000, None)
    assert (clock.certainly_past(1_005_000), clock.until(1_005_000)) == (1_000_000, 5.0)


def test_what_is_no_moment_is_refused(subtests: pytest.Subtests) -> None:
    """With the parameter's name, before anything is written; so is a moment beside a delay, with all of the call."""
    client = new_queue()
    for wrong, told in NO_MOMENTS:
        with subtests.test(wrong=wrong), pytest.raises(ConfigError, match=f"not_before .*{told}"):
            client.put(not_before=wrong)
    for delay in (0, 5, timedelta(seconds=5)):
        both = Message("x", delay=delay, not_before=at(client, 5))
        with (
            subtests.test(delay=delay),
            pytest.raises(ConfigError, match=r"a delay .* or not_before .*, not both"),
        ):
            client.do(enqueue.enqueue_many(client.context, [Message("y"), both]))
    assert client.check() == {}
    assert client.put(task_id="next") == "next"


def test_an_update_sets_another_moment(subtests: pytest.Subtests) -> None:
    """One of the past brings it forward, without one its time stays."""
    for order, (after, waits) in itertools.product(("default", "fifo"), ((-1, 0), (9, 10))):
        with subtests.test(order=order, after=after):
            client = new_queue(order=order)
            client.put(task_id="a", delay=60)
            for options in ({"not_before": at(client, 5)}, {}):
                client.put(task_id="a", on_conflict="replace", **options)
                assert client.state("a").due == client.zk.ms + 5_000
            client.put(task_id="a", on_conflict="replace", not_before=at(client, after))
            client.zk.advance(waits)
            assert client.work() == ["a"]
            client.check()


def test_what_is_kept_for_later_comes_at_its_own_moment() -> None:
    """A run that waits for the end of the one under way; what follows a batch, unless its moment has passed by then."""
    client = queue_with("a")
    claimed = client.claimed()
    client.put(task_id="a", on_conflict="requeue", not_before=at(client, 60))
    client.complete(claimed)
    assert client.state("a").due == (run := client.zk.ms + 60_000)
    for name, after in (("late", 60), ("early", 2)):
        then = Message(b"then", task_id=f"after-{name}", not_before=at(client, after))
        client.do(enqueue.enqueue_batch(client.context, [Message(b"x")], name, then))
    client.zk.advance(5)
    for _ in range(2):
        client.complete(client.claimed())
    assert client.state("after-late").due == run
    assert client.work() == ["after-early"]
    assert client.do(batches.read_batch(client.context, "late")).open == 0
    client.zk.advance(61)
    assert sorted(client.work()) == ["a", "after-late"]
    client.check()


def test_what_a_transaction_puts_waits_for_its_time() -> None:
    """Counted from the commit, whole or not at all; a bucket that the server took away meanwhile is made anew."""
    client = queue_with("in")
    unit = transaction.TransactionState(taken=[(client.context, client.claimed())])
    for options in ({"task_id": "a", "delay": 600}, {"task_id": "b", "not_before": at(client, 700)}):
        transaction.put(unit.put, client.context, Message(b"x", **options))
    begun, cleared = client.zk.ms, list[str]()
    client.zk.advance(5)

    def clear_away(op: Op) -> None:
        if isinstance(op, Multi) and len(op.ops) > 3 and not cleared:
            index = client.context.paths.at("scheduled")
            cleared.extend(f"{index}/{bucket}" for bucket in client.zk.names(index))
            client.zk.multi(0, tuple(map(Delete, cleared)))

    assert client.do(transaction.commit(unit), clear_away) == ["a", "b"]
    assert cleared
    assert client.state("a").due == pytest.approx(client.zk.ms + 600_000, abs=50)
    assert client.state("b").due == begun + 700_000
    assert (client.state("in").state, client.work()) == ("finished", [])
    client.zk.advance(701)
    assert client.work() == ["a", "b"]
    client.check()


def test_a_task_tells_its_times_as_pendulum_s() -> None:
    """Aware, in UTC, the same as the milliseconds beside them; None where there is none."""
    client = new_queue()
    begun = client.zk.ms
    client.put(task_id="a")

    def told() -> Any:
        client.zk.advance(1)
        return client.do(inspect.read_task(client.context, "a"))

    queued = told()
    assert (queued.claimed_at, queued.ended_at, queued.due_at) == (None, None, None)
    claimed = client.claimed()
    in_hand = told()
    client.do(begin(client.context, claimed))
    client.zk.advance(2)
    claimed.handled = client.context.run.monotonic()
    client.zk.advance(5)  # its completion has waited for others
    client.complete(claimed)
    done = told()
    success = [(one.outcome, one.started) for one in done.history]
    assert (in_hand.started_at, success) == (None, [("finished", done.started_ms)])
    assert (done.started_ms - done.claimed_ms, done.ended_ms - done.started_ms) == (1_000, 2_000)
    times = ((done.enqueued_at, begun), (done.claimed_at, in_hand.claimed_ms), (done.ended_at, done.ended_ms))
    for time, ms in times:
        assert isinstance(time, pendulum.DateTime)
        assert (time.timezone_name, round(time.timestamp() * 1000)) == ("UTC", ms)
    assert done.enqueued_at.add(seconds=1) <= done.claimed_at < done.started_at < done.ended_at
    reckoned_late = structs.replace(client.state("a"), claimed=client.zk.ms + 5_000, started=None)
    client.write(SetData(client.context.paths.task("a", "state"), reckoned_late.encode(), -1))
    assert (late := told()).claimed_ms == late.ended_ms
    assert client.do(scan(client.context, ["a"], ["claimed_ms"])).columns == {"claimed_ms": [late.ended_ms]}


def test_pendulum_is_imported_at_the_first_time_that_is_told() -> None:
    """Whoever only enqueues and claims does not pay for it, nor does the start of the command line."""
    code = (
        "import sys; from airflow_provider_zkmq.engine import Queue, Task, Zkmq, parse_duration, parse_moment; "
        "parse_moment('2026-11-22T10:31:05Z'); sys.exit('pendulum' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- queue files


def test_queue_files_keep_durations_and_moments(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """They take the same, and refuse the same; in its configuration people write a lock as people do."""
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        for number, span in enumerate(TWO_SECONDS):
            with subtests.test(span=span):
                q = zk.queue(f"jobs{number}")
                q.configure(lock=span, policy=RetryPolicy(max_backoff=span))
                q.enqueue("x", lock=span)
                claim: Any = q.claim(timeout=span)
                assert (q.conf().lock, q.conf().policy.max_backoff, claim.span) == (2.0, 2.0, 2.0)
                claim.extend(span)
                claim.snooze(timedelta(hours=1))
                assert q.counts()["scheduled"] == 1
        q, when = zk.queue("jobs"), pendulum.now("UTC").add(hours=1).replace(microsecond=0)
        q.enqueue("x", task_id="a", not_before=when)
        q.enqueue("x", task_id="b", not_before=when.subtract(hours=2))
        assert (q.task("a").status, q.task("a").due_at) == ("queued-with-backoff", when)
        claim = q.claim()
        assert (claim.task.id, q.claim()) == ("b", None)
        no_duration = "is not allowed: a duration is"
        refused: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
            (q.configure, (), {"lock": "5m"}, no_duration),
            (q.enqueue, ("x",), {"delay": -1}, no_duration),
            (q.claim, (), {"timeout": "5m"}, no_duration),
            (internals(q).wait_for_change, (0, -1), {}, no_duration),
            (q.enqueue, ("x",), {"delay": 1, "not_before": when}, "not both"),
            *((q.enqueue, ("x",), {"not_before": wrong}, told) for wrong, told in NO_MOMENTS),
        ]
        for call, arguments, options, told in refused:
            with subtests.test(call=call.__name__, options=options), pytest.raises(ConfigError, match=told):
                call(*arguments, **options)
        assert sorted(internals(q).ids()) == ["a", "b"]
        conf = tmp_path / "jobs.conf.json"
        conf.write_text('{"lock": "1h30m"}')
        assert q.conf().lock == 5_400.0
        conf.write_text('{"lock": "soon"}')
        with pytest.raises(Exception, match=r"jobs\.conf\.json: lock 'soon' is no duration"):
            q.conf()


# --- text

DURATIONS = {
    "0": 0.0, "90": 90.0, " 2.5 ": 2.5, ".5": 0.5, "1e3": 1000.0, "5m": 300.0, "5min": 300.0, "1h30m": 5_400.0,
    "1h 30 min": 5_400.0, "250ms": 0.25, "1.5h": 5_400.0, "1w2d3h4m5s6ms": 788_645.006, "PT1H30M": 5_400.0,
    "P1DT2H": 93_600.0, "P2W": 1_209_600.0, "PT0.25S": 0.25, "PT0,25S": 0.25, "PT0S": 0.0,
}  # fmt: skip
NO_DURATION_TEXTS = [
    "", " ", "soon", "-5", "+5", "nan", "inf", "1e999", "5M", "5 m s", "m", "1m1h", "1h1h", "1h30", "30 1h", "P",
    "PT", "P1DT", "PT5", "P1Y", "P1M", "-PT5M", "pt5m", "1_000", "٥m", "5m\n;", "9" * 400, "9" * 60 + "w", "0x10",
    "1:30",
]  # fmt: skip
MOMENTS = [
    "2026-11-22T10:31:05Z", "2026-11-22 10:31:05+00:00", "2026-11-22T11:31:05+01:00", "20261122T103105Z",
    " 2026-11-22 10:31:05 UTC ", "2026-11-22T10:31:05.000000+00:00",
]  # fmt: skip
NO_MOMENT_TEXTS = {
    "2026-11-22T10:31:05": "has no zone: end it with Z",
    "2026-11-22": "has no zone: end it with Z",
    "soon": "is no moment: write ISO 8601",
    **dict.fromkeys(["", "None", "UTC", "1763807465", "2026-11-22T10:31:05 Europe/Paris"], "is no moment"),
    "2026-02-30T10:31:05Z": "is no moment",
    "0001-01-01T00:00:00+01:00": "outside the years",
}


def test_text_of_durations_and_moments(subtests: pytest.Subtests) -> None:
    """Seconds, units, ISO 8601; a moment has a zone. Of all else, and of damaged times, one error shows the text."""
    for text, span in DURATIONS.items():
        with subtests.test(duration=text):
            assert parse_duration(text) == span
    for text in MOMENTS:
        with subtests.test(moment=text):
            assert parse_moment(text) == datetime(2026, 11, 22, 10, 31, 5, tzinfo=UTC)
    for text in NO_DURATION_TEXTS:
        with subtests.test(no_duration=text[:20]):
            with pytest.raises(ConfigError, match=r"delay .* is (no duration: write|not allowed: a dur)") as caught:
                parse_duration(text, "delay")
            assert len(str(caught.value)) < 250
    for text, told in NO_MOMENT_TEXTS.items():
        with subtests.test(no_moment=text), pytest.raises(ConfigError, match=f"since .*{told}"):
            parse_moment(text, "since")
    for ms in (10**15, -(10**15), 10**400):
        with pytest.raises(engine.CorruptRecord, match="milliseconds since 1970 are no time"):
            moment_of(ms)


@given(st.integers(0, 10**12), st.floats(0, 9e9, exclude_max=True), st.timedeltas(timedelta(0), timedelta(days=30_000)))
def test_a_duration_s_text_is_that_duration(ms: int, number: float, span: timedelta) -> None:
    """Spelled by us, to the millisecond; written as Python writes a number; in ISO 8601, as pendulum reads it."""
    assert parse_duration(engine.spell_duration(ms / 1000)) == ms / 1000
    assert parse_duration(repr(number)) == number
    whole, micro = divmod(span // timedelta(microseconds=1), 10**6)
    text = f"PT{whole}.{micro:06d}S"
    assert parse_duration(text) == pytest.approx(pendulum.parse(text).total_seconds())
    assert parse_duration(text) == float(Decimal(whole) + Decimal(micro) / 10**6)


@given(
    st.integers(-62_135_596_800_000, 253_402_300_799_999),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.timezones()),  # noqa: DTZ001
)
def test_a_moment_s_milliseconds_and_its_text_are_that_moment(ms: int, moment: datetime) -> None:
    """Each millisecond of the calendar comes back exactly; so does a moment's ISO text, whatever its zone."""
    assert milliseconds("when", moment_of(ms)) == ms
    assert milliseconds("text", parse_moment(moment.isoformat())) == milliseconds("moment", moment)


@given(
    st.text(max_size=80)
    | st.text("0123456789.,wdhmsPT -+e", max_size=30)
    | st.text("0123456789-:T+ZU C.W", max_size=30)
)
def test_hostile_text_is_a_time_or_one_error(text: str) -> None:
    """Whatever stands there: seconds within bounds, and an aware datetime, or `ConfigError`."""
    for parse, sound in (
        (parse_duration, lambda span: 0 <= span < 9e9),
        (parse_moment, lambda moment: moment.utcoffset() is not None),
    ):
        try:
            made = parse(text)
        except ConfigError:
            continue
        assert sound(made)
