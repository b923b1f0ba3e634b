"""Several tasks claimed together: in the queue's order, in few requests, read ahead, and within a bound of leases."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core import zk_operations
from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.client_state import MOST, MOST_PACES, Caller, Claimed, Paces, ReadAhead
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING, OrderedEnum
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import interventions, settle
from airflow_provider_zkmq.engine.core.zk_operations import Create, GetMany
from airflow_provider_zkmq.engine.errors import ConfigError
from tests.unit.claiming import ANY, ORDERS, another, counting, ids, many, queue_of, step
from tests.unit.world import Client, new_queue

IN_BOTH_ORDERS = pytest.mark.parametrize("order", ORDERS)
COLOURS = {"c": OrderedEnum("low", "high")}


@IN_BOTH_ORDERS
def test_a_group_is_one_read_and_one_transaction(order: str) -> None:
    """In the queue's order, with one token, each settled by itself; it goes on with other lanes until it has enough."""
    client = queue_of("abcde", order=order)
    client.complete(client.claimed())  # it knows the queue from now on
    counts: Counter[str] = Counter()
    claims = client.do(claim.claim_many(client.context, ANY, 3), counting(counts))
    assert (ids(claims), len({each.token for each in claims})) == (["b", "c", "d"], 1)
    assert (counts["GetMany"], counts["Multi"]) == (1, 1)
    client.complete(claims[1])
    client.do(settle.release(client.context, claims[0]))
    for name in "fg":
        client.put(task_id=name, priority=5)
    assert [ids(many(client, most)) for most in (3, 5, 5)] == [["f", "g", "b"], ["e"], []]
    states = {name: state.state for name, state in client.check().items()}
    assert states == dict.fromkeys("ac", State.FINISHED) | dict.fromkeys("bdefg", State.CLAIMED)


@IN_BOTH_ORDERS
def test_what_cannot_be_claimed_keeps_no_group_from_the_others(order: str) -> None:
    """A foreign entry, one without a task, a task's second one and a corrupt record are reported, and stepped over."""
    client = queue_of("abcde", order=order)
    lane, segment, entry = client.state("b").place.split("/")
    path = client.context.paths.at("queue", lane, segment)
    strange = ("foreign", *(f"{entry.rpartition('~')[0]}~{task_id}" for task_id in ("gone", "e")))
    client.zk.multi(client.session, tuple(Create(f"{path}/{name}") for name in strange))
    client.zk.nodes[client.context.paths.task("c", "state")].data = b"{"
    assert ids(many(client, 5)) == ["a", "b", "d", "e"]
    assert len(client.reports) == 4


def test_a_group_goes_no_further_than_a_segment_in_strict_order() -> None:
    """Of a lane with later segments only the first is read: what other lanes have may not pass what follows there."""
    client = new_queue(order="fifo", filters=COLOURS)
    client.put(task_id="a", filters={"c": "low"})
    client.put(task_id="b", filters={"c": "high"})
    lane = client.state("a").place.split("/")[0]
    slot = next(each for each in client.context.segments.open.values() if each.lane.name == lane)
    slot.count = 512  # the next one opens a segment
    full = client.context.paths.at("queue", lane, slot.segment)
    client.zk.multi(client.session, tuple(Create(f"{full}/foreign{number}") for number in range(511)))
    client.put(task_id="c", filters={"c": "low"})
    client.put(task_id="d", filters={"c": "high"})
    assert client.state("c").place.split("/")[1] != slot.segment
    assert ids(many(client, 4)) == ["a", "b", "c", "d"]


