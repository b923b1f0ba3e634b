"""What is stepped over stood there while its task was not pending: nothing else is lost from sight."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming.group import step_over_if_there
from airflow_provider_zkmq.engine.core.claiming.take import Pick
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get
from airflow_provider_zkmq.engine.core.protocol.writes import Create
from airflow_provider_zkmq.engine.core.reading.watched import listing
from airflow_provider_zkmq.engine.core.tasks import settle
from tests.unit.world import Client, new_queue


@pytest.fixture
def client() -> Client:
    made = new_queue()
    made.put(task_id="a")
    return made


def picked(client: Client) -> Pick:
    """The entry of the only pending task, listed now."""
    [lane] = client.do(listing(client.context, client.context.paths.at("queue")))
    lane = client.context.paths.at("queue", lane)
    [segment] = client.do(listing(client.context, lane))
    [entry] = client.do(listing(client.context, f"{lane}/{segment}"))
    return Pick(entry, f"{lane}/{segment}")


def test_a_task_that_came_back_is_not_stepped_over(client: Client) -> None:
    """Its record was read while it was in hand, and another thread has listed its entry since."""
    pick = picked(client)
    client.do(step_over_if_there(client.context, pick))
    assert client.reports == []
    assert pick.path not in client.context.quarantine
    assert client.work() == ["a"]


def test_nor_is_one_that_comes_and_goes_while_it_is_looked_at(client: Client) -> None:
    """In hand when the record is read, and back, as another entry of the same name, before the second look."""
    pick, other = picked(client), Client(client.zk, "other")
    hands: list[Claimed] = []

    def meanwhile(op: Any) -> None:
        if isinstance(op, Get) and not hands:
            hands.append(other.claimed())
        elif isinstance(op, Exists) and hands and not hands[0].lost:
            other.do(settle.release(other.context, hands[0]))
            picked(client)  # another thread of this client lists it again

    client.do(step_over_if_there(client.context, pick), meanwhile)
    assert [claimed.lost for claimed in hands] == [True]
    assert client.reports == []
    assert client.work() == ["a"]


def test_an_entry_of_a_task_that_is_not_pending_is_reported_once(client: Client) -> None:
    """A copy of an entry, left by a hand, of a task that is finished: nobody tries it for ever."""
    pick = picked(client)
    client.work()
    assert client.zk.multi(client.session, (Create(pick.path, b""),)).committed
    picked(client)
    for _ in range(2):
        client.do(step_over_if_there(client.context, pick))
    assert [path for path, _ in client.reports] == [pick.path]
    assert pick.path in client.context.quarantine
