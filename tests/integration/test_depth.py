"""However much is pending: a client starts, claims and settles with as many requests as at an empty queue.

Requests are counted, never time. With ``ZKMQ_SCALE=1`` the deep queue holds 100 000 tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_zkmq.engine import Message, Queue, String, Zkmq
from tests.integration.clients import clients, spent
from tests.integration.conftest import taken
from tests.support import fresh_root

LARGE = os.environ.get("ZKMQ_SCALE") == "1"
DEEP = 100_000 if LARGE else 3_000
SHALLOW = 100
TIMES = 3
Cost = dict[str, int]


@pytest.fixture(scope="module")
def plant(zookeeper: str) -> Iterator[Zkmq]:
    """Queues with nothing, little and much; and one with much that is foreign."""
    with Zkmq.connect(zookeeper, root=fresh_root(), session_timeout=20, gc=False) as client:
        for name, mine, foreign in (
            ("empty", 0, 0),
            ("shallow", SHALLOW, 0),
            ("deep", DEEP, 0),
            ("alone", SHALLOW, 0),
            ("foreign", SHALLOW, DEEP),
        ):
            queue = client.queue(name)
            queue.configure(filters={"kind": String()})
            queue.enqueue_many([Message(b"x", {"kind": "foreign"}) for _ in range(foreign)])
            queue.enqueue_many([Message(b"x", {"kind": "mine"}) for _ in range(mine or 1)])
            if not mine:  # its lane and its segment are there, and nothing is pending
                taken(queue).complete()
        yield client


def cold(hosts: str, root: str, queue: str, call: Callable[[Queue], object]) -> Cost:
    """The requests of a client that has just come, from its first to the end of the call."""
    with clients(hosts, root, 1, session_timeout=20) as (client,):
        there = client.queue(queue)
        spent(client, lambda: call(there))
        return client.requests


def warm(hosts: str, root: str, queue: str, call: Callable[[Queue], object]) -> Cost:
    """The cheapest of a few calls of a client that has made one before."""
    with clients(hosts, root, 1, session_timeout=20) as (client,):
        there = client.queue(queue)
        call(there)
        return min((spent(client, lambda: call(there)) for _ in range(TIMES)), key=lambda cost: sum(cost.values()))


def cycle(queue: Queue) -> None:
    taken(queue).complete()


def cycle_of_mine(queue: Queue) -> None:
    taken(queue, selector="kind==mine").complete()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda queue: queue.claim(selector="kind==nothing"), id="a claim that finds nothing"),
        pytest.param(lambda queue: queue.enqueue(b"x", {"kind": "mine"}, priority=-3), id="an enqueue"),
    ],
)
def test_a_client_starts_at_a_deep_queue_as_at_an_empty_one(
    zookeeper: str, plant: Zkmq, call: Callable[[Queue], object]
) -> None:
    """From its first request to its first answer: the same requests, kind by kind."""
    cold(zookeeper, plant.config.root, "empty", call)  # lanes that the call makes are there for both
    cold(zookeeper, plant.config.root, "deep", call)
    assert cold(zookeeper, plant.config.root, "deep", call) == cold(zookeeper, plant.config.root, "empty", call)


@pytest.mark.parametrize("ways", [cold, warm])
def test_foreign_tasks_cost_a_filtered_claim_nothing(zookeeper: str, plant: Zkmq, ways: Callable[..., Cost]) -> None:
    """Cold and warm: with very many foreign tasks beside it or none, and at a hundred pending or very many."""
    for call, names in ((cycle_of_mine, ("alone", "foreign")), (cycle, ("shallow", "deep"))):
        few, many = (ways(zookeeper, plant.config.root, name, call) for name in names)
        assert few == many
    if ways is warm:
        put = lambda queue: queue.enqueue(b"x", {"kind": "mine"})
        few, many = (warm(zookeeper, plant.config.root, name, put) for name in ("shallow", "deep"))
        assert few == many == {"Multi": 1}
