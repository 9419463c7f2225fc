"""The drafter's end of the seam: one bidi stream is one session.

Knows the Verify protocol, and how to go on after a verifier is lost: open again, on whichever
verifier the channel finds, with the prompt and everything committed so far. Refuses to know drafts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace

import grpc

from common import wire_verify
from common.errors import VerifierRefused, VerifierUnavailable
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc
from common.tokenizer import TokenizerFiles
from common.types import ModelInfo, OpenSession, Proposal, Verdict

log = logging.getLogger(__name__)

RETRY_S = 0.2  # between attempts to reach a verifier


@dataclass(frozen=True)
class Answer:
    """A verdict, and the seconds from sending to receiving."""

    verdict: Verdict
    elapsed_s: float


class VerifierClient:
    """Verifiers behind one channel."""

    def __init__(self, channel: grpc.aio.Channel, patience_s: float) -> None:
        """patience_s: how long to look for a verifier before giving up."""
        self._stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        self._patience_s = patience_s

    async def describe(self) -> tuple[ModelInfo, TokenizerFiles]:
        """Wait for a verifier, then ask what it serves and for its tokenizer's files."""
        async for _ in self.attempts("no verifier answers"):
            try:
                info = wire_verify.model_from_pb(await self._stub.GetModel(pb.GetModelRequest()))
                files: dict[str, bytes] = {}
                async for part in self._stub.GetTokenizer(pb.GetTokenizerRequest()):
                    files[part.filename] = files.get(part.filename, b"") + part.chunk
                return info, TokenizerFiles(files)
            except grpc.aio.AioRpcError as cause:
                _raise_unless_lost(cause)
        raise AssertionError("attempts() ends by raising")

    async def attempts(self, failing: str) -> AsyncIterator[None]:
        """Ticks until the patience is over, then raises VerifierUnavailable."""
        deadline = time.monotonic() + self._patience_s
        while True:
            yield
            if time.monotonic() > deadline:
                raise VerifierUnavailable(f"{failing} after {self._patience_s:g} s")
            await asyncio.sleep(RETRY_S)

    def session(self, spec: OpenSession) -> VerifierSession:
        return VerifierSession(self, self._stub, spec)


class VerifierSession:
    """One session: `open`, then `verify` until a verdict has a finish reason, then `close`.

    After a lost verifier the round is answered by a fresh prefill: no draft token accepted, and the
    target's next token. The output is the same, since a target's greedy token depends on the
    committed tokens alone.
    """

    def __init__(
        self,
        client: VerifierClient,
        stub: verifier_pb2_grpc.VerifierServiceStub,
        spec: OpenSession,
    ) -> None:
        self._client = client
        self._stub = stub
        self._spec = spec
        self._committed = list(spec.prompt)
        self._call: grpc.aio.StreamStreamCall[pb.VerifyRequest, pb.VerifyResponse] | None = None
        self._round_offset = 0  # rounds that earlier streams of this session have counted
        self.wire_bytes = 0
        self.reopened = 0

    async def open(self) -> Answer:
        """Begin; the verdict has round 0 and the first token."""
        began = time.monotonic()
        verdict = await self._open(patient=False)
        return Answer(verdict, time.monotonic() - began)

    async def verify(self, proposal: Proposal) -> Answer:
        """One round."""
        began = time.monotonic()
        sent = replace(proposal, round=proposal.round - self._round_offset)
        try:
            verdict = await self._exchange(sent)
        except grpc.aio.AioRpcError as cause:
            _raise_unless_lost(cause)
            log.warning("lost the verifier in round %d: %s", proposal.round, cause.details())
            self.reopened += 1
            self._round_offset = proposal.round
            verdict = await self._open(patient=True)
        else:
            self._commit(proposal.token_ids[: verdict.accepted_length], verdict.next_token)
        verdict = replace(verdict, round=verdict.round + self._round_offset)
        return Answer(verdict, time.monotonic() - began)

    def close(self) -> None:
        """End the stream; the verifier frees what the session held."""
        if self._call is not None:
            self._call.cancel()

    async def _open(self, patient: bool) -> Verdict:
        async for _ in self._client.attempts("the verifier is gone, and no other answers"):
            self.close()
            self._call = self._stub.Verify()
            done = len(self._committed) - len(self._spec.prompt)
            spec = replace(
                self._spec,
                prompt=tuple(self._committed),
                max_new_tokens=self._spec.max_new_tokens - done,
            )
            try:
                verdict = await self._exchange(spec)
            except grpc.aio.AioRpcError as cause:
                # A verifier that is full for a moment is no reason to lose a running session.
                if not (patient and cause.code() == grpc.StatusCode.RESOURCE_EXHAUSTED):
                    _raise_unless_lost(cause)
                if not patient:
                    raise VerifierUnavailable(f"no verifier answers: {cause.details()}") from cause
            else:
                self._commit((), verdict.next_token)
                return verdict
        raise AssertionError("attempts() ends by raising")

    async def _exchange(self, content: OpenSession | Proposal) -> Verdict:
        assert self._call is not None
        request = wire_verify.verify_request_to_pb(content)
        self.wire_bytes += request.ByteSize()
        with suppress(asyncio.InvalidStateError):  # the call is over; reading tells why
            await self._write(request)
        response = await self._call.read()
        if not isinstance(response, pb.VerifyResponse):
            raise VerifierUnavailable("the verifier ended the session without a finish reason")
        self.wire_bytes += response.ByteSize()
        return wire_verify.verdict_from_pb(response.verdict)

    async def _write(self, request: pb.VerifyRequest) -> None:
        """A write that meets the end of the connection is told as UNAVAILABLE too.

        gRPC makes up INTERNAL for it, and throws the status away.
        """
        assert self._call is not None
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as cause:
            if cause.code() != grpc.StatusCode.INTERNAL:
                raise
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                cause.initial_metadata(),
                cause.trailing_metadata(),
                "the connection ended while a request was being sent",
            ) from cause

    def _commit(self, accepted: tuple[int, ...], next_token: int | None) -> None:
        self._committed.extend(accepted)
        if next_token is not None:
            self._committed.append(next_token)


def _raise_unless_lost(error: grpc.aio.AioRpcError) -> None:
    """Return if another verifier may do better; otherwise raise the verifier's own error."""
    if error.code() != grpc.StatusCode.UNAVAILABLE:
        details: dict[str, str] = {}
        for key, value in error.trailing_metadata() or ():
            if isinstance(value, str) and not key.startswith(":"):
                details[key] = value
        raise VerifierRefused(error.code(), error.details() or "", **details) from error
