"""common/rng.py inside Triton kernels: the same words bit for bit, floats up to log's last ulp.

Device functions only, for both services' kernels. seed: int64 scalar or block; position, token_id,
purpose: non-negative integers. Refuses to know laws and rules. Importing it compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

# As in common.rng.Purpose: kernels read globals only if they are constexpr.
PROPOSE = tl.constexpr(0)
ACCEPT = tl.constexpr(1)
SAMPLE = tl.constexpr(2)
COUPLED = tl.constexpr(3)

_LARGEST_UNIFORM = tl.constexpr(1 - 2.0**-24)
_SERIES_BELOW = tl.constexpr(2.0**-7)


@triton.jit
def words(
    seed: tl.tensor, position: tl.tensor, token_id: tl.tensor, purpose: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Two Philox words, uint32: key = seed, counter = (position, token id, purpose, 0)."""
    c0 = (position + token_id * 0).to(tl.uint32)
    c1 = (token_id + position * 0).to(tl.uint32)
    x0, x1, _x2, _x3 = tl.philox(seed, c0, c1, (c0 * 0 + purpose).to(tl.uint32), c0 * 0)
    return x0, x1


@triton.jit
def _float24(word: tl.tensor) -> tl.tensor:
    """The word's upper 24 bits as float32, exactly. Through int32: uint32 -> float is slower."""
    return (word >> 8).to(tl.int32).to(tl.float32)


@triton.jit
def uniform(seed: tl.tensor, position: tl.tensor, purpose: tl.tensor) -> tl.tensor:
    """float32 in (0, 1), one per (seed, position)."""
    x0, _x1 = words(seed, position, position * 0, purpose)
    return tl.minimum((_float24(x0) + 0.5) * 5.9604644775390625e-08, _LARGEST_UNIFORM)


@triton.jit
def exponential(
    seed: tl.tensor, position: tl.tensor, token_id: tl.tensor, purpose: tl.tensor
) -> tl.tensor:
    """float32 ~ Exp(1), one per (seed, position, token id). The id of the least e / p follows p."""
    x0, x1 = words(seed, position, token_id, purpose)
    high = _float24(x0)
    w = high * 5.9604644775390625e-08 + 2.98023223876953125e-08  # 2**-24, 2**-25
    w = tl.minimum(w, _LARGEST_UNIFORM)
    w = tl.where(high == 0, (_float24(x1) + 0.5) * 3.552713678800501e-15, w)  # 2**-48
    series = w + w * w * (0.5 + w * (0.3333333333333333 + w * 0.25))
    return tl.where(w < _SERIES_BELOW, series, -tl.log(1 - w))
