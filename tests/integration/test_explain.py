"""Why is nobody taking this task: the answer, on a real server."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine import AnyOf, Queue, String, TaskNotFound, Zkmq
from tests.integration.conftest import CLASSES


def reasons(q: Queue, task_id: str) -> str:
    return "; ".join(q.explain(task_id).reasons)


def test_a_refusing_filter_is_named_for_each_live_consumer(zk: Zkmq, zookeeper: str, root: str, q: Queue) -> None:
    """Each live consumer says by which of its conditions it refuses; who accepts it says so; who has left is gone."""
    q.configure(filters={"performance_class": CLASSES, "region": String()})
    q.enqueue(b"x", {"performance_class": "high_performance"}, task_id="a")
    assert reasons(q, "a") == "no live consumer is registered"
    with Zkmq.connect(zookeeper, root=root, gc=False) as weak:
        assert weak.queue("census").claim({"performance_class": "low"}, "at_least") is None
        assert weak.queue("census").claim(selector=AnyOf(2, "region==eu", "performance_class==low")) is None
        told = q.explain("a")
        assert told.reasons == ("no live consumer accepts it",)
        (verdict,) = told.consumers
        assert verdict.accepts == ("all(performance_class<=low)", "any(2, region==eu, performance_class==low)")
        assert verdict.refuses == (
            "performance_class<=low: the task's is 'high_performance'; only 0 of 2 match where 2 must: "
            "region==eu: the task has no 'region'; performance_class==low: the task's is 'high_performance'"
        )
        q.enqueue(b"x", {"region": "eu"}, task_id="b")
        weak_takes_b = weak.queue("census").claim(selector="region==eu", timeout=20)
        assert weak_takes_b is not None
        assert "it is with consumer" in reasons(q, "b")
        q.enqueue(b"x", {"region": "eu"}, task_id="c")
        told = q.explain("c")
        assert (told.consumers[0].refuses, told.consumers[0].in_hand) == (None, 1)
        assert told.reasons == ("it waits for its turn",)
        assert "accepts it" in str(told)
    assert reasons(q, "a") == "no live consumer is registered"


def test_paused_backoff_and_dedupe_are_reasons(q: Queue) -> None:
    """A pause, a delay, a backoff with its error and an open dedupe window are each told; so is how a task ended."""
    q.enqueue(b"x", task_id="delayed", delay=60)
    q.enqueue(b"x", task_id="failed")
    claim = q.claim()
    assert claim is not None
    claim.fail("broken pump", backoff=60)
    q.enqueue(b"x", task_id="done")
    claim = q.claim()
    assert claim is not None
    claim.complete(dedupe=60)
    q.pause()
    assert "paused" in reasons(q, "delayed")
    assert "(its delay)" in reasons(q, "delayed")
    assert "backoff after: broken pump" in reasons(q, "failed")
    assert "dedupe window" in reasons(q, "done")
    q.cancel("delayed")
    assert "cancelled" in reasons(q, "delayed")
    with pytest.raises(TaskNotFound):
        q.explain("missing")
