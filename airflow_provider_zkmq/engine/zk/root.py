"""The path under which the queues live."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from airflow_provider_zkmq.engine.core.model.paths import LAYOUT, check_layout
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, Node
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Failure, Multi, Outcome, SetData
from airflow_provider_zkmq.engine.errors import ZkmqError


def ensure_root(path: str) -> Generator[Exists | Get | Multi, Any, None]:
    """Create a path's missing parts; the last one is given the version of our layout, also where it is there, empty.

    Raises `ConfigError` where it has another.
    """
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts)):
        above = "/" + "/".join(parts[:depth])
        while (yield Exists(above)) is None:
            yield from _write(Create(above))
    version = str(LAYOUT).encode()
    node: Node | None = yield Get(path)
    while node is None or not node.data:
        yield from _write(Create(path, version) if node is None else SetData(path, version, node.stat.version))
        node = yield Get(path)
    check_layout(path, node.data)


def _write(op: Create | SetData) -> Generator[Multi, Any, None]:
    """Write, unless somebody else did; whoever asks looks again, also after a lost reply. Raises `ZkmqError`."""
    outcome: Outcome = yield Multi((op,))
    overtaken = outcome.failure in {Failure.NODE_EXISTS, Failure.BAD_VERSION}
    if not (outcome.committed or outcome.unknown or overtaken):
        msg = f"writing {op.path} was refused: {outcome.detail}"
        raise ZkmqError(msg)
