"""Clients of one release and a tree that another one wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ConfigError, Queue, Zkmq
from tests.integration.command import Cli, cli
from tests.integration.fronts import KINDS, connected

__all__ = ["cli"]


def tree(client: Any, path: str) -> dict[str, tuple[bytes, int]]:
    """The data of each znode from a path down, and the transaction that last changed it or its children."""
    data, stat = client.get(path)
    seen = {path: (data, max(stat.mzxid, stat.pzxid))}
    for child in client.get_children(path):
        seen |= tree(client, f"{path}/{child}")
    return seen


@pytest.mark.parametrize("layout", ["2", "0", "41"])
def test_another_layout_is_refused_by_every_verb_and_nothing_is_written(
    layout: str, zk: Zkmq, q: Queue, cli: Cli, subtests: pytest.Subtests
) -> None:
    """By one error that names both numbers, on both fronts and for each verb; where it is put right, all is there."""
    server = zk._session.client
    q.enqueue(b"x", task_id="a")
    assert server.get(cli.root)[0] == b"1"
    server.set(cli.root, layout.encode())
    before = tree(server, cli.root)
    says = f"what stands under {cli.root} has layout {layout}, and this version knows layout 1"
    for kind in KINDS:
        with subtests.test(kind), pytest.raises(ConfigError, match=says), connected(kind, cli.hosts, root=cli.root):
            pass
    for line in (
        "status",
        "enqueue census x",
        "worker census --exec cat",
        "fsck census --repair",
        "delete census --yes",
    ):
        with subtests.test(line):
            told = cli.ask(line, code=2, says=says)
            assert told["error"] == "ConfigError"
    assert tree(server, cli.root) == before
    server.set(cli.root, b"1")
    for kind in KINDS:
        with connected(kind, cli.hosts, root=cli.root) as client:
            assert [task.id for task in client.queue(q.name).tasks()] == ["a"]


def test_a_setting_of_a_later_release_is_passed_over(zk: Zkmq, q: Queue, other: Zkmq, root: str) -> None:
    """Who does not know it claims as if it were not there; `configure` writes the settings without it."""
    q.enqueue(b"x")
    server, path = zk._session.client, f"{root}/{q.name}/conf"
    known = json.loads(server.get(path)[0])
    server.set(path, json.dumps(known | {"of_a_later_release": {"a": [1]}}).encode())
    later = other.queue(q.name)
    assert later.claim() is not None
    later.configure(lock=60)
    assert json.loads(server.get(path)[0]) == known | {"lock": 60}
