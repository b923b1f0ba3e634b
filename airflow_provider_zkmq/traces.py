"""Traces from the enqueue to the handler, by OpenTelemetry: the context is in a task's metadata, as W3C spells it.

Nothing of OpenTelemetry is imported for a process that has not done so itself, or whose environment asks for no traces.
The context of a trace that is not sampled is not carried: nobody records it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from .engine import TRACE_CONTEXT

if TYPE_CHECKING:
    from opentelemetry import context, trace

    from . import engine

_VALUE: Final = re.compile(r"[ -~]{1,512}")
_NAME: Final = "airflow_provider_zkmq"
_LOG: Final = logging.getLogger(_NAME)


# --- The context: from the span under way into metadata, from metadata to whoever handles the task.


def carry(metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return metadata for a task that also carry the trace under way, unless they carry one already."""
    kept = dict(metadata or {})
    if TRACE_CONTEXT[0] in kept or "opentelemetry.trace" not in sys.modules:
        return kept
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried: dict[str, str] = {}
    if get_current_span().get_span_context().trace_flags.sampled:
        TraceContextTextMapPropagator().inject(carried)
    return carried | kept


def carried(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What metadata carry of a trace."""
    found = {name: metadata.get(name) for name in TRACE_CONTEXT}
    return {name: value for name, value in found.items() if isinstance(value, str) and _VALUE.fullmatch(value)}


def environment(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The variables ``TRACEPARENT`` and ``TRACESTATE`` for a command that handles a task."""
    return {name.upper(): value for name, value in (carry() or carried(metadata)).items()}


# --- Spans, where somebody has set up OpenTelemetry in this process.


@contextmanager
def enqueuing(queue: str, messages: Sequence[engine.Message]) -> Iterator[list[engine.Message]]:
    """A span around an enqueue; gives the messages as they are to be enqueued: each carries the span."""
    if "opentelemetry.trace" not in sys.modules:
        yield list(messages)
        return
    from opentelemetry.trace import SpanKind, get_tracer

    attributes = _attributes(queue, "send") | {"messaging.batch.message_count": len(messages)}
    with get_tracer(_NAME).start_as_current_span(f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes):
        yield [replace(each, metadata=carry(each.metadata) or None) for each in messages]


def handler(function: Callable[..., Any], queue: str) -> Callable[..., Any]:
    """The same handler, each call in a span: a child of the one that enqueued the task, with a link to the one here."""
    if "opentelemetry.trace" not in sys.modules:
        return function
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    from .engine import Error, Retry

    def traced(task: engine.Task, *more: object) -> Any:
        parent: context.Context | None = None
        links: list[trace.Link] = []
        if sent := carried(task.metadata):
            parent, here = TraceContextTextMapPropagator().extract(sent), trace.get_current_span().get_span_context()
            links = [trace.Link(here)] if here.is_valid else []
        attributes = _attributes(queue, "process") | {"messaging.message.id": task.id, "zkmq.attempt": task.attempt}
        attributes["messaging.message.body.size"] = len(task.data)
        with trace.get_tracer(_NAME).start_as_current_span(
            f"process {queue}", parent, trace.SpanKind.CONSUMER, attributes, links
        ) as span:
            returned = function(task, *more)
            if isinstance(returned, Error | Retry):
                span.set_status(trace.StatusCode.ERROR, str(returned.error))
            return returned

    return traced


def _attributes(queue: str, operation: str) -> dict[str, str | int]:
    """By OpenTelemetry's conventions for messaging."""
    kind = {"messaging.operation.type": operation, "messaging.operation.name": operation}
    return {"messaging.system": "zkmq", "messaging.destination.name": queue, **kind}


# --- A worker's process: what its environment says of traces.

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def export(service: str) -> Callable[[], object]:
    """Send this process's spans where OpenTelemetry's variables say; returns what sends the last of them.

    ``OTEL_TRACES_EXPORTER`` is ``otlp``, which is meant where an endpoint is given, ``console``, which prints on
    standard error, or ``none``. Where the extra ``[traces]`` is missing, a warning says so. Raises `ConfigError`.
    """
    wanted = os.environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(os.environ.get, _ENDPOINTS)) else "none")
    if wanted == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return lambda: None
    if wanted not in {"otlp", "console"}:
        from .engine import ConfigError

        raise ConfigError(f"OTEL_TRACES_EXPORTER={wanted!r} is not understood: otlp, console or none")
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider, export
        from opentelemetry.trace import get_tracer_provider, set_tracer_provider

        if isinstance(already := get_tracer_provider(), TracerProvider):  # as `opentelemetry-instrument` does
            return already.force_flush
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
        provider = TracerProvider(resource=Resource.create(named))
        if wanted == "console":
            provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(out=sys.stderr)))
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            provider.add_span_processor(export.BatchSpanProcessor(OTLPSpanExporter()))
    except ModuleNotFoundError as error:
        _LOG.warning("no traces are sent: %s is missing: pip install 'airflow-provider-zkmq[traces]'", error.name)
        return lambda: None
    set_tracer_provider(provider)
    return provider.shutdown
