"""What others are told of queues: metrics of Airflow's own stats, assets, and what OpenLineage asks for."""

from __future__ import annotations

import asyncio
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from airflow.providers.common.compat.openlineage import facet
from airflow.sdk import Asset
from airflow.sdk._shared.observability.metrics import stats as backends
from airflow.sdk.lineage import HookLineageCollector
from airflow.sdk.observability import stats

from airflow_provider_zkmq.assets.zkmq import convert_asset_to_openlineage, create_asset
from airflow_provider_zkmq.decorators import zkmq
from airflow_provider_zkmq.decorators.zkmq import zkmq_task
from airflow_provider_zkmq.engine import ConfigError, Message, RetryPolicy
from airflow_provider_zkmq.hooks import metrics, settings
from airflow_provider_zkmq.hooks.lineage import queue_asset, record_lineage
from tests.airflow.conftest import define, enqueuing, kill, sensor
from tests.airflow.test_events import watching_with


@pytest.fixture
def said():
    """What a backend of Airflow's stats is given, in order, while the test runs."""
    kept = []

    class Backend:
        def incr(self, stat, count=1, *, tags=None):
            kept.append((stat, count, tags))

        timing = incr

    before = (backends._factory, backends._backend, backends._export_legacy_names)
    stats.initialize(factory=Backend, export_legacy_names=True)
    yield kept
    backends._factory, backends._backend, backends._export_legacy_names = before


JOBS = {"queue": "jobs"}


def test_counters_and_times_have_their_names_and_tags(queue, said):
    """Enqueued, claimed, settled, dead; wait and run in milliseconds; each with its queue. None is not sent."""
    metrics.count_enqueued("jobs", 3)
    metrics.count_enqueued("jobs", 0)
    queue.enqueue("x")
    claim = queue.claim(timeout=20)
    metrics.count_claimed("jobs", [claim.task])
    claim.complete()
    metrics.count_settled("jobs", "completed", run_ms=12)
    metrics.count_dead("jobs", 2)
    waited = ("zkmq.wait_time", claim.task.claimed_ms - claim.task.enqueued_ms, JOBS)
    settled = ("zkmq.settled", 1, {"queue": "jobs", "outcome": "completed"})
    assert said[:3] == [("zkmq.enqueued", 3, JOBS), ("zkmq.claimed", 1, JOBS), waited]
    assert said[3:] == [settled, ("zkmq.run_time", 12, JOBS), ("zkmq.dead", 2, JOBS)]
    said.clear()
    task, never, dead = queue.task(claim.task.id), queue.enqueue("never"), queue.enqueue("y", priority=1)
    kill(queue, "no")
    queue.cancel(never)
    metrics.count_ended("jobs", [task, queue.task(never)])
    waited = ("zkmq.wait_time", task.claimed_ms - task.enqueued_ms, JOBS)  # as told at the end
    assert said == [waited, ("zkmq.run_time", task.ended_ms - task.claimed_ms, JOBS)], "and nothing of one unclaimed"
    metrics.count_ended("jobs", [queue.task(dead)])
    assert said[-1] == ("zkmq.dead", 1, JOBS)


def test_all_that_are_dead_are_counted_however_few_have_a_line(queue, said, context, monkeypatch):
    """Of what `@task.zkmq` handled: the others are read in parts, and those that are tried again are not dead."""
    monkeypatch.setattr(zkmq, "_AT_ONCE", 8)
    once, again = RetryPolicy(attempts=1), RetryPolicy(attempts=2, factor=3600, max_backoff=7200)
    queue.enqueue_many([Message(b"x", policy=again if number % 10 == 0 else once) for number in range(50)])

    def handle(job):
        raise ValueError("no")

    summary = zkmq_task(handle, task_id="t")().operator.execute(context)
    assert (summary["failed"], queue.counts()["dead"]) == (50, 45)
    assert sum(number for name, number, _ in said if name == "zkmq.dead") == 45


async def test_what_a_trigger_claims_is_counted(queue, said, shared):
    """Once for each claim, with how long the task had waited: the runs that accept them claim nothing."""
    await asyncio.to_thread(queue.enqueue_many, [Message("x") for _ in range(3)])
    async with watching_with(mode="claim", max_in_flight=3) as events:
        left = 3
        while left:
            left -= len((await events.get())["claims"])
    assert sum(number for name, number, _ in said if name == "zkmq.claimed") == 3
    assert sum(name == "zkmq.wait_time" for name, _, _ in said) == 3


def test_they_can_be_switched_off_and_a_wrong_option_fails_nothing(said, monkeypatch, caplog):
    """By the section ``[zkmq]``; the option is asked for once the work is done: a warning names it, once."""
    monkeypatch.setenv("AIRFLOW__ZKMQ__STATS", "False")
    metrics.count_enqueued("jobs", 1)
    metrics.count_settled("jobs", "failed", run_ms=1)
    assert said == []
    monkeypatch.setenv("AIRFLOW__ZKMQ__STATS", "perhaps")
    settings._warn.cache_clear()
    for number in (2, 1):
        metrics.count_enqueued("jobs", number)
    assert said == [("zkmq.enqueued", 2, JOBS), ("zkmq.enqueued", 1, JOBS)], "the default holds"
    [warning] = [each.message for each in caplog.records if "[zkmq] stats" in each.message]
    assert "perhaps" in warning


