"""The z-score that distinguishes lossless from biased sampling."""

from __future__ import annotations

import pytest
import torch

from bench.acceptance.scoring import NOTHING, Score, score_rows

ROWS, VOCAB = 4000, 50


def distributions(seed: int, temperature: float = 1.0) -> torch.Tensor:
    logits = 2 * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed))
    return (logits / temperature).softmax(dim=-1)


def sampled(distribution: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.multinomial(
        distribution, 1, generator=torch.Generator().manual_seed(seed)
    ).squeeze(1)


@pytest.mark.parametrize("seed", range(5))
def test_lossless_tokens_score_within_four(seed: int) -> None:
    distribution = distributions(seed)
    assert abs(score_rows(distribution, sampled(distribution, 100 + seed)).z) < 4


def test_a_lost_temperature_is_far_out() -> None:
    assert score_rows(distributions(1, 0.7), sampled(distributions(1), 2)).z > 10
    assert score_rows(distributions(1), sampled(distributions(1, 0.7), 2)).z < -10


def test_accepting_whatever_is_drafted_is_far_out() -> None:
    assert (
        score_rows(distributions(1), sampled((distributions(1) + distributions(2)) / 2, 3)).z > 10
    )


def test_a_token_that_the_distribution_rules_out_is_infinitely_far_out() -> None:
    distribution = torch.tensor([[0.5, 0.5, 0.0]])
    score = score_rows(distribution, torch.tensor([2]))
    assert (score.impossible, score.z) == (1, float("inf"))


def test_a_certain_token_says_nothing() -> None:
    score = score_rows(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
    assert score == Score(1, 0.0, 0.0, 0.0, 0)
    assert score.z == 0.0


def test_scores_add_up() -> None:
    distribution = distributions(3)
    tokens = sampled(distribution, 4)
    parts = [
        score_rows(distribution[at : at + 1000], tokens[at : at + 1000])
        for at in range(0, ROWS, 1000)
    ]
    total = sum(parts, NOTHING)
    whole = score_rows(distribution, tokens)
    assert total.tokens == whole.tokens
    assert total.z == pytest.approx(whole.z)
