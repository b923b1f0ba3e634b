"""The model of one ensemble, held against a server: what is counted is predicted exactly."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.bench.scale import report


@pytest.mark.full
def test_what_is_counted_is_what_was_predicted(zookeeper: str) -> None:
    """Ten times as much as what the model was fitted to: znodes, requests and watches; rates are only measured.

    Other tests may use the server at the same time: what it counts of all is compared only roughly.
    """
    lines: list[str] = []
    rows = {row.what: row for row in report(zookeeper, 10, 1e9, lines.append)}
    claim = rows["requests of a first claim, tasks"]
    assert claim.predicted == claim.measured
    assert rows["watches, waiters"].measured >= rows["watches, waiters"].size
    znodes = rows["zk_znode_count, tasks"]
    assert 0.8 < znodes.measured / znodes.predicted < 1.2
    assert rows["enqueues/s, so many at once"].measured > 0
    assert sum("ensemble(s)" in line for line in lines) == 4
