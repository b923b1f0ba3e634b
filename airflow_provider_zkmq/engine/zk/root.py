"""The path under which the queues live."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from airflow_provider_zkmq.engine.core.protocol.ops import Exists
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Failure, Multi, Outcome
from airflow_provider_zkmq.engine.errors import ZkmqError


def ensure_root(path: str) -> Generator[Exists | Multi, Any, None]:
    """Create a path's missing parts; a create that meets its znode is as good as one that made it."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        part = "/" + "/".join(parts[:depth])
        while (yield Exists(part)) is None:
            outcome: Outcome = yield Multi((Create(part),))
            if outcome.committed or outcome.failure is Failure.NODE_EXISTS:
                break
            if not outcome.unknown:
                msg = f"creating {part} was refused: {outcome.detail}"
                raise ZkmqError(msg)
