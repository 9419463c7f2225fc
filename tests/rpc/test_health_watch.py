"""Who watches health takes nothing from others: not their answer, not the end, not all places."""

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

from common.rpc.channel import open_channel
from common.rpc.guards import WATCH
from common.rpc.health import LIVENESS, READINESS
from common.rpc.health_servicer import HealthServicer
from common.rpc.server import GrpcServer, Service
from tests.rpc.test_server import LIMIT, NAME, SETTINGS, Fake, call
from tests.support.unread_stream import unread
from tests.support.verify_streams import details_received

HEALTH = "grpc.health.v1.Health"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
LONG_S = 30.0  # for what hung for ever


def named(name: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=name)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[GrpcServer, int, grpc.aio.Channel]]:
    fake = Fake()
    server = GrpcServer(changed(SETTINGS, **settings), [Service(NAME, fake.register, fake)])
    port = await server.start()
    await server.set_serving(True)
    try:
        async with open_channel(f"127.0.0.1:{port}", LIMIT) as channel:
            yield server, port, channel
    finally:
        await asyncio.wait_for(server.stop(), LONG_S)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once somebody watches."""
    watched, watch = asyncio.Event(), HealthServicer.Watch

    async def watching(*asked: Any) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        watched.set()
        async for response in watch(*asked):
            yield response

    monkeypatch.setattr(HealthServicer, "Watch", watching)
    return watched


async def test_a_watcher_that_reads_nothing_keeps_nobody_waiting(watched: asyncio.Event) -> None:
    async with serving() as (server, port, channel), unread(port, WATCH.encode()):
        await asyncio.wait_for(watched.wait(), LONG_S)
        watch = health_pb2_grpc.HealthStub(channel).Watch(named())
        assert (await asyncio.wait_for(watch.read(), LONG_S)).status == SERVING
        await asyncio.wait_for(server.set_serving(False), LONG_S)
        assert (await asyncio.wait_for(watch.read(), LONG_S)).status == NOT_SERVING


async def test_a_watcher_that_reads_nothing_is_let_go_of(watched: asyncio.Event) -> None:
    async with serving(idle_timeout_s=0.05) as (server, port, _), unread(port, WATCH.encode()):
        await asyncio.wait_for(watched.wait(), LONG_S)
        await asyncio.wait_for(server._errors.until_idle([HEALTH]), LONG_S)


async def test_watchers_have_a_share_beside_that_of_calls() -> None:
    async with serving(max_streams_per_peer=2) as (server, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(named(f"name {index}")) for index in range(2)]
        assert [(await watch.read()).status for watch in watches] == [UNKNOWN] * 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Watch(named()).read()
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        words = "all 2 watches of health of one peer are in use; try again in 1000 ms"
        assert caught.value.details() == words
        assert (await stub.Check(named())).status == SERVING
        assert await call(channel, "unary_unary", b"echo") == [b"echo"]
        for watch in watches:
            watch.cancel()
        await asyncio.wait_for(server._errors.until_idle([HEALTH]), LONG_S)
        assert (await stub.Watch(named()).read()).status == SERVING


async def test_the_port_of_health_counts_watchers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    settings = changed(SETTINGS, health_listen="127.0.0.1:0", max_streams_per_peer=1)
    server = GrpcServer(settings, [])
    opened = server.health.open

    async def open_(*asked: Any) -> int:
        ports.append(await opened(*asked))
        return ports[0]

    monkeypatch.setattr(server.health, "open", open_)
    await server.start()
    async with open_channel(f"127.0.0.1:{ports[0]}", LIMIT) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        first = stub.Watch(named(LIVENESS))
        assert (await first.read()).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="all 1 watches of health"):
            await stub.Watch(named(LIVENESS)).read()
    await server.stop()


async def test_a_watcher_hears_each_change_once_and_list_has_all() -> None:
    async with serving() as (server, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(named(NAME))
        assert (await watch.read()).status == SERVING
        await server.set_serving(True)  # no change
        await server.set_serving(False)
        assert (await watch.read()).status == NOT_SERVING
        reported = (await stub.List(health_pb2.HealthListRequest())).statuses
        ready = dict.fromkeys(("", READINESS, NAME), NOT_SERVING)
        assert {name: each.status for name, each in reported.items()} == {
            LIVENESS: SERVING,
            **ready,
        }


async def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    async with serving() as (_, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(named("no" * 1000))
        assert caught.value.code() is StatusCode.NOT_FOUND
        words = caught.value.details() or ""
        assert words.startswith(f"service is '{'no' * 50}'…; it must be one of 'liveness', ''")
        details = details_received(caught.value)
        assert (details.reason, details.field) == ("UNKNOWN_HEALTH_NAME", "service")
