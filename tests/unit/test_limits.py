"""`Patience`: how long one call waits, whatever it waits for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_zkmq.engine.zk import limits
from airflow_provider_zkmq.engine.zk.limits import GRACE, Patience


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(limits.time, "monotonic", lambda: made.now)
    return made


def test_what_a_call_waits_for_in_turn_is_one_span(clock: SimpleNamespace) -> None:
    """Until a server answers it is the same time that runs out; what is computed in between takes no time.

    A reply that is missed among others counts from the last that came: servers that fall silent are not given more.
    """
    patience = Patience(5)
    patience.begin()
    clock.now += 3
    patience.begin()
    assert patience.deadline() == 105
    patience.answered()
    clock.now += 600
    patience.begin()
    assert patience.deadline() == clock.now + 5
    clock.now += 1
    patience.answered()
    last = clock.now
    clock.now += 4
    patience.missed()
    assert patience.deadline() == last + 5


def test_the_limit_that_ends_first_is_named(clock: SimpleNamespace) -> None:
    """With its value; a call's own time holds whatever is answered meanwhile."""
    patience, another = Patience(5), Patience(5)
    patience.begin()
    assert str(patience.limit) == "request_timeout (5 s)"
    patience.within(2)
    assert (patience.deadline(), str(patience.limit)) == (102 + GRACE, "timeout (2 s)")
    clock.now += 3
    patience.answered()
    patience.within(60)
    assert patience.deadline() == 102 + GRACE
    another.within(60)
    assert str(another.limit) == "request_timeout (5 s)"


def test_a_write_under_way_is_not_waited_for_longer_than_from_its_sending(clock: SimpleNamespace) -> None:
    """Who finds out what became of it began when it was sent."""
    patience = Patience(5)
    clock.now += 2
    patience.begin()
    assert (patience.deadline(since=100.5), patience.deadline(since=110)) == (105.5, 107)
