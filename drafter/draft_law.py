"""The law that draft tokens are sampled from, small enough to send.

Exactness at the verifier needs that q is the law that was sampled, not that it is near anything:
so the law is masked, filtered and cut first, and what is left is both sampled and sent. Draft ids
here; randomness is keyed by target ids. Pure functions. Refuses to know sessions and messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.law import NEVER, draw, probabilities
from common.rng import Purpose


@dataclass(frozen=True)
class SparseLaw:
    """One law per row: at most `slots` draft ids with a probability, the likeliest first.

    Slots that aren't used have probability 0. float32 probabilities sum to one as nearly as float32
    can (error under 2**-24).
    """

    ids: Tensor  # int64 [rows, slots], distinct in a row
    probs: Tensor  # float32 [rows, slots]


def draft_law(
    logits: Tensor,  # [rows, draft vocab], any float dtype
    allowed: Tensor,  # bool [rows, draft vocab] or [draft vocab]; at least one per row
    temperature: Tensor,  # float32 [rows], > 0
    top_k: Tensor,  # int [rows], >= 1
    top_p: Tensor,  # float32 [rows]
    min_p: Tensor,  # float32 [rows]
) -> Tensor:  # float32 [rows, draft vocab]
    """The law over the ids that may be drafted, under the request's own parameters: drafts outside
    the target's filters would never stand."""
    scores = logits.to(torch.float32).masked_fill(~allowed, NEVER)
    return probabilities(scores, temperature, top_k, top_p, min_p)


def cut(law: Tensor, slots: int) -> SparseLaw:
    """The `slots` likeliest ids of each row, renormalised. law: float32 [rows, draft vocab]."""
    largest, ids = law.topk(min(slots, law.shape[-1]), dim=-1)  # [rows, slots]
    exact = largest.to(torch.float64)
    probs = (exact / exact.sum(dim=-1, keepdim=True)).to(torch.float32)
    # Rounding leaves some 2**-25 per slot; the likeliest one, first in its row, takes it.
    probs[:, 0] += (1 - probs.to(torch.float64).sum(dim=-1)).to(torch.float32)
    return SparseLaw(ids, probs)


def propose(
    law: SparseLaw,
    target_ids: Tensor,  # int64 [draft vocab], each draft id's twin (Bridge.to_target)
    seed: Tensor,  # int64 [rows]
    position: Tensor,  # int64 [rows], in the target's sequence
) -> Tensor:  # int64 [rows]
    """One draft id per row, sampled from exactly the law that is sent."""
    slot = draw(law.probs, seed, position, Purpose.PROPOSE, target_ids[law.ids])
    return law.ids.gather(1, slot[:, None]).squeeze(1)


def propose_coupled(
    law: Tensor,  # float32 [rows, draft vocab]
    target_ids: Tensor,  # int64 [draft vocab]
    seed: Tensor,  # int64 [rows], the request's own
    position: Tensor,  # int64 [rows], in the target's sequence
) -> Tensor:  # int64 [rows]
    """One draft id per row, drawn with the noise that the verifier draws with."""
    return draw(law, seed, position, Purpose.COUPLED, target_ids)
