"""What cannot be read in a queue's file is told once and stepped over, and processes may die between two writes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider_zkmq.engine import ClaimLost, CorruptRecord, Integer, OrderedEnum, RetryPolicy, Unavailable, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.filequeue import FileClaim, FileClient, FileQueue
from airflow_provider_zkmq.filequeue.task_store import KEPT, MOVED, ROOMS
from airflow_provider_zkmq.inspection.records import record
from airflow_provider_zkmq.inspection.wording import facts
from airflow_provider_zkmq.textqueue import Limits, TextQueue
from tests.filequeue.conftest import taken

DAMAGED = [
    *(b"", b"0", b"-1", b"2", b"9" * 20, b"9" * 5_000, b"1e999", b"NaN", b"-Infinity", "²".encode(), b"\xff\xfe"),
    *(b"\x00\x01", b"null", b"[]", b"{}", b'{"a":1e999}', b'{"a":NaN}', b'{"low":1}', b"[" * 3_000, b'"\\ud800"'),
    *(b'{"performance_class":"huge","size":"many"}', b'{"attempts":1e999}', b'{"attempts":0}'),
    *(b'{"max_backoff":1e308}', b'{"attempts":null,"final":[1]}'),
    *(b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"bob 1e999"),
    *(b"bob nan", b"bob 9" + b"9" * 300, b"../../etc", b"base64", b"@file", b"x" * 300, b"a\r", b"low"),
]
NAMES = ["id", *ROOMS, *KEPT, MOVED, "MUTEX"]
VARIABLE = st.tuples(st.sampled_from(NAMES), st.sampled_from(DAMAGED) | st.binary(max_size=20)).map(
    lambda pair: b"\\" + pair[0].encode() + b"=" + pair[1].replace(b"\n", b"") + b"\n"
)
LINES = st.tuples(st.sampled_from([b"-", b"=", b"!", b"#", b" ", b"T", b"\\MUTEX"]), st.binary(max_size=20)).map(
    lambda pair: pair[0] + pair[1] + b"\n"
)


@pytest.mark.full
def test_a_damaged_variable_stops_nobody(files: FileClient, subtests: pytest.Subtests) -> None:
    """Whatever stands in a variable, the file can be read, and the task after it is handled."""
    for name in NAMES:
        with subtests.test(name):
            q = files.queue(name)
            q.configure(filters={"performance_class": OrderedEnum("low", "high"), "size": Integer()})
            variables = [b"\n\\" + name.encode() + b"=" + damaged + b"\n" for damaged in DAMAGED]
            q.path.write_bytes(b"".join(sign + b"damaged" + it for sign in (b"-", b"=", b"!") for it in variables))
            goes_on(q)


@given(
    start=st.sampled_from([b"", b"\n", b"\r\n", b"\xef\xbb\xbf", b"#\r\n"]),
    lines=st.lists(VARIABLE | LINES, max_size=8),
)
@example(start=b"\r\n", lines=[b"-ends with a return\r\r\n"])
@example(start=b"", lines=[b"-too many variables\n", b"\\v\n" * 996])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_lines_stop_nobody(tmp_path_factory: pytest.TempPathFactory, start: bytes, lines: list[bytes]) -> None:
    """Any lines of any bytes: each call ends as the interface says, and the task that was enqueued after them ends."""
    with Zkmq.connect(f"textqueue://{tmp_path_factory.mktemp('queues')}") as zk:
        q = zk.queue("a")
        assert isinstance(q, FileQueue)
        q.path.write_bytes(start + b"".join(lines))
        goes_on(q)


def goes_on(q: FileQueue) -> None:
    """The task that is enqueued now is handled; every look before and after can be told in JSON and to a terminal."""
    q.enqueue("x", task_id="healthy.task")
    for handled in (False, True):
        if handled:
            q.worker(lambda task: task.data, lease=60).run(until_empty=True)
            assert q.task("healthy.task").result == b"x"
        tasks = q.tasks()
        assert sum(q.counts().values()) - q.counts()["scheduled"] == len(tasks)
        assert q.tasks(ids=internals(q).ids()) == tasks
        for task in tasks:
            assert json.dumps(record(task))
            assert facts(record(task))


def test_what_is_stepped_over_is_told_once(files: FileClient, caplog: pytest.LogCaptureFixture) -> None:
    """A line that would not read back with its variables, or of a later version, stays; the log tells its place."""
    q, other = files.queue("a"), files.queue("b")
    line = b"-ends with a return\r\r\n"
    q.path.write_bytes(b"# from Windows\r\n" + line + b"-next\r\n")
    other.path.write_bytes(b"-do this\nT2024 of a later version\n")
    with caplog.at_level(logging.WARNING, "airflow_provider_zkmq"):
        assert taken(q).task.data == b"next"
        assert [q.claim(), q.claim()] == [None, None]
        taken(other).complete()
        assert other.counts()["finished"] == 1
    stepped, unknown = (it.getMessage() for it in caplog.records if "stepped over" in it.getMessage())
    assert "line-16" in stepped
    assert "unknown control byte" in unknown
    assert "b.tq, byte 9" in unknown
    assert line in q.path.read_bytes()
    assert {state: n for state, n in q.counts().items() if n} == {"inserted": 1, "claimed": 1}
    seeds = files.queue("seed")  # a message with the seed's own idle mutex is a task as any other
    seeds.path.write_bytes(b"-Hello World\n\\mutex=      \n-How are you today\n\\MUTEX\n-Goodbye World\n\\MUTEX\n")
    seeds.worker(print).run(until_empty=True)
    assert seeds.counts()["finished"] == 3


def test_what_does_not_fit_is_not_written(q: FileQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a file that is full, or on a disk that is: an error says so, and what is in the file can be handled."""
    q.enqueue("x", task_id="a")
    before, write = q.path.read_bytes(), os.write
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_zkmq.textqueue.text_queue.Limits", partial(Limits, file=len(before) + 10))
        with pytest.raises(CorruptRecord, match="are read"):
            q.enqueue("y", task_id="b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        with pytest.raises(Unavailable, match="only 5 of .*disk full"):
            q.enqueue("second")
    assert q.path.read_bytes() == before
    taken(q).complete("done")
    assert (q.claim(), q.task("a").result) == (None, b"done")


# --- a process that dies between any two writes of a call: the task goes on

CALLS: dict[str, Callable[[FileClaim], object]] = {
    "complete": lambda claim: claim.complete("r"),
    "complete in a file": lambda claim: claim.complete(b"\xff" * 300),
    "fail": lambda claim: claim.fail("broken", backoff=0.01),
    "fail for good": lambda claim: claim.fail("broken", retry=False),
    "release": lambda claim: claim.release(),
    "extend": lambda claim: claim.extend(0.1),
}


class Crash(BaseException):
    """The process is gone."""


def crash_after(monkeypatch: pytest.MonkeyPatch, writes: int, call: Callable[[], object]) -> bool:
    """Carry out so many writes of a call and no more; whether there were more."""
    left = [writes]

    def counting(write: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            if left[0] == 0:
                raise Crash
            left[0] -= 1
            return write(*args)

        return counted

    with monkeypatch.context() as patch:
        for name in ("writing",):
            patch.setattr(TextQueue, name, counting(getattr(TextQueue, name)))
        try:
            call()
        except Crash:
            return True
    return False


def all_end(folder: Path) -> int:
    """Claim what is there until it has ended; how often that was possible."""
    with Zkmq.connect(f"textqueue://{folder}") as zk:
        q = zk.queue("a")
        claims = 0
        while q.counts()["finished"] + q.counts()["dead"] == 0:
            if (claim := q.claim(timeout=20)) is not None:
                claims += 1
                claim.complete("r")
        (task,) = q.tasks()
        assert (task.data, task.attempt <= 3) == (b"do this", True)
        return claims


@pytest.mark.parametrize("line", ["-do this\n", "whole", "held"])
def test_a_claim_that_is_cut_off_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Of a plain line, a whole message, and one that another let expire: claimed again, once, its text whole."""
    for writes in range(20):
        folder = tmp_path / str(writes)
        q = Zkmq.connect(f"textqueue://{folder}").queue("a")
        if line.startswith("-"):
            q.path.write_text(line)
        else:
            q.enqueue("do this", policy=RetryPolicy(attempts=3, factor=0))
        late = taken(q, lease=0.05) if line == "held" else None
        crashed = crash_after(monkeypatch, writes, lambda q=q: q.claim(lease=0.05, timeout=5))
        assert all_end(folder) == 1
        if late is not None:
            with pytest.raises(ClaimLost):
                late.complete("late")
        if not crashed:
            break
    assert (crashed, writes) == (False, {"-do this\n": 6, "whole": 3, "held": 3}[line])


@pytest.mark.full
def test_a_settlement_that_is_cut_off_happened_or_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Either the task has ended, or it is claimed again, within its attempts."""
    for name, call in CALLS.items():
        for writes in range(20):
            with subtests.test(name, writes=writes):
                folder = tmp_path / name / str(writes)
                q = Zkmq.connect(f"textqueue://{folder}").queue("a")
                q.enqueue("do this", policy=RetryPolicy(attempts=3, factor=0))
                claim = taken(q, lease=2)
                crashed = crash_after(monkeypatch, writes, lambda claim=claim, call=call: call(claim))
                assert all_end(folder) <= 1
            if not crashed:
                break
        assert not crashed
        assert writes >= 1
