"""All verifiers behind one channel: what they serve, and a session at one of them.

Knows how long to look for one. Does not know the Verify protocol
(drafter/verifier_client/session.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import grpc
from opentelemetry.trace import Tracer

from common.errors import VerifierUnavailable
from common.pb import verifier_pb2_grpc
from common.telemetry import tracing
from common.types import ModelInfo, OpenSession
from common.vocabulary.vocabulary import TokenizerFiles
from drafter.verifier_client.description import described
from drafter.verifier_client.lost import VerifierLost, raise_unless_lost
from drafter.verifier_client.selection import VerifierHistory
from drafter.verifier_client.session import VerifierSession

log = logging.getLogger(__name__)

RETRY_S = 0.2  # between attempts to reach a verifier


class VerifierClient:
    """Verifiers behind one channel."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        timeout_s: float,
        round_timeout_s: float | None = None,
        open_timeout_s: float | None = None,
        tracer: Tracer = tracing.NO_TRACER,
        resume_on: frozenset[str] = frozenset(),
    ) -> None:
        """timeout_s: how long to look for a verifier before giving up. The others: how long one
        may take over a proposal and over a prompt before it counts as lost. resume_on: parts of a
        verifier's identity that may differ where a session goes on."""
        self.resume_on = resume_on
        self.round_timeout_s = round_timeout_s
        self.open_timeout_s = open_timeout_s
        self.tracer = tracer
        self.history = VerifierHistory()
        self._stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        self._timeout_s = timeout_s

    async def describe(self) -> tuple[ModelInfo, TokenizerFiles]:
        """Wait for a verifier, then fetch its description and its tokenizer's files."""
        async for _ in self.attempts("no verifier answers"):
            try:
                return await described(self._stub)
            except grpc.aio.AioRpcError as cause:
                raise_unless_lost(cause)
            except VerifierLost as cause:
                log.warning("%s; trying again", cause)
        raise AssertionError("attempts() ends by raising")

    async def attempts(self, failing: str, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Yields until the timeout is over, then raises VerifierUnavailable."""
        timeout_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            yield
            if time.monotonic() > deadline:
                raise VerifierUnavailable(f"{failing} after {timeout_s:g} s")
            await asyncio.sleep(RETRY_S)

    def session(self, spec: OpenSession) -> VerifierSession:
        return VerifierSession(self, self._stub, spec)
