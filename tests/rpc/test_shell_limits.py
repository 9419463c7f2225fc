"""What a caller can't take from a service: others' streams, memory, a stream for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.serving import SECTIONS
from common.engine.server import settings_of
from common.errors import OverCapacity
from common.rpc.channel import open_channel
from common.rpc.security.peer_limit import PeerLimit
from common.rpc.server import GrpcServer, Service
from tests.rpc.test_server import LIMIT, NAME, SETTINGS, Fake, call
from tests.support.verify_streams import details_received


@asynccontextmanager
async def serving(fake: Fake, **settings: Any) -> AsyncIterator[tuple[GrpcServer, Any]]:
    server = GrpcServer(changed(SETTINGS, **settings), [Service(NAME, fake.register, fake)])
    port = await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}", LIMIT) as channel:
            yield server, channel
    finally:
        await server.stop()


async def test_one_peer_has_so_many_calls_in_progress_and_no_more() -> None:
    async with serving(Fake(), max_streams_per_peer=2) as (server, channel):
        held = [channel.unary_stream(f"/{NAME}/unary_stream")(b"wait") for _ in range(2)]
        for stream in held:
            await stream.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "unary_unary", b"echo")
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        words = "all 2 streams of one peer are in use; try again in 1000 ms"
        assert caught.value.details() == words
        assert details_received(caught.value).retry_ms == 1000
        # Probes come from the node, or whoever else: they are never refused.
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        for stream in held:
            stream.cancel()
        await server._errors.until_idle([NAME])
        assert await call(channel, "unary_unary", b"echo") == [b"echo"]


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.1:{}", "ipv6:%5B::1%5D:{}"])
def test_a_peer_is_an_address_whatever_its_ports(peer: str) -> None:
    limit = PeerLimit(1)
    with limit.taking(peer.format(4000)):
        with pytest.raises(OverCapacity), limit.taking(peer.format(4001)):
            pass
        with limit.taking("ipv4:10.0.0.2:4000"), limit.taking("unix:"):
            assert limit.calls.total() == 3
    assert not limit.calls


@pytest.mark.parametrize("section", SECTIONS)
def test_left_out_a_peer_has_four_times_as_many_calls_as_there_are_sessions(section: str) -> None:
    assert settings_of(SECTIONS[section](max_sessions=8)).max_streams_per_peer == 32
    assert settings_of(SECTIONS[section](max_streams_per_peer=5)).max_streams_per_peer == 5


@pytest.mark.parametrize(("size", "code"), [(3000, "OK"), (9000, "RESOURCE_EXHAUSTED")])
async def test_metadata_over_the_limit_is_refused(size: int, code: str) -> None:
    async with serving(Fake(), max_metadata_bytes=4096) as (_, channel):
        method = channel.unary_unary(f"/{NAME}/unary_unary")
        called = method(b"echo", metadata=(("x-note", "x" * size),))
        assert (await called.code()).name == code
        if code != "OK":
            assert "4096" in await called.details()
        assert await call(channel, "unary_unary", b"echo") == [b"echo"]


class Talkative(Fake):
    """More than fits between server and client, if nobody reads."""

    async def unary_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 60_000
        finally:
            self.closed.set()


async def ending(stream: Any) -> StatusCode:
    """Read what is there, to the end."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return StatusCode.OK


async def test_a_client_that_does_not_read_is_let_go_of() -> None:
    fake = Talkative()
    async with serving(fake, idle_timeout_s=0.05) as (server, channel):
        stream = channel.unary_stream(f"/{NAME}/unary_stream")(b"")
        await stream.read()
        await asyncio.wait_for(fake.closed.wait(), 30)
        await asyncio.wait_for(server._errors.until_idle([NAME]), 30)
        # Its status waits behind what it doesn't read, so that a reset may come instead.
        assert await ending(stream) in (StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED)
        assert await call(channel, "unary_unary", b"echo") == [b"echo"]
