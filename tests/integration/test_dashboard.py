"""The metrics of a worker as Prometheus reads them, and the Grafana dashboard whose queries ask for them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_zkmq import worker_metrics
from airflow_provider_zkmq.engine import Error, Message, Queue, Snooze
from airflow_provider_zkmq.worker_metrics import WorkerMetrics
from tests.integration.test_worker_metrics import fetched, running
from tests.support import eventually

DASHBOARD = Path(__file__).parents[2] / "docs/deploy/grafana-dashboard.json"


def program(name: str) -> str | None:
    """Prometheus's server, or `promtool`: on the path, or in the folder that ``ZKMQ_PROMETHEUS`` names."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("ZKMQ_PROMETHEUS", ""), os.environ["PATH"]]))


def queries() -> dict[str, str]:
    """The queries of the dashboard by panel and letter, as Grafana sends them for all queues and a rate by minutes."""
    told = {"$queue": ".+", "$__rate_interval": "1m"}
    return {
        f"{panel['title']}, {target['refId']}": re.sub(r"\$\w+", lambda found: told[found[0]], target["expr"])
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    }


@contextmanager
def a_busy_worker(q: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A worker that has finished, failed and snoozed tasks, and goes on doing so; gives where it is scraped."""
    monkeypatch.setattr(worker_metrics, "READ_EVERY", 0.0)
    outcomes: dict[bytes, Any] = {b"bad": Error("no"), b"later": Snooze(1)}
    metrics = WorkerMetrics(q)
    settled = {"on_settled": metrics.on_settled, "monitor": metrics.monitor}
    worker = q.worker(metrics.handler(lambda task: outcomes.get(task.data, b"done")), **settled)
    with metrics.serve("127.0.0.1:0", worker) as address, running(worker):
        q.enqueue_many([Message(data) for data in (*outcomes, b"good")])
        eventually(lambda: worker.finished + worker.failed >= 3)
        eventually(lambda: 'state="dead"} 1.0' in fetched(address, "/metrics")[1])
        yield address


def parts(query: Any) -> Iterator[Any]:
    """A parsed query and all its parts."""
    yield query
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "args"):
        inner = getattr(query, name, None)
        for each in inner if isinstance(inner, list) else [inner]:
            if each is not None:
                yield from parts(each)


def test_every_query_of_the_dashboard_asks_for_what_a_worker_shows(q, monkeypatch, subtests) -> None:
    """By name, by the values of labels, and by the labels that are grouped by."""
    with a_busy_worker(q, monkeypatch) as address:
        families = text_string_to_metric_families(fetched(address, "/metrics")[1])
        series = [sample for family in families for sample in family.samples]
    asked = set()
    for name, query in queries().items():
        with subtests.test(name):
            found = list(parts(promql_parser.parse(query)))
            for selector in (each for each in found if isinstance(each, promql_parser.VectorSelector)):
                assert all(str(each.op) in {"MatchOp.Equal", "MatchOp.Re"} for each in selector.matchers.matchers)
                wanted = {each.name: each.value for each in selector.matchers.matchers}
                matching = [
                    sample
                    for sample in series
                    if sample.name == selector.name
                    and all(re.fullmatch(value, sample.labels.get(label, "")) for label, value in wanted.items())
                ]
                assert matching, query
                asked.add(selector.name)
                grouped = [each.modifier.labels for each in found if isinstance(each, promql_parser.AggregateExpr)]
                assert {label for labels in grouped for label in labels} <= matching[0].labels.keys()
    # Of a histogram the buckets are asked for; when each series began is the client library's own.
    shown = {re.sub("_(sum|count)$", "_bucket", each.name) for each in series if not each.name.endswith("_created")}
    assert asked == shown, "the dashboard shows all there is"


def test_promtool_finds_no_fault_with_the_metrics(q, monkeypatch) -> None:
    """Names, units and help are as Prometheus wants them."""
    promtool = program("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: install Prometheus, or name its folder by ZKMQ_PROMETHEUS")
    with a_busy_worker(q, monkeypatch) as address:
        page = fetched(address, "/metrics")[1]
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_real_prometheus_answers_every_query_of_the_dashboard(q, monkeypatch, tmp_path, subtests) -> None:
    """With numbers: it scrapes a worker that is at work, and is asked what Grafana asks."""
    prometheus = program("prometheus")
    if prometheus is None:
        pytest.skip("Prometheus is not here: install it, or name its folder by ZKMQ_PROMETHEUS")
    with a_busy_worker(q, monkeypatch) as address:
        scraped = {"job_name": "zkmq", "scrape_interval": "1s", "static_configs": [{"targets": [address]}]}
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scraped]}))  # JSON is YAML
        listening = f"127.0.0.1:{free_port()}"
        command = [prometheus, "--config.file=prometheus.yml", f"--web.listen-address={listening}"]
        with subprocess.Popen(
            [*command, "--storage.tsdb.path=data"], cwd=tmp_path, stderr=subprocess.DEVNULL
        ) as server:
            try:
                for name, query in queries().items():
                    with subtests.test(name):

                        def has_numbers(query: str = query) -> bool:
                            q.enqueue_many([Message(b"good"), Message(b"bad")])  # a rate needs a rise
                            try:
                                page = urlopen(f"http://{listening}/api/v1/query?{urlencode({'query': query})}")
                            except OSError:  # it does not listen yet
                                return False
                            with page:
                                results = json.load(page)["data"]["result"]
                            values = [float(each["value"][1]) for each in results]
                            return bool(values) and all(value == value for value in values)  # noqa: PLR0124  no NaN

                        eventually(has_numbers, within=60)
            finally:
                server.terminate()
