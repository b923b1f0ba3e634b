"""Durations: seconds, `timedelta` and pendulum's in every call, text in commands and templates, one error for all."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zkmq.engine import (
    AsyncWorker,
    ConfigError,
    ConnectionConfig,
    Retry,
    RetryPolicy,
    Snooze,
    Success,
    Worker,
    Zkmq,
    ZkmqError,
    monitor,
    parse_duration,
    spell_duration,
)
from airflow_provider_zkmq.engine.core.claiming import ask
from airflow_provider_zkmq.engine.core.model.durations import LONGEST, seconds
from airflow_provider_zkmq.engine.core.reading import finding, following, settings, wait
from airflow_provider_zkmq.engine.core.tasks import batches, configure, holding, settle
from airflow_provider_zkmq.engine.core.upkeep import collect, keeper
from tests.unit.world import Client, new_queue

NO_DURATIONS = [-1, -0.001, float("nan"), float("inf"), 9e9, 10**5000, True, "5m", b"5", [], timedelta(seconds=-1)]
#: Every parameter of a procedure that takes a duration, by its name.
PROCEDURES: dict[str, list[Callable[[Client, Any], Any]]] = {
    "delay": [
        lambda client, span: client.put(delay=span),
        lambda client, span: client.do(settle.release(client.context, client.claimed(), span)),
        lambda client, span: client.do(settle.snooze(client.context, client.claimed(), span)),
    ],
    "lock": [
        lambda client, span: client.put(lock=span),
        lambda client, span: client.do(configure.configure(client.context, lock=span)),
    ],
    "task_gc_lifetime": [lambda client, span: client.do(configure.configure(client.context, task_gc_lifetime=span))],
    "task_gc_interval": [lambda client, span: client.do(configure.configure(client.context, task_gc_interval=span))],
    "lifetime": [lambda client, span: client.do(collect.collect_garbage(client.context, span))],
    "lease": [
        lambda client, span: client.do(ask.wanted(client.context, lease=span)),
        lambda client, span: client.do(holding.extend(client.context, client.claimed(lease=9), span)),
    ],
    "dedupe": [lambda client, span: client.complete(client.claimed(), dedupe=span)],
    "backoff": [lambda client, span: client.fail(client.claimed(), backoff=span)],
    "timeout": [
        lambda client, span: client.do(ask.ask(client.context, timeout=span)),
        lambda client, span: client.do(wait.wait(client.context, [], timeout=span)),
        lambda client, span: client.do(finding.find_matching(client.context, "all()", timeout=span)),
        lambda client, span: client.do(following.follow(client.context, "a", id, timeout=span)),
        lambda client, span: client.do(batches.wait_batch(client.context, "b", span)),
        lambda client, span: client.do(keeper.wait_for_change(client.context, 0, span)),
    ],
}
ALL_PROCEDURES = [(name, number, call) for name, calls in PROCEDURES.items() for number, call in enumerate(calls)]
OBJECTS: list[tuple[str, Callable[[Any], Any]]] = [
    ("grace", lambda span: Worker(_Queue(), print, grace=span)),
    ("throttle", lambda span: Worker(_Queue(), print, throttle=span)),
    ("lease", lambda span: Worker(_Queue(), print, lease=span)),
    ("grace", lambda span: AsyncWorker(_Queue(), _handler, grace=span)),
    ("throttle", lambda span: AsyncWorker(_Queue(), _handler, throttle=span)),
    ("period", lambda span: monitor(period=span)),
    ("factor", lambda span: RetryPolicy(factor=span)),
    ("min_backoff", lambda span: RetryPolicy(min_backoff=span)),
    ("max_backoff", lambda span: RetryPolicy(max_backoff=span)),
    ("session_timeout", lambda span: ConnectionConfig.of(session_timeout=span)),
    ("connect_timeout", lambda span: ConnectionConfig.of(connect_timeout=span)),
    ("request_timeout", lambda span: ConnectionConfig.of(request_timeout=span)),
]


class _Queue:
    """What a worker that is never started needs of a queue."""

    name = "q"

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


async def _handler(_task: object) -> None:
    """Handle nothing."""


@pytest.fixture
def client() -> Client:
    made = new_queue()
    made.put(task_id="a")
    made.put(task_id="b")
    return made


@pytest.mark.parametrize("wrong", NO_DURATIONS, ids=lambda value: f"{type(value).__name__}")
@pytest.mark.parametrize(("name", "number", "call"), ALL_PROCEDURES)
def test_what_is_no_duration_is_refused_by_the_parameter_s_name(
    client: Client, name: str, number: int, call: Callable[[Client, Any], Any], wrong: Any
) -> None:
    """One error for all, whatever the call; nothing is changed, and the queue goes on."""
    with pytest.raises(ConfigError, match=rf"{name} .* is not allowed: a duration is seconds \(0 or more\)"):
        call(client, wrong)
    assert sorted(client.check()) == ["a", "b"]
    assert client.do(settings.conf(client.context)).lock is None


@pytest.mark.parametrize("wrong", NO_DURATIONS, ids=lambda value: f"{type(value).__name__}")
@pytest.mark.parametrize(("name", "make"), OBJECTS)
def test_objects_refuse_it_alike(name: str, make: Callable[[Any], Any], wrong: Any) -> None:
    """Workers, monitors, policies and connections take durations by the same rule."""
    with pytest.raises(ConfigError, match=rf"{name} .* is not allowed: a duration is seconds \(0 or more\)"):
        make(wrong)


@pytest.mark.parametrize("span", [2, 2.0, timedelta(seconds=2), pendulum.duration(seconds=2)])
@pytest.mark.parametrize(("name", "number", "call"), ALL_PROCEDURES)
def test_every_call_takes_seconds_timedelta_and_pendulum_s(
    client: Client, name: str, number: int, call: Callable[[Client, Any], Any], span: Any
) -> None:
    """Whatever else a call refuses, there being no such batch, say: its duration is taken."""
    told = ""
    try:
        call(client, span)
    except ZkmqError as error:
        told = str(error)
    assert "duration" not in told


@pytest.mark.parametrize("span", [2, 2.0, timedelta(seconds=2), pendulum.duration(seconds=2)])
def test_a_duration_is_kept_in_seconds(span: Any) -> None:
    """What is written and remembered is a number, whatever it was given as."""
    client = new_queue(lock=span, task_gc_lifetime=span, policy=RetryPolicy(min_backoff=span, factor=span))
    conf = client.do(settings.conf(client.context))
    assert (conf.lock, conf.task_gc_lifetime) == (2.0, 2.0)
    assert (conf.policy.min_backoff, conf.policy.factor) == (2.0, 2.0)
    task_id = client.put(delay=span, lock=span)
    assert client.state(task_id).lock == 2.0
    assert client.take() is None
    client.zk.advance(2.5)
    assert client.claimed().task_id == task_id
    assert [Success(dedupe=span).dedupe, Retry(backoff=span).backoff, Snooze(span).delay] == [span] * 3
    assert Worker(_Queue(), print, grace=span).grace == 2.0
    assert ConnectionConfig.of(connect_timeout=span).connect_timeout == 2.0


@pytest.mark.parametrize("span", [2, timedelta(seconds=2), pendulum.duration(seconds=2)])
def test_queue_files_take_them_too(tmp_path: Path, span: Any) -> None:
    """A queue file's configuration, messages and claims take the same durations, and refuse the same."""
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        q = zk.queue("jobs")
        q.configure(lock=span, policy=RetryPolicy(max_backoff=span))
        assert (q.conf().lock, q.conf().policy.max_backoff) == (2.0, 2.0)
        q.enqueue("x", lock=span)
        claim = q.claim(timeout=span)
        assert claim is not None
        assert claim.span == 2.0
        claim.extend(span)
        claim.snooze(timedelta(hours=1))
        assert q.counts()["scheduled"] == 1
        for call in (
            lambda: q.configure(lock="5m"),
            lambda: q.enqueue("x", delay=-1),
            lambda: q.claim(timeout="5m"),
            lambda: q.wait_for_change(0, -1),
        ):
            with pytest.raises(ConfigError, match="is not allowed: a duration is"):
                call()


