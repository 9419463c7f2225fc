"""Rows times a weight matrix, for few rows: reads the weights once and keeps each row's bits.

Knows tiles of 16 rows, of outputs, and splits of the inner dimension. Does not know layers.
Libraries choose another kernel, and with it another order of sums, for one row than for nine. Here
one row is a tile of 16 like any other, and the splits follow from the matrix alone, so a row's
value is the same whatever runs beside it. Split sums stay apart, in float32: whatever reads them
next adds them up in order (common/kernels/norm_and_gate.py, rope_kv_write.py), and no launch
does only that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_M = 16
PROGRAMS = 512  # wanted at least, of one row tile: a few for each multiprocessor


@dataclass(frozen=True)
class ProductTiles:
    """How one matrix is cut up; chosen from its shape alone."""

    block_n: int
    block_k: int
    chunk: int  # inner elements of one split, a multiple of block_k
    splits: int
    num_warps: int
    num_stages: int


def product_tiles(outer: int, inner: int, dtype: torch.dtype = torch.bfloat16) -> ProductTiles:
    """For a matrix [outer, inner]."""
    block_n, block_k = (64, 128) if dtype.itemsize == 2 else (32, 32)
    tiles = -(-outer // block_n)
    blocks = -(-inner // block_k)
    splits = max(1, min(-(-PROGRAMS // tiles), blocks // 2, 8))
    chunk = -(-blocks // splits) * block_k
    return ProductTiles(block_n, block_k, chunk, -(-inner // chunk), 4, 4)


@triton.jit(do_not_specialize=["rows"])
def row_product_kernel(
    out_ptr,  # [splits, rows, OUTER]
    x_ptr,  # [rows, INNER]
    weight_ptr,  # [OUTER, INNER]
    rows,
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    M_TILES: tl.constexpr,  # 1, 2 or 4
    WIDEN: tl.constexpr,
):
    """One program: M_TILES times 16 rows, BLOCK_N outputs, one split of the inner dimension.

    The tiles share the weights and nothing else: each is the same product whatever M_TILES is.
    """
    m = tl.program_id(0) * (BLOCK_M * M_TILES) + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k = tl.arange(0, BLOCK_K)
    there = n < OUTER
    low = split * CHUNK
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total1, total2, total3 = total, total, total
    row = m[:, None].to(tl.int64) * INNER
    step: tl.constexpr = BLOCK_M * INNER
    weight_row = n[:, None].to(tl.int64) * INNER
    for first in range(low, min(low + CHUNK, INNER), BLOCK_K):
        inside = (first + k < INNER)[None, :]
        x_ptrs = x_ptr + row + (first + k)[None, :]
        weight = tl.load(
            weight_ptr + weight_row + (first + k)[None, :],
            mask=there[:, None] & inside if INNER % BLOCK_K else there[:, None],
            other=0.0,
        )
        if WIDEN:
            weight = weight.to(tl.float32)
        weight = tl.trans(weight)
        total = _add(total, x_ptrs, m, rows, inside, weight, INNER % BLOCK_K != 0)
        if M_TILES > 1:
            total1 = _add(total1, x_ptrs + step, m + 16, rows, inside, weight, INNER % BLOCK_K != 0)
        if M_TILES > 2:
            far, last = x_ptrs + 2 * step, x_ptrs + 3 * step
            total2 = _add(total2, far, m + 32, rows, inside, weight, INNER % BLOCK_K != 0)
            total3 = _add(total3, last, m + 48, rows, inside, weight, INNER % BLOCK_K != 0)
    out = out_ptr + (split * rows + m).to(tl.int64)[:, None] * OUTER + n[None, :]
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(out, total.to(dtype), mask=(m < rows)[:, None] & there[None, :])
    if M_TILES > 1:
        out += BLOCK_M * OUTER
        tl.store(out, total1.to(dtype), mask=(m + 16 < rows)[:, None] & there[None, :])
    if M_TILES > 2:
        out += BLOCK_M * OUTER
        tl.store(out, total2.to(dtype), mask=(m + 32 < rows)[:, None] & there[None, :])
        out += BLOCK_M * OUTER
        tl.store(out, total3.to(dtype), mask=(m + 48 < rows)[:, None] & there[None, :])


@triton.jit
def _add(total, x_ptrs, m, rows, inside, weight, PARTIAL: tl.constexpr):
    """total + x times weight, for one tile of 16 rows."""
    if PARTIAL:
        x = tl.load(x_ptrs, mask=(m < rows)[:, None] & inside, other=0.0)
    else:
        x = tl.load(x_ptrs, mask=(m < rows)[:, None], other=0.0)
    return tl.dot(x.to(weight.dtype), weight, total, input_precision="ieee")


def row_product(
    x: Tensor, weight: Tensor, tiles: ProductTiles, dtype: torch.dtype | None = None
) -> Tensor:
    """x [rows, inner], weight [outer, inner] -> sums of every split [splits, rows, outer].

    float32, or `dtype` where there is one split.
    """
    rows, (outer, inner) = x.shape[0], weight.shape
    assert dtype is None or tiles.splits == 1
    x = x.contiguous()
    out = torch.empty((tiles.splits, rows, outer), dtype=dtype or torch.float32, device=x.device)
    m_tiles = 1 if rows <= BLOCK_M else 2 if rows <= 2 * BLOCK_M else 4
    grid = (triton.cdiv(rows, BLOCK_M * m_tiles), triton.cdiv(outer, tiles.block_n), tiles.splits)
    row_product_kernel[grid](
        out,
        x,
        weight,
        rows,
        OUTER=outer,
        INNER=inner,
        CHUNK=tiles.chunk,
        BLOCK_M=BLOCK_M,
        BLOCK_N=tiles.block_n,
        BLOCK_K=tiles.block_k,
        M_TILES=m_tiles,
        WIDEN=triton.knobs.runtime.interpret and x.dtype == torch.bfloat16,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out
