"""Traces: one request's way through both services, for OpenTelemetry.

Knows spans of calls that are served and made, W3C's traceparent in their metadata, and how spans
leave. Does not know what a round is. opentelemetry-api does nothing by itself; what records and
sends is the extra `tracing`, loaded only where a collector is set. Without it a caller's
trace id still goes along to the verifier and into the logs.

opentelemetry-instrumentation-grpc isn't used: see docs/decisions/telemetry.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import grpc
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from common.addresses import is_loopback
from common.errors import ConfigError
from common.version import VERSION

NO_TRACER: Tracer = trace.NoOpTracer()
MAX_ROUND_EVENTS = 64  # in one span; a longer session's later rounds are only counted
FLUSH_S = 2.0  # what spans that haven't left yet may take at the end of the process

# Not the propagators of the environment: baggage would carry what clients say anywhere.
_W3C = TraceContextTextMapPropagator()
_SERVER_FAULTS = (
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
)


@contextmanager
def serving(tracer: Tracer, method: str, metadata: Mapping[str, Any]) -> Iterator[Span]:
    """The span of a call that is served, current meanwhile; `end_status` is how it ended."""
    known = {key: metadata[key] for key in _W3C.fields if isinstance(metadata.get(key), str)}
    span = tracer.start_span(
        method, _W3C.extract(known), kind=SpanKind.SERVER, attributes=_attributes(method)
    )
    with trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        yield span


def end_status(span: Span, status: grpc.StatusCode) -> None:
    """How the call ended that the span is of."""
    if span.is_recording():
        span.set_attribute("rpc.grpc.status_code", status.value[0])
        if status in _SERVER_FAULTS:
            span.set_status(Status(StatusCode.ERROR, status.name))


def calling(tracer: Tracer, method: str) -> Span:
    """The span of a call that is made within the one that is served. Whoever begins it ends it."""
    return tracer.start_span(method, kind=SpanKind.CLIENT, attributes=_attributes(method))


def outgoing(span: Span) -> tuple[tuple[str, str], ...]:
    """Metadata that makes the other service's span a child of this one."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span))
    return tuple(carrier.items())


def failed(span: Span, why: str) -> None:
    """The call that was made didn't come to its end."""
    span.set_status(Status(StatusCode.ERROR, why))


def refused(span: Span, status: grpc.StatusCode, why: str) -> None:
    """The call that was made ended with the other's own error: here, each is one."""
    if span.is_recording():
        span.set_attribute("rpc.grpc.status_code", status.value[0])
        failed(span, f"{status.name}: {why}")


def add_round(span: Span, number: int, attributes: Mapping[str, int]) -> None:
    """One round, as an event, as long as there are few."""
    if not span.is_recording():
        return
    span.set_attribute("crossdraft.rounds", number)
    if number <= MAX_ROUND_EVENTS:
        facts = {f"crossdraft.{key}": value for key, value in attributes.items()}
        span.add_event("round" if number else "prefill", {"crossdraft.round": number, **facts})


@contextmanager
def exporting(service: str, endpoint: str | None, ratio: float) -> Iterator[Tracer]:
    """A tracer whose spans go to an OTLP collector at `endpoint`; None: they go nowhere.

    ratio: of the traces that begin here; a caller's own choice holds. Raises ConfigError.
    """
    if endpoint is None:
        yield NO_TRACER
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as cause:
        raise ConfigError(
            f"trace_endpoint is {endpoint!r}; tracing needs the extra: pip install -e '.[tracing]'"
        ) from cause
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"trace_endpoint is {endpoint!r}; it must be http(s)://host:port")
    about = {"service.name": f"crossdraft-{service}", "service.version": VERSION}
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(ratio),
        resource=Resource.create(about),
        shutdown_on_exit=False,
    )
    # As our own channels: a collector on this machine is reached whatever http_proxy says.
    local = is_loopback(urlsplit(endpoint).netloc)
    options: Any = (("grpc.enable_http_proxy", 0),) if local else None
    exporter = OTLPSpanExporter(endpoint, timeout=FLUSH_S, channel_options=options)
    processor = BatchSpanProcessor(exporter)
    provider.add_span_processor(processor)
    try:
        yield provider.get_tracer("crossdraft", VERSION)
    finally:
        # A collector that is away mustn't hold up the end.
        flushing = threading.Thread(target=provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)


def _attributes(method: str) -> dict[str, str]:
    service, _, name = method.strip("/").rpartition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
