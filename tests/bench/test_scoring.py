"""The z-score that tells lawful sampling from biased sampling."""

from __future__ import annotations

import pytest
import torch

from bench.acceptance.scoring import NOTHING, Score, score_rows

ROWS, VOCAB = 4000, 50


def laws(seed: int, temperature: float = 1.0) -> torch.Tensor:
    logits = 2 * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed))
    return (logits / temperature).softmax(dim=-1)


def drawn(law: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.multinomial(law, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)


@pytest.mark.parametrize("seed", range(5))
def test_lawful_tokens_score_within_four(seed: int) -> None:
    law = laws(seed)
    assert abs(score_rows(law, drawn(law, 100 + seed)).z) < 4


def test_a_lost_temperature_is_far_out() -> None:
    assert score_rows(laws(1, 0.7), drawn(laws(1), 2)).z > 10
    assert score_rows(laws(1), drawn(laws(1, 0.7), 2)).z < -10


def test_accepting_whatever_is_drafted_is_far_out() -> None:
    assert score_rows(laws(1), drawn((laws(1) + laws(2)) / 2, 3)).z > 10


def test_a_token_that_the_law_rules_out_is_infinitely_far_out() -> None:
    law = torch.tensor([[0.5, 0.5, 0.0]])
    score = score_rows(law, torch.tensor([2]))
    assert (score.impossible, score.z) == (1, float("inf"))


def test_a_certain_token_says_nothing() -> None:
    score = score_rows(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
    assert score == Score(1, 0.0, 0.0, 0.0, 0)
    assert score.z == 0.0


def test_scores_add_up() -> None:
    law = laws(3)
    tokens = drawn(law, 4)
    parts = [score_rows(law[at : at + 1000], tokens[at : at + 1000]) for at in range(0, ROWS, 1000)]
    total = sum(parts, NOTHING)
    whole = score_rows(law, tokens)
    assert total.tokens == whole.tokens
    assert total.z == pytest.approx(whole.z)
