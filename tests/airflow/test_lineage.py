"""The assets of queues, and what OpenLineage is told of them where its provider is installed."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from airflow.providers.common.compat.openlineage import facet
from airflow.sdk import Asset
from airflow.sdk.lineage import HookLineageCollector

from airflow_provider_zkmq.assets.zkmq import convert_asset_to_openlineage, create_asset
from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.operators import lineage
from airflow_provider_zkmq.operators.lineage import queue_asset, tell_archived
from tests.airflow.conftest import define, enqueuing, sensor


@pytest.fixture
def provider(monkeypatch):
    """Airflow's provider for OpenLineage, as far as it is asked: it may be left out of an installation."""
    made = ModuleType("airflow.providers.openlineage.extractors")
    made.OperatorLineage = lambda inputs=(), outputs=(): SimpleNamespace(inputs=inputs, outputs=outputs)
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", ModuleType("airflow.providers.openlineage"))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(lineage, "_dataset", lambda asset: asset.uri)


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
    tell_archived("zkmq_default", "orders", str(tmp_path))
    found = collector.collected_assets
    assert [each.asset.uri for each in found.inputs] == [queue_asset("zkmq_default", "orders").uri]
    assert [each.asset.uri for each in found.outputs] == [(tmp_path / "orders").as_uri()]


def test_a_queue_has_one_asset_uri(monkeypatch, subtests):
    """In order, in lower case, with ports, also the factory's; else it is refused, and shows no part of a password."""
    unknown = "hosts that are not understood"
    for uri, told in (
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
            with pytest.raises(ConfigError, match=re.escape(told)) as caught:
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
