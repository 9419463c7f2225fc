"""The server shell on a real loopback port, around a fake servicer without protobuf."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import ConfigError, OverCapacity
from common.rpc.channel import open_channel
from common.rpc.server import GrpcServer, ServerSettings, Service
from tests.support.verify_streams import details_received

LIMIT = 64 * 1024
NAME = "test.Fake"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
SETTINGS = ServerSettings(listen="127.0.0.1:0", max_message_bytes=LIMIT, grace_s=5.0)


class Fake:
    """The request's bytes say what to do."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.entered = asyncio.Event()
        self.cancelled: list[str] = []

    async def _act(self, what: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if what == b"capacity":
            raise OverCapacity("sessions", 4, 250)
        if what == b"bug":
            raise ZeroDivisionError("secret")
        if what == b"abort":
            await context.abort(grpc.StatusCode.DATA_LOSS, "own words")
        if what == b"large":
            return b"x" * (LIMIT + 1)
        if what == b"wait":
            await asyncio.Event().wait()
        return what

    async def unary_unary(self, request: bytes, context) -> bytes:
        return await self._act(request, context)

    async def unary_stream(self, request: bytes, context) -> AsyncIterator[bytes]:
        try:
            if request == b"forever":
                while True:
                    yield b"more"
            yield b"first"
            yield await self._act(request, context)
        except (asyncio.CancelledError, GeneratorExit) as end:
            self.cancelled.append(type(end).__name__)
            raise
        finally:
            self.closed.set()

    async def stream_unary(self, requests: AsyncIterator[bytes], context) -> bytes:
        self.entered.set()
        return await self._act(b"".join([request async for request in requests]), context)

    async def stream_stream(self, requests: AsyncIterator[bytes], context) -> AsyncIterator[bytes]:
        async for request in requests:
            yield await self._act(request, context)

    def register(self, _: object, server: grpc.aio.Server) -> None:
        handlers = {kind: _handler(kind, getattr(self, kind)) for kind in KINDS}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


def _handler(kind: str, behaviour) -> grpc.RpcMethodHandler:
    return getattr(grpc, f"{kind}_rpc_method_handler")(behaviour, request_deserializer=parse)


def parse(data: bytes) -> bytes:
    if data == b"malformed":
        raise ValueError("corrupt")
    return data


@asynccontextmanager
async def serving(fake: Fake, channel_limit: int = LIMIT):
    server = GrpcServer(SETTINGS, [Service(NAME, fake.register, fake)])
    port = await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}", channel_limit) as channel:
            yield server, channel
    finally:
        await server.stop()


async def call(channel: grpc.aio.Channel, kind: str, request: bytes) -> list[bytes]:
    async def requests() -> AsyncIterator[bytes]:
        yield request

    method = getattr(channel, kind)(f"/{NAME}/{kind}")
    sent = requests() if kind.startswith("stream") else request
    if kind.endswith("stream"):
        return [response async for response in method(sent)]
    return [await method(sent)]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_method_works_and_maps_errors(kind: str) -> None:
    async with serving(Fake()) as (_, channel):
        assert (await call(channel, kind, b"echo"))[-1] == b"echo"

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"capacity")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "all 4 sessions" in caught.value.details()
        assert details_received(caught.value).retry_ms == 250

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"bug")
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in caught.value.details()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"malformed")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == "the request can't be parsed: corrupt"

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"abort")
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        assert caught.value.details() == "own words"

        assert (await call(channel, kind, b"echo"))[-1] == b"echo"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_over_the_limit_is_refused_on_both_ends(kind: str) -> None:
    async with serving(Fake(), channel_limit=4 * LIMIT) as (_, channel):
        for request in (b"x" * (LIMIT + 1), b"large"):  # received, and sent, by the server
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, kind, request)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await call(channel, kind, b"echo"))[-1] == b"echo"


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_a_client_refuses_its_own_message_over_the_limit(kind: str) -> None:
    # gRPC reports a stream's failed write as INTERNAL or RESOURCE_EXHAUSTED, whichever is first.
    async with serving(Fake(), channel_limit=LIMIT // 4) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"x" * (LIMIT // 2))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("request_", [b"wait", b"forever"])
async def test_a_cancelled_call_closes_its_generator(request_: bytes) -> None:
    fake = Fake()
    async with serving(fake) as (server, channel):
        stream = channel.unary_stream(f"/{NAME}/unary_stream")(request_)
        await stream.read()
        stream.cancel()
        await asyncio.wait_for(fake.closed.wait(), 5)
        assert len(fake.cancelled) == 1
        await asyncio.wait_for(server._errors.until_idle([NAME]), 5)


async def test_health_follows_set_serving() -> None:
    async with serving(Fake()) as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", NAME):
            request = health_pb2.HealthCheckRequest(service=name)
            for serving_ in (False, True, False):
                await server.set_serving(serving_)
                status = (await stub.Check(request)).status
                wanted = "SERVING" if serving_ else "NOT_SERVING"
                assert health_pb2.HealthCheckResponse.ServingStatus.Name(status) == wanted
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_stop_lets_calls_end_and_does_not_wait_for_watchers() -> None:
    fake = Fake()
    async with serving(fake) as (server, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        method = channel.stream_unary(f"/{NAME}/stream_unary")()
        await method.write(b"ec")
        await fake.entered.wait()  # a call that hasn't arrived is cut off, as it should be
        stopping = asyncio.create_task(server.stop(60))
        await asyncio.sleep(0)
        await method.write(b"ho")
        await method.done_writing()
        assert await method == b"echo"
        await asyncio.wait_for(stopping, 10)


async def test_a_port_in_use_is_a_config_error() -> None:
    first = GrpcServer(SETTINGS, [])
    port = await first.start()
    taken = ServerSettings(f"127.0.0.1:{port}", LIMIT, 1.0)
    with pytest.raises(ConfigError, match=f"listen is '127.0.0.1:{port}'"):
        await GrpcServer(taken, []).start()
    await first.stop()


@pytest.mark.parametrize("listen", ["", "localhost", "127.0.0.1:", "127.0.0.1:http", "h:70000"])
async def test_an_address_that_is_none_is_a_config_error(listen: str) -> None:
    with pytest.raises(ConfigError, match="listen is"):
        await GrpcServer(ServerSettings(listen, LIMIT, 1.0), []).start()