@pytest.fixture
def provider(monkeypatch):
    """Airflow's provider for OpenLineage, as far as it is asked: it may be left out of an installation."""
    made = ModuleType("airflow.providers.openlineage.extractors")
    made.OperatorLineage = lambda inputs=(), outputs=(): SimpleNamespace(inputs=inputs, outputs=outputs)
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", ModuleType("airflow.providers.openlineage"))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    converter = "airflow_provider_zkmq.assets.zkmq.convert_asset_to_openlineage"
    monkeypatch.setattr(converter, lambda asset, _: asset.uri)


@pytest.fixture
def connection(monkeypatch):
    """A connection with servers in no order."""
    extra = {"root": "/team/queues", "queue": "jobs"}
    define(monkeypatch, host="zk2,ZK1:2182", login="ann", password="marker-password", extra=extra)


@pytest.mark.usefixtures("provider", "connection")
def test_who_writes_and_who_reads_name_the_same_queue(monkeypatch, tmp_path):
    """By the one spelling of its asset, else the connection's; queues in files have no servers, and no dataset."""
    written = enqueuing(data="x").get_openlineage_facets_on_complete(None)
    assert (list(written.inputs), written.outputs) == ([], ["zkmq://zk1:2182,zk2:2181/team/queues/jobs"])
    read = sensor(batch="b", zkmq_queue="orders").get_openlineage_facets_on_complete(None)
    assert (read.inputs, list(read.outputs)) == (["zkmq://zk1:2182,zk2:2181/team/queues/orders"], [])
    assert "marker" not in str((written, read))
    define(monkeypatch, host=f"textqueue://{tmp_path}")
    assert enqueuing(data="x", zkmq_queue="jobs").get_openlineage_facets_on_complete(None).outputs == []


@pytest.mark.usefixtures("connection")
def test_an_archive_reads_a_queue_and_writes_a_folder(monkeypatch, tmp_path):
    """By Airflow's collector of lineage, which a task of any kind has."""
    collector = HookLineageCollector()
    monkeypatch.setattr("airflow.sdk.lineage.get_hook_lineage_collector", lambda: collector)
    record_lineage("zkmq_default", "orders", (tmp_path / "orders").as_uri())
    found = collector.collected_assets
    assert [each.asset.uri for each in found.inputs] == [queue_asset("zkmq_default", "orders").uri]
    assert [each.asset.uri for each in found.outputs] == [(tmp_path / "orders").as_uri()]


def test_a_queue_has_one_asset_uri(monkeypatch, subtests):
    """In order, in lower case, with ports, also the factory's; else it is refused, and shows no part of a password."""
    unknown = "hosts that are not understood"
    for uri, said in (
        ("zkmq://zk1/orders", "names no queue"),
        ("zkmq:///zkmq/orders", "names no queue"),
        ("zkmq://zk1/zkmq/or,ders", "queue 'or,ders' is not allowed"),
        ("zkmq://zk1:0/zkmq/orders", "hosts 'zk1:0'"),
        ("zkmq://zk1/zkmq/orders?a=b", "more than which queue"),
        ("zkmq://ann@zk1/zkmq/orders", "more than which queue"),
        *((f"zkmq://us:{part}@zk1/zkmq/orders", "names no queue") for part in ("ann?x", "Ann#x")),
        *((f"zkmq://{hosts}/zkmq/orders", unknown) for hosts in ("us:ann/x@zk1", "us:12ann", "z%6b1")),
    ):
        with subtests.test(uri=uri):
            with pytest.raises(ConfigError, match=re.escape(said)) as caught:
                Asset(uri=uri)
            assert "ann" not in str(caught.value).lower()
    for written, kept in (
        ("zkmq://zk1:2181/zkmq/orders", "zkmq://zk1:2181/zkmq/orders"),
        ("zkmq://ZK2,zk1:2182/team/queues/orders/", "zkmq://zk1:2182,zk2:2181/team/queues/orders"),
        ("zkmq://zk1:02181,[::1]/zkmq/orders", "zkmq://[::1]:2181,zk1:2181/zkmq/orders"),
    ):
        with subtests.test(written=written):
            assert Asset(uri=written).uri == kept
    made = create_asset(hosts="zk2,zk1", queue="orders", extra={"a": 1})
    assert (made.uri, made.extra) == ("zkmq://zk1:2181,zk2:2181/zkmq/orders", {"a": 1})
    assert made.name == made.uri == create_asset(hosts="ZK1:2181,zk2", queue="orders", root="zkmq/").name
    for queue in ("orders#1", "orders?1"):  # what follows would be no part of the path
        with pytest.raises(ConfigError, match="is not allowed"):
            create_asset(hosts="zk1", queue=queue)
    monkeypatch.setattr(facet, "Dataset", lambda **parts: parts)
    dataset = convert_asset_to_openlineage(made, None)
    assert dataset == {"namespace": "zkmq://zk1:2181,zk2:2181", "name": "zkmq/orders"}
