"""How a draft token is chosen: the mask of each row, and token healing against brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from drafter.engine.healing import choose_extension
from drafter.engine.tokens import likeliest_allowed

VOCAB = 9
seeds = st.integers(0, 2**31 - 1)


def random_logits(seed: int, *shape: int) -> torch.Tensor:
    return 4 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    seed=seeds,
    masks=st.lists(
        st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB).filter(any),
        min_size=1,
        max_size=5,
    ),
)
def test_each_row_chooses_the_likeliest_of_what_it_may(seed: int, masks: list[list[bool]]) -> None:
    logits = random_logits(seed, len(masks), VOCAB)
    before = logits.clone()
    chosen = likeliest_allowed(logits, [torch.tensor(mask) for mask in masks]).tolist()
    for row, mask, token in zip(logits.tolist(), masks, chosen, strict=True):
        assert token == max((i for i in range(VOCAB) if mask[i]), key=lambda i: row[i])
    assert torch.equal(logits, before)


def test_a_row_with_one_id_takes_it_however_unlikely() -> None:
    logits = torch.tensor([[9.0, -50.0, 1.0], [9.0, -50.0, 1.0]])
    only, others = torch.tensor([False, True, False]), torch.tensor([True, True, True])
    assert likeliest_allowed(logits, [only, others]).tolist() == [1, 0]


@given(
    seed=seeds,
    last=st.integers(0, VOCAB - 1),
    longer=st.sets(st.integers(0, VOCAB - 1), min_size=1),
)
def test_an_extension_is_chosen_where_it_is_the_likelier_way(
    seed: int, last: int, longer: set[int]
) -> None:
    """P(e) against P(last) P(x | last), by brute force in float64."""
    longer -= {last}
    assume(longer)
    before, after = random_logits(seed, 2, VOCAB)
    p, following = before.double().softmax(-1), after.double().softmax(-1)
    best = max(longer, key=lambda token: float(p[token]))
    through_last = float(p[last] * max(following))
    assume(abs(float(p[best]) / through_last - 1) > 1e-4)
    chosen = choose_extension(before, after, last, torch.tensor(sorted(longer)))
    assert chosen == (best if float(p[best]) > through_last else None)


@pytest.mark.parametrize(("certain", "expected"), [(0.9, None), (0.2, 2)])
def test_what_follows_the_last_token_weighs_too(certain: float, expected: int | None) -> None:
    """P(last) = 0.5 and P(e) = 0.3: e wins only if nothing likely follows `last`."""
    before = torch.tensor([0.2, 0.5, 0.3]).log()
    after = torch.tensor([certain, *[(1 - certain) / 8] * 8]).log()
    assert choose_extension(before, after, 1, torch.tensor([2])) == expected


def test_what_is_sampled_behind_the_last_token_weighs_nothing() -> None:
    """P(last) = 0.5 and P(e) = 0.3, whatever follows: both sides sample that alike."""
    before = torch.tensor([0.2, 0.5, 0.3]).log()
    after = torch.tensor([0.2, *[0.1] * 8]).log()
    assert choose_extension(before, after, 1, torch.tensor([2])) == 2
    assert choose_extension(before, after, 1, torch.tensor([2]), sampled=True) is None
    assert choose_extension(before.flip(0), after, 0, torch.tensor([1]), sampled=True) == 1


def test_there_is_nothing_to_heal_without_an_extension() -> None:
    before, after = random_logits(3, 2, VOCAB)
    assert choose_extension(before, after, 1, torch.empty(0, dtype=torch.int64)) is None
