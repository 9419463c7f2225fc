"""Batches for acceptance kernels: sampling of each session, and a q for any draft token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from verifier.acceptance.batch import SamplingBatch

VOCAB = 12


def sampling(
    rules: Sequence[AcceptanceRule],
    seeds: Sequence[int],
    positions: Sequence[int],
    varied: bool = False,
) -> SamplingBatch:
    """varied: each session has its own filters."""
    n = len(rules)
    expand_sessions = torch.arange(n) if varied else torch.zeros(n, dtype=torch.int64)
    return SamplingBatch(
        rule=torch.tensor([int(rule) for rule in rules], dtype=torch.int8),
        temperature=1.0 + 0.25 * expand_sessions,
        top_k=(VOCAB - expand_sessions % 5).int(),
        top_p=1.0 - 0.1 * (expand_sessions % 3),
        min_p=0.02 * (expand_sessions % 2),
        seed=torch.tensor(seeds),
        first_position=torch.tensor(positions),
    )


def pick(batch: SamplingBatch, session: int) -> SamplingBatch:
    return SamplingBatch(**{name: value[[session]] for name, value in vars(batch).items()})


def uniform_q(draft: Tensor) -> SparseDistributions:
    """Every draft token was sampled from itself and its two neighbours."""
    ids = (draft[:, None] + torch.arange(3)) % VOCAB
    return SparseDistributions(ids.int(), torch.full((len(draft), 3), 1 / 3))
