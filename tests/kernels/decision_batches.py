"""Batches for decision kernels: sampling of each session, and a q for any draft token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.sampling.distribution import SparseDistributions
from verifier.acceptance.batch import Rule, SamplingBatch

VOCAB = 12


def sampling(
    rules: Sequence[Rule], seeds: Sequence[int], positions: Sequence[int], varied: bool = False
) -> SamplingBatch:
    """varied: each session has its own filters."""
    n = len(rules)
    spread = torch.arange(n) if varied else torch.zeros(n, dtype=torch.int64)
    return SamplingBatch(
        rule=torch.tensor([int(rule) for rule in rules], dtype=torch.int8),
        temperature=1.0 + 0.25 * spread,
        top_k=(VOCAB - spread % 5).int(),
        top_p=1.0 - 0.1 * (spread % 3),
        min_p=0.02 * (spread % 2),
        seed=torch.tensor(seeds),
        first_position=torch.tensor(positions),
    )


def pick(batch: SamplingBatch, session: int) -> SamplingBatch:
    return SamplingBatch(**{name: value[[session]] for name, value in vars(batch).items()})


def uniform_q(draft: Tensor) -> SparseDistributions:
    """Every draft token was sampled from itself and its two neighbours."""
    ids = (draft[:, None] + torch.arange(3)) % VOCAB
    return SparseDistributions(ids.int(), torch.full((len(draft), 3), 1 / 3))
