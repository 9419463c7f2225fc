"""Row kernels, interpreted: a reference's values, and bits that are a row's own."""

from __future__ import annotations

import pytest
import torch

from common.kernels import norm_and_gate, rope_kv_write, row_product
from common.kernels import reference as reference

pytestmark = pytest.mark.kernels

# Triton's interpreter cuts bfloat16 off where a device rounds, hence several of its steps.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1.6e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("splits", [0, 1, 3])
@pytest.mark.parametrize("width", [64, 100])
def test_an_added_and_normed_row_has_the_references_values(
    width: int, splits: int, dtype: torch.dtype
) -> None:
    x, weight = 30 * random(3, width, dtype=dtype), random(width, dtype=dtype)
    product = random(splits, 3, width) if splits else None
    value = norm_and_gate.add_norm(x, product, weight, 1e-6)
    expected = reference.add_norm(x, product, weight, 1e-6)
    for got, wanted in zip(value, expected, strict=True):
        assert torch.allclose(got, wanted, rtol=2 * TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("splits", "width"), [(1, 48), (2, 512), (3, 515)])
def test_a_gated_row_has_the_references_values(splits: int, width: int, dtype: torch.dtype) -> None:
    product = 5 * random(splits, 2, 2 * width)
    value, expected = norm_and_gate.silu_gate(product, dtype), reference.silu_gate(product, dtype)
    assert value.dtype == dtype
    assert float((value - expected).norm() / expected.norm()) < 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("size", "splits", "bias"), [(16, 1, False), (96, 3, True)])
def test_rotated_rows_have_the_references_values_and_places(
    size: int, splits: int, bias: bool, dtype: torch.dtype
) -> None:
    """Rows beyond the real ones are written nowhere."""
    width = (4 + 2 * 2) * size
    product = random(splits, 5, width)
    angles = random(5, size // 2).repeat(1, 2)
    slots = torch.tensor([9, 0, 5, 10**6, 10**6], dtype=torch.int32)
    counts = torch.tensor([3, 0], dtype=torch.int32)
    ours = [random(3, 4, 2, size, dtype=dtype) for _ in range(2)]
    theirs = [tensor.clone() for tensor in ours]
    added = random(width, dtype=dtype) if bias else None
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    query = rope_kv_write.rotate_write(ours[0], ours[1], product, added, cos, sin, slots, counts)
    expected = reference.rotate_write(theirs[0], theirs[1], product, added, cos, sin, slots, counts)
    pairs = zip((query[:3], *ours), (expected[:3], *theirs), strict=True)
    for value, wanted in pairs:
        assert torch.allclose(value, wanted, rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("outer", "inner"), [(70, 300), (40, 64), (5, 1024)])
def test_a_products_splits_add_up_to_the_references_values(
    outer: int, inner: int, dtype: torch.dtype
) -> None:
    x, weight = random(3, inner, dtype=dtype), random(outer, inner, dtype=dtype)
    tiles = row_product.product_tiles(outer, inner, dtype)
    value = row_product.row_product(x, weight, tiles)
    assert value.shape == (tiles.splits, 3, outer)
    expected = reference.row_product(x, weight)
    assert float((value.double().sum(0) - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_a_products_rows_have_the_same_bits_alone_and_among_any_number(dtype: torch.dtype) -> None:
    x, weight = random(35, 200, dtype=dtype), random(70, 200, dtype=dtype)
    tiles = row_product.product_tiles(70, 200, dtype)
    whole = row_product.row_product(x, weight, tiles)
    for begin, end in ((0, 1), (1, 10), (15, 18), (34, 35)):
        part = row_product.row_product(x[begin:end], weight, tiles)
        assert torch.equal(part, whole[:, begin:end])
