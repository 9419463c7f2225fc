"""p is what transformers' own processors and warpers leave, in their order, row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as theirs

from common.sampling.distribution import probabilities, processed
from common.sampling.parameters import SamplingParams
from verifier.acceptance.token_counts import TokenCounts, processor_rows

INF = float("inf")


def distribution(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """probabilities() with the same parameters in every row."""
    rows, vocab = logits.shape
    return probabilities(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), vocab if top_k is None else top_k, dtype=torch.int32),
        torch.full((rows,), 1.0 if top_p is None else top_p),
        torch.full((rows,), 0.0 if min_p is None else min_p),
    )


def transformers_distribution(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    first: list[Any] | None = None,
    tokens: list[int] | None = None,
) -> Tensor:
    """As `generate` puts its processors together."""
    processors = [*(first or []), theirs.TemperatureLogitsWarper(temperature)]
    if top_k is not None:
        processors.append(theirs.TopKLogitsWarper(top_k))
    if top_p is not None and top_p < 1:
        processors.append(theirs.TopPLogitsWarper(top_p))
    if min_p is not None:
        processors.append(theirs.MinPLogitsWarper(min_p))
    read: Any = torch.tensor([tokens or [0]]).repeat(len(logits), 1)
    return theirs.LogitsProcessorList(processors)(read, logits).softmax(dim=-1)


def random_rows(seed: int, rows: int, vocab: int, spread: float = 3.0) -> Tensor:
    """Rows without ties."""
    generator = torch.Generator().manual_seed(seed)
    if vocab < 1000:
        made = torch.randn(rows, vocab, generator=generator) * spread
    else:  # so many random float32 values would have some
        orders = [torch.randperm(vocab, generator=generator) + 1 for _ in range(rows)]
        made = (torch.stack(orders) / (vocab + 1)).log() * spread
    assert all(len(row.unique()) == vocab for row in made)
    return made


filters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1e-6, 0.1, 0.7, 1.0, 1.5, 10.0]),
        "top_k": st.sampled_from([None, 1, 2, 5, 49, 50, 51, 10_000]),
        "top_p": st.sampled_from([None, 0.0, 0.1, 0.5, 0.9, 0.99, 1.0]),
        "min_p": st.sampled_from([None, 0.0, 0.05, 0.3, 1.0]),
    }
)


@given(seed=st.integers(0, 10**6), vocab=st.sampled_from([4, 50, 3000]), chosen=filters)
def test_filters_leave_what_transformers_leaves(
    seed: int, vocab: int, chosen: dict[str, Any]
) -> None:
    logits = random_rows(seed, 3, vocab)
    kept = logits.clone()
    ours, expected = distribution(logits, **chosen), transformers_distribution(logits, **chosen)
    assert torch.equal(logits, kept), "inputs are never written"
    assert torch.equal(ours > 0, expected > 0)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


@given(
    seed=st.integers(0, 10**6),
    chosen=filters,
    repetition=st.sampled_from([0.5, 1.0, 1.3, 2.0]),
    bias=st.dictionaries(st.integers(0, 19), st.sampled_from([-100.0, -2.0, 2.0, 5.0]), max_size=4),
    prompt=st.lists(st.integers(0, 19), min_size=1, max_size=8),
    output=st.lists(st.integers(0, 19), max_size=4),
    minimum=st.integers(0, 5),
)
def test_logits_processors_and_filters_together_are_transformers_own(
    seed: int,
    chosen: dict[str, Any],
    repetition: float,
    bias: dict[int, float],
    prompt: list[int],
    output: list[int],
    minimum: int,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, logit_bias=tuple(bias.items()), min_new_tokens=minimum
    )
    first: list[Any] = []
    if bias:
        first.append(theirs.SequenceBiasLogitsProcessor([[[i], b] for i, b in bias.items()]))
    first.append(theirs.RepetitionPenaltyLogitsProcessor(repetition))
    first.append(theirs.MinNewTokensLengthLogitsProcessor(len(prompt), minimum, [3, 7]))
    logits = random_rows(seed, 1, 20)
    expected = transformers_distribution(logits, **chosen, first=first, tokens=prompt + output)
    ours = distribution(adjust(logits, params, prompt, output, {3, 7}), **chosen)
    assert torch.equal(ours > 0, expected > 0)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


def adjust(
    logits: Tensor, params: SamplingParams, prompt: list[int], output: list[int], ends: set[int]
) -> Tensor:
    """One row's logits behind prompt and output."""
    token_counts = TokenCounts(params, prompt, ends)
    token_counts.commit(output)
    made = processor_rows([(token_counts, [])])
    if made is None:
        return logits
    ids, n = made.ids.long(), len(made.ids)
    row = logits[0].clone()
    each = [value.expand(n) for value in (made.repetition, made.presence, made.frequency)]
    row[ids] = processed(row[ids], made.bias, made.seen, made.count, made.banned, *each)
    return row[None]


