"""Both services in the test's own event loop, on loopback ports, around models made in the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Seq
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import torch
from opentelemetry.trace import Tracer

from common.kv.pages import PagePool
from common.model.language_model import LanguageModel
from common.pb import drafter_pb2_grpc, verifier_pb2_grpc
from common.rpc.calls import CallTelemetry
from common.rpc.channel import open_channel
from common.rpc.server import GrpcServer, ServerSettings, Service
from common.telemetry.tracing import NO_TRACER
from common.types import ModelIdentity, ModelInfo, OpenSession
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from common.wire.checks import FEATURES
from drafter.bridge.bridge import Bridge
from drafter.bridge.proposer import AutoChooser
from drafter.config import DrafterConfig
from drafter.engine.engine import DraftEngine
from drafter.pairing import Pairing
from drafter.service import DrafterService
from drafter.session import Pair
from drafter.startup import make_sampler, parts_of, rebuild, runs_ahead
from drafter.verifier_client.client import VerifierClient
from verifier.engine import Limits, VerifierEngine
from verifier.service import VerifierService
from verifier.startup import make_acceptance_sampler

MESSAGE_BYTES = 2 * 2**20
PAGE_SIZE = 4
THREADS = 1  # of each engine: waking a second one costs more than a tiny model


async def caught_up(engine: VerifierEngine | DraftEngine) -> None:
    """Return when the engine has run every command that was given to it so far."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def reported() -> None:
        loop.call_soon_threadsafe(done.set)

    engine._thread.call(reported)
    await done.wait()


@contextmanager
def running(engine: VerifierEngine | DraftEngine) -> Iterator[None]:
    engine.start()
    try:
        yield
    finally:
        engine.stop()


@asynccontextmanager
async def serving(
    name: str,
    register: Any,
    servicer: Any,
    port: int = 0,
    observers: Seq[grpc.aio.ServerInterceptor] = (),
    report_to: Any = lambda set_able: None,
) -> AsyncIterator[Any]:
    """(server, port) of one service under the real shell."""
    settings = ServerSettings(
        listen=f"127.0.0.1:{port}", max_message_bytes=MESSAGE_BYTES, grace_s=0, reflection=False
    )
    server = GrpcServer(settings, [Service(name, register, servicer, report_to)], observers)
    bound = await server.start()
    try:
        yield server, bound
    finally:
        await server.stop()


class RunningVerifier:
    """A verifier that serves, and a client's view of it."""

    def __init__(self, engine: VerifierEngine, info: ModelInfo, server: GrpcServer, port: int):
        self.engine, self.info, self.server, self.port = engine, info, server, port
        self.channel = open_channel(f"127.0.0.1:{port}", 4 * MESSAGE_BYTES)
        self.stub = verifier_pb2_grpc.VerifierServiceStub(self.channel)

    def open(self, prompt: Seq[int], max_new_tokens: int = 8, **changes: Any) -> OpenSession:
        changes = {"tokenizer_sha256": self.info.tokenizer_sha256, **changes}
        return OpenSession(tuple(prompt), max_new_tokens, **changes)

    async def idle(self) -> None:
        """Return when no call is in progress and the engine has let go of what they held."""
        await self.server._errors.until_idle(["crossdraft.v1.VerifierService"])
        await caught_up(self.engine)

    def assert_nothing_held(self) -> None:
        self.engine.pool.check()
        assert self.engine.open_sessions == 0
        assert len(self.engine._batcher) == 0
        assert self.engine.pool.used_pages == 0


def make_verifier(
    model: LanguageModel,
    files: TokenizerFiles,
    *,
    pages: int = 64,
    context: int = 120,
    max_sessions: int = 16,
    max_draft_tokens: int = 8,
    max_q_entries: int = 256,
    max_batch_tokens: int = 32,
    threads: int = THREADS,
    weights: str = "weights",
    numerics: str = "numerics",
) -> tuple[VerifierEngine, ModelInfo]:
    """Its own share of what verifier/startup.py's build does, without weights on disk."""
    vocabulary = Vocabulary(files, model.vocab_size, model.eos_ids)
    model.allocate(pages, PAGE_SIZE)
    model.capture_graphs(max_batch_tokens, context)
    real_ids = torch.from_numpy(vocabulary.real)
    limits = Limits(max_sessions, max_draft_tokens, context, max_batch_tokens, max_q_entries)
    engine = VerifierEngine(
        model,
        PagePool(pages, PAGE_SIZE),
        limits,
        vocabulary.eos_ids,
        real_ids,
        threads,
        make_acceptance_sampler(model, max_batch_tokens, max_sessions, real_ids),
    )
    info = ModelInfo(
        model="tiny target",
        tokenizer_sha256=files.sha256,
        vocab_size=model.vocab_size,
        eos_ids=vocabulary.eos_ids,
        max_context_length=context,
        max_draft_tokens=max_draft_tokens,
        max_q_entries=max_q_entries,
        max_sessions=max_sessions,
        max_message_bytes=MESSAGE_BYTES,
        row_invariant=model.row_invariant,
        version="0",
        features=FEATURES,
        identity=ModelIdentity(weights, numerics, files.whole_sha256, files.chat_template_sha256),
    )
    return engine, info


