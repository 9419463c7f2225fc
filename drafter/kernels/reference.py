"""Plain torch: what drafter/kernels/propose.py computes, row by row; CPU path and test oracle.

Pure functions: inputs are never written. Refuses to know sessions and models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common import rng


def masked_law(
    logits: Tensor,  # [draft vocab]
    shared: Tensor | None,  # bool [draft vocab]; None shares all
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    q_width: int,
) -> Tensor:
    """q, float32 [draft vocab]: masked, scaled, filtered by value, cut to its q_width largest ids.

    top_k keeps values that fewer than k ids exceed, top_p those that less than that mass exceeds,
    min_p those of at least that share of the largest. Of equal values at the cut the lowest ids
    stay.
    """
    x = logits.float()
    if shared is not None:
        x = x.masked_fill(~shared, float("-inf"))
    x = x / temperature
    values, order = x.sort(descending=True, stable=True)  # of equal values the lowest id first
    if top_k < len(x):
        values = values.masked_fill(values < values[top_k - 1], float("-inf"))
    p = values.softmax(0)
    if top_p < 1:
        over = p.cumsum(0) - p
        over = over[torch.searchsorted(-values, -values)]  # equal values: the same mass
        p = torch.where((over < top_p) | (values == values[0]), p, 0.0)
    p = torch.where(p >= min_p * p[0], p, 0.0)
    p[q_width:] = 0.0
    return torch.zeros_like(p).scatter_(0, order, p / p.sum())


def propose_row(
    q: Tensor,  # float32 [draft vocab], as masked_law makes it
    targets: Tensor | None,  # int [draft vocab]; None: draft ids are target ids
    seed: Tensor,  # int64 scalar
    position: int,  # in the target's sequence
    coupled: bool,
) -> tuple[int, int]:
    """(draft id, target id) drawn from q: the least exponential / q, noise keyed by target ids."""
    ids = q.nonzero()[:, 0]
    mapped = ids if targets is None else targets[ids].long()
    purpose = rng.Purpose.COUPLED if coupled else rng.Purpose.PROPOSE
    noise = rng.exponential(seed[None], torch.tensor([position]), mapped, purpose)[0]
    keys = noise / q[ids]
    won = (keys == keys.min()).nonzero()[:, 0]
    best = won[mapped[won].argmin()]
    return int(ids[best]), int(mapped[best])