@pytest.mark.parametrize("presence", [-2.0, 0.0, 1.5, 2.0])
@pytest.mark.parametrize("frequency", [-2.0, 0.0, 2.0])
def test_presence_and_frequency_count_the_output_only(presence: float, frequency: float) -> None:
    logits = random_rows(1, 1, 8)
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    made = adjust(logits, params, [0, 1, 1], [2, 3, 3, 3], set())[0]
    expected = logits[0].clone()
    expected[2] -= presence + frequency
    expected[3] -= presence + 3 * frequency
    torch.testing.assert_close(made, expected)


def test_ids_with_equal_logits_share_their_fate() -> None:
    rows = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    tied = (torch.tensor([[2.0, 1.0, 1.0, 1.0, -INF]])).softmax(dim=-1)
    assert torch.equal(distribution(rows, top_k=2), tied)
    assert torch.equal(distribution(rows, top_p=0.5), tied)  # the maximum has 0.475
    uniform = torch.zeros(1, 6)
    for chosen in ({"top_k": 1}, {"top_p": 0.0}, {"top_p": 0.5}, {"min_p": 1.0}):
        assert torch.equal(distribution(uniform, **chosen), uniform.softmax(dim=-1))


def test_the_likeliest_always_stays() -> None:
    rows = random_rows(2, 4, 9)
    one_hot = torch.nn.functional.one_hot(rows.argmax(dim=-1), 9).float()
    for chosen in ({"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-6}):
        assert torch.equal(distribution(rows, **chosen), one_hot)


def test_filters_that_keep_all_change_nothing() -> None:
    rows = random_rows(3, 4, 9)
    plain = rows.softmax(dim=-1)
    for chosen in ({"top_k": 9}, {"top_k": 10_000}, {"top_p": 1.0}, {"min_p": 0.0}):
        assert torch.equal(distribution(rows, **chosen), plain)


def test_ids_that_cannot_come_never_do() -> None:
    rows = random_rows(4, 4, 9)
    rows[:, 5] = -INF
    for chosen in ({}, {"top_k": 9}, {"top_p": 0.999}, {"temperature": 100.0}):
        made = distribution(rows, **chosen)
        assert bool((made[:, 5] == 0).all()) and bool(made.isfinite().all())


def test_top_p_finds_its_edge_wherever_it_is() -> None:
    """Few values, some thousand, nearly all of a wide flat row."""
    rows = random_rows(5, 1, 40_000, spread=0.1)
    for top_p in (0.001, 0.02, 0.5, 0.999):
        kept = int((distribution(rows, top_p=top_p) > 0).sum())
        descending = rows.softmax(dim=-1).sort(descending=True).values.double().cumsum(dim=-1)
        assert abs(kept - int((descending < top_p).sum()) - 1) <= 1  # summed in another precision


@pytest.mark.parametrize("vocab", [5, 64, 5_003, 40_000])
def test_a_rows_distribution_does_not_depend_on_the_rows_beside_it(vocab: int) -> None:
    """Bit for bit, each with its own parameters."""
    rows = random_rows(6, 7, vocab)
    temperature = torch.tensor([1.0, 0.7, 1.5, 1e-6, 1.0, 0.9, 1.0])
    top_k = torch.tensor([vocab, 3, vocab, 50, 1, 40, vocab], dtype=torch.int32)
    top_p = torch.tensor([1.0, 0.9, 0.1, 1.0, 0.5, 0.99, 0.95])
    min_p = torch.tensor([0.0, 0.0, 0.1, 0.0, 1.0, 0.01, 0.0])
    together = probabilities(rows, temperature, top_k, top_p, min_p)
    for some in ([0], [1], [2], [3], [4], [5], [6], [6, 0], [3, 1, 5]):
        alone = probabilities(rows[some], temperature[some], top_k[some], top_p[some], min_p[some])
        assert torch.equal(alone, together[some])