def test_people_write_durations_into_queue_files(tmp_path: Path) -> None:
    """The lock of a queue's configuration and of a task may be written as people write durations."""
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        q = zk.queue("jobs")
        q.enqueue("x")
        (tmp_path / "jobs.conf.json").write_text('{"lock": "1h30m"}')
        assert q.conf().lock == 5_400.0
        (tmp_path / "jobs.conf.json").write_text('{"lock": "soon"}')
        with pytest.raises(Exception, match=r"jobs\.conf\.json: lock 'soon' is no duration"):
            q.conf()


# --- text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("0", 0.0),
        ("90", 90.0),
        (" 2.5 ", 2.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("5m", 300.0),
        ("5min", 300.0),
        ("1h30m", 5_400.0),
        ("1h 30 min", 5_400.0),
        ("250ms", 0.25),
        ("1.5h", 5_400.0),
        ("1w2d3h4m5s6ms", 788_645.006),
        ("PT1H30M", 5_400.0),
        ("P1DT2H", 93_600.0),
        ("P2W", 1_209_600.0),
        ("PT0.25S", 0.25),
        ("PT0,25S", 0.25),
        ("PT0S", 0.0),
    ],
)
def test_text_of_durations(text: str, span: float) -> None:
    """Seconds, units and ISO 8601 are understood."""
    assert parse_duration(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "soon", "-5", "+5", "nan", "inf", "1e999", "5M", "5 m s", "m", "1m1h", "1h1h", "1h30", "30 1h", "P",
        "PT", "P1DT", "PT5", "P1Y", "P1M", "-PT5M", "pt5m", "1_000", "٥m", "5m\n;", "9" * 400, "9" * 60 + "w", "0x10",
        "1:30",
    ],
)  # fmt: skip
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    """Months and years, whose length nobody knows, negative ones and all the rest: one error that shows the text."""
    with pytest.raises(ConfigError, match=r"delay .* is (no duration: write|not allowed: a duration)") as caught:
        parse_duration(text, "delay")
    assert len(str(caught.value)) < 250


