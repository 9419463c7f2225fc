"""Kernels sample what the CPU samples: the same words, and floats up to a logarithm's last bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common.kernels import rng as rng_triton
from common.sampling.rng import Purpose, exponential, id_words, seed_word, uniform
from tests.kernels.rng_kernels import words_by_id, words_of_runs

pytestmark = pytest.mark.kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Two ids whose word has no upper bits: one in 2**24 is.
RARE = ((104, 7, 153_429), (281, 7, 189_559))  # seed, position, token id; purpose COUPLED


@pytest.mark.parametrize("purpose", list(Purpose))
def test_kernels_sample_the_same_words_bit_for_bit(purpose: Purpose) -> None:
    n = 256
    generator = torch.Generator().manual_seed(purpose)
    seed = torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)
    position = torch.randint(0, 2**31, (n,), generator=generator)
    token_id = torch.randint(0, 262_144, (n,), generator=generator)
    seed[:3] = torch.tensor([0, -1, seed_word(2**63)])
    for place, rare in enumerate(RARE):
        seed[3 + place], position[3 + place], token_id[3 + place] = rare
    words = torch.empty(n, dtype=torch.int64, device=DEVICE)
    uniforms, exponentials = torch.empty(2, n, device=DEVICE)
    inputs = (seed.to(DEVICE), position.to(DEVICE), token_id.to(DEVICE))
    words_by_id[(1,)](*inputs, words, uniforms, exponentials, int(purpose), n)
    expected = id_words(seed, position, token_id[:, None], purpose).squeeze(1)
    assert torch.equal(words.cpu(), expected)
    assert torch.equal(uniforms.cpu(), uniform(seed, position, purpose))
    noise = exponential(seed, position, token_id[:, None], purpose).squeeze(1)
    torch.testing.assert_close(exponentials.cpu(), noise, rtol=1e-6, atol=0)


@pytest.mark.parametrize("width", [4, 8, 128])
@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_run_of_ids_gets_the_same_numbers_as_the_ids_alone(purpose: Purpose, width: int) -> None:
    seed = torch.tensor([0, -1, seed_word(2**63 + 5), *(rare[0] for rare in RARE)])
    position = torch.tensor([0, 2**31 - 1, 12, *(rare[1] for rare in RARE)])
    first = torch.tensor([0, 262_140, 1_000, *(rare[2] // 4 * 4 for rare in RARE)])
    words = torch.empty(len(seed), width, dtype=torch.int64, device=DEVICE)
    exponentials = torch.empty(len(seed), width, device=DEVICE)
    inputs = (seed.to(DEVICE), position.to(DEVICE), first.to(DEVICE))
    words_of_runs[(len(seed),)](*inputs, words, exponentials, int(purpose), width)
    ids = first[:, None] + torch.arange(width)
    assert torch.equal(words.cpu(), id_words(seed, position, ids, purpose))
    noise = exponential(seed, position, ids, purpose)
    torch.testing.assert_close(exponentials.cpu(), noise, rtol=1e-6, atol=0)


def test_the_rare_ids_of_these_tests_are_rare() -> None:
    for seed, position, token_id in RARE:
        one = (torch.tensor([seed]), torch.tensor([position]), torch.tensor([token_id]))
        assert int(id_words(*one, Purpose.COUPLED)) < 256
        assert 2.0**-32 <= float(exponential(*one, Purpose.COUPLED)) < 2.0**-24


def test_kernels_know_the_same_purposes() -> None:
    for purpose in Purpose:
        assert getattr(rng_triton, purpose.name).value == purpose


def test_the_device_functions_compile_for_a_gpu(tmp_path: Path) -> None:
    """The interpreter accepts programs that the compiler refuses."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    program = "from tests.kernels.rng_kernels import compile_for_hopper; compile_for_hopper()"
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env=environment,
        check=True,
    )
