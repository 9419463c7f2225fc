"""Plain torch: the specification of every acceptance kernel, the CPU path, and the test oracle.

Pure functions: inputs are never written, offsets are arguments, and randomness is a function of the
seed and position that are arguments too (common/sampling/rng.py). Does not know sessions.

All rules but greedy give p exactly, whatever was drafted: Leviathan et al., 2023, appendix A.1
(arXiv:2211.17192) for rejection; target-only is rejection with the distribution that is one at the
draft token. Coupled samples the token first (Gumbel-max; Maddison et al., 2014, arXiv:1411.0030)
and looks at the draft token afterwards.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import (
    NEVER,
    SparseDistributions,
    probabilities,
    processed,
    sample,
)
from common.sampling.rng import Purpose, uniform
from verifier.acceptance.batch import AcceptanceOutput, LogitsProcessors, SamplingBatch

__all__ = ["AcceptanceOutput", "accept", "accept_greedy"]

NO_MASS = (
    2.0**-100
)  # a residual whose largest probability is below this is rounding, not a distribution


def accept_greedy(
    logits: Tensor,  # [rows, vocab]; session s owns rows [offsets[s], offsets[s + 1])
    draft_tokens: Tensor,  # int64 [rows]; row i's draft token, ignored in a session's last row
    offsets: Tensor,  # int64 [sessions + 1]; k + 1 rows per session
    allowed: Tensor | None = None,  # bool [vocab]; ids that exist; None allows all
) -> AcceptanceOutput:
    """Accept while the draft token is the argmax (Leviathan et al., 2023, arXiv:2211.17192, T = 0).

    Row j of a session holds p after the base and j draft tokens. Ties take the lowest id.
    """
    if allowed is not None and not bool(allowed.all()):
        logits = logits.masked_fill(~allowed, NEVER)
    best = logits.max(dim=-1).indices  # [rows]; a third of argmax's time on a CPU
    rows = torch.arange(len(best), device=best.device)
    session = torch.bucketize(rows, offsets[1:], right=True)  # [rows], which session owns a row
    last = offsets[1:] - 1  # [sessions], the row of the bonus token
    stops = best != draft_tokens
    stops[last] = True
    # The first row of each session at which drafting stops is its accepted length.
    first = torch.full_like(last, len(best)).scatter_reduce(
        0, session[stops], rows[stops], reduce="amin"
    )
    return AcceptanceOutput(first - offsets[:-1], best[first])


def accept(
    logits: Tensor,  # [rows, vocab], any float dtype; session s owns [offsets[s], offsets[s + 1])
    draft_tokens: Tensor,  # int64 [rows]; row i's draft token, ignored in a session's last row
    offsets: Tensor,  # int64 [sessions + 1]; k + 1 rows per session
    sampling: SamplingBatch,
    q: SparseDistributions | None = None,  # needed if a session's rule is REJECTION
    processors: LogitsProcessors | None = None,
    allowed: Tensor | None = None,  # bool [vocab]; ids that exist; None allows all
) -> AcceptanceOutput:
    """Each session by its own rule. Its result doesn't depend on the others in the batch.

    All sessions go through their rows together, one row a step, and leave where a draft token
    is rejected: rows behind it cost nothing, and greedy rows no softmax.
    """
    if processors is None and bool((sampling.rule == AcceptanceRule.GREEDY).all()):
        return accept_greedy(logits, draft_tokens, offsets, allowed)
    assert not len(sampling.rule) or int(sampling.rule.min()) >= AcceptanceRule.GREEDY, "no rule"
    starts, last = offsets[:-1], offsets[1:] - 1  # [sessions]
    lengths, following = torch.zeros_like(starts), torch.zeros_like(starts)
    going = torch.arange(len(starts), device=starts.device)  # sessions without a result yet
    step = 0
    while len(going):
        ended, rules = (
            torch.zeros_like(going, dtype=torch.bool),
            sampling.rule.index_select(0, going),
        )
        for rule in AcceptanceRule:
            places = (rules == rule).nonzero().squeeze(1)
            if not len(places):
                continue
            sessions = going.index_select(0, places)
            rows = starts.index_select(0, sessions) + step
            scores = _scores(logits, rows, sessions, processors, allowed)
            final = rows == last.index_select(0, sessions)
            drafts = draft_tokens.index_select(0, rows).masked_fill(final, -1)  # -1: no draft
            accepted, tokens = _accept_rows(rule, scores, drafts, rows, sessions, step, sampling, q)
            rejected = sessions[~accepted]
            lengths[rejected], following[rejected] = step, tokens
            ended[places] = ~accepted
        going = going[~ended]
        step += 1
    return AcceptanceOutput(lengths, following)


def _scores(
    logits: Tensor,
    rows: Tensor,  # int64 [n], distinct
    sessions: Tensor,  # int64 [n], whose rows they are
    processors: LogitsProcessors | None,
    allowed: Tensor | None,
) -> Tensor:  # float32 [n, vocab], a copy
    """The rows' logits before temperature: processed, and ids that don't exist out."""
    scores = logits.index_select(0, rows).to(torch.float32)
    if processors is not None:
        first, after = processors.offsets[rows], processors.offsets[rows + 1]
        counts = after - first
        place = torch.arange(len(rows), device=rows.device).repeat_interleave(counts)  # [entries]
        within = torch.arange(len(place), device=rows.device) - (counts.cumsum(0) - counts)[place]
        entry = first[place] + within
        cell = (place, processors.ids[entry].to(torch.int64))
        owner = sessions[place]
        scores[cell] = processed(
            scores[cell],
            processors.bias[entry],
            processors.seen[entry],
            processors.count[entry],
            processors.banned[entry],
            processors.repetition[owner],
            processors.presence[owner],
            processors.frequency[owner],
        )
    return scores if allowed is None else scores.masked_fill_(~allowed, NEVER)


def _accept_rows(
    rule: AcceptanceRule,
    scores: Tensor,  # float32 [n, vocab]
    drafts: Tensor,  # int64 [n], -1 where there is no draft token
    rows: Tensor,  # int64 [n]
    sessions: Tensor,  # int64 [n]
    step: int,
    sampling: SamplingBatch,
    q: SparseDistributions | None,
) -> tuple[Tensor, Tensor]:
    """(accepted: bool [n], tokens: int64 [rejected rows], their next tokens)."""
    if rule == AcceptanceRule.GREEDY:
        best = scores.max(dim=-1).indices
        accepted = best == drafts
        return accepted, best[~accepted]
    seed, position = (
        sampling.seed.index_select(0, sessions),
        sampling.first_position.index_select(0, sessions) + step,
    )
    p = probabilities(
        scores,
        sampling.temperature.index_select(0, sessions),
        sampling.top_k.index_select(0, sessions),
        sampling.top_p.index_select(0, sessions),
        sampling.min_p.index_select(0, sessions),
    )
    if rule == AcceptanceRule.COUPLED:
        sampled = sample(p, seed, position, Purpose.COUPLED)
        accepted = sampled == drafts
        return accepted, sampled[~accepted]
    drafted = drafts >= 0
    token = drafts.clamp(min=0)[:, None]  # int64 [n, 1]
    chance = p.gather(1, token).squeeze(1)  # of the draft token to be accepted
    with_q = rule == AcceptanceRule.REJECTION and bool(drafted.any())
    if with_q:
        assert q is not None
        # [n, slots] each; index_select copies rows much faster than an index does on a CPU
        slots = q.ids.index_select(0, rows).to(torch.int64), q.probs.index_select(0, rows)
        chance = chance / torch.where(slots[0] == token, slots[1], 0.0).sum(dim=-1)
    accepted = drafted & (uniform(seed, position, Purpose.ACCEPT) < chance)
    rejected = (~accepted).nonzero().squeeze(1)  # int64 [rejected rows]
    # A rejected draft token's row samples what p has more of than q, the bonus row p itself.
    weights = p if len(rejected) == len(p) else p.index_select(0, rejected)  # ours to write
    token, refused = token.index_select(0, rejected), drafted.index_select(0, rejected)
    if with_q:
        ids, taken = (slot.index_select(0, rejected) for slot in slots)
    else:
        ids, taken = token, torch.ones_like(weights[:, :1])
    before = weights.gather(1, ids)
    # Unused slots take 0 from an id that may be another slot's, too: so first add, then cut.
    weights.scatter_add_(1, ids, -taken.masked_fill(~refused[:, None], 0.0))
    weights.scatter_(1, ids, weights.gather(1, ids).clamp_(min=0))
    nothing = refused & (weights.amax(dim=-1) <= NO_MASS)
    if bool(nothing.any()):
        weights[nothing] = weights[nothing].scatter(1, ids[nothing], before[nothing])
    seed, position = seed.index_select(0, rejected), position.index_select(0, rejected)
    return accepted, sample(weights, seed, position, Purpose.SAMPLE)
