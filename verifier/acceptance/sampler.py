"""One pass's acceptance: the verified sessions' drafts and distributions, as tensors.

Knows how sessions with rules and parameters of their own become one batch, and which batches need
no more than an argmax. Does not know how the kernels work, and what the results are used for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from common.sampling.distribution import NEVER, filters
from common.types import TokenLogprobs
from verifier.acceptance.batch import SamplingBatch
from verifier.acceptance.draft_distributions import pack_draft_distributions
from verifier.acceptance.logprobs import run_logprobs
from verifier.acceptance.rules import accept, accept_greedy
from verifier.acceptance.token_counts import processor_rows
from verifier.batcher import Batch
from verifier.session import Session


@dataclass(frozen=True)
class VerifyOutput:
    """The result of one session. The run may still be cut at a reason to stop."""

    accepted_length: int
    next_token: int
    logprobs: tuple[TokenLogprobs, ...] = ()  # of the accepted and the next token, if asked for


class AcceptanceSampler(Protocol):
    """Computes a pass's results: selected at start, by the device."""

    @property
    def lag_s(self) -> float:
        """How long the last forward pass went on after its call had returned."""

    def enter(self) -> None:
        """Called once on the engine's thread, before all else."""

    def warm_up(self) -> None:
        """Make at start what would otherwise be made in a step."""

    def check(self) -> None:
        """Raise, after a pass that failed, if no other can succeed: the service must end then."""

    def accept(self, batch: Batch, logits: Tensor) -> Sequence[VerifyOutput | None]:
        """One output per verified session, in their order; logits: [logit rows, vocab].

        None: logits that the session's result depends on aren't finite, and it can't go on.
        """


class HostAcceptanceSampler:
    """On the CPU, in plain torch."""

    lag_s = 0.0

    def __init__(self, real_ids: Tensor | None) -> None:
        self._real_ids = real_ids

    def enter(self) -> None: ...

    def warm_up(self) -> None: ...

    def check(self) -> None: ...

    def accept(self, batch: Batch, logits: Tensor) -> list[VerifyOutput | None]:
        return accept_batch(batch, logits, self._real_ids)


def accept_batch(
    batch: Batch,
    logits: Tensor,  # float32 [logit rows, vocab]
    real_ids: Tensor | None,  # bool [vocab]: ids the tokenizer has; None: all
) -> list[VerifyOutput | None]:
    """One output per verified session, in their order. None: see AcceptanceSampler.accept."""
    sessions = batch.verified
    if not sessions:
        return []  # chunks of long prompts only
    drafts, offsets = batch.draft_tokens(), batch.offsets()
    invalid = ~logits.amax(dim=-1).isfinite()  # [logit rows]; one NaN or inf makes a row so
    if bool(invalid.any()):
        if real_ids is not None:  # of an id that doesn't exist nothing matters
            logits = logits.masked_fill(~real_ids, NEVER)
            invalid = ~logits.amax(dim=-1).isfinite()
        logits = logits.masked_fill(invalid[:, None], 0.0)  # so that the others can be computed
    if all(session.takes_argmax for session in sessions):
        acceptance = accept_greedy(logits, drafts, offsets, real_ids)
    else:
        acceptance = accept(
            logits,
            drafts,
            offsets,
            sampling_batch(sessions, logits.shape[-1]),
            pack_draft_distributions([(session.q, len(session.draft)) for session in sessions]),
            processor_rows([(session.token_counts, session.draft) for session in sessions]),
            real_ids,
        )
    accepted, following = acceptance.accepted_lengths.tolist(), acceptance.next_tokens.tolist()
    counts = [session.sequence.wanted for session in sessions]
    parts = zip(sessions, logits.split(counts), invalid.split(counts), strict=True)
    return [
        None
        if bool(faulty[: a + 1].any())
        else VerifyOutput(a, token, _logprobs(session, rows[: a + 1], token, real_ids))
        for (session, rows, faulty), a, token in zip(parts, accepted, following, strict=True)
    ]


def sampling_batch(sessions: Sequence[Session], vocab: int) -> SamplingBatch:
    """Each session's rule, filters, seed and place."""
    temperature, top_k, top_p, min_p = filters([s.spec.sampling for s in sessions], vocab)
    return SamplingBatch(
        rule=torch.tensor([s.spec.rule for s in sessions], dtype=torch.int8),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=torch.tensor([session.seed for session in sessions], dtype=torch.int64),
        first_position=torch.tensor([session.committed_length for session in sessions]),
    )


def _logprobs(
    session: Session, rows: Tensor, next_token: int, real_ids: Tensor | None
) -> tuple[TokenLogprobs, ...]:
    """rows: [a + 1, vocab], those of the accepted tokens and the next one."""
    top = session.spec.sampling.logprobs
    if top is None:
        return ()
    return run_logprobs(rows, [*session.draft[: len(rows) - 1], next_token], top, real_ids)
