"""Bias, penalties and banned ids in the acceptance kernels, interpreted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.device.parts.acceptance_oracle import Batch, sampling
from common.sampling.acceptance_rule import AcceptanceRule
from tests.kernels.kernel_results import agrees, mixed
from verifier.acceptance.batch import LogitsProcessors


def adjusted_batch(dtype: torch.dtype) -> Batch:
    batch = mixed(
        400,
        dtype,
        [
            AcceptanceRule.TARGET_ONLY,
            AcceptanceRule.REJECTION,
            AcceptanceRule.COUPLED,
            AcceptanceRule.GREEDY,
            AcceptanceRule.TARGET_ONLY,
            AcceptanceRule.GREEDY,
        ],
        9,
    )
    rows = len(batch.logits)
    sizes = torch.tensor([row % 5 * 20 for row in range(rows)])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    ids = [batch.logits[row].topk(int(n)).indices for row, n in enumerate(sizes)]
    n = int(offsets[-1])
    pairs = LogitsProcessors(
        offsets,
        torch.cat(ids).to(torch.int32),
        torch.randn(n) * (torch.arange(n) % 3 == 0),
        torch.arange(n) % 2 == 0,
        (torch.arange(n) % 4).to(torch.int32),
        torch.arange(n) % 11 == 0,
        torch.linspace(0.8, 1.6, 6),
        torch.linspace(0, 1, 6),
        torch.linspace(0.5, 0, 6),
    )
    return replace(batch, processors=pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias_penalties_and_banned_ids_change_the_distribution_and_not_the_logits(
    dtype: torch.dtype,
) -> None:
    agrees(adjusted_batch(dtype))


def test_a_processed_id_can_win_over_all_others_and_a_banned_one_never_does() -> None:
    logits = torch.zeros(2, 70)
    logits[:, 3] = 5.0
    pairs = LogitsProcessors(
        torch.tensor([0, 2, 3]),
        torch.tensor([60, 3, 3], dtype=torch.int32),
        torch.tensor([4.0, 0.0, 0.0]),
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(3, dtype=torch.int32),
        torch.tensor([False, True, True]),
        *(torch.ones(2), torch.zeros(2), torch.zeros(2)),
    )
    batch = Batch(
        logits,
        torch.zeros(2).long(),
        torch.arange(3),
        sampling(2, 70, rule=AcceptanceRule.GREEDY),
        None,
        pairs,
    )
    assert agrees(batch) == [(0, 60), (0, 0)]
