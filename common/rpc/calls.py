"""Telemetry of every call of our services: status, calls in progress, request id, span.

The outermost interceptor, so that it sees how a call ended whoever ended it. Knows methods,
statuses, peers. Does not know messages. Health and reflection pass untouched.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.trace import Tracer

from common.errors import CrossdraftError
from common.rpc.error_details import UNEXPECTED, received
from common.rpc.statuses import parts
from common.telemetry import metrics, request_id, tracing
from common.telemetry.metrics import NONE, OTHER
from common.telemetry.registry import Registry

LATE_S = 0.05  # of a deadline: a client that gives up so near to it has met it
_OURS = "/crossdraft."


class CallTelemetry(grpc.aio.ServerInterceptor):
    """Counts calls, and gives each its request id and its span."""

    def __init__(self, registry: Registry, tracer: Tracer = tracing.NO_TRACER) -> None:
        self._tracer = tracer
        self._ended = registry.open_counters(metrics.GRPC_CALLS)
        self._now: dict[str, int] = dict.fromkeys(metrics.METHOD, 0)
        self._peers: Counter[str] = Counter()
        self._errors = _error_names()
        registry.read(
            metrics.GRPC_CALLS_NOW, lambda: {(method,): n for method, n in self._now.items()}
        )
        registry.read(metrics.GRPC_PEERS, lambda: {(): len(self._peers)})

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            self._count(OTHER, grpc.StatusCode.UNIMPLEMENTED, NONE)
            return None
        path = handler_call_details.method
        if not path.startswith(_OURS):
            return handler
        behaviour, factory = parts(handler)
        return factory(
            self._counted(behaviour, path.removeprefix("/")),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _counted(self, behaviour: Callable[..., Any], path: str) -> Callable[..., Awaitable[Any]]:
        name = path.rpartition("/")[2]
        method = name if name in metrics.METHOD else OTHER

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            metadata = dict(context.invocation_metadata() or ())
            # Each call has a task of its own, and with it a context of its own.
            request_id.current.set(request_id.taken(metadata.get(request_id.KEY)))
            context.set_trailing_metadata(request_id.outgoing())
            status, error = grpc.StatusCode.OK, NONE
            with (
                self._in_progress(method, context.peer()),
                tracing.serving(self._tracer, path, metadata) as span,
            ):
                try:
                    return await behaviour(request, context)
                except BaseException as cause:
                    status, error = ended_by(cause, context)
                    raise
                finally:
                    tracing.end_status(span, status)
                    self._count(method, status, error)

        return call

    @contextmanager
    def _in_progress(self, method: str, peer: str) -> Iterator[None]:
        self._now[method] += 1
        self._peers[peer] += 1
        try:
            yield
        finally:
            self._now[method] -= 1
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    def _count(self, method: str, status: grpc.StatusCode, error: str) -> None:
        # A verifier's error that a drafter hands on has the name that the verifier sent.
        error = error if error in self._errors else OTHER
        self._ended((method, status.name, error)).inc()


def ended_by(
    cause: BaseException, context: grpc.aio.ServicerContext
) -> tuple[grpc.StatusCode, str]:
    """The status and the name of the error that a call ends with by this exception."""
    if isinstance(cause, asyncio.CancelledError):
        # gRPC cancels a call whose time is over as it does one that its client has given up. The
        # client's clock began earlier, so that its word of the end may come before ours.
        left = context.time_remaining()
        over = left is not None and left < LATE_S
        return (grpc.StatusCode.DEADLINE_EXCEEDED if over else grpc.StatusCode.CANCELLED), NONE
    if isinstance(cause, grpc.aio.InternalError):  # a write to a client that is gone
        return grpc.StatusCode.CANCELLED, NONE
    status = context.code()
    if not isinstance(status, grpc.StatusCode):
        return grpc.StatusCode.UNKNOWN, UNEXPECTED
    details = received(context.trailing_metadata())
    return status, NONE if details is None else details.reason


def _error_names() -> frozenset[str]:
    """What the label `error` can say, OTHER aside."""
    names, found = {NONE, UNEXPECTED}, [CrossdraftError]
    while found:
        kind = found.pop()
        names.add(kind.reason)
        found += kind.__subclasses__()
    return frozenset(names)
