"""Spans of enqueues and handlers, and the context that metadata carry from one to the other."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_provider_zkmq import traces
from airflow_provider_zkmq.engine import ConfigError, Error, Message, Retry, Snooze, Success

SENT = {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01", "tracestate": "vendor=1"}


def provided(monkeypatch: pytest.MonkeyPatch, **options: Any) -> InMemorySpanExporter:
    """What keeps the spans of this process while the test runs."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(**options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return provided(monkeypatch)


def a_task(**metadata: object) -> Any:
    return SimpleNamespace(id="t-1", attempt=2, data=b"four", metadata=metadata)


def test_an_enqueue_and_its_handler_are_one_trace(spans: InMemorySpanExporter) -> None:
    """The handler's span is a child of the enqueue's, which is one of the span around it; both say what it is about."""
    with trace.get_tracer("t").start_as_current_span("dag"), traces.enqueuing("orders", [Message(b"x")]) as sent:
        pass
    assert traces.handler(lambda _task, more: more, "orders")(a_task(**sent[0].metadata), b"done") == b"done"
    send, dag, process = spans.get_finished_spans()
    assert [(each.name, each.kind.name) for each in (send, process)] == [
        ("send orders", "PRODUCER"), ("process orders", "CONSUMER"),
    ]  # fmt: skip
    assert {each.context.trace_id for each in (send, dag, process)} == {dag.context.trace_id}
    assert (send.parent.span_id, process.parent.span_id) == (dag.context.span_id, send.context.span_id)
    common = {"messaging.system": "zkmq", "messaging.destination.name": "orders"}
    named = {name: {f"messaging.operation.{part}": name for part in ("type", "name")} for name in ("send", "process")}
    assert dict(send.attributes) == common | named["send"] | {"messaging.batch.message_count": 1}
    own = {"messaging.message.id": "t-1", "zkmq.attempt": 2, "messaging.message.body.size": 4}
    assert dict(process.attributes) == common | named["process"] | own


def test_metadata_of_the_caller_are_kept(spans: InMemorySpanExporter) -> None:
    """Beside the context; one that stands there already stays, and messages are otherwise as they were."""
    message = Message(b"x", {"size": 1}, task_id="a", metadata={"order": 7})
    with traces.enqueuing("q", [message, Message(b"y", metadata=SENT)]) as (first, second):
        assert first.metadata == {"order": 7} | traces.carry()
        assert (first.data, first.filters, first.task_id) == (b"x", {"size": 1}, "a")
    assert second.metadata == SENT
    assert message.metadata == {"order": 7}


def test_a_handler_s_failure_is_its_span_s(spans: InMemorySpanExporter) -> None:
    """An exception is recorded and goes on; `Error` and `Retry` are failures, other outcomes none."""
    for outcome in (Error("no"), Retry("busy"), Snooze(3), Success(b""), None):
        traces.handler(lambda _task, it=outcome: it, "q")(a_task())
    with pytest.raises(ValueError, match="broken"):
        traces.handler(lambda _task: int("broken"), "q")(a_task())
    ended = spans.get_finished_spans()
    assert [each.status.status_code.name for each in ended] == ["ERROR", "ERROR", "UNSET", "UNSET", "UNSET", "ERROR"]
    assert [each.status.description for each in ended[:2]] == ["no", "busy"]
    assert ended[-1].events[0].name == "exception"


def test_a_context_that_is_none_begins_a_trace(spans: InMemorySpanExporter) -> None:
    """Whatever a producer wrote there; a task without one is part of what goes on here, another is linked to it."""
    for metadata in ({"traceparent": 5}, {"traceparent": "nonsense"}, {"traceparent": "00-" + "0" * 32}):
        traces.handler(lambda _task: None, "q")(a_task(**metadata))
    assert [each.parent for each in spans.get_finished_spans()] == [None] * 3
    spans.clear()
    with trace.get_tracer("t").start_as_current_span("here"):
        traces.handler(lambda _task: None, "q")(a_task())
        traces.handler(lambda _task: None, "q")(a_task(**SENT))
    own, other, here = spans.get_finished_spans()
    assert (own.parent.span_id, other.parent.span_id) == (here.context.span_id, 0xDEF)
    assert [link.context.span_id for link in other.links] == [here.context.span_id]


def test_a_trace_that_is_not_sampled_is_not_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody records it: tasks have no more metadata than without."""
    provided(monkeypatch, sampler=sampling.ALWAYS_OFF)
    with traces.enqueuing("q", [Message(b"x")]) as (message,):
        assert message.metadata is None


def test_a_command_gets_the_context_in_its_environment(spans: InMemorySpanExporter) -> None:
    """That of the span under way, else of the task; what is no context of a trace is left out."""
    assert traces.environment(SENT) == {"TRACEPARENT": SENT["traceparent"], "TRACESTATE": "vendor=1"}
    assert traces.environment({"traceparent": "a\0b", "tracestate": ["x"]}) == {}
    seen: list[dict[str, str]] = []
    traces.handler(lambda task: seen.append(traces.environment(task.metadata)), "q")(a_task(**SENT))
    (span,) = spans.get_finished_spans()
    assert seen[0]["TRACEPARENT"] == f"00-{0xABC:032x}-{span.context.span_id:016x}-01"


def test_nothing_is_imported_where_nobody_asks_for_traces() -> None:
    """Neither by an enqueue nor for a handler."""
    code = (
        "import sys; from airflow_provider_zkmq import traces; from airflow_provider_zkmq.engine import Message\n"
        "end = traces.export('s')\n"
        "with traces.enqueuing('q', [Message(b'x')]) as sent: assert sent[0].metadata is None\n"
        "assert traces.carry({'a': 1}) == {'a': 1} and traces.handler(print, 'q') is print\n"
        "end(); sys.exit('opentelemetry' in ' '.join(sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_exporter_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In one sentence; what is asked for by name only is exported nowhere."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ConfigError, match="otlp, console or none"):
        traces.export("s")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    traces.export("s")()
    assert "pip install 'airflow-provider-zkmq[traces]'" in caplog.text
