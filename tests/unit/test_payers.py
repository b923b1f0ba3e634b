"""The thread that puts right what calls left: it ends, is not hot, and tells what nobody can settle any more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.upkeep.debts import in_debt
from airflow_provider_zkmq.engine.errors import SessionLost, Unavailable, ZkmqError
from airflow_provider_zkmq.engine.fronts import debts
from tests.unit.looping import filled
from tests.unit.test_departing import put_down, taken
from tests.unit.world import Client


class Changed:
    """The session's signal: notes for how long it is waited for, and lets so much time pass."""

    def __init__(self, client: Client) -> None:
        self.client, self.count, self.pauses = client, 0, list[float]()

    def wait(self, _seen: int, seconds: float) -> None:
        self.pauses.append(seconds)
        self.client.zk.ms += max(1, round(seconds * 1000))


def paying(
    client: Client, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], Any], *, closed: bool = False
) -> Changed:
    """Pay in this thread, with faults; the pauses that were made."""
    changed = Changed(client)
    session: Any = SimpleNamespace(
        memory=contextlib.nullcontext(),
        changed=changed,
        closed=closed,
        connected=SimpleNamespace(is_set=lambda: True),
    )
    monkeypatch.setattr(debts, "run", lambda _session, procedure: client.do(procedure, fault))
    debts._pay(session, client.context)
    assert not client.context.debts.paying
    return changed


def test_of_a_closed_client_it_is_told_that_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something else is owed, which nobody pays any more."""
    client = filled()
    claims = taken(client, 3)
    told = put_down(client, claims[:2])
    client.context.debts.unmarked[claims[2].task_id, claims[2].token] = claims[2]
    closed = SessionLost("the connection was closed")
    assert paying(client, monkeypatch, lambda _op: closed, closed=True).pauses == []
    assert told == {"a": [closed], "b": [closed]}


def test_what_was_put_down_is_waited_for_until_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    client = filled()
    told = put_down(client, taken(client, 2))
    assert paying(client, monkeypatch, lambda _op: None).pauses == [pytest.approx(0.05)]
    assert told == {"a": [None], "b": [None]}
    assert not in_debt(client.context)


def test_without_a_server_it_pauses_before_each_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due stays due, and is not tried again at once."""
    client = filled()
    told = put_down(client, taken(client, 2))
    tries = iter([True] * 3)
    changed = paying(client, monkeypatch, lambda _op: Unavailable("away") if next(tries, False) else None)
    assert changed.pauses == pytest.approx([0.05, 0.5, 0.5, 0.5])
    assert told == {"a": [None], "b": [None]}


def test_other_debts_that_cannot_be_paid_hold_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where they meet no server, nor where they are refused for good."""
    for error in (Unavailable("away"), ZkmqError("refused")):
        client = filled()
        told = put_down(client, taken(client, 2))
        client.context.debts.batches.add("batch")
        ended = iter(range(3))

        def refused(context: Any, error: Exception = error, ended: Any = ended) -> Any:
            if next(ended, None) is None:
                context.debts.batches.clear()
                return
            raise error
            yield

        monkeypatch.setattr("airflow_provider_zkmq.engine.core.upkeep.debts.close_pending", refused)
        changed = paying(client, monkeypatch, lambda _op: None)
        assert all(pause >= debts.RETRY_SECONDS for pause in changed.pauses)
        assert told == {"a": [None], "b": [None]}
