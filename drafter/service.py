"""DrafterService: a prompt or a conversation in, text out.

Knows the order of a Generate call and when the service is full. Does not know what a request may
say (drafter/generate/request.py), what is sent back (drafter/generate/reply.py), and how drafts are
made and verified (drafter/speculation.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from contextvars import copy_context
from functools import partial

import grpc

from common.engine.server import serve_engine
from common.errors import Draining, ModelFailed, OverCapacity
from common.pb import drafter_pb2 as pb
from common.pb import drafter_pb2_grpc
from common.rpc.channel import ClientTls, open_channel
from common.rpc.server import Service
from common.telemetry.tracing import exporting
from common.version import VERSION
from common.wire.checks import FEATURES
from drafter.config import DrafterConfig
from drafter.engine.engine import DraftEngine
from drafter.engine.session import DraftFailed, DraftRequest
from drafter.generate.reply import Reply
from drafter.generate.request import ParsedRequest, read_request
from drafter.pairing import OutdatedTarget, Pairing
from drafter.session import Pair, SpeculativeSession
from drafter.startup import build, rebuild
from drafter.telemetry import DrafterTelemetry

RETRY_MS = 1000
ATTEMPTS = 3  # at a request, where the target that its ids are made for has changed meanwhile
VERIFIER = "crossdraft.v1.VerifierService"  # what a verifier's health must say is served


class DrafterService(drafter_pb2_grpc.DrafterServiceServicer):
    """The handlers. A Generate stream that ends, for any reason, frees its session at both ends."""

    def __init__(self, pairing: Pairing, config: DrafterConfig) -> None:
        self._pairing = pairing
        self._config = config
        self._streams = 0
        self._readers = ThreadPoolExecutor(thread_name_prefix="read-request")
        self._telemetry = DrafterTelemetry(pairing, config, lambda: self._streams)
        self._draining = False

    async def drain(self) -> None:
        """Take no new streams; those that run may finish."""
        self._draining = True

    async def GetPair(
        self, request: pb.GetPairRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetPairResponse:
        pair = self._pairing.last
        bridge, info = pair.bridge, pair.info
        return pb.GetPairResponse(
            target_model=info.model,
            draft_model=self._config.model,
            bridge="identity" if bridge.identity else self._config.bridge,
            bridge_sha256=bridge.sha256,
            shared_tokens=bridge.shared_count,
            max_context_length=info.max_context_length,
            max_draft_steps=self._config.max_draft_steps,
            max_sessions=self._config.max_sessions,
            max_message_bytes=self._config.max_message_bytes,
            version=VERSION,
            drafting=pair.engine.healthy,
            device=pair.device,
            dtype=pair.dtype,
            features=sorted(FEATURES),
        )

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        began = time.monotonic()
        if self._draining:
            raise Draining("this drafter is shutting down; send the request to another")
        if self._streams >= self._config.max_sessions:
            raise OverCapacity("streams", self._config.max_sessions, RETRY_MS)
        for left in reversed(range(ATTEMPTS)):
            pair = self._pairing.current
            try:
                async with aclosing(self._generate(request, pair, began)) as responses:
                    async for response in responses:
                        yield response
                return
            except OutdatedTarget as cause:  # before anything was sent
                if not left or request.resumed_token_ids or request.HasField("prompt_token_ids"):
                    self._pairing.begin_renewing(pair)
                    raise cause.refusal from cause  # its ids are the old target's
            await self._pairing.renew(pair)

    async def _generate(
        self, request: pb.GenerateRequest, pair: Pair, began: float
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        self._streams += 1
        # Tokenising a long prompt takes a while; other streams' rounds don't wait for it.
        reading = self._readers.submit(
            copy_context().run, read_request, request, pair, self._config
        )
        try:
            parsed = await asyncio.wrap_future(reading)
            async with aclosing(self._answer(pair, parsed, began)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._free_when_over(reading)

    async def _answer(
        self, pair: Pair, parsed: ParsedRequest, began: float
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        session = SpeculativeSession(
            pair, parsed.spec, parsed.contexts, parsed.draft_steps, parsed.mode, began
        )
        with closing(session):  # whatever raises before its first run
            target, time_us = pair.bridge.target, parsed.chat_time_us
            reply = Reply(target, session, parsed.stops, parsed.resumed, time_us)
            telemetry = self._telemetry.watch(session)
            deltas: list[pb.TokenDelta] = []
            rendered = parsed.rendered
            watched = self._pairing.watched(session, pair, reply.over, rendered)
            async with aclosing(watched) as runs:
                async for run in runs:
                    deltas = reply.deltas(run)
                    if reply.over:
                        break
                    if deltas:
                        yield reply.response(deltas)
            # The verifier's session is closed by now, at a stop string too.
            last = list(reply.last(deltas))
            telemetry.answered(reply.ending, parsed.draft_steps > 0)
            for response in last:
                yield response

    def _free_when_over(self, reading: Future[ParsedRequest]) -> None:
        """Give the stream's place back, once its thread has ended, which nobody can stop."""
        loop = asyncio.get_running_loop()

        def free() -> None:
            self._streams -= 1

        def free_on_the_loop(_: Future[ParsedRequest]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody counts any more
                loop.call_soon_threadsafe(free)

        if reading.running():
            reading.add_done_callback(free_on_the_loop)
        else:
            free()


async def first_pass(engine: DraftEngine) -> None:
    """One token in, one out. Raises ModelFailed: later the service would go on without drafts."""
    session = engine.open()
    try:
        await engine.draft(session, [0], DraftRequest(1))
    except DraftFailed as cause:
        raise ModelFailed(str(cause)) from cause
    finally:
        engine.close(session)


async def serve(config: DrafterConfig, on_ready: Callable[[int], None] | None = None) -> None:
    """Load, find the verifier, serve until a signal, drain. `on_ready` gets the bound port."""
    tls = None
    if config.verifier_tls_ca:
        tls = ClientTls(
            config.verifier_tls_ca,
            config.tls_certificate,
            config.tls_key,
            config.verifier_tls_name,
        )
    channel = open_channel(config.verifier, config.max_message_bytes, tls, VERIFIER)
    try:
        with exporting("drafter", config.trace_endpoint, config.trace_ratio) as tracer:
            pair = await build(config, channel, tracer)
            engine = pair.engine
            pairing = Pairing(pair, partial(rebuild, config))
            service = DrafterService(pairing, config)
            name = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name
            register = drafter_pb2_grpc.add_DrafterServiceServicer_to_server
            shell = Service(name, register, service, pairing.report_to)
            try:
                await serve_engine(
                    config,
                    shell,
                    engine,
                    service.drain,
                    lambda: first_pass(engine),
                    on_ready,
                    tracer,
                )
            finally:
                pairing.close()
    finally:
        await channel.close()
