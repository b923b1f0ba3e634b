"""Strict order on a real server: claims happen in the order in which enqueues were committed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest

from airflow_provider_zkmq.engine import AnyOf, Claim, ConsumeTimes, Message, Queue, String, Zkmq
from airflow_provider_zkmq.engine.core.model.znode_names import SEGMENT_ENTRIES
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.integration.clients import clients, end_session, together
from tests.integration.conftest import taken
from tests.support import eventually

PRODUCERS = 8
LANES = (None, "a", "b", "c", "d")
Delivery = tuple[int, str]
"""A claim's token and its task."""


@pytest.fixture
def line(zk: Zkmq) -> Queue:
    queue = zk.queue("line")
    queue.configure(order="fifo", filters={"lane": String()}, policy=ConsumeTimes(5))
    return queue


def _message(data: object, lane: str | None = None) -> Message:
    return Message(str(data), filters={"lane": lane} if lane else None)


def _singly(messages: list[Message], client: Zkmq) -> list[str]:
    queue = client.queue("line")
    return [queue.enqueue(message.data, message.filters) for message in messages]


def _in_bulk(messages: list[Message], client: Zkmq) -> list[str]:
    return client.queue("line").enqueue_many(messages)


def _take_all(client: Zkmq, expected: threading.Semaphore) -> list[Delivery]:
    """Claim and complete until every expected task has been taken, by whomever."""
    found = []
    while expected.acquire(blocking=False):
        claim = taken(client.queue("line"), timeout=60)
        found.append((claim.token, claim.task.id))
        claim.complete()
    return found


def _run(
    hosts: str,
    root: str,
    produce: Callable[[list[Message], Zkmq], list[str]],
    work: list[list[Message]],
    consumers: int,
    pending: int = 0,
) -> tuple[list[str], list[Delivery]]:
    """Producers and consumers at once, each a session of its own: the ids as producers got them; the deliveries.

    Consumers take what is produced, and what was pending before.
    """
    expected = threading.Semaphore(sum(map(len, work)) + pending)
    with clients(hosts, root, len(work) + consumers) as connected:
        producers, takers = connected[: len(work)], connected[len(work) :]
        jobs = [partial(produce, messages, client) for messages, client in zip(work, producers, strict=True)]
        found = together(*jobs, *(partial(_take_all, client, expected) for client in takers))
    ids = [task_id for some in found[: len(work)] for task_id in some]
    return ids, [delivery for some in found[len(work) :] for delivery in some]


def _committed(queue: Queue, ids: list[str]) -> list[str]:
    """Tasks by the transaction that enqueued them; those of one transaction as their producer gave them."""
    znodes = {task_id: internals(queue).tree(task_id) for task_id in ids}
    born = {task_id: next(z.czxid for z in tree if z.path.endswith("/data")) for task_id, tree in znodes.items()}
    return sorted(ids, key=lambda task_id: (born[task_id], ids.index(task_id)))


def _delivered(deliveries: list[Delivery]) -> list[str]:
    return [task_id for _, task_id in sorted(deliveries)]


def test_first_deliveries_are_in_commit_order(zookeeper: str, root: str, line: Queue) -> None:
    """8 producers and 4 consumers at once, one lane: the order of the claims is that of the enqueues."""
    work = [[_message(f"{number}.{at}") for at in range(20)] for number in range(PRODUCERS)]
    ids, deliveries = _run(zookeeper, root, _singly, work, 4)
    assert len(deliveries) == 20 * PRODUCERS
    assert _delivered(deliveries) == _committed(line, ids)


def test_the_order_holds_across_lanes(zookeeper: str, root: str, line: Queue) -> None:
    """Consumers without a selector see one line of all lanes; one with a selector sees its part, in commit order."""
    rng = random.Random(3)
    work = [[_message(f"{number}.{at}", rng.choice(LANES)) for at in range(20)] for number in range(PRODUCERS)]
    ids, deliveries = _run(zookeeper, root, _singly, work, 4)
    assert _delivered(deliveries) == _committed(line, ids)
    assert len(line._session.client.get_children(line._context.paths.at("queue"))) == len(LANES)
    ids, _ = _run(zookeeper, root, _singly, work, 0)
    selector = AnyOf(1, "lane==a", "lane==d")
    fitting = {task.id for task in line.tasks(state="inserted", selector=selector)}
    assert 0 < len(fitting) < len(ids)
    assert _rest(line, selector) == [task_id for task_id in _committed(line, ids) if task_id in fitting]


def _segments(queue: Queue) -> list[str]:
    """The segments of the lane without filters."""
    return sorted(queue._session.client.get_children(queue._context.paths.at("queue", "p09999")))


@pytest.mark.full
def test_the_order_holds_across_segments_and_bulk_enqueues(zookeeper: str, root: str, line: Queue) -> None:
    """Large lanes roll over to new segments and drop drained ones meanwhile; ties stand in the producer's order."""
    sizes = (SEGMENT_ENTRIES + 200, 80, 80)
    work = [[_message(at, (None, "a")[at % 9 == 8]) for at in range(size)] for size in sizes]
    with clients(zookeeper, root, 3) as producers:
        found = together(*(partial(_in_bulk, *pair) for pair in zip(work, producers, strict=True)))
    assert len(_segments(line)) >= 2
    before = [task_id for some in found for task_id in some]
    ids, deliveries = _run(zookeeper, root, _in_bulk, work, 4, len(before))
    assert _delivered(deliveries) == _committed(line, before + ids)
    assert len(_segments(line)) == 1


def _known(queue: Queue, claim: Claim) -> bool:
    """Whether this client has seen that the claim has ended: then its watches on that have fired, too."""
    live = queue._session.client.get_children(queue._context.paths.at("live"))
    return claim.task.consumer not in live or queue.task(claim.task.id).state == "inserted"


def _rest(queue: Queue, selector: object = None) -> list[str]:
    """What is claimed from now on, in order, and completed."""
    order = []
    while (claim := queue.claim(selector=selector)) is not None:
        order.append(claim.task.id)
        claim.complete()
    return order


GIVING_BACK = {
    "released": lambda claim, _owner: claim.release(),
    "failed without backoff": lambda claim, _owner: claim.fail("broken"),
    "its session ended": lambda _claim, owner: end_session(owner),
}


@pytest.mark.full
def test_what_is_given_back_is_next(line: Queue, other: Zkmq, subtests: pytest.Subtests) -> None:
    """Before what was enqueued later, also where its segment has been drained and dropped meanwhile."""
    for how, give_back in GIVING_BACK.items():
        with subtests.test(how):
            ids = line.enqueue_many([_message(at) for at in range(SEGMENT_ENTRIES + 10)])
            claimed, order = taken(other.queue("line")), []
            while len(order) < SEGMENT_ENTRIES + 2:
                claim = taken(line)
                order.append(claim.task.id)
                claim.complete()
            assert len(_segments(line)) == 1
            give_back(claimed, other)
            eventually(lambda claimed=claimed: _known(line, claimed))
            assert [*order, *_rest(line)] == [*ids[1 : SEGMENT_ENTRIES + 3], ids[0], *ids[SEGMENT_ENTRIES + 3 :]]