def test_a_large_group_is_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request reads 32 candidates; what does not fit into one transaction is claimed by the next."""
    client, seen = queue_of(f"{number:02}" for number in range(70)), []
    noting = lambda op: seen.append(len(op.paths)) if isinstance(op, GetMany) else None
    assert len(client.do(claim.claim_many(client.context, ANY, 64), noting)) == 64
    assert [size for size in seen if size > 3] == [96, 96]
    monkeypatch.setattr(zk_operations, "MAX_REQUEST", 3_000)
    claims = many(client, 6)
    assert ids(claims) == [str(number) for number in range(64, 70)]
    assert 1 < len({each.token for each in claims}) < 6
    client.check()


# --- no more than leave the queue with so many leases


def bounded(client: Client, most: int, bound: int | None) -> list[Claimed]:
    return many(client, most, Wanted(EVERYTHING, 5, "all", bound))


def leases(client: Client) -> int:
    return len(client.zk.names(client.context.paths.at("leases")))


def test_a_damaged_place_of_leases_keeps_nobody_from_claiming() -> None:
    """The missing znode is made again; what is foreign there, or cannot be read, never ends, and takes no room."""
    client = queue_of("abcdef")
    path = client.context.paths.at("leases")
    del client.zk.nodes[path]
    client.complete(bounded(client, 1, 1)[0])
    client.zk.multi(client.session, (Create(f"{path}/foreign"), Create(f"{path}/t9~nobody", b"?")))
    for _ in range(2):
        client.zk.ms += 60_000
        assert len(bounded(client, 4, 2)) == 2
        assert bounded(client, 4, 2) == []
    assert {"foreign", "t9~nobody"} <= set(client.zk.names(path))


def test_a_bounded_claim_that_is_not_understood_or_wanted_takes_nothing() -> None:
    """What is not understood is refused before a task is read; a caller that is gone leaves the room to others."""
    client = queue_of("a")
    for requested, told in (
        ({"max_leases": 1}, "goes with a lease"),
        ({"max_leases": 0, "lease": 5}, "max_leases 0 is not allowed"),
        ({"prefetch": "some"}, "prefetch 'some' is not allowed"),
    ):
        with pytest.raises(ConfigError, match=told):
            client.do(claim.request_claims(client.context, 1, **requested))  # type: ignore[arg-type]
    wanted = Wanted(EVERYTHING, 5, "all", 1)
    assert client.do(claim.claim_many(client.context, wanted, 1, caller=Caller(left=True))) == []
    assert leases(client) == 0


# --- claims that follow one another read their candidates ahead


def thirty(order: str, data: bytes = b"x", count: int = 30) -> Client:
    return queue_of([f"t{number:02}" for number in range(count)], data, order=order, filters=COLOURS)


def reads(client: Client, seconds: float = 0.0) -> int:
    """How many candidates are asked for by the next claim, which is completed."""
    seen: list[str] = []

    def note(op: Any) -> None:
        if isinstance(op, GetMany):
            seen.extend(path for path in op.paths if path.endswith("/state"))

    client.zk.ms += int(seconds * 1000)
    (claimed,) = client.do(claim.claim_many(client.context, ANY, 1), note)
    client.complete(claimed)
    return len(seen)


@IN_BOTH_ORDERS
def test_claims_that_follow_one_another_read_for_those_to_come(order: str) -> None:
    """More and more at once, as far as they are small; each task comes once, in order.

    Claims far between read their own candidate only, and what was read a second ago is read again.
    """
    client = thirty(order)
    assert [reads(client, 60) for _ in range(5)] == [1] * 5
    client, large = thirty(order), thirty(order, data=b"x" * 50_000)
    assert [reads(client) for _ in range(13)] == [1, 4, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]
    assert sum(reads(large) for _ in range(13)) == 13
    for one in (client, large):
        assert one.work() == [f"t{number:02}" for number in range(13, 30)]
        assert {state.attempt for state in one.check().values()} == {1}
    client = thirty("default")
    assert [reads(client, seconds) for seconds in (0, 0, 0.9, 0.9)] == [1, 4, 0, 8]


@IN_BOTH_ORDERS
@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_is_not_judged_by_what_was_read_before_it(order: str, *, damaged: bool) -> None:
    """Its id was gone when it was read ahead, or its record was corrupt; by then it has been enqueued anew."""
    client = thirty(order, count=6)
    other = another(client)
    assert reads(client) == 1
    stepper = step(client, claim.claim_many(client.context, ANY, 1))
    stepper.until(GetMany, "/state")
    record = client.zk.nodes[client.context.paths.task("t03", "state")]
    if damaged:
        sound, record.data = record.data, b"no record"
        stepper.step()
        record.data = sound
    other.do(interventions.drop(other.context, "t03"))
    client.complete(stepper.finish()[0])
    client.zk.ms += 300  # names that were listed before are not used any more, what was read then is
    other.put(b"new", task_id="t03")
    assert client.work() == ["t02", "t04", "t05", "t03"]
    assert client.reports == []
    assert {state.state for state in client.check().values()} == {State.FINISHED}


def test_a_client_remembers_what_it_read_for_a_second_and_a_few_kinds_of_claims() -> None:
    """As much is read as is small, by what came before; what is read later makes nothing younger."""
    ahead = ReadAhead()
    for size, most in ((100, MOST), (10 * 64_000, 1), (10, 2), (10, 4), (0, 8), (10, MOST)):
        ahead.learn(10, size, 0.0)
        assert ahead.most == most
    ahead = ReadAhead()
    for name, now in (("early", 1.0), ("late", 1.9)):
        ahead.learn(1, 10, now)
        ahead.tasks[name] = ()
    assert ahead.read_at == 1.0  # the oldest of it tells how old all of it is
    paces = Paces(lambda: 5.0)
    for number in range(3 * MOST_PACES):
        assert paces.begin(number) is None
    assert list(paces.kinds) == list(range(2 * MOST_PACES, 3 * MOST_PACES))
    assert paces.begin(3 * MOST_PACES - 1) is paces.kinds[3 * MOST_PACES - 1]
