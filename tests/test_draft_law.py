"""The law that is sent is the law that was sampled, and float32 carries it whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.law import draw
from common.rng import Purpose
from drafter.draft_law import SparseLaw, cut, draft_law, propose, propose_coupled
from tests.laws import tail_probability


def plain(logits: Tensor, allowed: Tensor, top_k: int = 1 << 20) -> Tensor:
    rows = len(logits)
    return draft_law(
        logits,
        allowed,
        torch.ones(rows),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.ones(rows),
        torch.zeros(rows),
    )


@given(seed=st.integers(0, 10**6), slots=st.sampled_from([1, 3, 64]), spread=st.floats(0.01, 20))
def test_what_is_sent_sums_to_one_in_float32(seed: int, slots: int, spread: float) -> None:
    logits = torch.randn(5, 700, generator=torch.Generator().manual_seed(seed)) * spread
    law = logits.softmax(dim=-1)
    sent = cut(law, slots)
    assert sent.probs.dtype == torch.float32 and sent.probs.shape == (5, slots)
    error = (sent.probs.double().sum(dim=-1) - 1).abs().max()
    assert error <= 2.0**-25
    assert bool((sent.probs >= 0).all()) and bool((sent.probs[:, 0] > 0).all())
    for row in range(5):
        assert len(set(sent.ids[row].tolist())) == slots
        largest = law[row].sort(descending=True).values[:slots]
        assert torch.equal(law[row][sent.ids[row]], largest)
        torch.testing.assert_close(sent.probs[row], largest / largest.sum(), rtol=1e-5, atol=1e-9)


def test_only_allowed_ids_are_drafted() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    allowed = torch.zeros(2, 50, dtype=torch.bool)
    allowed[0, 10:20] = allowed[1, 30:33] = True
    law = plain(logits, allowed)
    assert bool(((law > 0) == allowed).all())
    sent = cut(law, 8)  # more slots than the second row has ids
    assert bool(allowed.gather(1, sent.ids)[sent.probs > 0].all())
    assert int((sent.probs[1] > 0).sum()) == 3
    seed, position = torch.arange(2), torch.tensor([5, 5])
    for _ in range(20):
        position = position + 1
        drafted = propose(sent, torch.arange(50), seed, position)
        assert bool(allowed.gather(1, drafted[:, None]).all())


def test_drafts_follow_the_law_that_is_sent() -> None:
    n = 200_000
    law = torch.tensor([[0.4, 0.05, 0.3, 0.0, 0.25]])
    sent = cut(law, 3)
    wide = SparseLaw(sent.ids.expand(n, -1), sent.probs.expand(n, -1))
    twins = torch.tensor([70_000, 3, 12, 9, 262_143])
    drafted = propose(wide, twins, torch.arange(n), torch.full((n,), 8))
    exact = torch.zeros(5, dtype=torch.float64)
    exact[sent.ids[0]] = sent.probs[0].double()
    assert tail_probability(drafted, exact / exact.sum()) > 1e-4


def test_a_coupled_draft_is_the_targets_own_draw_where_their_laws_agree() -> None:
    """Through any permutation of ids: noise belongs to the target's id."""
    generator = torch.Generator().manual_seed(4)
    target_law = torch.randn(300, 40, generator=generator).softmax(dim=-1)
    to_target = torch.randperm(40, generator=generator)
    seed, position = torch.arange(300), torch.arange(300) * 3
    drawn = draw(target_law, seed, position, Purpose.COUPLED)
    drafted = propose_coupled(target_law[:, to_target], to_target, seed, position)
    assert torch.equal(to_target[drafted], drawn)
    other = propose(cut(target_law[:, to_target], 40), to_target, seed, position)
    assert int((to_target[other] == drawn).sum()) < 100, "the drafter's own draws are independent"


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_are_no_draws(rows: int) -> None:
    law = torch.full((rows, 4), 0.25)
    none = torch.zeros(rows, dtype=torch.int64)
    assert len(propose_coupled(law, torch.arange(4), none, none)) == rows
