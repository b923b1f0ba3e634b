"""The in-memory ZooKeeper answers as the real one does: the same operations on both, compared one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine.core.zk_operations import Create, Multi
from tests.conformance import scenarios, sessions, watching
from tests.conformance.servers import MemoryServer, RealServer, Server
from tests.conformance.world import SCENARIOS, World

SHOWN = 12
#: The modules that describe the scenarios.
DESCRIBED = (scenarios, sessions, watching)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server of our own, which looks for empty containers once a second rather than once a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-Dznode.container.checkIntervalMs=1000")
        with EmbeddedServer(tmp_path_factory.mktemp("zookeeper"), force_sync=False) as server:
            yield server.hosts


def _played(name: str, server: Server) -> list[str]:
    with closing(server):
        world = World(server, f"/{name}")
        server.connect().perform(Multi((Create(world.base),)))
        SCENARIOS[name](world)
        return world.record()


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_in_memory_server_answers_as_the_real_one(hosts: str, name: str) -> None:
    """Results, refusals and their places, Stats, watch events and their order: no operation tells them apart."""
    real = _played(name, RealServer(hosts))
    memory = _played(name, MemoryServer())
    assert real
    different = [f"real:   {ours}\nmemory: {theirs}" for ours, theirs in zip_longest(real, memory) if ours != theirs]
    assert not different, f"{len(different)} of {len(real)} answers differ:\n" + "\n".join(different[:SHOWN])
