"""Alive, ready, and neither while a step of the engine hangs; on a port of its own if asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.engine.thread import EngineThread
from common.errors import ConfigError
from common.rpc.channel import open_channel
from common.rpc.health import LIVENESS, READINESS, Health
from common.rpc.server import GrpcServer, ServerSettings, Service
from tests.rpc.test_server import NAME, Fake

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
READY_NAMES = ("", READINESS, NAME)


@asynccontextmanager
async def answering(health: Health) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    port = await health.open("127.0.0.1:0")
    try:
        async with open_channel(f"127.0.0.1:{port}", 2**16) as channel:
            yield health_pb2_grpc.HealthStub(channel)
    finally:
        await health.close()


async def check(stub: health_pb2_grpc.HealthStub, name: str) -> int:
    status: int = (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
    return status


async def test_a_process_is_alive_before_it_is_ready() -> None:
    health = Health([NAME])
    async with answering(health) as stub:
        assert await check(stub, LIVENESS) == SERVING
        assert {await check(stub, name) for name in READY_NAMES} == {NOT_SERVING}
        health.set_serving(True)
        assert {await check(stub, name) for name in READY_NAMES} == {SERVING}
        health.set_serving(False)  # draining: not to be restarted for that
        assert await check(stub, LIVENESS) == SERVING
        assert {await check(stub, name) for name in READY_NAMES} == {NOT_SERVING}


async def test_a_step_that_hangs_is_neither_alive_nor_ready_until_it_returns() -> None:
    entered, returns = threading.Event(), threading.Event()

    def step() -> bool:
        entered.set()
        returns.wait()
        return False

    thread = EngineThread("hanging", step)
    health = Health([NAME])
    health.set_serving(True)
    thread.start()
    watching = asyncio.create_task(health.watch(thread.busy_s, stall_s=0.05, every_s=0.01))
    try:
        async with answering(health) as stub:
            calls = {
                name: stub.Watch(health_pb2.HealthCheckRequest(service=name))
                for name in (LIVENESS, *READY_NAMES)
            }
            assert {(await call.read()).status for call in calls.values()} == {SERVING}
            thread.call(lambda: None)
            await asyncio.to_thread(entered.wait)
            assert {(await call.read()).status for call in calls.values()} == {NOT_SERVING}
            returns.set()
            assert {(await call.read()).status for call in calls.values()} == {SERVING}
            for call in calls.values():
                call.cancel()
    finally:
        returns.set()
        watching.cancel()
        thread.stop()


def test_a_command_that_hangs_counts_and_a_thread_without_work_does_not() -> None:
    entered, returns, idle = threading.Event(), threading.Event(), threading.Event()
    thread = EngineThread("commanded", lambda: False)

    def command() -> None:
        entered.set()
        returns.wait()

    assert thread.busy_s() == 0
    thread.start()
    thread.call(command)
    entered.wait()
    assert thread.busy_s() > 0
    returns.set()
    thread.call(idle.set)
    idle.wait()
    thread.stop()
    assert thread.busy_s() == 0


def test_stopping_does_not_wait_for_ever_for_a_step_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("common.engine.thread.STOP_S", 0.01)
    entered, returns = threading.Event(), threading.Event()

    def step() -> bool:
        entered.set()
        returns.wait()
        return False

    thread = EngineThread("hanging", step)
    thread.start()
    thread.call(lambda: None)
    entered.wait()
    thread.stop()
    returns.set()
    assert "it is left behind" in caplog.text


async def test_the_port_of_health_answers_nothing_else_and_needs_no_tls() -> None:
    settings = ServerSettings("127.0.0.1:0", 2**16, 1.0, health_listen="127.0.0.1:0")
    server = GrpcServer(settings, [Service(NAME, Fake().register, None)])
    ports: list[int] = []
    opened = server.health.open

    async def open_(*asked: Any) -> int:
        ports.append(await opened(*asked))
        return ports[0]

    server.health.open = open_  # type: ignore[assignment, method-assign]
    await server.start()
    async with open_channel(f"127.0.0.1:{ports[0]}", 2**16) as channel:
        assert await check(health_pb2_grpc.HealthStub(channel), LIVENESS) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{NAME}/unary_unary")(b"echo")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop()


async def test_a_health_port_that_can_not_be_bound_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="health_listen is 'nowhere'"):
        await Health([]).open("nowhere")


# Ready only after a forward pass.
