"""A verifier's answer: a verdict, its own error, or a sign that it is lost.

Knows which status and which verdict another attempt may better. Does not know what comes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from common.errors import (
    CrossdraftError,
    IdentityMismatch,
    PromptTooLong,
    TokenizerMismatch,
    UnknownFeature,
)
from common.rpc import verifier_id
from common.rpc.error_details import ErrorDetails, received
from common.rpc.statuses import broken_off
from common.types import OpenSession, Proposal, Verdict

# What a verifier refuses for what it is, and not for what the request is.
_OF_THIS_ONE = frozenset(
    kind.reason for kind in (IdentityMismatch, PromptTooLong, TokenizerMismatch, UnknownFeature)
)


@dataclass(frozen=True)
class Answer:
    """A verdict, and the seconds from sending to receiving."""

    verdict: Verdict
    elapsed_s: float
    reopened: bool = False  # the verifier was lost: a prefill's verdict, not the proposal's


class VerifierLost(Exception):
    """The verifier is gone, or not what it was; another attempt may do better."""


class VerifierTimeout(VerifierLost):
    """The verifier was there, and took too long."""


class VerifierRefused(CrossdraftError):
    """A verifier's own error, handed on to the client with its status, reason and details."""

    def __init__(
        self,
        status: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        field: str = "",
        retry_ms: int | None = None,
        metadata: Mapping[str, str] | None = None,
        verifier: str = "",
    ) -> None:
        """reason: "" where the verifier gave none. verifier: the id of the verifier, if known."""
        super().__init__(message, field=field, retry_ms=retry_ms)
        self.metadata = dict(metadata or {})
        self.status = status
        self.reason = reason or type(self).reason
        self.verifier = verifier

    @property
    def full(self) -> bool:
        """Whether it has no capacity now."""
        return self.status is grpc.StatusCode.RESOURCE_EXHAUSTED

    @property
    def elsewhere(self) -> bool:
        """Whether another verifier behind the same name may take what this one refused."""
        return self.full or self.reason in _OF_THIS_ONE


def check_answer(content: OpenSession | Proposal, verdict: Verdict, logprobs: int | None) -> None:
    """Raise VerifierLost unless this verdict can be the answer: a late one has another round.

    logprobs: how many of the likeliest tokens the session asked for; None: no log-probabilities.
    """
    if isinstance(content, OpenSession):
        round_, base, drafted = 0, len(content.prompt), 0
    else:
        round_, base, drafted = content.round, content.base_length, len(content.token_ids)
    committed = base + verdict.accepted_length + (verdict.next_token is not None)
    if (
        verdict.round != round_
        or verdict.accepted_length > drafted
        or verdict.committed_length != committed
        or (verdict.next_token is None and verdict.finish_reason is None)
    ):
        raise VerifierLost(
            f"its verdict on round {round_} over {base} tokens with {drafted} draft tokens is of "
            f"round {verdict.round} with {verdict.accepted_length} accepted and "
            f"{verdict.committed_length} committed"
        )
    count = len(verdict.logprobs)
    expected = 0 if logprobs is None else committed - base
    if count != expected:
        raise VerifierLost(
            f"its verdict on round {round_} has log-probabilities of {count} tokens instead of "
            f"{expected}"
        )
    for each in verdict.logprobs:
        if len(each.top_ids) != len(each.top_logprobs) or len(each.top_ids) > (logprobs or 0):
            raise VerifierLost(
                f"its verdict on round {round_} has {len(each.top_ids)} likeliest tokens with "
                f"{len(each.top_logprobs)} log-probabilities; {logprobs} were asked for"
            )


def raise_unless_lost(error: grpc.aio.AioRpcError) -> None:
    """Return if another verifier may do better; otherwise raise the verifier's own error."""
    if broken_off(error):
        return
    details = received(error.trailing_metadata()) or ErrorDetails("")
    raise VerifierRefused(
        error.code(),
        error.details() or "",
        reason=details.reason,
        field=details.field,
        retry_ms=details.retry_ms,
        metadata=details.metadata,
        verifier=verifier_id.received(error.trailing_metadata()),
    ) from error
