"""How an exception in a handler becomes a gRPC status, on all four kinds of method.

Knows that a CrossdraftError carries its own status and details; anything else is our mistake, sent
as INTERNAL without its text and logged with its traceback. Does not know services.

Streaming handlers are written as async generators and run here as coroutines that write, because
gRPC cancels a coroutine where it waits: the generator is closed, and its `finally` blocks run,
before the call is over, rather than whenever the garbage collector finds it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, closing
from typing import Any

import grpc

from common.errors import CrossdraftError, IdleTooLong, MalformedMessage
from common.rpc.error_details import (
    UNEXPECTED,
    ErrorDetails,
    details_of,
    encoded,
    message_of,
    received,
)
from common.rpc.idle_limit import within
from common.rpc.timeouts import ReusableTimeout

log = logging.getLogger(__name__)

# What gRPC itself makes of a broken transport, beside UNAVAILABLE.
_TRANSPORT = (grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
LAST_STATUS_S = 0.5  # for the status of a call that has just ended to leave

# What a call passes before its handler: (method, context); raises what it is refused for, and ends
# with the call.
Guard = Callable[[str, grpc.aio.ServicerContext], AbstractContextManager[object]]


class ErrorMapping(grpc.aio.ServerInterceptor):
    """Maps errors and counts the calls in progress."""

    def __init__(self, guards: Sequence[Guard] = (), idle_timeout_s: float | None = None) -> None:
        """idle_timeout_s: how long a client may take to read a message of a stream."""
        self._guards = guards
        self._idle_timeout_s = idle_timeout_s
        self.calls: dict[str, int] = {}  # full service name -> calls in progress
        self._ended = asyncio.Event()

    async def until_idle(self, services: Sequence[str]) -> None:
        """Return when none of these services has a call in progress."""
        while any(self.calls.get(service) for service in services):
            self._ended.clear()
            await self._ended.wait()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        behaviour, factory = parts(handler)
        return factory(
            self._guarded(behaviour, handler_call_details.method),
            request_deserializer=_parsing(handler.request_deserializer, handler.request_streaming),
            response_serializer=handler.response_serializer,
        )

    def _guarded(self, behaviour: Callable[..., Any], method: str) -> Callable[..., Awaitable[Any]]:
        run = self._writing(behaviour) if inspect.isasyncgenfunction(behaviour) else behaviour
        service = method.split("/")[1]

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            self.calls[service] = self.calls.get(service, 0) + 1
            try:
                with ExitStack() as passed:
                    for guard in self._guards:
                        passed.enter_context(guard(method, context))
                    if isinstance(request, MalformedMessage):
                        raise request
                    return await run(request, context)
            except _Unread as error:
                log.info("%s: %s", method, error.__cause__)
                await _cut_off(context, error)
            except CrossdraftError as error:
                log.info("%s: %s: %s", method, error.status.name, error)
                await abort(context, error)
            except grpc.aio.AbortError:
                raise
            except grpc.aio.InternalError:
                # A write that met the end of the call; gRPC has given it its status already (a
                # response over the limit: RESOURCE_EXHAUSTED).
                log.info("%s: the client is gone, or a response is over the limit", method)
                raise
            except Exception:
                log.exception("%s failed", method)
                text = f"{method} failed; the server's log says why"
                await _abort(context, grpc.StatusCode.INTERNAL, text, ErrorDetails(UNEXPECTED))
            finally:
                self.calls[service] -= 1
                self._ended.set()

        return call

    def _writing(
        self, behaviour: Callable[..., AsyncGenerator[Any, None]]
    ) -> Callable[..., Awaitable[None]]:
        limit_s = self._idle_timeout_s

        async def write_all(request: Any, context: grpc.aio.ServicerContext) -> None:
            with closing(ReusableTimeout(limit_s)) as timeout:
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        writing = context.write(response)
                        try:
                            await within(timeout, writing, "the client read nothing")
                        except IdleTooLong as cause:
                            raise _Unread from cause

        return write_all


def broken_off(error: grpc.aio.AioRpcError) -> bool:
    """Whether a call ended with its connection or its service: another attempt may do better.

    Every other end is the service's own answer, which the same request would get again.
    """
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return True
    return error.code() in _TRANSPORT and received(error.trailing_metadata()) is None


async def abort(context: grpc.aio.ServicerContext, error: CrossdraftError) -> None:
    """End the call with the error's status, message and details. Always raises."""
    await _abort(context, error.status, message_of(error), details_of(error))


async def _abort(
    context: grpc.aio.ServicerContext,
    status: grpc.StatusCode,
    message: str,
    details: ErrorDetails,
) -> None:
    """message: within its size limit."""
    entry = encoded(status, message, details)
    await context.abort(status, message, trailing(context, entry))


def trailing(
    context: grpc.aio.ServicerContext, *entries: tuple[str, str | bytes]
) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata with these entries, beside what the call has already."""
    return tuple({**dict(context.trailing_metadata() or ()), **dict(entries)}.items())


class _Unread(Exception):
    """A client doesn't read what it asked for. Its cause is the error to send."""


async def _cut_off(context: grpc.aio.ServicerContext, error: _Unread) -> None:
    """End a call whose client may not read its status either, since that waits behind the rest.

    gRPC resets the stream of a handler that was cancelled.
    """
    assert isinstance(error.__cause__, CrossdraftError)
    try:
        async with asyncio.timeout(LAST_STATUS_S):
            await abort(context, error.__cause__)
    except TimeoutError:
        raise asyncio.CancelledError from error


def _parsing(
    parse: Callable[[bytes], Any] | None, streaming: bool
) -> Callable[[bytes], Any] | None:
    """A single request is parsed before the handler, where an error would come out as UNKNOWN.

    So there the error takes the request's place; a stream's raises where the handler reads it.
    """
    if parse is None:
        return None

    def parse_or_refuse(data: bytes) -> Any:
        try:
            return parse(data)
        except Exception as cause:
            error = MalformedMessage(f"the request can't be parsed: {cause}")
            if streaming:
                raise error from cause
            return error

    return parse_or_refuse


def parts(
    handler: grpc.RpcMethodHandler,
) -> tuple[Callable[..., Any], Callable[..., grpc.RpcMethodHandler]]:
    """The function behind a method, and what makes a handler of another in its place."""
    if handler.request_streaming and handler.response_streaming:
        return handler.stream_stream, grpc.stream_stream_rpc_method_handler
    if handler.request_streaming:
        return handler.stream_unary, grpc.stream_unary_rpc_method_handler
    if handler.response_streaming:
        return handler.unary_stream, grpc.unary_stream_rpc_method_handler
    return handler.unary_unary, grpc.unary_unary_rpc_method_handler
