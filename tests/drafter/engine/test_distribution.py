"""The distribution that is sent is the one that was sampled from; float32 carries it whole."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from common.sampling.distribution import SparseDistributions, probabilities, sample
from common.sampling.rng import Purpose, exponential
from drafter.engine.distribution import draft_distribution, likeliest, propose
from tests.statistics.joint_distributions import tail_probability

VOCAB = 40
OFF = (1.0, 1 << 20, 1.0, 0.0)  # temperature, top_k, top_p, min_p that leave their steps out


def distribution_of(
    logits: Tensor, filters: tuple[float, int, float, float] = OFF, slots: int = 64, allowed=None
) -> SparseDistributions:
    """Every row under the same filters."""
    rows = len(logits)
    temperature, top_k, top_p, min_p = filters
    return draft_distribution(
        logits,
        allowed,
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        slots,
    )


def by_definition(
    logits: list[float], filters: tuple[float, int, float, float], slots: int
) -> dict[int, float]:
    """In float64, by loops over values. Discards a case whose edge depends on rounding."""
    temperature, top_k, top_p, min_p = filters
    best = max(logits)
    share = [math.exp((x - best) / temperature) for x in logits]
    kept = [i for i, x in enumerate(logits) if sum(y > x for y in logits) < top_k]
    mass = math.fsum(share[i] for i in kept)
    over = {i: math.fsum(share[j] for j in kept if logits[j] > logits[i]) / mass for i in kept}
    assume(all(abs(each - top_p) > 1e-5 for each in over.values()))
    kept = [i for i in kept if over[i] < top_p or logits[i] == best]
    assume(all(share[i] == min_p or abs(share[i] - min_p) > 1e-5 for i in kept))
    kept = [i for i in kept if share[i] >= min_p]
    kept = sorted(kept, key=lambda i: (-logits[i], i))[:slots]
    total = math.fsum(share[i] for i in kept)
    return {i: share[i] / total for i in kept}


# Whole and half numbers: many equal logits. -inf: ids that can't come.
values = st.integers(-4, 4).map(lambda n: n / 2) | st.floats(-6, 6, width=32)


@given(
    logits=st.lists(values | st.just(-math.inf), min_size=2, max_size=24).filter(
        lambda row: max(row) > -math.inf
    ),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(1, 30),
    top_p=st.sampled_from([0.0, 0.3, 0.75, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    slots=st.integers(1, 30),
)
def test_it_is_the_masked_filtered_distribution_cut_to_the_likeliest_and_of_equals_the_lowest_ids(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, slots: int
) -> None:
    filters = (temperature, top_k, top_p, min_p)
    expected = by_definition(logits, filters, slots)
    expected = {i: p for i, p in expected.items() if p > 0}
    distribution = distribution_of(torch.tensor([logits], dtype=torch.float32), filters, slots)
    used = distribution.probs[0] > 0
    assert distribution.ids[0, used].tolist() == list(expected), "likeliest first, then by id"
    assert distribution.probs[0, used].tolist() == pytest.approx(list(expected.values()), rel=2e-5)
    assert not bool(distribution.probs[0, ~used].any())


@pytest.mark.parametrize("slots", [1, 3, 64, 700])
@pytest.mark.parametrize(
    "filters",
    [
        OFF,
        (0.7, 1 << 20, 0.9, 0.0),
        (1.0, 40, 1.0, 0.0),
        (1.5, 100, 0.8, 0.02),  # top-k beyond what the cut takes sets top-p's mass
        (1e-6, 1, 0.0, 1.0),
    ],
)
def test_it_is_the_targets_own_distribution_of_these_logits_cut(slots: int, filters) -> None:
    logits = torch.randn(5, 700, generator=torch.Generator().manual_seed(slots)) * 3
    temperature, top_k, top_p, min_p = filters
    whole = probabilities(
        logits,
        torch.full((5,), temperature),
        torch.full((5,), min(top_k, 700), dtype=torch.int32),
        torch.full((5,), top_p),
        torch.full((5,), min_p),
    )
    distribution = distribution_of(logits, filters, slots)
    largest = whole.sort(dim=-1, descending=True).values[:, :slots]
    torch.testing.assert_close(
        distribution.probs, largest / largest.sum(-1, keepdim=True), rtol=1e-5, atol=0
    )
    assert bool((whole.gather(1, distribution.ids) > 0).eq(distribution.probs > 0).all())


@given(seed=st.integers(0, 10**6), slots=st.sampled_from([1, 3, 64]), spread=st.floats(0.01, 20))
def test_what_is_sent_sums_to_one_in_float32(seed: int, slots: int, spread: float) -> None:
    logits = torch.randn(5, 700, generator=torch.Generator().manual_seed(seed)) * spread
    sent = distribution_of(logits, slots=slots)
    assert sent.probs.dtype == torch.float32 and sent.probs.shape == (5, slots)
    error = (sent.probs.double().sum(dim=-1) - 1).abs().max()
    assert error <= 2.0**-25
    assert bool((sent.probs >= 0).all()) and bool((sent.probs[:, 0] > 0).all())
    assert all(len(set(row)) == slots for row in sent.ids.tolist())


@given(
    row=st.lists(values, min_size=1, max_size=30),
    other=st.lists(values, min_size=1, max_size=30),
    count=st.integers(1, 30),
)
def test_of_equal_values_the_lowest_ids_are_the_likeliest(
    row: list[float], other: list[float], count: int
) -> None:
    width = min(len(row), len(other))
    scores, count = torch.tensor([row[:width], other[:width]]), min(count, width)
    found, ids = likeliest(scores, count)
    expected = scores.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found, expected.values[:, :count])
    assert torch.equal(ids, expected.indices[:, :count])


def test_a_rows_distribution_does_not_depend_on_the_rows_beside_it() -> None:
    """Bit for bit, though filters of others make everyone look further."""
    logits = (torch.randn(4, 900, generator=torch.Generator().manual_seed(2)) * 8).round() / 4
    asked = [(1.0, 900, 1.0, 0.0), (0.5, 300, 0.9, 0.01), (2.0, 900, 0.8, 0.0), (1.0, 5, 1.0, 0.2)]
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*asked, strict=True))
    together = draft_distribution(logits, None, temperature, top_k, top_p, min_p, slots=16)
    for row in range(4):
        one = slice(row, row + 1)
        alone = draft_distribution(
            logits[one], None, temperature[one], top_k[one], top_p[one], min_p[one], slots=16
        )
        assert torch.equal(alone.ids[0], together.ids[row])
        assert torch.equal(alone.probs[0], together.probs[row])


def test_only_allowed_ids_are_drafted() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    allowed = torch.zeros(2, 50, dtype=torch.bool)
    allowed[0, 10:20] = allowed[1, 30:33] = True
    sent = distribution_of(
        logits, slots=8, allowed=allowed
    )  # more slots than the second row has ids
    assert bool(allowed.gather(1, sent.ids)[sent.probs > 0].all())
    assert (sent.probs > 0).sum(dim=-1).tolist() == [8, 3]
    seed, position = torch.arange(2), torch.tensor([5, 5])
    for _ in range(20):
        position = position + 1
        drafted = propose(sent, torch.arange(50), seed, position)
        assert bool(allowed.gather(1, drafted[:, None]).all())
    assert torch.equal(logits, before)


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_row_that_allows_nothing_or_is_not_finite_is_invalid(top_p: float) -> None:
    logits = torch.zeros(3, 9)
    logits[1, 4] = math.nan
    allowed = torch.ones(3, 9, dtype=torch.bool)
    allowed[0] = False
    distribution = distribution_of(logits, (1.0, 5, top_p, 0.0), slots=4, allowed=allowed)
    assert (distribution.probs > 0).sum(dim=-1).tolist() == [0, 0, 4]


def test_drafts_follow_the_distribution_that_is_sent() -> None:
    n = 200_000
    sent = distribution_of(torch.tensor([[0.4, 0.05, 0.3, 0.0, 0.25]]).log(), slots=3)
    wide = SparseDistributions(sent.ids.expand(n, -1), sent.probs.expand(n, -1))
    mapped_ids = torch.tensor([70_000, 3, 12, 9, 262_143])
    drafted = propose(wide, mapped_ids, torch.arange(n), torch.full((n,), 8))
    exact = torch.zeros(5, dtype=torch.float64)
    exact[sent.ids[0]] = sent.probs[0].double()
    assert tail_probability(drafted, exact / exact.sum()) > 1e-4


def test_a_coupled_draft_is_the_targets_own_sample_where_their_distributions_agree() -> None:
    """Through any permutation of ids: noise belongs to the target's id."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(300, VOCAB, generator=generator)
    to_target = torch.randperm(VOCAB, generator=generator)
    seed, position = torch.arange(300), torch.arange(300) * 3
    sampled = sample(logits.softmax(dim=-1), seed, position, Purpose.COUPLED)
    distribution = distribution_of(logits[:, to_target], slots=VOCAB)
    drafted = propose(distribution, to_target, seed, position, Purpose.COUPLED)
    assert torch.equal(to_target[drafted], sampled)
    other = propose(distribution, to_target, seed, position)
    assert int((to_target[other] == sampled).sum()) < 100, (
        "the drafter's own sampling are independent"
    )


