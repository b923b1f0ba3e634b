"""A client does not grow with what has passed: each of its tables holds what exists, or a bounded number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim, take
from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.reading import wait
from airflow_provider_zkmq.engine.core.reading.claims import current_claim
from airflow_provider_zkmq.engine.core.tasks import configure, enqueue, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import collect
from airflow_provider_zkmq.engine.errors import WaitTimeout
from tests.fake_zookeeper import FakeZooKeeper, drive, new_context

WARM, LATER = 70, 200
SLACK = 4
#: What a table may hold although it has passed: it is emptied when it reaches its bound.
BOUND = 64


def sizes(context):
    """How much each table of a client's memory holds, in whichever part it stands."""
    tables = {}
    for part in fields(context):
        owner = getattr(context, part.name)
        if is_dataclass(owner):
            tables |= {f"{part.name}.{spec.name}": getattr(owner, spec.name) for spec in fields(owner)}
    assert {"claims.in_hand", "listings.readings", "slots.open", "quarantine.paths"} <= set(tables)
    readings = context.listings.readings.values()
    worked_out = {
        name: sum(len(getattr(reading, name) or ()) for reading in readings)
        for name in ("subscribers", "stock", "ranks", "verdicts")
    }
    return worked_out | {
        name: len(table) for name, table in tables.items() if isinstance(table, dict | set | list | Mapping)
    }


def live(zk, session, context, order):
    """One round of a client's life: lanes and ids of its own, every way to settle, a wait in vain, clean-up."""
    do = lambda procedure: drive(zk, session, procedure)
    number = zk.zxid
    for at in range(3):
        message = Message(b"x", {"k": f"{number}-{at}" * (1 if at else 40)}, task_id=f"t{number}-{at}")
        do(enqueue.enqueue(context, message))
    do(enqueue.enqueue(context, Message(b"x", delay=2)))
    with pytest.raises(WaitTimeout):
        do(wait.wait(context, [f"t{number}-0"], timeout=0.1))
    zk.advance(3)
    ends = [settle.complete, settle.complete, lambda c, h: settle.fail(c, h, "e", retry=False), settle.release]
    for lease in (None, 30, None, None, None):
        claimed = do(claim.claim(context, take.Wanted(EVERYTHING, lease)))
        if claimed is not None:
            do(ends.pop(0)(context, claimed) if ends else settle.complete(context, claimed))
    claimed = do(claim.claim(context, take.Wanted(EVERYTHING, 30)))
    if claimed is not None:
        by_token = do(current_claim(context, claimed.task_id, claimed.token))
        do(settle.complete(context, by_token))
    do(operate.clear(context))
    zk.advance(7_200)
    do(collect.collect_garbage(context, 1))
    do(configure.pause(context))
    do(configure.resume(context))


def test_nothing_that_a_client_remembers_grows_with_what_has_passed():
    """After three times as many rounds each table holds as much; in both orders."""
    for order in ("default", "fifo"):
        zk = FakeZooKeeper()
        session = zk.connect()
        context = new_context(zk, session)
        policy = RetryPolicy(attempts=5, factor=0)
        drive(zk, session, configure.configure(context, filters={"k": String()}, policy=policy, order=order))
        for _ in range(WARM):
            live(zk, session, context, order)
        before = sizes(context)
        for _ in range(LATER - WARM):
            live(zk, session, context, order)
        after = sizes(context)
        there = sum(path.startswith(context.paths.at("queue")) for path in zk.nodes)  # strict order keeps its lanes
        most = {name: max(size + SLACK, BOUND + there) for name, size in before.items()}
        grown = {name: (before[name], after[name]) for name in before if after[name] > most[name]}
        assert not grown, f"{order}: {grown}"
