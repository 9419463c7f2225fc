"""The drafter's end of the verifier's stream: one bidi stream is one session.

Knows the Verify protocol, and how to go on after a verifier is lost: open again, with the prompt
and everything committed so far. Does not know drafts, and whom to take
(drafter/verifier_client/selection.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import grpc
from opentelemetry.trace import INVALID_SPAN, Span, Tracer

from common.errors import VerifierUnavailable
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc
from common.rpc.timeouts import ReusableTimeout
from common.telemetry import request_id, tracing
from common.types import OpenSession, Proposal, SessionLimits, Verdict
from common.wire import verify as wire_verify
from drafter.verifier_client.lost import (
    Answer,
    VerifierLost,
    VerifierRefused,
    VerifierTimeout,
    check_answer,
    raise_unless_lost,
)
from drafter.verifier_client.selection import ANSWER_S, VerifierHistory, VerifierSelection

log = logging.getLogger(__name__)

METHOD = "crossdraft.v1.VerifierService/Verify"  # as traces name it
# For a new request to find any verifier: more than the channel's longest pause between two attempts
# to connect. One whose verifier is lost over the prompt has the timeout of later rounds.
OPEN_TIMEOUT_S = 5.0


class Verifiers(Protocol):
    """What a session needs of all verifiers; drafter/verifier_client/client.py has the real one."""

    round_timeout_s: float | None
    open_timeout_s: float | None
    tracer: Tracer
    history: VerifierHistory
    resume_on: frozenset[str]

    def attempts(self, failing: str, timeout_s: float | None = None) -> AsyncIterator[None]: ...


class VerifierSession:
    """One session: `open`, then `verify` until a verdict has a finish reason, then `close`.

    After a lost verifier the round is answered by a fresh prefill: no draft token accepted, and the
    target's next token. The output is the same, since a greedy or coupled token depends on nothing
    but the committed tokens, which of them are output, the seed, and the verifier's identity, which
    must be the same but for what the operator allows.

    identity, limits: of the verifier that has the session; None until its first verdict, and where
    it is older than these. resumed_on: the parts of the identity that have changed.
    """

    def __init__(
        self,
        client: Verifiers,
        stub: verifier_pb2_grpc.VerifierServiceStub,
        spec: OpenSession,
    ) -> None:
        self._client = client
        self._stub = stub
        self._spec = spec
        self._opening = ReusableTimeout(client.open_timeout_s)
        self._rounds = ReusableTimeout(client.round_timeout_s)
        self._committed = list(spec.prompt)
        self._call: grpc.aio.StreamStreamCall[pb.VerifyRequest, pb.VerifyResponse] | None = None
        self._verifier_id = ""  # of who has the stream in _call, if it has sent one
        self._slow: set[str] = set()  # ids of those that took too long
        self._span: Span = INVALID_SPAN  # of the stream in _call, and of attempts at one
        self._round_offset = 0  # rounds that earlier streams of this session have counted
        self.identity = spec.identity
        self.limits: SessionLimits | None = None
        self.resumed_on: set[str] = set()
        self.wire_bytes = 0

    async def open(self) -> Answer:
        """Begin; the verdict has round 0 and the first token."""
        began = time.monotonic()
        verdict = await self._open(first=True)
        return Answer(verdict, time.monotonic() - began)

    async def verify(self, proposal: Proposal) -> Answer:
        """One round."""
        began, offset = time.monotonic(), self._round_offset
        sent = replace(proposal, round=proposal.round - offset) if offset else proposal
        try:
            verdict, reopened = await self._exchange(sent), False
        except VerifierLost as cause:
            log.warning("lost the verifier in round %d: %s", proposal.round, cause)
            tracing.failed(self._span, str(cause))
            self._round_offset = proposal.round
            verdict, reopened = await self._open(first=False), True
        except VerifierRefused as cause:
            tracing.refused(self._span, cause.status, str(cause))
            raise
        else:
            self._commit(proposal.token_ids[: verdict.accepted_length], verdict.next_token)
            facts = {"drafted": len(sent.token_ids), "accepted": verdict.accepted_length}
            tracing.add_round(self._span, verdict.round, facts)
        if self._round_offset:
            verdict = replace(verdict, round=verdict.round + self._round_offset)
        return Answer(verdict, time.monotonic() - began, reopened)

    def close(self) -> None:
        """End the stream; the verifier frees the session's pages."""
        self._cancel()
        self._opening.close()
        self._rounds.close()
        self._span.end()
        self._span = INVALID_SPAN

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def _open(self, first: bool) -> Verdict:
        failing = "no verifier answers" if first else "the verifier is gone, and no other answers"
        selection = VerifierSelection(self._slow, self._client.history)
        self._span.end()
        self._span = tracing.calling(self._client.tracer, METHOD)
        try:
            async for _ in self._client.attempts(failing, OPEN_TIMEOUT_S if first else None):
                try:
                    return await self._open_at_one_with_capacity(selection)
                except VerifierLost as cause:
                    log.debug("no session: %s", cause)
                    if first and (self._verifier_id or isinstance(cause, VerifierTimeout)):
                        tracing.failed(self._span, str(cause))
                        break  # it had the prompt
                except VerifierRefused as cause:
                    # A verifier that is full for a moment is no reason to lose a running session.
                    running = len(self._committed) > len(self._spec.prompt)
                    if not running or cause.status != grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
        except (VerifierRefused, VerifierUnavailable) as cause:
            tracing.refused(self._span, cause.status, str(cause))
            raise
        return await self._open(first=False)

    async def _open_at_one_with_capacity(self, selection: VerifierSelection) -> Verdict:
        """One attempt, and more while verifiers are full. Raises VerifierLost, VerifierRefused."""
        while True:
            self._cancel()
            metadata = (*request_id.outgoing(), *tracing.outgoing(self._span))
            self._call = self._stub.Verify(metadata=metadata)
            try:
                verdict = await self._first_verdict(self._call, selection)
            except VerifierRefused as cause:
                if not self._verifier_id:  # gRPC may leave out what a call began with
                    self._client.history.answered(cause.verifier)
                refusing = self._verifier_id or cause.verifier
                if not (cause.elsewhere and selection.may_find_another(refusing, cause.full)):
                    raise
            else:
                self._meet(verdict)
                self._commit((), verdict.next_token)
                return verdict

    async def _first_verdict(
        self, call: grpc.aio.StreamStreamCall[Any, Any], selection: VerifierSelection
    ) -> Verdict:
        allowed = self._client.resume_on if self.identity is not None else frozenset()
        spec = self._spec.resumed(self._committed, self.identity, allowed)
        client, self._verifier_id = self._client, ""
        answer_s = ANSWER_S if client.history.identified else client.open_timeout_s
        opening = asyncio.create_task(self._exchange(spec))  # no time is lost over who is there
        try:
            self._verifier_id = await selection.answer(call, answer_s)
            return await opening
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    async def _exchange(self, content: OpenSession | Proposal) -> Verdict:
        """Raises VerifierLost, or VerifierRefused with the verifier's own error."""
        timeout = self._opening if isinstance(content, OpenSession) else self._rounds
        try:
            verdict = await timeout.wait(self._ask(content))
        except TimeoutError as cause:
            self._slow |= {self._verifier_id} - {""}
            raise VerifierTimeout(f"no verdict within {timeout.limit_s:g} s") from cause
        check_answer(content, verdict, self._spec.sampling.logprobs)
        return verdict

    async def _ask(self, content: OpenSession | Proposal) -> Verdict:
        assert self._call is not None
        request = wire_verify.verify_request_to_pb(content)
        self.wire_bytes += request.ByteSize()
        try:
            with suppress(asyncio.InvalidStateError):  # the call is over; reading says why
                # gRPC makes up INTERNAL for a write that meets the end of the connection.
                await self._call.write(request)
            response = await self._call.read()
        except grpc.aio.AioRpcError as cause:
            raise_unless_lost(cause)
            raise VerifierLost(f"{cause.code().name}: {cause.details()}") from cause
        if not isinstance(response, pb.VerifyResponse):
            raise VerifierLost("it ended the session without a finish reason")
        self.wire_bytes += response.ByteSize()
        return wire_verify.verdict_from_pb(response.verdict)

    def _meet(self, verdict: Verdict) -> None:
        """A verifier's first verdict: who it is, and what it takes."""
        self.limits = verdict.limits
        began, self.identity = self.identity, verdict.identity
        if began is not None and verdict.identity is not None:
            parts = began.differing(verdict.identity)
            if parts:
                log.warning("the session goes on at a verifier with another %s", ", ".join(parts))
            self.resumed_on.update(parts)

    def _commit(self, accepted: tuple[int, ...], next_token: int | None) -> None:
        self._committed.extend(accepted)
        if next_token is not None:
            self._committed.append(next_token)