def test_ties_in_a_sample_go_to_the_lowest_noise_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.sampling.distribution.exponential", lambda *_: torch.ones(2, 3))
    distribution = SparseDistributions(
        torch.tensor([[4, 2, 7], [4, 2, 7]]), torch.tensor([[0.4, 0.4, 0.2]] * 2)
    )
    noise_ids = torch.tensor([[9, 8, 7], [5, 6, 7]])
    none = torch.zeros(2, dtype=torch.int64)
    assert propose(distribution, noise_ids, none, none).tolist() == [2, 4]


def test_a_sample_is_the_least_exponential_over_probability() -> None:
    distribution = distribution_of(
        torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(6)), slots=9
    )
    noise_ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(7)) + 5000
    seed, position = torch.arange(6) - 3, torch.arange(6) * 7
    noise = exponential(seed, position, noise_ids[distribution.ids], Purpose.PROPOSE)
    best = (noise / distribution.probs).argmin(dim=-1)
    expected = distribution.ids.gather(1, best[:, None]).squeeze(1)
    assert torch.equal(propose(distribution, noise_ids, seed, position), expected)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_are_no_samples(rows: int) -> None:
    distribution = distribution_of(torch.zeros(rows, 4), slots=3)
    none = torch.zeros(rows, dtype=torch.int64)
    assert len(propose(distribution, torch.arange(4), none, none)) == rows
