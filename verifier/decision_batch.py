"""A pass's question to the decision: the deciding sessions' drafts and laws, as tensors.

Knows how sessions with rules and parameters of their own become one batch, and which batches need
no more than an argmax. Refuses to know how the kernels decide, and what becomes of the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.types import AcceptanceRule, TokenLogprobs
from verifier.batcher import Batch
from verifier.kernels.decision import Adjustments, Rule, SamplingBatch, SparseQ
from verifier.kernels.reference import decide, decide_greedy
from verifier.logprobs import run_logprobs
from verifier.session import Session

RULES = {
    AcceptanceRule.GREEDY: Rule.GREEDY,
    AcceptanceRule.NO_Q: Rule.NO_Q,
    AcceptanceRule.REJECTION: Rule.REJECTION,
    AcceptanceRule.COUPLED: Rule.COUPLED,
}


@dataclass(frozen=True)
class Outcome:
    """What was decided for one session. The run may still be cut at a reason to stop."""

    accepted_length: int
    next_token: int
    logprobs: tuple[TokenLogprobs, ...] = ()  # of the accepted and the next token, if asked for


def decide_batch(
    batch: Batch,
    logits: Tensor,  # float32 [logit rows, vocab]
    real_ids: Tensor | None,  # bool [vocab]: ids the tokenizer has; None: all
) -> list[Outcome]:
    """One outcome per deciding session, in their order."""
    sessions = batch.deciding
    if not sessions:
        return []  # chunks of long prompts only
    drafts, offsets = batch.draft_tokens(), batch.offsets()
    if all(session.takes_argmax for session in sessions):
        decisions = decide_greedy(logits, drafts, offsets, real_ids)
    else:
        sampling = sampling_batch(sessions, logits.shape[-1])
        q, adjustments = sparse_q(sessions), adjustments_of(sessions)
        decisions = decide(logits, drafts, offsets, sampling, q, adjustments, real_ids)
    outcomes = []
    accepted, following = decisions.accepted_lengths.tolist(), decisions.next_tokens.tolist()
    for session, begin, a, token in zip(
        sessions, offsets.tolist()[:-1], accepted, following, strict=True
    ):
        logprobs: tuple[TokenLogprobs, ...] = ()
        if session.spec.sampling.logprobs is not None:
            run = [*session.draft[:a], token]
            rows = logits[begin : begin + a + 1]
            logprobs = run_logprobs(rows, run, session.spec.sampling.logprobs, real_ids)
        outcomes.append(Outcome(a, token, logprobs))
    return outcomes


def sampling_batch(sessions: Sequence[Session], vocab: int) -> SamplingBatch:
    """Parameters that aren't set become the values that switch their step off."""
    params = [session.spec.sampling for session in sessions]
    return SamplingBatch(
        rule=torch.tensor([RULES[s.spec.rule] for s in sessions], dtype=torch.int8),
        temperature=_floats(p.temperature or 1.0 for p in params),
        top_k=torch.tensor([min(p.top_k or vocab, vocab) for p in params], dtype=torch.int32),
        top_p=_floats(1.0 if p.top_p is None else p.top_p for p in params),
        min_p=_floats(p.min_p or 0.0 for p in params),
        seed=torch.tensor([session.seed for session in sessions], dtype=torch.int64),
        first_position=torch.tensor([session.committed_length for session in sessions]),
    )


def sparse_q(sessions: Sequence[Session]) -> SparseQ | None:
    """Each session's rows of q at its own logit rows; None if nobody has any."""
    slots = max((len(row.ids) for session in sessions for row in session.q), default=0)
    if not slots:
        return None
    rows = sum(session.sequence.wanted for session in sessions)
    ids, probabilities = np.zeros((rows, slots), np.int32), np.zeros((rows, slots), np.float32)
    begin = 0
    for session in sessions:
        for place, row in enumerate(session.q, start=begin):
            ids[place, : len(row.ids)] = row.ids
            probabilities[place, : len(row.ids)] = row.probabilities
        begin += session.sequence.wanted
    return SparseQ(torch.from_numpy(ids), torch.from_numpy(probabilities))


def adjustments_of(sessions: Sequence[Session]) -> Adjustments | None:
    """Every row's entries; None if no session changes any logit."""
    tallies = [session.tally if session.adjusts else None for session in sessions]
    if not any(tallies):
        return None
    made, widths = [], [0]
    for session, tally in zip(sessions, tallies, strict=True):
        entries = tally.rows(session.draft) if tally else None
        widths += [0 if entries is None else entries.shape[1]] * session.sequence.wanted
        if entries is not None:
            made.append(entries.ravel())
    flat = np.concatenate(made)  # [entries]
    params = [session.spec.sampling for session in sessions]
    return Adjustments(
        offsets=torch.tensor(widths).cumsum(0),
        ids=torch.from_numpy(np.ascontiguousarray(flat["id"])),
        bias=torch.from_numpy(np.ascontiguousarray(flat["bias"])),
        seen=torch.from_numpy(flat["total"] > 0),
        count=torch.from_numpy(np.ascontiguousarray(flat["count"])),
        banned=torch.from_numpy(np.ascontiguousarray(flat["banned"])),
        repetition=_floats(p.repetition_penalty or 1.0 for p in params),
        presence=_floats(p.presence_penalty or 0.0 for p in params),
        frequency=_floats(p.frequency_penalty or 0.0 for p in params),
    )


def _floats(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float32)
