"""On a real server: outages that last, and what their callers are told; places and damage that only it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_zkmq.engine import Message, OutcomeUnknown, Queue, RetryPolicy, Zkmq
from airflow_provider_zkmq.engine.errors import CorruptRecord
from tests.proxy import Proxy
from tests.support import eventually, fresh_root


class Outage(Proxy):
    """After the reply that it loses, no connection comes to anything until `up`."""

    def _reply(self, packet: bytes, lost: set[int]) -> bool:
        passed = super()._reply(packet, lost)
        if not passed:
            self.down()
        return passed


@pytest.fixture
def outage(zookeeper: str) -> Iterator[Outage]:
    made = Outage(zookeeper)
    yield made
    made.close()


@pytest.fixture
def q(outage: Outage) -> Iterator[Queue]:
    with Zkmq.connect(outage.hosts, root=fresh_root(), gc=False, request_timeout=1.0) as zk:
        queue = zk.queue("q")
        queue.configure(policy=RetryPolicy(factor=0))
        yield queue


def test_an_enqueue_that_a_long_outage_leaves_unknown_is_one_task_when_made_again(outage: Outage, q: Queue) -> None:
    """The reply is lost and no server comes back in time: `OutcomeUnknown`; the same call then gives the one id."""
    outage.cut(0)
    with pytest.raises(OutcomeUnknown) as unknown:
        q.enqueue(b"x")
    outage.up()
    eventually(lambda: q._session.connected.is_set())
    assert unknown.value.task_ids == (q.enqueue(b"x"),)
    assert tuple(task.id for task in q.tasks()) == unknown.value.task_ids


def test_a_batch_that_a_long_outage_leaves_unknown_is_one_batch_when_made_again(outage: Outage, q: Queue) -> None:
    """The reply to its sealing is lost: the repeated call finds it written, and it ends once."""
    messages = [Message(str(number)) for number in range(30)]
    outage.cut(3)  # opened, two transactions of members, sealed
    with pytest.raises(OutcomeUnknown) as unknown:
        q.enqueue_many(messages, batch="b", then=Message(b"then"))
    outage.up()
    eventually(lambda: q._session.connected.is_set())
    ids = q.enqueue_many(messages, batch="b", then=Message(b"then"))
    assert (unknown.value.task_ids, q.batch("b").total) == (tuple(ids), 30)


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_an_updated_backoff_is_promoted(q: Queue, order: str) -> None:
    """Another delay, then none, then other priorities: the server takes every path, and claims go on."""
    q.configure(order=order)
    q.enqueue(b"x", task_id="a")
    claim = q.claim()
    assert claim is not None
    claim.fail("e", backoff=60)
    q.enqueue(b"y", task_id="a", update=True, delay=50)
    q.enqueue(b"y", task_id="a", update=True, priority=2)
    q.enqueue(b"y", task_id="a", update=True, priority=2, delay=0.2)
    got = q.claim(timeout=10)
    assert got is not None
    assert (got.task.id, got.task.data, got.task.priority) == ("a", b"y", 2)


def test_a_missing_entry_is_named_by_the_server_s_refusal(q: Queue) -> None:
    """A cancel of a task whose entry somebody deleted ends, and names it; the rest of the queue goes on."""
    q.enqueue(b"x", task_id="a")
    client, base = q._session.client, q._context.paths.base
    lane = client.get_children(f"{base}/queue")[0]
    entry = f"{base}/queue/{lane}/00000001/" + client.get_children(f"{base}/queue/{lane}/00000001")[0]
    client.delete(entry)
    with pytest.raises(CorruptRecord, match=entry):
        q.cancel("a")
    good = q.enqueue(b"x")
    claim = q.claim()
    assert claim is not None
    assert claim.task.id == good