@asynccontextmanager
async def serving_verifier(
    model: LanguageModel,
    files: TokenizerFiles,
    port: int = 0,
    idle_timeout_s: float = 600.0,
    tracer: Tracer = NO_TRACER,
    **sizes: Any,
) -> AsyncIterator[RunningVerifier]:
    engine, info = make_verifier(model, files, **sizes)
    service = VerifierService(engine, info, files, idle_timeout_s)
    register = verifier_pb2_grpc.add_VerifierServiceServicer_to_server
    observers = [CallTelemetry(engine.telemetry.registry, tracer)]
    name = "crossdraft.v1.VerifierService"
    with running(engine):
        async with serving(name, register, service, port, observers) as (s, bound):
            verifier = RunningVerifier(engine, info, s, bound)
            async with verifier.channel:
                yield verifier


@dataclass
class RunningDrafter:
    """A drafter that serves."""

    pair: Pair
    server: GrpcServer
    port: int
    service: DrafterService

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def streams(self) -> int:
        """How many places are taken."""
        return self.service._streams

    async def idle(self) -> None:
        await self.server._errors.until_idle(["crossdraft.v1.DrafterService"])
        await caught_up(self.pair.engine)

    def assert_nothing_held(self) -> None:
        engine = self.pair.engine
        engine.pool.check()
        assert engine.pool.used_pages == 0
        assert not engine._sessions and not engine._waiting and not engine._ahead


@asynccontextmanager
async def serving_drafter(
    model: LanguageModel,
    files: TokenizerFiles,
    verifier: int | str,
    *,
    pages: int = 64,
    context: int = 240,
    max_batch_tokens: int = 32,
    timeout_s: float = 20.0,
    round_timeout_s: float | None = None,
    threads: int = THREADS,
    tracer: Tracer = NO_TRACER,
    **settings: Any,
) -> AsyncIterator[RunningDrafter]:
    """A drafter; it waits for a verifier, as drafter/startup.py does.

    verifier: its port, or a target that names several.
    """
    draft = Vocabulary(files, model.vocab_size, model.eos_ids)
    target = f"127.0.0.1:{verifier}" if isinstance(verifier, int) else verifier
    async with open_channel(target, MESSAGE_BYTES) as channel:
        config = DrafterConfig(model="tiny draft", **settings)
        parts = parts_of(config.resume_on)
        client = VerifierClient(channel, timeout_s, round_timeout_s, None, tracer, parts)
        info, target_files = await client.describe()
        bridge = Bridge(Vocabulary(target_files, info.vocab_size, info.eos_ids), draft)
        model.allocate(pages, PAGE_SIZE)
        model.capture_graphs(max_batch_tokens, context)
        pool = PagePool(pages, PAGE_SIZE)
        chooser, q_entries = AutoChooser(0.1, 0.03), min(config.q_entries, info.max_q_entries)
        sampler = make_sampler(model, bridge, config.max_sessions, q_entries)
        ahead, most_rows = runs_ahead(config, model), max_batch_tokens
        engine = DraftEngine(model, pool, bridge, most_rows, context, threads, sampler, ahead)
        pair = Pair(bridge, engine, client, info, chooser, config.lookup, q_entries)
        pairing = Pairing(pair, partial(rebuild, config))
        service = DrafterService(pairing, config)
        register = drafter_pb2_grpc.add_DrafterServiceServicer_to_server
        observers = [CallTelemetry(engine.telemetry.registry, tracer)]
        name = "crossdraft.v1.DrafterService"
        with running(engine):
            reporting = serving(name, register, service, 0, observers, pairing.report_to)
            async with reporting as (server, port):
                yield RunningDrafter(pair, server, port, service)
