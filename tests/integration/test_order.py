"""Strict order on a real server: claims happen in the order in which enqueues were committed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from airflow_provider_zkmq.engine import AnyOf, Claim, ConsumeTimes, Message, Queue, String, Zkmq
from airflow_provider_zkmq.engine.core.model.lanes import SEGMENT_ENTRIES
from tests.integration.clients import clients, end_session, together
from tests.support import eventually

PRODUCERS = 8
LANES = (None, "a", "b", "c", "d")
Delivery = tuple[int, str]
"""A claim's token and its task."""


@pytest.fixture
def line(zk: Zkmq) -> Queue:
    """A queue of strict order."""
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


def _take_all(client: Zkmq, expected: threading.Semaphore, settle: Callable[[Claim], object]) -> list[Delivery]:
    """Claim and settle until every expected task has been taken, by whomever."""
    taken = []
    while expected.acquire(blocking=False):
        claim = client.queue("line").claim(timeout=60)
        assert claim is not None
        taken.append((claim.token, claim.task.id))
        settle(claim)
    return taken


def _complete(claim: Claim) -> None:
    claim.complete()


def _run(
    hosts: str,
    root: str,
    produce: Callable[[list[Message], Zkmq], list[str]],
    work: list[list[Message]],
    consumers: int,
) -> tuple[list[str], list[Delivery]]:
    """Producers and consumers at once, each a session of its own: the ids as producers got them; the deliveries."""
    expected = threading.Semaphore(sum(map(len, work)))
    with clients(hosts, root, len(work) + consumers) as connected:
        producers, takers = connected[: len(work)], connected[len(work) :]
        jobs = [partial(produce, messages, client) for messages, client in zip(work, producers, strict=True)]
        found = together(*jobs, *(partial(_take_all, client, expected, _complete) for client in takers))
    ids = [task_id for some in found[: len(work)] for task_id in some]
    return ids, [delivery for some in found[len(work) :] for delivery in some]


def _committed(queue: Queue, ids: list[str]) -> list[str]:
    """Tasks by the transaction that enqueued them; those of one transaction as their producer gave them."""
    znodes = {task_id: queue.tree(task_id) for task_id in ids}
    born = {task_id: next(z.czxid for z in tree if z.path.endswith("/data")) for task_id, tree in znodes.items()}
    return sorted(ids, key=lambda task_id: (born[task_id], ids.index(task_id)))


def _delivered(deliveries: list[Delivery]) -> list[str]:
    return [task_id for _, task_id in sorted(deliveries)]


@pytest.mark.parametrize("consumers", [1, 4])
def test_first_deliveries_are_in_commit_order(zookeeper: str, root: str, line: Queue, consumers: int) -> None:
    """8 producers and 1 or 4 consumers at once, one lane: the order of the claims is that of the enqueues."""
    work = [[_message(f"{number}.{at}") for at in range(40)] for number in range(PRODUCERS)]
    ids, deliveries = _run(zookeeper, root, _singly, work, consumers)
    assert len(deliveries) == 40 * PRODUCERS
    assert _delivered(deliveries) == _committed(line, ids)


@pytest.mark.parametrize("consumers", [1, 4])
def test_the_order_holds_across_lanes(zookeeper: str, root: str, line: Queue, consumers: int) -> None:
    """Tasks with different filters stand in different lanes; a consumer without a selector sees one line."""
    rng = random.Random(3)
    work = [[_message(f"{number}.{at}", rng.choice(LANES)) for at in range(40)] for number in range(PRODUCERS)]
    ids, deliveries = _run(zookeeper, root, _singly, work, consumers)
    assert _delivered(deliveries) == _committed(line, ids)
    assert len(line._session.client.get_children(line._context.paths.at("queue"))) == len(LANES)


@pytest.mark.parametrize("consumers", [1, 4])
def test_the_order_holds_across_segments_and_bulk_enqueues(
    zookeeper: str, root: str, line: Queue, consumers: int
) -> None:
    """Many tasks at once by 3 producers, in two lanes of several segments; ties stand in the producer's order."""
    work = [[_message(f"{number}.{at}", (None, "a")[at % 8 == 0]) for at in range(100)] for number in range(3)]
    with clients(zookeeper, root, 3) as producers:
        found = together(*(partial(_in_bulk, *pair) for pair in zip(work, producers, strict=True)))
    ids = [task_id for some in found for task_id in some]
    ids += line.enqueue_many([_message(at) for at in range(1_100)])
    assert len(_segments(line)) >= 3
    expected = threading.Semaphore(len(ids))
    with clients(zookeeper, root, consumers) as takers:
        found = together(*(partial(_take_all, client, expected, _complete) for client in takers))
    assert _delivered([delivery for some in found for delivery in some]) == _committed(line, ids)
    assert len(_segments(line)) == 1


