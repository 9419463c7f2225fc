"""Randomness is a function of its four arguments, and the same one on the CPU and in kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from common import rng, rng_triton
from common.rng import Purpose, Words, exponential, philox, seed_word, uniform, words

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


@triton.jit
def _words_kernel(
    seed_ptr: tl.tensor,
    position_ptr: tl.tensor,
    id_ptr: tl.tensor,
    words_ptr: tl.tensor,
    ours_ptr: tl.tensor,
    floats_ptr: tl.tensor,
    purpose: tl.tensor,
    n: tl.constexpr,
) -> None:
    at = tl.arange(0, n)
    seed, position = tl.load(seed_ptr + at), tl.load(position_ptr + at)
    token_id = tl.load(id_ptr + at)
    c0 = position.to(tl.uint32)
    other = (c0 * 0 + purpose).to(tl.uint32)
    x0, x1, _x2, _x3 = tl.philox(seed, c0, token_id.to(tl.uint32), other, c0 * 0, n_rounds=10)
    tl.store(words_ptr + at, x0.to(tl.int64))
    tl.store(words_ptr + n + at, x1.to(tl.int64))
    y0, y1 = rng_triton.words(seed, position, token_id, purpose)
    tl.store(ours_ptr + at, y0.to(tl.int64))
    tl.store(ours_ptr + n + at, y1.to(tl.int64))
    tl.store(floats_ptr + at, rng_triton.uniform(seed, position, purpose))
    tl.store(floats_ptr + n + at, rng_triton.exponential(seed, position, token_id, purpose))


@pytest.mark.parametrize("purpose", list(Purpose))
def test_kernels_draw_the_same_words_bit_for_bit(purpose: Purpose) -> None:
    n = 256
    generator = torch.Generator().manual_seed(purpose)
    seed = torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)
    position = torch.randint(0, 2**31, (n,), generator=generator)
    token_id = torch.randint(0, 262_144, (n,), generator=generator)
    seed[:3] = torch.tensor([0, -1, seed_word(2**63)])
    made = torch.empty(2, n, dtype=torch.int64, device=DEVICE)
    ours, floats = torch.empty_like(made), torch.empty(2, n, device=DEVICE)
    inputs = (seed.to(DEVICE), position.to(DEVICE), token_id.to(DEVICE))
    _words_kernel[(1,)](*inputs, made, ours, floats, int(purpose), n)
    expected = torch.stack(words(seed, position, token_id, purpose))
    assert torch.equal(made.cpu(), expected)
    assert torch.equal(ours.cpu(), expected)
    assert torch.equal(floats[0].cpu(), uniform(seed, position, purpose))
    noise = exponential(seed, position, token_id[:, None], purpose).squeeze(1)
    torch.testing.assert_close(floats[1].cpu(), noise, rtol=1e-6, atol=0)


def test_kernels_know_the_same_purposes() -> None:
    for purpose in Purpose:
        assert getattr(rng_triton, purpose.name).value == purpose


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
    drawn = torch.stack([uniform(seed, position, purpose) for purpose in Purpose])
    correlation = torch.corrcoef(drawn) - torch.eye(len(Purpose))
    assert correlation.abs().max() < 5 / 20_000**0.5


def test_uniforms_lie_strictly_between_0_and_1() -> None:
    """Also where ((x0 >> 8) + 0.5) / 2**24 would round to 1: a certain token is always accepted."""
    u = uniform(torch.arange(300_000), torch.zeros(300_000, dtype=torch.int64), Purpose.ACCEPT)
    assert u.min() > 0 and u.max() < 1
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / 300_000) ** 0.5
    assert float(torch.tensor(1.0).nextafter(torch.tensor(0.0))) == rng.LARGEST_UNIFORM


def test_exponentials_are_positive_finite_and_increase_with_the_first_word() -> None:
    edges = [0, 1, 255, 256, 257, 511, 512, 2**25 - 1, 2**25, 2**31, FULL - 256, FULL - 255, FULL]
    x0 = torch.tensor(sorted({*edges, *(2**shift for shift in range(32))}))
    for x1 in (0, FULL):
        e = rng.exponential_of(x0, torch.full_like(x0, x1))
        assert bool((e > 0).all()) and bool(e.isfinite().all())
        assert bool((e[1:] >= e[:-1]).all())
        w = ((x0 >> 8).to(torch.float64) + 0.5) * 2.0**-24  # exact here
        low = ((x1 >> 8) + 0.5) * 2.0**-48
        exact = -torch.log1p(-torch.where(x0 < 256, low, w)).to(torch.float64)
        torch.testing.assert_close(
            e[x0 < FULL - 256].double(), exact[x0 < FULL - 256], rtol=6e-6, atol=0
        )


def test_exponentials_follow_their_law_in_the_tail_that_decides() -> None:
    """The least of 4,000 times its count is Exp(1) again: mean 1, variance 1."""
    rows = 1_500
    e = exponential(torch.arange(rows), torch.full((rows,), 5), torch.arange(4_000), Purpose.SAMPLE)
    assert abs(float(e.double().mean()) - 1) < 5 / (rows * 4_000) ** 0.5
    least = e.amin(dim=-1).double() * 4_000
    assert abs(float(least.mean()) - 1) < 5 / rows**0.5
    assert abs(float(least.var()) - 1) < 5 * (8 / rows) ** 0.5
