"""What a client remembers, and what a queue keeps, is bounded by what is there, not by what has passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import pytest

from airflow_provider_zkmq.engine.core import client_state as slots
from airflow_provider_zkmq.engine.core.client_state import Context
from airflow_provider_zkmq.engine.core.maintenance import collect
from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.znode_names import Lane, is_lane, is_shortened
from airflow_provider_zkmq.engine.core.read import watch_tasks
from airflow_provider_zkmq.engine.core.read.claim_status import current_claim
from airflow_provider_zkmq.engine.core.tasks import admin, interventions, settle
from airflow_provider_zkmq.engine.core.write import commit
from airflow_provider_zkmq.engine.errors import WaitTimeout
from tests.unit.world import Client, new_queue

WARM, LATER = 40, 110
SLACK = 4
#: What a table may hold although it has passed: it is emptied when it reaches its bound.
BOUND = 64
LONG = "x" * 220
KIND = {"kind": String()}
BASE = "/zkmq/q"


def sizes(context: Context) -> dict[str, int]:
    """How much each table of a client's memory holds, in whichever part it stands."""
    parts = {part.name: getattr(context, part.name) for part in fields(context)}
    tables = {
        f"{name}.{spec.name}": getattr(part, spec.name)
        for name, part in parts.items()
        if is_dataclass(part)
        for spec in fields(part)
    }
    assert {"claims.held", "listings.readings", "segments.open", "ignored_paths.paths"} <= set(tables)
    found = {name: len(table) for name, table in tables.items() if isinstance(table, dict | set | list | Mapping)}
    for name in ("subscribers", "cached_entries", "ranks", "entry_filters"):
        found[name] = sum(len(getattr(reading, name) or ()) for reading in context.listings.readings.values())
    return found


def live(client: Client) -> None:
    """One round of a client's life: lanes and ids of its own, every way to settle, a wait in vain, clean-up."""
    context, number = client.context, client.zk.zxid
    for at in range(3):
        client.put(filters={"k": f"{number}-{at}" * (1 if at else 40)}, task_id=f"t{number}-{at}")
    client.put(delay=2)
    with pytest.raises(WaitTimeout):
        client.do(watch_tasks.wait(context, [f"t{number}-0"], timeout=0.1))
    client.zk.advance(3)
    ends = [settle.complete, settle.complete, lambda c, h: settle.fail(c, h, "e", retry=False), settle.release]
    for lease in (None, 30, None, None, None):
        claimed = client.take(lease=lease)
        if claimed is not None:
            client.do(ends.pop(0)(context, claimed) if ends else settle.complete(context, claimed))
    claimed = client.take(lease=30)
    if claimed is not None:
        client.complete(client.do(current_claim(context, claimed.task_id, claimed.token)))
    client.do(interventions.clear(context))
    client.zk.advance(7_200)
    client.do(collect.collect_garbage(context, 1))
    client.do(admin.pause(context))
    client.do(admin.resume(context))


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_nothing_that_a_client_remembers_grows_with_what_has_passed(order: str) -> None:
    """After twice as many rounds each table holds as much; in both orders."""
    client = new_queue(filters={"k": String()}, policy=RetryPolicy(attempts=5, factor=0), order=order)
    for _ in range(WARM):
        live(client)
    before = sizes(client.context)
    for _ in range(LATER - WARM):
        live(client)
    after = sizes(client.context)
    there = sum(path.startswith(client.context.paths.at("queue")) for path in client.zk.nodes)  # fifo keeps its lanes
    most = {name: max(size + SLACK, BOUND + there) for name, size in before.items()}
    assert not {name: (before[name], after[name]) for name in before if after[name] > most[name]}


def test_a_producer_of_ever_new_filters_and_times_does_not_grow() -> None:
    """The segments and the buckets that a client remembers are as many as are used, those used last."""
    client = new_queue(filters=KIND)
    for number in range(400):
        client.put(filters={"kind": str(number)})
    assert len(client.context.segments.open) == slots.MAX_OPEN
    client.put(filters={"kind": "10"})
    assert Lane(0, {"kind": "10"}).name in client.context.segments.open
    for number in range(1, slots.MAX_BUCKETS + 50):
        client.put(delay=number * 60)
    assert len(client.context.segments.buckets) <= slots.MAX_BUCKETS
    assert len(client.check()) == 401 + slots.MAX_BUCKETS + 49


@pytest.mark.parametrize("long", [False, True])
def test_lanes_are_bounded_pruned_and_forgotten_however_their_names_are_spelt(
    long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody's clean-up deletes lanes that were empty for an hour, and this client's next forgets them."""
    monkeypatch.setattr(commit, "MAX_LANES", 20)
    client, lanes = new_queue(filters=KIND), f"{BASE}/queue"
    other = Client(client.zk)
    for number in range(30):
        client.put(filters={"kind": f"{number}{LONG if long else ''}"})
    assert all(is_shortened(name) == (long and "*" not in name) for name in client.zk.names(lanes))
    assert len(client.zk.names(lanes)) == 20 + 1  # the mixed one takes the rest
    assert len(client.work()) == 30
    client.zk.advance(8000)
    for each in (other, client):
        each.do(collect.collect_garbage(each.context))
    assert not any(map(is_lane, client.zk.names(lanes)))
    left = [path for path in client.context.listings.readings if path.startswith(f"{lanes}/")]
    assert (client.context.segments.open, left) == ({}, [])
    client.put(filters={"kind": f"1{LONG if long else ''}"})
    assert len(client.work()) == 1


def test_a_lane_that_is_being_opened_is_not_forgotten() -> None:
    """A segment whose lane another thread is about to create is kept; one whose lane is gone is not."""
    client = new_queue()
    slot = client.do(commit.open_segment(client.context, Lane(0, {}), ordered=False))
    for kept in ([slot], []):
        commit.forget_lanes(client.context, [])
        assert list(client.context.segments.open.values()) == kept
        client.put()
    assert len(client.work()) == 2


def test_reports_come_once_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was reported long ago is forgotten when the table is full."""
    monkeypatch.setattr("airflow_provider_zkmq.engine.core.client_state.MAX_IGNORED_PATHS", 10)
    client = new_queue()
    for number in range(25):
        for _ in range(2):
            client.context.report(f"/path{number}", "strange")
    assert (len(client.reports), len(client.context.ignored_paths.paths) <= 10) == (25, True)
