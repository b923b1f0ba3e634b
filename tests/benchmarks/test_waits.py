"""The benchmark of deferred waits: what it counts is asserted, what it measures is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from tests.benchmarks.waits import measure


@pytest.mark.full
def test_waits_share_a_session_and_have_a_watch_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many: one session, one look-up of the connection, a watch for each, some for the queue; all are told."""
    monkeypatch.setenv("AIRFLOW_CONN_ZKMQ_DEFAULT", "")
    with EmbeddedServer(tmp_path, force_sync=False) as server:
        few, many = (measure(server.hosts, sensors, sensors // 3, 0) for sensors in (30, 120))
    for found, waits in ((few, 40), (many, 160)):
        assert (found["sessions"], found["lookups"], found["failed"]) == (1, 1, [])
        assert len(found["delays"]) == waits
        assert waits <= found["watches"] <= waits + 20
