"""What OpenLineage is told: the names of queues, where its provider is installed; where it is not, nothing is."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
from airflow.sdk.lineage import HookLineageCollector

from airflow_provider_zkmq.operators import lineage
from airflow_provider_zkmq.operators.lineage import ReadsQueue, WritesQueue, queue_asset, tell_archived
from tests.airflow.conftest import define


class Enqueue(WritesQueue):
    """What an operator that writes has to offer."""

    def __init__(self, queue=None):
        self.zkmq_conn_id, self.zkmq_queue = "zkmq_default", queue


class Wait(ReadsQueue, Enqueue):
    """What a sensor has."""


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
def test_who_writes_and_who_reads_name_the_same_queue():
    """As output and as input, by the one spelling of its asset; the connection's queue where none is named."""
    written = Enqueue().get_openlineage_facets_on_complete(None)
    assert (list(written.inputs), written.outputs) == ([], ["zkmq://zk1:2182,zk2:2181/team/queues/jobs"])
    read = Wait("orders").get_openlineage_facets_on_complete(None)
    assert (read.inputs, list(read.outputs)) == (["zkmq://zk1:2182,zk2:2181/team/queues/orders"], [])
    assert "marker" not in str((written, read))


@pytest.mark.usefixtures("provider")
def test_queues_in_files_have_no_dataset(monkeypatch, tmp_path):
    """There are no servers that could be the namespace."""
    define(monkeypatch, host=f"textqueue://{tmp_path}")
    assert Enqueue("jobs").get_openlineage_facets_on_complete(None).outputs == []


@pytest.mark.usefixtures("connection")
def test_an_archive_reads_a_queue_and_writes_a_folder(monkeypatch, tmp_path):
    """By Airflow's collector of lineage, which a task of any kind has."""
    collector = HookLineageCollector()
    monkeypatch.setattr("airflow.sdk.lineage.get_hook_lineage_collector", lambda: collector)
    tell_archived("zkmq_default", "orders", str(tmp_path))
    found = collector.collected_assets
    assert [each.asset.uri for each in found.inputs] == [queue_asset("zkmq_default", "orders").uri]
    assert [each.asset.uri for each in found.outputs] == [(tmp_path / "orders").as_uri()]


def test_without_its_provider_nothing_is_imported():
    """The operators' mixins cost an installation without OpenLineage no import of it."""
    code = (
        "import sys; from airflow_provider_zkmq.operators import lineage; "
        "assert not [name for name in sys.modules if 'openlineage' in name or name == 'airflow']"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
