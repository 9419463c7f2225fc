"""Linear layers in int8: what they compute, that every build does, and that rows stay apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from common.model.cpu.int8 import (
    Int8Linear,
    Int8Weights,
    interleaved,
    quantise,
    side_by_side,
)
from common.native.library import LEVELS, Kernels, kernels
from common.native.structs import SHARED
from tests.model.thread_bits import THREADS

BUILDS = [build for level in LEVELS if (build := kernels(level)) is not None]
every_build = pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.level)
SHAPES = ((16, 32), (48, 40), (100, 50), (576, 192), (1536, 96))  # in, out


def unpacked(weights: Int8Weights) -> Tensor:
    """int8 [outer, inner]."""
    return weights.panels.permute(0, 3, 1, 2, 4).reshape(weights.outer, weights.inner)


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coarse and residual whole numbers and scales, by numpy in float32: the specification."""
    rows = x.numpy()
    bound = np.abs(rows).max(1)
    inverse = np.divide(np.float32(127), bound, out=np.zeros_like(bound), where=bound > 0)
    scaled = np.clip(rows * inverse[:, None], -127, 127).astype(np.float32)
    coarse = np.rint(scaled)
    residual = np.rint((scaled - coarse) * np.float32(254))
    return torch.tensor(coarse), torch.tensor(residual), torch.tensor(bound / np.float32(127))


def specified(linear: nn.Linear, x: Tensor) -> Tensor:
    """The product in float64, of whole numbers that fit it."""
    weights = quantise(linear.weight, linear.bias)
    coarse, residual, scales = rounded_rows(x)
    groups = weights.scales.repeat_interleave(SHARED, 0)[: weights.inner].T  # [outer, inner]
    n = (unpacked(weights) * groups.double())[: linear.out_features, : linear.in_features]
    whole = (coarse.double() * 254 + residual.double()) @ n.T
    product = whole / 254 * scales.double()[:, None]
    return product + (0 if linear.bias is None else linear.bias.double())


def inputs(rows: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows * width)
    x = torch.randn(rows, width, generator=generator)
    return x * torch.logspace(-3, 3, rows)[:, None]  # of very unlike sizes


def test_there_are_kernels_here() -> None:
    """A build that fails is left out by the installation; here none may fail unnoticed."""
    assert "plain" in {build.level for build in BUILDS}


@every_build
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_rounded_numbers(
    build: Kernels, shape: tuple[int, int], bias: bool
) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(*shape, bias=bias)
    x = inputs(19, shape[0])
    expected = specified(linear, x)
    got = Int8Linear(linear, build)(x)
    scale = expected.abs().amax(1, keepdim=True)
    assert ((got - expected).abs() <= 3e-6 * scale).all()


@every_build
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_build_gives_the_same_bits(build: Kernels, shape: tuple[int, int]) -> None:
    torch.manual_seed(2)
    linear, x = nn.Linear(*shape), inputs(33, shape[0])
    assert torch.equal(Int8Linear(linear, build)(x), Int8Linear(linear, BUILDS[-1])(x))


@every_build
@pytest.mark.parametrize("threads", THREADS)
def test_a_row_has_its_bits_beside_any_rows_and_at_any_number_of_threads(
    build: Kernels, threads: int, restored_threads: None
) -> None:
    torch.manual_seed(3)
    layer, x = Int8Linear(nn.Linear(192, 320), build), inputs(70, 192)
    torch.set_num_threads(1)
    alone = torch.cat([layer(row[None]) for row in x])
    torch.set_num_threads(threads)
    for begin, end in ((0, 70), (0, 1), (3, 5), (1, 17), (50, 66), (20, 53)):
        assert torch.equal(layer(x[begin:end]), alone[begin:end])


@given(st.lists(st.floats(-1, 1, width=32), min_size=32, max_size=32), st.integers(-140, 120))
def test_activations_keep_fifteen_bits_of_the_largest(values: list[float], power: int) -> None:
    """By the identity as weights, whose rounding is exact. A row below 2**-100 is zeros."""
    linear = nn.Linear(32, 32, bias=False)
    linear.weight.data = torch.eye(32)
    x = torch.ldexp(torch.tensor([values]), torch.tensor(power))
    largest = float(x.abs().max())
    kept = Int8Linear(linear)(x)
    if largest <= 2**-100:
        assert not kept.any()
    else:
        assert (kept - x).abs().max() <= largest / 127 / 254 * 0.51


@every_build
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_no_numbers_gives_none_and_changes_no_other(
    build: Kernels, bad: float
) -> None:
    layer, x = Int8Linear(nn.Linear(64, 32), build), inputs(3, 64)
    before = layer(x)
    x[1, 5] = bad
    after = layer(x)
    assert after[1].isnan().all()
    assert torch.equal(after[::2], before[::2])


def test_zeros_stay_zeros() -> None:
    assert not Int8Linear(nn.Linear(64, 32, bias=False))(torch.zeros(2, 64)).any()


def test_weights_side_by_side_and_interleaved_are_the_same_weights() -> None:
    torch.manual_seed(4)
    first, second = (nn.Linear(64, 64, bias=bias) for bias in (True, False))
    one, other = (quantise(each.weight, each.bias) for each in (first, second))
    both = side_by_side((one, other))
    assert torch.equal(unpacked(both), torch.cat([unpacked(one), unpacked(other)]))
    assert both.bias is not None and torch.equal(both.bias[:64], first.bias.detach())
    assert not both.bias[64:].any()
    turns = unpacked(interleaved(one, other)).view(4, 2, 16, 64)
    assert torch.equal(turns[:, 0].reshape(64, 64), unpacked(one))
    assert torch.equal(turns[:, 1].reshape(64, 64), unpacked(other))


def test_a_build_of_another_version_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An installation from before an update, as editable ones are."""
    from common.native import library

    monkeypatch.setattr(library, "INTERFACE_VERSION", -1)
    assert library._load("plain") is None
    assert "is of another version: install crossdraft again" in caplog.text
