"""VerifierService: messages in, verdicts out; one Verify stream is one session.

Knows the protocol's order and limits. Does not know models and batches (verifier/engine.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc

from common.engine.server import serve_engine
from common.errors import Draining, IdentityMismatch, OutOfOrder, TokenizerMismatch
from common.model.ranks import torchrun_rank
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc
from common.rpc import verifier_id
from common.rpc.idle_limit import EachWithin
from common.rpc.server import Service
from common.rpc.statuses import trailing
from common.rpc.timeouts import ReusableTimeout
from common.telemetry.tracing import exporting
from common.types import ModelInfo, OpenSession, Proposal, SparseDistribution, Verdict
from common.vocabulary.vocabulary import TokenizerFiles
from common.wire import verify as wire_verify
from common.wire.checks import check_ids
from verifier.config import VerifierConfig
from verifier.engine import VerifierEngine
from verifier.ranks import follow_rank_0
from verifier.request_limits import check_verify_once, check_verify_request
from verifier.session import Session
from verifier.startup import build, first_pass
from verifier.telemetry import VerifierTelemetry

log = logging.getLogger(__name__)

CHUNK_BYTES = 512 << 10  # of a tokenizer file; a message stays well under 1 MiB

IDLE = "no open or proposal came"


class VerifierService(verifier_pb2_grpc.VerifierServiceServicer):
    """The handlers. Streams are async generators: ending one, for any reason, frees its session."""

    def __init__(
        self,
        engine: VerifierEngine,
        info: ModelInfo,
        files: TokenizerFiles,
        idle_timeout_s: float = VerifierConfig.idle_timeout_s,
    ) -> None:
        self._engine = engine
        self._idle_timeout_s = idle_timeout_s
        self._info = info
        self._files = files
        self._telemetry = VerifierTelemetry(engine, info)
        self._draining = False
        self._id = verifier_id.new()

    async def drain(self) -> None:
        """Take no new sessions; those that run may finish."""
        self._draining = True

    async def GetModel(
        self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetModelResponse:
        return wire_verify.model_to_pb(self._info)

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        for name, data in self._files.files.items():
            for begin in range(0, max(len(data), 1), CHUNK_BYTES):
                yield pb.GetTokenizerResponse(
                    filename=name,
                    chunk=data[begin : begin + CHUNK_BYTES],
                    file_bytes=0 if begin else len(data),
                )

    async def Verify(
        self, requests: AsyncIterator[pb.VerifyRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.VerifyResponse]:
        session: Session | None = None
        timeout = ReusableTimeout(self._idle_timeout_s)
        await context.send_initial_metadata(((verifier_id.KEY, self._id),))
        # Also at the end: a refusal that comes at once may overtake what the call begins with.
        context.set_trailing_metadata(trailing(context, (verifier_id.KEY, self._id)))
        try:
            async for request in EachWithin(requests, timeout, IDLE):
                check_verify_request(request, self._engine.limits)
                content = wire_verify.verify_request_from_pb(request)
                if session is None:
                    session = self._open(content)
                else:
                    self._propose(session, content)
                verdict = await session.mailbox.take()
                drafted = len(content.token_ids) if isinstance(content, Proposal) else 0
                self._telemetry.verified(session.spec, drafted, verdict)
                if verdict.round == 0:
                    verdict = self._introduced(verdict)
                yield pb.VerifyResponse(verdict=wire_verify.verdict_to_pb(verdict))
                if verdict.finish_reason is not None:
                    return
        finally:
            timeout.close()
            if session is not None:
                self._engine.close(session)

    async def VerifyOnce(
        self, request: pb.VerifyOnceRequest, context: grpc.aio.ServicerContext
    ) -> pb.VerifyOnceResponse:
        check_verify_once(request, self._engine.limits)
        spec, draft, q = wire_verify.verify_once_from_pb(request)
        check_ids("draft_token_ids", draft, self._info.vocab_size)
        with self._session(spec, draft, q) as session:
            verdict = await session.mailbox.take()
        self._telemetry.verified(spec, len(draft), verdict)
        return pb.VerifyOnceResponse(verdict=wire_verify.verdict_to_pb(self._introduced(verdict)))

    def _introduced(self, verdict: Verdict) -> Verdict:
        """A stream's first verdict also says who has the stream."""
        return replace(verdict, identity=self._info.identity, limits=self._info.limits)

    @contextmanager
    def _session(
        self, spec: OpenSession, draft: tuple[int, ...], q: tuple[SparseDistribution, ...]
    ) -> Iterator[Session]:
        session = self._admit(spec, draft, q)
        try:
            yield session
        finally:
            self._engine.close(session)

    def _open(self, content: OpenSession | Proposal) -> Session:
        if isinstance(content, Proposal):
            raise OutOfOrder("the stream began with a proposal; it must begin with open")
        return self._admit(content)

    def _admit(
        self, spec: OpenSession, draft: tuple[int, ...] = (), q: tuple[SparseDistribution, ...] = ()
    ) -> Session:
        if self._draining:
            raise Draining("this verifier is shutting down; open the session on another")
        if spec.tokenizer_sha256 != self._info.tokenizer_sha256:
            raise TokenizerMismatch(spec.tokenizer_sha256, self._info.tokenizer_sha256)
        self._check_identity(spec)
        check_ids("open.prompt_token_ids", spec.prompt, self._info.vocab_size)
        check_ids("open.stop_token_ids", sorted(spec.stop_ids), self._info.vocab_size)
        spec.sampling.check_ids(self._info.vocab_size)
        return self._engine.open(spec, draft, q)

    def _check_identity(self, spec: OpenSession) -> None:
        """Raise IdentityMismatch if the session would go on in another model's words."""
        own, began = self._info.identity, spec.identity
        if own is None or began is None:
            return
        parts = [part for part in began.differing(own) if part not in spec.resume_on]
        if parts:
            raise IdentityMismatch(
                {part: (getattr(began, part), getattr(own, part)) for part in parts}
            )

    def _propose(self, session: Session, content: OpenSession | Proposal) -> None:
        if isinstance(content, OpenSession):
            raise OutOfOrder("a second open on one stream; one stream is one session")
        check_ids("proposal.token_ids", content.token_ids, self._info.vocab_size)
        self._engine.propose(session, content)


async def serve(config: VerifierConfig, on_ready: Callable[[int], None] | None = None) -> None:
    """Load, serve until a signal, drain. `on_ready` gets the bound port.

    On the ranks that follow, if there are some: hold a part of the model until rank 0 ends.
    """
    place = torchrun_rank()
    if place is not None and place.rank:
        await follow_rank_0(config, place)
        return
    engine, info, files = await asyncio.to_thread(build, config)
    if info.row_invariant:
        log.info("%s: row-invariant", config.model)
    else:
        log.warning(
            "%s: NOT row-invariant: output may depend on drafts and on other sessions", config.model
        )
    service = VerifierService(engine, info, files, config.idle_timeout_s)
    name = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name
    register = verifier_pb2_grpc.add_VerifierServiceServicer_to_server
    shell = Service(name, register, service)
    with exporting("verifier", config.trace_endpoint, config.trace_ratio) as tracer:
        await serve_engine(
            config, shell, engine, service.drain, lambda: first_pass(engine, info), on_ready, tracer
        )
