"""Health follows the engine: its first pass, a step that hangs, its death."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.engine.server import serve_engine
from common.engine.telemetry import EngineTelemetry
from common.errors import EngineDied, ModelFailed
from common.kv.pages import PagePool
from common.rpc.channel import open_channel
from common.rpc.health import LIVENESS, READINESS
from common.rpc.server import Service
from drafter.engine.session import DraftFailed
from drafter.service import first_pass as drafter_first_pass
from tests.rpc.test_server import NAME, Fake
from tests.support.fake_pairs import files, target_model
from tests.support.fake_services import make_verifier, running
from verifier.config import VerifierConfig
from verifier.startup import first_pass

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
READY_NAMES = ("", READINESS, NAME)


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
