"""The lock of a clean-up that was cut short is taken over or given back by its client, not kept by its session."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.protocol.ops import Children
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.upkeep import collect as upkeep_collect
from airflow_provider_zkmq.engine.core.upkeep import lock
from airflow_provider_zkmq.engine.errors import Unavailable
from tests.fake_zookeeper import Crash
from tests.unit.world import BROKEN_OFF, LOST_REPLY, Client, Fault, new_queue


def locked(client: Client) -> bool:
    return client.context.paths.at("lock") in client.zk.nodes


def collect(client: Client, fault: Fault = lambda _op: None) -> bool:
    return client.do(upkeep_collect.collect_garbage(client.context), fault).ran


def on_lock(client: Client, effect: Any) -> Fault:
    """A fault at each write of the lock."""
    path = client.context.paths.at("lock")
    return lambda op: effect if isinstance(op, Multi) and any(item.path == path for item in op.ops) else None


def break_off(client: Client, where: str) -> None:
    path = client.context.paths.at("finished")
    within = lambda op: BROKEN_OFF if isinstance(op, Children) and op.path == path else None
    with pytest.raises(Crash):
        collect(client, on_lock(client, BROKEN_OFF) if where == "lock" else within)


@pytest.mark.parametrize("where", ["lock", "within"])
def test_a_broken_off_clean_up_is_followed_by_another_of_the_same_client(where: str) -> None:
    """Cancelled or interrupted: the lock stands, other clients wait for it, its own client takes it over."""
    client = new_queue()
    other = Client(client.zk)
    break_off(client, where)
    assert (locked(client), collect(other)) == (True, False)
    assert (collect(client), locked(client), collect(other)) == (True, False, True)


@pytest.mark.parametrize("where", ["lock", "within"])
def test_an_abandoned_lock_is_given_back(where: str) -> None:
    """What a client does anyway gives the lock back; afterwards it costs nothing, and others clean up."""
    client = new_queue()
    break_off(client, where)
    client.do(lock.release_abandoned_lock(client.context))
    assert (locked(client), collect(Client(client.zk))) == (False, True)
    assert list(lock.release_abandoned_lock(client.context)) == []


def test_a_clean_up_under_way_in_another_thread_is_not_taken_for_abandoned() -> None:
    """The same client's second clean-up does not run, and nobody gives the first one's lock back."""
    client = new_queue()
    first = upkeep_collect.collect_garbage(client.context)
    result: Any = None
    while not locked(client):
        op = first.send(result)
        result = client._execute(op, lambda _op: None)
    assert not collect(client)
    client.do(lock.release_abandoned_lock(client.context))
    assert locked(client)
    first.close()
    assert collect(client)


def test_a_lock_is_not_given_back_that_is_another_s() -> None:
    """Our lock ended with its session, and another client has it by now."""
    client = new_queue()
    break_off(client, "within")
    client.zk.expire(client.session)
    other = Client(client.zk)
    break_off(other, "within")
    client.session = client.zk.connect()
    client.do(lock.release_abandoned_lock(client.context))
    assert locked(other)


def test_a_clean_up_whose_last_reply_is_lost_for_good_is_told_as_done() -> None:
    """It has run; only the lock's end is unknown, and is made sure of later."""
    client = new_queue()
    path = client.context.paths.at("lock")

    def fault(op: Any) -> Any:
        ends = isinstance(op, Multi) and any(item.path == path and not hasattr(item, "data") for item in op.ops)
        return Unavailable("no server") if ends else None

    assert collect(client, fault)
    assert locked(client)
    client.do(lock.release_abandoned_lock(client.context))
    assert not locked(client)


def test_lost_replies_leave_no_lock() -> None:
    client = new_queue()
    seen = []

    def once(op: Any) -> Any:
        effect = on_lock(client, LOST_REPLY)(op)
        seen.append(effect)
        return effect if seen.count(LOST_REPLY) in {1, 3} else None

    assert collect(client, once)
    assert not locked(client)
