"""Merging what a row's splits of the context gave, in their order.

Knows partial sums with their maxima (online softmax, Milakov and Gimelshein, 2018,
arXiv:1805.02867). Does not know keys and values. Every row adds up its own splits and no others,
eight at a time, so its bits follow from its position alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
BLOCK_S = 8  # splits that one row adds up at a time


@triton.jit(do_not_specialize=["first_tile", "first_row"])  # as attend_splits_kernel
def merge_splits_kernel(
    out_ptr,  # [rows, KV_HEADS * GROUP, HEAD]
    partial_ptr,  # f32 [work tiles, KV_HEADS, BLOCK_M, HEAD]
    maximum_ptr,
    total_ptr,
    positions_ptr,  # int32 [rows]
    row_tiles_ptr,  # int32 [rows], the work tile of the row's tile and split 0
    rows_in_tile_ptr,  # int32 [rows], the row's index in its tile
    sinks_ptr,  # [KV_HEADS * GROUP], a logit of each head without a value; read if HAS_SINKS
    counts_ptr,
    first_tile,
    first_row,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program: one row, one query head. Rows that aren't real become zero."""
    head = tl.program_id(0)
    row = first_row + tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    out_ptrs = out_ptr + (row.to(tl.int64) * KV_HEADS * GROUP + head) * HEAD + d
    if row >= tl.load(counts_ptr):
        tl.store(out_ptrs, tl.zeros([BLOCK_D], out_ptr.dtype.element_ty), mask=d < HEAD)
        return
    end = tl.load(positions_ptr + row) + 1
    low = 0
    if HAS_WINDOW:
        low = tl.maximum(end - window, 0) // SPLIT
    high = (end + SPLIT - 1) // SPLIT
    # [splits] of this row and head, from the work tile of split 0
    work_tile = (tl.load(row_tiles_ptr + row) - first_tile).to(tl.int64)
    base = (work_tile * KV_HEADS + head // GROUP) * BLOCK_M
    base += tl.load(rows_in_tile_ptr + row) * GROUP + head % GROUP
    s = tl.arange(0, BLOCK_S)
    highest = tl.full([BLOCK_S], float("-inf"), tl.float32)
    for first in range(low, high, BLOCK_S):
        at = base + (first + s) * (KV_HEADS * BLOCK_M)
        there = first + s < high
        highest = tl.maximum(highest, tl.load(maximum_ptr + at, mask=there, other=float("-inf")))
    level = tl.max(highest, 0)
    total = 0.0
    if HAS_SINKS:  # it takes part in the softmax (gpt-oss; Xiao et al., 2023, arXiv:2309.17453)
        sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
        level = tl.maximum(level, sink)
        total = tl.exp2(sink - level)
    out = tl.zeros([BLOCK_D], tl.float32)
    for first in range(low, high, BLOCK_S):
        at = base + (first + s) * (KV_HEADS * BLOCK_M)
        there = first + s < high
        weight = tl.exp2(tl.load(maximum_ptr + at, mask=there, other=float("-inf")) - level)
        total += tl.sum(weight * tl.load(total_ptr + at, mask=there, other=0.0), 0)
        partial = tl.load(
            partial_ptr + at[:, None] * HEAD + d[None, :],
            mask=there[:, None] & (d < HEAD)[None, :],
            other=0.0,
        )
        out += tl.sum(weight[:, None] * partial, 0)
    tl.store(out_ptrs, (out / total).to(out_ptr.dtype.element_ty), mask=d < HEAD)
