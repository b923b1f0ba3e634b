"""`Patience`: how long one call waits, whatever it waits for."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine.zk import limits
from airflow_provider_zkmq.engine.zk.limits import GRACE, Patience


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(limits.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_a_call_waits_for_in_turn_is_one_span(clock: Clock) -> None:
    """A connection, another call, a reply: until a server answers it is the same time that runs out."""
    patience = Patience(5)
    patience.begin()
    clock.now += 3
    patience.begin()
    assert patience.deadline() == 105
    patience.answered()
    clock.now += 1
    patience.begin()
    assert patience.deadline() == 109


def test_what_is_computed_in_between_takes_no_time(clock: Clock) -> None:
    """A producer may take minutes over its messages between two requests."""
    patience = Patience(5)
    patience.begin()
    patience.answered()
    clock.now += 600
    patience.begin()
    assert patience.deadline() == clock.now + 5


def test_a_reply_that_is_missed_among_others_counts_from_the_last_that_came(clock: Clock) -> None:
    """Servers that fall silent in the middle of many requests are not given the whole time anew."""
    patience = Patience(5)
    patience.begin()
    clock.now += 1
    patience.answered()
    clock.now += 4
    patience.missed()
    assert patience.deadline() == 106


def test_the_limit_that_ends_first_is_named(clock: Clock) -> None:
    """With its value; a call's own time holds whatever is answered meanwhile."""
    patience = Patience(5)
    patience.begin()
    assert str(patience.limit) == "request_timeout (5 s)"
    patience.within(2)
    assert (patience.deadline(), str(patience.limit)) == (102 + GRACE, "timeout (2 s)")
    clock.now += 3
    patience.answered()
    patience.within(60)
    assert patience.deadline() == 102 + GRACE
    another = Patience(5)
    another.within(60)
    assert str(another.limit) == "request_timeout (5 s)"


def test_a_write_under_way_is_not_waited_for_longer_than_from_its_sending(clock: Clock) -> None:
    """Who finds out what became of it began when it was sent."""
    patience = Patience(5)
    clock.now += 2
    patience.begin()
    assert patience.deadline(since=100.5) == 105.5
    assert patience.deadline(since=110) == 107
