"""common/sampling/rng.py in Triton: the same words bit for bit, floats up to log's last ulp.

Device functions only, for both services' kernels. A Philox block serves four token ids, so a
contiguous run of ids (`run_exponential`) costs a quarter of what the same ids cost one by one
(`exponential`). Does not know distributions and rules. Importing it compiles nothing.

seed: int64 scalar or block; position, purpose: non-negative integers, scalars or blocks; token_id:
a block of non-negative integers. Blocks broadcast against each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

# As in common.sampling.rng.Purpose: kernels read globals only if they are constexpr.
PROPOSE = tl.constexpr(0)
ACCEPT = tl.constexpr(1)
SAMPLE = tl.constexpr(2)
COUPLED = tl.constexpr(3)

_LARGEST_UNIFORM = tl.constexpr(1 - 2.0**-24)
_SERIES_BELOW = tl.constexpr(2.0**-7)


@triton.jit
def words(
    seed: tl.tensor, position: tl.tensor, block: tl.tensor, purpose: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Four Philox words, uint32: key = seed, counter = (position, block, purpose, 0)."""
    zero = (position + block) * 0
    c0, c1 = (position + zero).to(tl.uint32), (block + zero).to(tl.uint32)
    c2, c3 = (zero + purpose).to(tl.uint32), zero.to(tl.uint32)
    return tl.philox(seed, c0, c1, c2, c3)


@triton.jit
def id_words(
    seed: tl.tensor, position: tl.tensor, token_id: tl.tensor, purpose: tl.tensor
) -> tl.tensor:
    """One word per token id, uint32: word (id mod 4) of block id // 4."""
    x0, x1, x2, x3 = words(seed, position, token_id >> 2, purpose)
    row_in_tile = token_id & 3
    return tl.where(
        row_in_tile < 2, tl.where(row_in_tile == 0, x0, x1), tl.where(row_in_tile == 2, x2, x3)
    )


@triton.jit
def run_words(
    seed: tl.tensor,
    position: tl.tensor,
    first_id: tl.tensor,
    purpose: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """`id_words` of first_id, first_id + 1, ..., uint32 [width], one block per four of them.

    first_id: scalar, a multiple of 4. width: a power of two, 4 or more. seed, position: scalars.
    """
    block = (first_id >> 2) + tl.arange(0, width // 4)
    x0, x1, x2, x3 = words(seed, position, block, purpose)
    return tl.interleave(tl.interleave(x0, x2), tl.interleave(x1, x3))


@triton.jit
def uniform(seed: tl.tensor, position: tl.tensor, purpose: tl.tensor) -> tl.tensor:
    """float32 in (0, 1), one per (seed, position)."""
    x0, _x1, _x2, _x3 = words(seed, position, position * 0, purpose)
    return _fraction(x0)


@triton.jit
def exponential(
    seed: tl.tensor, position: tl.tensor, token_id: tl.tensor, purpose: tl.tensor
) -> tl.tensor:
    """float32 ~ Exp(1), one per (seed, position, token id). The id of min(e / p) follows p."""
    return _exponential_of(id_words(seed, position, token_id, purpose))


@triton.jit
def run_exponential(
    seed: tl.tensor,
    position: tl.tensor,
    first_id: tl.tensor,
    purpose: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """`exponential` of first_id, first_id + 1, ..., [width]: the same numbers for less.

    Arguments as those of `run_words`.
    """
    return _exponential_of(run_words(seed, position, first_id, purpose, width))


@triton.jit
def _fraction(word: tl.tensor) -> tl.tensor:
    """((word >> 1) + 0.5) * 2**-31, held below 1. Through int32: uint32 -> float is slower."""
    w = ((word >> 1).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10
    return tl.minimum(w, _LARGEST_UNIFORM)


@triton.jit
def _exponential_of(word: tl.tensor) -> tl.tensor:
    w = _fraction(word)
    series = w + w * w * (0.5 + w * (0.3333333333333333 + w * 0.25))
    return tl.where(w < _SERIES_BELOW, series, -tl.log(1 - w))
