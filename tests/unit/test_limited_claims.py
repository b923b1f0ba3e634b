"""Claims under a limit on the in-memory ZooKeeper: what goes into one request."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine import Limit, Message, String
from airflow_provider_zkmq.engine.core import zk_operations as zk
from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.tasks import enqueue
from tests.unit.claiming import ANY
from tests.unit.world import new_queue


@pytest.mark.parametrize("most", range(2_000, 9_000, 700))
def test_claims_and_what_counts_them_fit_into_one_request_together(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger one would be answered by a dropped connection, again and again; what is left out is claimed next."""
    client = new_queue(filters={"customer": String()}, limit=Limit(rate=9, per="1h", by="customer"))
    messages = [Message(b"x", {"customer": f"{number}" * 100}) for number in range(9)]
    client.do(enqueue.enqueue_many(client.context, messages))
    monkeypatch.setattr(zk, "MAX_REQUEST", most)
    sizes = list[int]()

    def measure(op: Any) -> None:
        if isinstance(op, zk.Multi):
            sizes.append(zk.request_size(op.ops))

    claims = client.do(claim.claim_many(client.context, ANY, 9), measure)
    assert len(claims) == 9
    assert max(sizes) <= most
