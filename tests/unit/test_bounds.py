"""What a client remembers, and what a queue keeps, is bounded by what is there, not by what has passed."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine.core.memory import slots
from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.lanes import MAX_LANES, Lane, is_lane, is_shortened
from airflow_provider_zkmq.engine.core.upkeep import collect
from airflow_provider_zkmq.engine.core.writing import place
from tests.unit.world import Client, new_queue

LONG = "x" * 220
KIND = {"kind": String()}


def lanes(client: Client) -> list[str]:
    return client.zk.names(client.context.paths.at("queue"))


def test_a_producer_of_ever_new_filters_does_not_grow() -> None:
    """400 filter sets: the segments that a client remembers are as many as are used, those used last."""
    client = new_queue(filters=KIND)
    for number in range(400):
        client.put(filters={"kind": str(number)})
    assert len(client.context.slots.open) == slots.MAX_OPEN
    client.put(filters={"kind": "10"})
    assert Lane(0, {"kind": "10"}).name in client.context.slots.open
    assert len(client.check()) == 401


@pytest.mark.parametrize("long", [False, True])
def test_lanes_are_bounded_and_pruned_however_their_names_are_spelt(long: bool) -> None:
    """Shortened names count against the bound, and clean-up deletes them once they have been empty for an hour."""
    client = new_queue(filters=KIND)
    for number in range(MAX_LANES + 40):
        client.put(filters={"kind": f"{number}{LONG if long else ''}"})
    assert all(is_shortened(name) == (long and "*" not in name) for name in lanes(client))
    assert len(lanes(client)) == MAX_LANES + 1  # the mixed one takes the rest
    assert len(client.work()) == MAX_LANES + 40
    client.zk.advance(8000)
    client.do(collect.collect_garbage(client.context))
    assert [name for name in lanes(client) if is_lane(name)] == []
    client.put(filters={"kind": f"1{LONG if long else ''}"})
    assert len(client.work()) == 1


def test_vanished_lanes_are_forgotten() -> None:
    """Pruned by anybody's clean-up: this client's next one drops what it remembers of them."""
    client = new_queue(filters=KIND)
    for number in range(20):
        client.put(filters={"kind": f"{number}{LONG}"})
    client.work()
    other = Client(client.zk)
    client.zk.advance(8000)
    other.do(collect.collect_garbage(other.context))
    client.do(collect.collect_garbage(client.context))
    known = client.context.paths.at("queue") + "/"
    left = [path for path in client.context.listings.readings if path.startswith(known)]
    assert (client.context.slots.open, left) == ({}, [])


def test_a_lane_that_is_being_opened_is_not_forgotten() -> None:
    """A slot whose lane another thread is about to create is kept; one whose lane is gone is not."""
    client = new_queue()
    slot = client.do(place.open_segment(client.context, Lane(0, {}), ordered=False))
    place.forget_lanes(client.context, [])
    assert list(client.context.slots.open.values()) == [slot]
    client.put()
    place.forget_lanes(client.context, [])
    assert client.context.slots.open == {}
    client.put()
    assert len(client.work()) == 2


def test_buckets_are_bounded() -> None:
    """A producer of delayed tasks remembers some buckets only; one that was reaped meanwhile is made anew."""
    client = new_queue()
    for number in range(1, slots.MAX_BUCKETS + 50):
        client.put(delay=number * 60)
    assert len(client.context.slots.buckets) <= slots.MAX_BUCKETS
    assert len(client.check()) == slots.MAX_BUCKETS + 49


def test_reports_come_once_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_zkmq.engine.core.memory.quarantine.MAX_QUARANTINE", 10)
    client = new_queue()
    for number in range(25):
        for _ in range(2):
            client.context.report(f"/path{number}", "strange")
    assert (len(client.reports), len(client.context.quarantine.paths) <= 10) == (25, True)