def _segments(queue: Queue) -> list[str]:
    """The segments of the lane without filters."""
    return sorted(queue._session.client.get_children(queue._context.paths.at("queue", "p09999")))


def test_bulk_enqueues_race_with_claims(zookeeper: str, root: str, line: Queue) -> None:
    """3 producers of many at once, one of which rolls over to a new segment; 4 consumers drain and drop the old."""
    sizes = (SEGMENT_ENTRIES + 100, 80, 80)
    work = [[_message(at, (None, "a")[at % 9 == 8]) for at in range(size)] for size in sizes]
    ids, deliveries = _run(zookeeper, root, _in_bulk, work, 4)
    assert _delivered(deliveries) == _committed(line, ids)


def test_a_selector_sees_its_part_of_the_line(zookeeper: str, root: str, line: Queue) -> None:
    """A consumer with a selector gets what fits, of several lanes, in commit order."""
    rng = random.Random(5)
    work = [[_message(f"{number}.{at}", rng.choice(LANES)) for at in range(15)] for number in range(PRODUCERS)]
    with clients(zookeeper, root, PRODUCERS) as producers:
        found = together(*(partial(_singly, *pair) for pair in zip(work, producers, strict=True)))
    ids = [task_id for some in found for task_id in some]
    selector = AnyOf(1, "lane==a", "lane==d")
    fitting = {task.id for task in line.tasks(selector=selector)}
    assert 0 < len(fitting) < len(ids)
    taken = []
    while (claim := line.claim(selector=selector)) is not None:
        taken.append((claim.token, claim.task.id))
        claim.complete()
    assert _delivered(taken) == [task_id for task_id in _committed(line, ids) if task_id in fitting]


def _release(claim: Claim, _owner: Zkmq) -> None:
    claim.release()


def _fail(claim: Claim, _owner: Zkmq) -> None:
    assert claim.fail("broken") == "inserted"


def _end_session(_claim: Claim, owner: Zkmq) -> None:
    end_session(owner)


def _known(queue: Queue, claim: Claim) -> bool:
    """Whether this client has seen that the claim has ended: then its watches on that have fired, too."""
    live = queue._session.client.get_children(queue._context.paths.at("live"))
    return claim.task.consumer not in live or queue.task(claim.task.id).state == "inserted"


def _rest(queue: Queue) -> list[str]:
    """What is claimed from now on, in order, and completed."""
    order = []
    while (claim := queue.claim()) is not None:
        order.append(claim.task.id)
        claim.complete()
    return order


GIVING_BACK = pytest.mark.parametrize("give_back", [_release, _fail, _end_session])


@pytest.fixture
def owner(zookeeper: str, root: str) -> Iterator[Zkmq]:
    """A client that takes a task and gives it back."""
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        yield client


@GIVING_BACK
@pytest.mark.parametrize("lanes", [(None,), ("a", "b", None)])
def test_what_is_given_back_is_next(
    line: Queue, owner: Zkmq, give_back: Callable[[Claim, Zkmq], None], lanes: tuple[str | None, ...]
) -> None:
    """Released, failed without backoff, or its session ended: it is claimed next, before what was enqueued later."""
    ids = [line.enqueue(b"x", {"lane": lane} if lane else None) for lane in lanes for _ in range(5)]
    claimed = owner.queue("line").claim()
    assert claimed is not None
    second = line.claim()
    assert second is not None
    ids.append(line.enqueue(b"later"))
    give_back(claimed, owner)
    eventually(lambda: _known(line, claimed))
    assert [claimed.task.id, second.task.id, *_rest(line)] == [ids[0], ids[1], ids[0], *ids[2:]]


@GIVING_BACK
def test_a_place_outlives_its_segment(line: Queue, owner: Zkmq, give_back: Callable[[Claim, Zkmq], None]) -> None:
    """What is given back after its segment was drained and dropped is claimed before all of the later segments."""
    ids = line.enqueue_many([_message(at) for at in range(SEGMENT_ENTRIES + 10)])
    claimed = owner.queue("line").claim()
    assert claimed is not None
    order = []
    while len(order) < SEGMENT_ENTRIES + 2:
        claim = line.claim()
        assert claim is not None
        order.append(claim.task.id)
        claim.complete()
    assert len(_segments(line)) == 1
    give_back(claimed, owner)
    eventually(lambda: _known(line, claimed))
    assert [*order, *_rest(line)] == [*ids[1 : SEGMENT_ENTRIES + 3], ids[0], *ids[SEGMENT_ENTRIES + 3 :]]
