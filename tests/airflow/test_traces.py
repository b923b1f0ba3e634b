"""One trace from a DAG's task through the queue to a worker, which is a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_provider_zkmq.decorators.zkmq import zkmq_task
from airflow_provider_zkmq.engine import State
from tests.airflow.conftest import enqueuing
from tests.support import eventually


@pytest.fixture
def spans(monkeypatch) -> InMemorySpanExporter:
    """The spans of this process, which is Airflow's."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture
def collected() -> Iterator[tuple[str, list]]:
    """Where a process can send its spans, as to OpenTelemetry's collector, and what has come."""
    spans = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in request.resource_spans:
                named = {each.key: each.value.string_value for each in resource.resource.attributes}
                spans.extend((named["service.name"], span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", spans
    server.shutdown()
    thread.join()
    server.server_close()


@contextlib.contextmanager
def a_worker(zookeeper: str, root: str, **environment: str) -> Iterator[None]:
    """`zkmq worker` while the block runs; its command tells the trace that it is in."""
    command = [sys.executable, "-m", "airflow_provider_zkmq", "worker", "jobs", "--exec", "printf $TRACEPARENT"]
    environment = {**os.environ, "ZKMQ_HOSTS": zookeeper, "ZKMQ_ROOT": root, **environment}
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_a_trace_spans_the_dag_the_queue_and_the_worker(queue, zookeeper, root, context, spans, collected):
    """The worker sends its part itself, and a command that it runs can go on with it."""
    address, came = collected
    with trace.get_tracer("airflow").start_as_current_span("worker.t") as airflow:
        task_id = enqueuing(data="x").execute(context)
    with a_worker(zookeeper, root, OTEL_EXPORTER_OTLP_ENDPOINT=address):
        (done,) = queue.wait([task_id], timeout=60)
    send, _ = spans.get_finished_spans()
    assert send.parent.span_id == airflow.get_span_context().span_id
    eventually(lambda: came)
    ((service, process),) = came
    assert (service, process.name) == ("zkmq-worker", "process jobs")
    assert int.from_bytes(process.trace_id) == airflow.get_span_context().trace_id == send.context.trace_id
    assert int.from_bytes(process.parent_span_id) == send.context.span_id
    assert done.result.decode().startswith(f"00-{process.trace_id.hex()}-{process.span_id.hex()}-")
    assert {each.key: each.value.string_value for each in process.attributes}["messaging.message.id"] == task_id


def test_a_worker_without_traces_hands_on_the_context(queue, zookeeper, root, context, spans):
    """A command sees the trace of the enqueue."""
    with trace.get_tracer("airflow").start_as_current_span("worker.t"):
        task_id = enqueuing(data="x", metadata={"order": 7}).execute(context)
    metadata = queue.task(task_id).metadata
    assert (metadata["order"], sorted(metadata)) == (7, ["airflow", "order", "traceparent"])
    with a_worker(zookeeper, root):
        assert queue.wait([task_id], timeout=60)[0].result.decode() == metadata["traceparent"]


def test_a_later_try_in_another_trace_adopts_what_the_first_wrote(queue, context, spans, subtests):
    """Also of a batch with its follow-up: nothing is written twice, and the first trace stays."""
    shapes = {"one": {"data": "x"}, "own id": {"data": "x", "zkmq_task_id": "own"}, "many": {"messages": ["x", "y"]}}
    for name, arguments in {**shapes, "batch": {"messages": ["x", "y"], "batch": "b", "then": "z"}}.items():
        with subtests.test(name):
            operator, before = enqueuing(**arguments), queue.counts()["inserted"]
            kept = []
            for _ in range(2):
                with trace.get_tracer("airflow").start_as_current_span("try"):
                    operator.execute(context)
                kept.append({task.id: task.metadata for task in queue.tasks(limit=100)})
            assert kept[0] == kept[1]
            assert queue.counts()["inserted"] - before == (1 if "data" in arguments else 2)
            for metadata in kept[0].values():
                assert metadata["traceparent"].startswith("00-")
            context["ti"].task_id += "_"


def test_a_task_of_airflow_that_handles_goes_on_with_the_trace(queue, context, spans):
    """`@task.zkmq`: the span of its function is a child of the enqueue's."""
    with trace.get_tracer("airflow").start_as_current_span("worker.t"):
        task_id = enqueuing(data="x").execute(context)
    zkmq_task(lambda job: job.data, task_id="u")().operator.execute(context)
    assert queue.task(task_id).state is State.FINISHED
    send, _, process = spans.get_finished_spans()
    assert (process.name, process.parent.span_id) == ("process jobs", send.context.span_id)


def test_without_a_trace_nothing_is_carried(queue, context):
    """As Airflow is where nobody has switched on its traces: it has a context that is not sampled."""
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0)))
    with trace.use_span(unsampled):
        task_id = enqueuing(data="x").execute(context)
    assert list(queue.task(task_id).metadata) == ["airflow"]
