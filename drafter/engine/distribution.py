"""Plain torch: the distribution that draft tokens are sampled from, and a sample from it.

Specification of drafter/kernels/propose.py, CPU path and test oracle, as verifier/kernels has it.
Exactness at the verifier needs that q is the distribution that was sampled, not that it is near
anything: so the distribution is masked, filtered and cut first, and what is left is both sampled
and sent. Draft ids here; which ids key the randomness is an argument. Pure functions: inputs are
never written, and each row is computed alone. Does not know sessions, models and messages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.sampling.distribution import NEVER, SparseDistributions, sample
from common.sampling.rng import Purpose


def draft_distribution(
    logits: Tensor,  # [rows, draft vocab], any float dtype
    allowed: Tensor | None,  # bool [rows, draft vocab] or [draft vocab]; None: all
    temperature: Tensor,  # float32 [rows], > 0
    top_k: Tensor,  # int [rows], >= 1; draft vocab or more: off
    top_p: Tensor,  # float32 [rows], 1: off
    min_p: Tensor,  # float32 [rows], 0: off
    slots: int,
) -> SparseDistributions:  # ids int64 [rows, slots], the likeliest first, then the lowest id
    """The ids that may be drafted under the request's own parameters (drafts outside the target's
    filters would never be accepted), cut to the `slots` likeliest and renormalised.

    Filters are those of common/sampling/distribution.py, by value and over the whole vocabulary;
    only who is kept is asked of few: sorting what the cut takes, and one sum under top-p, are all
    that reads the rest.
    """
    scores = logits.to(torch.float32)
    if allowed is not None:
        scores = torch.where(allowed, scores, NEVER)
    vocab = scores.shape[-1]
    slots = min(slots, vocab)
    counted = (top_p < 1) & (top_k < vocab)  # top-p asks for the mass of what top-k keeps
    reach = max(slots, int((top_k * counted).amax())) if len(scores) else slots
    values, ids = likeliest(scores, reach)
    temperature = temperature[:, None]
    share = ((values - values[:, :1]) / temperature).exp()  # of the likeliest one's probability
    place = top_k.to(torch.int64)[:, None] - 1
    edge = values.gather(1, place.clamp(max=reach - 1))  # [rows, 1], the least that top-k keeps
    edge = edge.masked_fill(place >= reach, NEVER)  # it keeps all within reach
    kept = values >= edge
    rows = (top_p < 1).nonzero().squeeze(1)
    if len(rows):
        kept[rows] &= _within_top_p(
            scores.index_select(0, rows), values[rows], share[rows], edge[rows], temperature[rows],
            top_p[rows, None],
        )  # fmt: skip
    kept &= share >= min_p[:, None]
    exact = (share * kept)[:, :slots].to(torch.float64)
    probs = (exact / exact.sum(dim=-1, keepdim=True)).to(torch.float32)
    # Rounding leaves some 2**-25 per slot; the likeliest one, first in its row, takes it.
    probs[:, 0] += (1 - probs.to(torch.float64).sum(dim=-1)).to(torch.float32)
    return SparseDistributions(ids[:, :slots], probs)


def _within_top_p(
    scores: Tensor,  # float32 [rows, vocab], ours to write
    values: Tensor,  # float32 [rows, reach], their greatest, descending
    share: Tensor,  # float32 [rows, reach], of the greatest one's probability
    edge: Tensor,  # float32 [rows, 1], the least value that counts
    temperature: Tensor,  # float32 [rows, 1]
    top_p: Tensor,  # float32 [rows, 1]
) -> Tensor:  # bool [rows, reach]
    """Whether the greater values' mass is less than p; of the maximum always."""
    if bool((edge > NEVER).any()):
        scores.masked_fill_(scores < edge, NEVER)
    likeliest_has = scores.div_(temperature).softmax(dim=-1).amax(dim=-1, keepdim=True)
    before = (share.cumsum(dim=-1) - share) * likeliest_has
    first = torch.searchsorted(-values, -values)  # where each value's equals begin
    first = first.clamp(max=values.shape[-1] - 1)  # a row that has NaN has no distribution anyway
    return (before.gather(1, first) < top_p) | (values == values[:, :1])


def likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(float32 [rows, count], int64 [rows, count]): the greatest values and their ids, descending.

    Of equal values the lowest ids, in their order, which topk doesn't promise. count: of
    [rows, vocab] at most vocab.
    """
    more = min(count + 1, scores.shape[-1])
    values, ids = scores.topk(more, dim=-1)
    if more > count:
        over, edge = values[:, count], values[:, count - 1]
        values, ids = values[:, :count], ids[:, :count]
        for row in ((over == edge) & (edge > NEVER)).nonzero().squeeze(1).tolist():
            tied = values[row] == edge[row]
            ids[row, tied] = (scores[row] == edge[row]).nonzero()[: int(tied.sum()), 0]
    if bool((values[:, 1:] == values[:, :-1]).any()):
        ids, order = ids.sort(dim=-1)
        values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(1, order)
    return values, ids


def propose(
    distribution: SparseDistributions,
    noise_ids: Tensor,  # int64 [draft vocab] or [rows, slots]: the token id whose noise an id has
    seed: Tensor,  # int64 [rows]
    position: Tensor,  # int64 [rows], in the target's sequence
    purpose: Purpose = Purpose.PROPOSE,
) -> Tensor:  # int64 [rows]
    """One draft id per row, sampled from exactly `distribution`, which is what is sent.

    That needs noise_ids that are distinct within a row. For a draft that is COUPLED to the
    verifier's sample they are the target's ids, and seed and position its own. Ties go to the
    lowest noise id, as the verifier's do.
    """
    own = noise_ids[distribution.ids] if noise_ids.dim() == 1 else noise_ids
    own, order = own.sort(dim=-1, stable=True)
    slot = sample(distribution.probs.gather(1, order), seed, position, purpose, own)
    return distribution.ids.gather(1, order.gather(1, slot[:, None])).squeeze(1)
