"""A verifier's answer: a verdict, its own error, or a sign that it is lost.

Knows which status and which verdict another attempt may better. Does not know what comes of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from common.errors import VerifierRefused
from common.rpc import verifier_id
from common.rpc.error_details import ErrorDetails, received
from common.rpc.statuses import broken_off
from common.types import OpenSession, Proposal, Verdict


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