def test_objects_pass_through_the_text_s_door() -> None:
    """What takes text takes durations, too, by the same rule."""
    assert parse_duration(timedelta(minutes=1)) == parse_duration(60) == parse_duration("1m") == 60.0
    with pytest.raises(ConfigError, match="pause None is not allowed"):
        parse_duration(None, "pause")  # type: ignore[arg-type]


@given(st.integers(0, 10**12))
def test_what_is_spelled_is_read(milliseconds: int) -> None:
    """Each duration to the millisecond comes back as it was."""
    text = spell_duration(milliseconds / 1000)
    assert parse_duration(text) == milliseconds / 1000


@given(st.floats(0, 9e9, exclude_max=True))
def test_a_number_s_text_is_the_number(seconds: float) -> None:
    """Any number of seconds may be written as Python writes it."""
    assert parse_duration(repr(seconds)) == seconds


@given(st.timedeltas(timedelta(0), timedelta(days=30_000)))
def test_pendulum_s_text_is_understood(span: timedelta) -> None:
    """What pendulum reads as ISO 8601 is the same duration here."""
    whole, micro = divmod(span // timedelta(microseconds=1), 10**6)
    text = f"PT{whole}.{micro:06d}S"
    assert parse_duration(text) == pytest.approx(pendulum.parse(text).total_seconds())
    assert parse_duration(text) == float(Decimal(whole) + Decimal(micro) / 10**6)


def test_a_thread_can_wait_for_each_duration() -> None:
    """Also for the longest: a pause of it raises nothing."""
    event = threading.Event()
    waiting = threading.Timer(0.05, event.set)
    waiting.start()
    assert event.wait(seconds("throttle", math.nextafter(LONGEST, 0)))


@given(st.text(max_size=80) | st.text("0123456789.,wdhmsPT -+e", max_size=30))
def test_hostile_text_is_a_duration_or_one_error(text: str) -> None:
    """Whatever stands there: a number of seconds within bounds, or `ConfigError`."""
    try:
        span = parse_duration(text)
    except ConfigError:
        return
    assert 0 <= span < 9e9
