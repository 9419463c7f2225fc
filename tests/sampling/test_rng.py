"""Randomness is a function of its four arguments and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.sampling import rng
from common.sampling.rng import (
    Purpose,
    Words,
    exponential,
    id_words,
    philox,
    seed_word,
    uniform,
    words,
)

FULL = 0xFFFFFFFF


def word_array(value: int) -> Words:
    return np.full(1, value, np.uint64)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (FULL, FULL, FULL, FULL),
            (FULL, FULL),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    """kat_vectors of the Random123 library, philox4x32 with 10 rounds."""
    c0, c1, c2, c3 = map(word_array, counter)
    made = philox((c0, c1, c2, c3), (word_array(key[0]), word_array(key[1])))
    assert tuple(int(word[0]) for word in made) == expected


def by_definition(seed: int, position: int, token_id: int, purpose: int) -> int:
    """Philox4x32-10 in Python's integers: the word of one token id."""
    c0, c1, c2, c3 = position, token_id // 4, purpose, 0
    k0, k1 = seed & FULL, seed >> 32
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & FULL, (a >> 32) ^ c3 ^ k1, a & FULL
        k0, k1 = k0 + 0x9E3779B9 & FULL, k1 + 0xBB67AE85 & FULL
    return (c0, c1, c2, c3)[token_id % 4]


def test_the_four_words_of_a_block_are_those_of_four_ids() -> None:
    """The first known answer again, as the ids 0 to 3 of a sequence's first position."""
    zero = torch.zeros(1, dtype=torch.int64)
    expected = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert id_words(zero, zero, torch.arange(4), Purpose.PROPOSE).tolist() == [expected]
    for word, made in zip(expected, words(zero, zero, zero, Purpose.PROPOSE), strict=True):
        assert int(made) == word


@pytest.mark.parametrize(
    "ids",
    [
        [3],
        list(range(9)),
        list(range(5, 12)),  # begins and ends in the middle of a block
        [7, 6, 9, 8, 8],  # close together, in no order
        [262_143, 5, 0],  # far apart
    ],
)
def test_a_word_is_that_of_its_block_whatever_ids_are_asked_for(ids: list[int]) -> None:
    seeds, positions = [2**63 + 12_345, 17], [777, 2**31]
    expected = [
        [by_definition(seed, position, token_id, Purpose.COUPLED) for token_id in ids]
        for seed, position in zip(seeds, positions, strict=True)
    ]
    seed, position = torch.tensor([seed_word(seed) for seed in seeds]), torch.tensor(positions)
    asked = torch.tensor(ids)
    assert id_words(seed, position, asked, Purpose.COUPLED).tolist() == expected
    assert id_words(seed, position, asked.repeat(2, 1), Purpose.COUPLED).tolist() == expected


@given(seed=st.integers(0, 2**64 - 1))
def test_all_64_bits_of_a_seed_fit_a_tensor_and_count(seed: int) -> None:
    held = torch.tensor([seed_word(seed)])
    assert int(held) % 2**64 == seed
    other = torch.tensor([seed_word(seed ^ 1 << 63)])
    at, ids = torch.tensor([7]), torch.tensor([3])
    assert not torch.equal(
        words(held, at, ids, Purpose.SAMPLE)[0], words(other, at, ids, Purpose.SAMPLE)[0]
    )


@pytest.mark.parametrize("count", [1, 3, 5_000, 40_000])
def test_a_number_does_not_depend_on_those_made_beside_it(count: int) -> None:
    seed, position = torch.arange(6) - 3, torch.arange(6) * 11
    ids = torch.arange(count) * 3
    together = exponential(seed, position, ids, Purpose.COUPLED)
    for row in range(6):
        only = slice(row, row + 1)
        assert torch.equal(
            exponential(seed[only], position[only], ids, Purpose.COUPLED), together[only]
        )
    some = torch.arange(0, count, 1 + count // 7)
    assert torch.equal(exponential(seed, position, ids[some], Purpose.COUPLED), together[:, some])
    own = ids[some].repeat(6, 1).flip(1)  # [rows, ids]: each row has its own
    assert torch.equal(exponential(seed, position, own, Purpose.COUPLED), together[:, some].flip(1))
    assert torch.equal(
        uniform(seed, position, Purpose.ACCEPT)[2:3],
        uniform(seed[2:3], position[2:3], Purpose.ACCEPT),
    )


def test_the_four_purposes_are_independent_streams() -> None:
    seed, position = torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64)
    sampled = torch.stack([uniform(seed, position, purpose) for purpose in Purpose])
    correlation = torch.corrcoef(sampled) - torch.eye(len(Purpose))
    assert correlation.abs().max() < 5 / 20_000**0.5


def test_uniforms_lie_strictly_between_0_and_1() -> None:
    """Also where ((x0 >> 1) + 0.5) / 2**31 would round to 1: a certain token is always accepted."""
    u = uniform(torch.arange(300_000), torch.zeros(300_000, dtype=torch.int64), Purpose.ACCEPT)
    assert u.min() > 0 and u.max() < 1
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / 300_000) ** 0.5
    assert float(torch.tensor(1.0).nextafter(torch.tensor(0.0))) == rng.LARGEST_UNIFORM


def test_exponentials_are_positive_finite_and_increase_with_the_word() -> None:
    edges = [0, 1, 255, 256, 257, 511, 512, 2**25 - 1, 2**25, 2**31, FULL - 256, FULL - 255, FULL]
    word = np.array(sorted({*edges, *(2**shift for shift in range(32))}))
    exact = ((word >> 1) + 0.5) * 2.0**-31  # in float64
    e = rng.exponential_of(rng.fractions(word.astype(np.uint32)))
    assert (e > 0).all() and np.isfinite(e).all()
    assert (e[1:] >= e[:-1]).all()
    held = word >= FULL - 256  # 1 - w has no bits left there
    np.testing.assert_allclose(e[~held], -np.log1p(-exact[~held]), rtol=6e-6)


def test_likely_ids_of_the_largest_vocabulary_hardly_ever_tie() -> None:
    """Ties go to the lowest id, so that they bend a distribution; so few of them aren't seen."""
    ids, position = torch.arange(262_144), torch.zeros(1, dtype=torch.int64)
    ties = 0
    for seed in range(200):
        two = exponential(torch.tensor([seed]), position, ids, Purpose.SAMPLE)[0].topk(
            2, largest=False
        )
        ties += int(two.values[0] == two.values[1])
    assert ties == 0  # 0.03 are expected


def test_exponentials_follow_their_distribution_in_the_tail_that_decides() -> None:
    """The least of 4,000 times its count is Exp(1) again: mean 1, variance 1."""
    rows = 1_500
    e = exponential(torch.arange(rows), torch.full((rows,), 5), torch.arange(4_000), Purpose.SAMPLE)
    assert abs(float(e.double().mean()) - 1) < 5 / (rows * 4_000) ** 0.5
    minimum = e.amin(dim=-1).double() * 4_000
    assert abs(float(minimum.mean()) - 1) < 5 / rows**0.5
    assert abs(float(minimum.var()) - 1) < 5 * (8 / rows) ** 0.5
