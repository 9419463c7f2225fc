"""Alive, ready, and neither while a step of the engine hangs; on a port of its own if asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.engine.server import serve_engine
from common.engine.telemetry import EngineTelemetry
from common.engine.thread import EngineThread
from common.errors import ConfigError, EngineDied, ModelFailed
from common.kv.pages import PagePool
from common.rpc.channel import open_channel
from common.rpc.health import LIVENESS, READINESS, Health
from common.rpc.server import GrpcServer, ServerSettings, Service
from drafter.engine.session import DraftFailed
from drafter.service import first_pass as drafter_first_pass
from tests.rpc.test_server import NAME, Fake
from tests.support.fake_pairs import files, target_model
from tests.support.fake_services import make_verifier, running
from verifier.config import VerifierConfig
from verifier.startup import first_pass

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


class Steps:
    """An engine that records the order of things."""

    def __init__(self, happened: list[str]) -> None:
        self.start = lambda: happened.append("engine started")
        self.stop = lambda: happened.append("engine stopped")
        self.busy_s = lambda: 0.0
        self.telemetry = EngineTelemetry("target", PagePool(1, 16), lambda: 0)
        self.die = lambda: None

    def on_death(self, callback) -> None:
        self.die = callback


async def serve(engine: Steps, happened: list[str], first_pass_) -> None:
    """Until ready."""

    async def drain() -> None:
        pass

    async def passing() -> None:
        happened.append("pass begins")
        await first_pass_()
        happened.append("pass returned")

    ready = asyncio.Event()

    def on_ready(port: int) -> None:
        happened.append("ready")
        ready.set()

    config = VerifierConfig(listen="127.0.0.1:0")
    service = Service(NAME, Fake().register, None)
    serving = asyncio.create_task(serve_engine(config, service, engine, drain, passing, on_ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def test_nothing_is_served_before_a_forward_pass_has_returned() -> None:
    happened: list[str] = []

    async def passing() -> None:
        pass

    await serve(Steps(happened), happened, passing)
    assert happened == ["engine started", "pass begins", "pass returned", "ready", "engine stopped"]


async def test_a_service_says_that_its_engine_hangs() -> None:
    engine = Steps([])
    engine.busy_s = lambda: 2.0
    ready = asyncio.Future[int]()

    async def nothing() -> None:
        pass

    config = VerifierConfig(listen="127.0.0.1:0", stall_s=1.0)
    service = Service(NAME, Fake().register, None)
    serving = asyncio.create_task(
        serve_engine(config, service, engine, nothing, nothing, ready.set_result)
    )
    async with open_channel(f"127.0.0.1:{await ready}", 2**16) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in (LIVENESS, *READY_NAMES):
            call = stub.Watch(health_pb2.HealthCheckRequest(service=name))
            while (await call.read()).status != NOT_SERVING:
                pass
            call.cancel()
    serving.cancel()
    await asyncio.wait([serving])


async def test_a_first_pass_that_fails_ends_the_service() -> None:
    happened: list[str] = []

    async def failing() -> None:
        raise ModelFailed("the target model failed: MemoryError")

    with pytest.raises(ModelFailed):
        await serve(Steps(happened), happened, failing)
    assert happened == ["engine started", "pass begins", "engine stopped"]


async def test_an_engine_that_dies_in_its_first_pass_ends_the_service() -> None:
    happened: list[str] = []
    engine = Steps(happened)

    async def dying() -> None:
        engine.die()
        await asyncio.Event().wait()

    with pytest.raises(EngineDied):
        await serve(engine, happened, dying)
    assert happened == ["engine started", "pass begins", "engine stopped"]


async def test_a_verifiers_first_pass_is_a_real_one_and_holds_nothing() -> None:
    model = target_model("wide")
    engine, info = make_verifier(model, files("wide"))
    rows: list[int] = []
    forward = model.forward

    def counted(chunks):
        rows.append(sum(len(chunk.tokens) for chunk in chunks))
        return forward(chunks)

    with pytest.MonkeyPatch.context() as patch, running(engine):
        patch.setattr(model, "forward", counted)
        await first_pass(engine, info)
    assert rows == [1]
    assert engine.open_sessions == 0
    assert engine.pool.used_pages == 0


async def test_a_drafter_whose_model_fails_at_once_does_not_start() -> None:
    class Broken:
        def open(self) -> None: ...

        def close(self, session: object) -> None: ...

        async def draft(self, *asked: object) -> None:
            raise DraftFailed("the draft model failed: MemoryError")

    with pytest.raises(ModelFailed, match="MemoryError"):
        await drafter_first_pass(Broken())  # type: ignore[arg-type]
