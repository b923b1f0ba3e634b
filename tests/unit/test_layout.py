"""The layout's version: written into the root when that is made, and read by everybody who connects."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine.core import zk_operations
from airflow_provider_zkmq.engine.core.read.queue_existence import refuse_another_layout
from airflow_provider_zkmq.engine.core.tasks import admin
from airflow_provider_zkmq.engine.core.zk_operations import Create, SetData
from airflow_provider_zkmq.engine.errors import ConfigError
from tests.unit.world import Client, FakeZooKeeper, new_queue


def ensured(client: Client, root: str) -> None:
    def steps() -> zk_operations.Procedure[None]:
        yield zk_operations.EnsureRoot(root)

    client.do(steps())


def test_a_root_gets_the_version_when_it_is_made_or_was_empty() -> None:
    """What is above it is not ours; a root that somebody made for us, or with other things below, is taken as it is."""
    client = Client(FakeZooKeeper())
    client.write(Create("/made"), Create("/made/foreign"))
    for root in ("/a/b/c", "/made"):
        for _ in range(2):
            client.do(refuse_another_layout(root))
            ensured(client, root)
        assert (client.zk.nodes[root].data, client.zk.nodes[root].version) == (b"1", 1 if root == "/made" else 0)
    assert client.zk.nodes["/a/b"].data == b""


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"2", "has layout 2, and this version knows layout 1"),
        (b"x", "b'x', which is no version"),
        (b"", "b''"),
    ],
)
def test_another_layout_is_refused_and_nothing_is_written(data: bytes, told: str) -> None:
    """So are queues under a root that says nothing; the error says what can be done."""
    client = new_queue()
    client.write(SetData("/zkmq", data))
    with pytest.raises(ConfigError, match=f"/zkmq .*{told}.*choose another root"):
        client.do(refuse_another_layout("/zkmq"))
    if data:
        before = dict(client.zk.nodes)
        with pytest.raises(ConfigError, match=told):
            client.do(admin.configure(client.context, lock=5))
        assert client.zk.nodes == before
