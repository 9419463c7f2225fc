"""Floats as integers in the same order, so that thresholds are found by halving intervals.

A float's bits, with the sign folded in, order as the float does; bfloat16 and float16 values have
low bits that are all equal, and SHIFT drops them: 16 and 13 steps at most, not 32. Device functions
only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def rank_of(value, SHIFT: tl.constexpr):
    """int32, increasing in the float32 `value`. -0.0 ranks under 0.0: compare values, not ranks."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def value_of(rank, SHIFT: tl.constexpr):
    """The float32 with that rank."""
    LOW: tl.constexpr = (1 << SHIFT) - 1
    folded = (rank << SHIFT) | tl.where(rank < 0, LOW, 0)
    return (folded ^ ((folded >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


def shift_for(dtype: torch.dtype) -> int:
    """Low bits that say nothing in values of that dtype."""
    return {torch.bfloat16: 16, torch.float16: 13}.get(dtype, 0)
