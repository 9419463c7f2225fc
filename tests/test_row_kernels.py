"""Kernels that work row by row, interpreted: their twins' values."""

from __future__ import annotations

import pytest
import torch

from common.kernels import reference, rotate_write, rows

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", [64, 100, 1536])
def test_a_normed_row_has_the_twins_values(width: int, dtype: torch.dtype) -> None:
    x, weight = 30 * random(3, width, dtype=dtype), random(width, dtype=dtype)
    value, expected = rows.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6)
    assert torch.allclose(value, expected, rtol=2 * TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", [48, 1024, 1030])
def test_a_gated_row_has_the_twins_values(width: int, dtype: torch.dtype) -> None:
    both = 5 * random(2, 2 * width, dtype=dtype)
    value, expected = rows.silu_gate(both), reference.silu_gate(both)
    assert torch.allclose(value, expected, rtol=2 * TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("size", [16, 96])
def test_rotated_rows_have_the_twins_values_and_places(size: int, dtype: torch.dtype) -> None:
    """Rows beyond the real ones are written nowhere."""
    qkv = random(5, (4 + 2 * 2) * size, dtype=dtype)
    angles = random(5, size // 2).repeat(1, 2)
    slots = torch.tensor([9, 0, 5, 10**6, 10**6], dtype=torch.int32)
    counts = torch.tensor([3, 0], dtype=torch.int32)
    ours = [random(3, 4, 2, size, dtype=dtype) for _ in range(2)]
    twins = [tensor.clone() for tensor in ours]
    how = (qkv, angles.cos().to(dtype), angles.sin().to(dtype), slots, counts)
    query = rotate_write.rotate_write(*ours, *how)
    expected = reference.rotate_write(*twins, *how)
    pairs = zip((query[:3], *ours), (expected[:3], *twins), strict=True)
    for value, wanted in pairs:
        assert torch.allclose(value, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
