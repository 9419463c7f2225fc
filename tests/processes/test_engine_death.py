"""An engine whose own code raises ends its service at once, and the process says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import grpc
import pytest
from click.testing import CliRunner
from grpc import StatusCode

from cli.main import main
from common.engine.thread import EngineThread
from common.errors import EngineDied, RankLost
from common.pb import verifier_pb2_grpc
from common.rpc.channel import open_channel
from common.types import OpenSession
from common.wire.verify import verify_request_to_pb
from tests.support.fake_pairs import files, target_model
from tests.support.fake_services import make_verifier
from verifier import service
from verifier.batcher import Batch, Batcher
from verifier.config import VerifierConfig
from verifier.ranks import END_S, watch


def test_a_thread_that_dies_reports_once_and_one_that_is_stopped_doesnt() -> None:
    reported = threading.Semaphore(0)

    def step() -> bool:
        raise ZeroDivisionError

    dying = EngineThread("dying", step)
    dying.on_death(reported.release)
    dying.start()
    assert not reported.acquire(blocking=False)
    dying.call(lambda: None)
    assert reported.acquire(timeout=10)
    dying.stop()
    stopped = EngineThread("stopped", lambda: False)
    stopped.on_death(reported.release)
    stopped.start()
    stopped.stop()
    assert not reported.acquire(blocking=False)


def test_a_rank_that_is_lost_ends_the_service_though_a_step_waits_for_it_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As NCCL does: the engine's thread never returns from a sum over ranks."""
    reported, entered, never = threading.Semaphore(0), threading.Event(), threading.Event()
    ended: list[tuple[float, bool]] = []

    def end(seconds: float, exit: bool) -> None:
        ended.append((seconds, exit))

    def sums() -> bool:
        entered.set()
        return never.wait() and False

    monkeypatch.setattr("verifier.ranks.faulthandler.dump_traceback_later", end)
    engine, _ = make_verifier(target_model("wide"), files("wide"))
    monkeypatch.setattr(engine._thread, "_step", sums)
    engine.on_death(reported.release)
    engine.start()
    engine._thread.call(lambda: None)
    assert entered.wait(10)
    watched: list[Callable[[RankLost], None]] = []
    watch(SimpleNamespace(watch=watched.append), engine)  # type: ignore[arg-type]
    (lost,) = watched
    lost(RankLost("rank 1 of 2 has died; its part of the model"))
    assert reported.acquire(blocking=False)
    assert ended == [(END_S, True)]
    never.set()
    engine.stop()


def test_a_loop_that_is_closed_takes_no_word() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    thread = EngineThread("late", lambda: bool(1 / 0))
    thread.on_death(lambda: loop.call_soon_threadsafe(print))
    thread.call(lambda: None)
    thread._run()


async def _doomed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve; a stream opens, and the engine dies over it."""
    engine, info = make_verifier(target_model("wide"), files("wide"))
    monkeypatch.setattr(service, "build", lambda config: (engine, info, files("wide")))

    def broken(batcher: Batcher) -> Batch | None:
        if any(len(session.spec.prompt) > 1 for session in batcher._waiting):
            raise ZeroDivisionError
        return next_batch(batcher)

    next_batch = Batcher.next_batch
    monkeypatch.setattr(Batcher, "next_batch", broken)
    loop, ready = asyncio.get_running_loop(), asyncio.Future[int]()
    config = VerifierConfig(listen="127.0.0.1:0", grace_s=600)
    serving = loop.create_task(service.serve(config, ready.set_result))
    async with open_channel(f"127.0.0.1:{await ready}", 2**20) as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
        spec = OpenSession((5, 6), 4, info.tokenizer_sha256)
        await call.write(verify_request_to_pb(spec))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
    await asyncio.wait_for(serving, 30)


async def test_a_service_whose_engine_dies_ends_without_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(EngineDied):
        await _doomed(monkeypatch)


def test_the_process_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(config: VerifierConfig, on_ready: object) -> None:
        raise EngineDied("the engine died; the log says why")

    monkeypatch.setattr(service, "serve", serve)
    result = CliRunner().invoke(main, ["verifier"])
    assert result.exit_code == 1
    assert result.output.rstrip().endswith("the engine died; the log says why")
