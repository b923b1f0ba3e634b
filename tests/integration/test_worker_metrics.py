"""A worker's numbers and health over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_zkmq import worker_metrics
from airflow_provider_zkmq.engine import ConfigError, Error, Message, Snooze, Worker, Zkmq
from airflow_provider_zkmq.worker_metrics import WorkerMetrics
from tests.support import eventually


def fetched(address: str, path: str) -> tuple[int, str]:
    """The status and the text of a page."""
    try:
        with urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def samples(address: str) -> dict[tuple[str, ...], float]:
    """The metrics by their names and labels, but for the queue's, which each has."""
    families = text_string_to_metric_families(fetched(address, "/metrics")[1])
    found = {}
    for sample in (each for family in families for each in family.samples):
        assert sample.labels.pop("queue") == "census"
        found[(sample.name, *sample.labels.values())] = sample.value
    return found


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """The worker works while the block runs."""
    worker.start()
    try:
        yield
    finally:
        worker.stop()
        worker.join()


def test_a_worker_shows_what_it_did_and_what_there_is_to_do(q, monkeypatch) -> None:
    """By outcome, by state and in seconds; as Prometheus reads it."""
    monkeypatch.setattr(worker_metrics, "READ_EVERY", 0.0)
    metrics, go = WorkerMetrics(q), threading.Event()

    def handle(task):
        go.wait(60)
        return {"bad": Error("no"), "later": Snooze(3_600)}.get(task.id, b"done")

    q.enqueue_many([Message(b"", task_id=name) for name in ("good", "bad", "later")])
    worker = q.worker(
        metrics.handler(handle), threads=1, prefetch=0, on_settled=metrics.on_settled, monitor=metrics.monitor
    )
    with metrics.serve("127.0.0.1:0", worker) as address, running(worker):
        eventually(lambda: samples(address)["zkmq_in_hand",] == 1)
        eventually(lambda: samples(address).get(("zkmq_tasks", "claimed")) == 1)
        told = samples(address)
        assert (told["zkmq_tasks", "inserted"], told["zkmq_paused",]) == (2, 0)
        eventually(lambda: fetched(address, "/readyz") == (200, "ok\n"))
        go.set()
        eventually(lambda: worker.finished + worker.failed == 3)
        eventually(lambda: samples(address)["zkmq_handler_seconds_count",] == 3)
        eventually(lambda: samples(address)["zkmq_tasks", "dead"] == 1)
        told = samples(address)
        outcomes = {name[1]: count for name, count in told.items() if name[0] == "zkmq_deliveries_total"}
        assert outcomes == {"finished": 1, "failed": 1, "snoozed": 1, "lost": 0}
        assert told["zkmq_wait_seconds_count",] == 3
        assert (told["zkmq_tasks", "finished"], told["zkmq_tasks", "dead"], told["zkmq_in_hand",]) == (1, 1, 0)
        q.pause()
        eventually(lambda: samples(address)["zkmq_paused",] == 1)
        metrics.stop()
        assert fetched(address, "/readyz")[0] == 503
        assert fetched(address, "/livez") == (200, "ok\n")
        assert fetched(address, "/")[0] == 404


def test_a_worker_whose_zookeeper_is_frozen_is_not_ready_until_it_answers(q, door, root, monkeypatch) -> None:
    """No page waits for it: the worker's own numbers are shown, the queue's left out. Then both go on."""
    monkeypatch.setattr(worker_metrics, "READ_EVERY", 0.0)
    monkeypatch.setattr(worker_metrics, "SILENT", 3.0)
    with Zkmq.connect(door.hosts, root=root, session_timeout=30, gc=False) as client:
        metrics = WorkerMetrics(client.queue("census"))
        options = {"on_settled": metrics.on_settled, "monitor": metrics.monitor}
        worker = client.queue("census").worker(metrics.handler(lambda _task: b"done"), **options)
        with metrics.serve("127.0.0.1:0", worker) as address:
            assert fetched(address, "/readyz")[0] == 503, "it has not begun"
            with running(worker):
                eventually(lambda: ("zkmq_tasks", "inserted") in samples(address))
                assert fetched(address, "/readyz") == (200, "ok\n")
                door.hold("requests")
                eventually(lambda: fetched(address, "/readyz")[0] == 503)
                told = samples(address)
                assert told["zkmq_deliveries_total", "finished"] == told["zkmq_ready",] == 0
                assert ("zkmq_tasks", "inserted") not in told
                door.flow()
                task = q.enqueue(b"x")
                assert q.wait([task], timeout=60)[0].result == b"done"
                eventually(lambda: fetched(address, "/readyz")[0] == 200)
                eventually(lambda: samples(address).get(("zkmq_tasks", "finished")) == 1)


@pytest.mark.parametrize("address", ["9100", "host:", "127.0.0.1:99999", "nosuchhost.invalid:9100"])
def test_an_address_where_nobody_can_listen_is_refused(q, address) -> None:
    """So is a port that is taken; in one line."""
    worker = q.worker(print)
    with pytest.raises(ConfigError, match="listen at"), WorkerMetrics(q).serve(address, worker):
        pass
    with WorkerMetrics(q).serve("127.0.0.1:0", worker) as taken:
        with pytest.raises(ConfigError, match=f"nobody can listen at {taken}"), WorkerMetrics(q).serve(taken, worker):
            pass
