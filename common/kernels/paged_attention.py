"""Attention of variable-length query rows over paged keys and values, on the device.

Knows tiles of query rows, splits of the context, and how split results merge. Does not know
sessions, models and how pages are owned; common/model/batch.py says which rows and splits there
are.

The context is cut into splits of a fixed number of keys (flash-decoding, Dao et al., 2023,
https://crfm.stanford.edu/2023/10/12/flashdecoding.html), each with the online softmax of
FlashAttention (Dao et al., 2022, arXiv:2205.14135), and a second kernel merges a row's splits in
their order. Splits begin at absolute positions and tiles have one size, so what a row adds up, and
in which order, follows from its own position alone: not from the rows that share its tile, nor from
the sessions beside it. Keys that a row may not see enter its sums as exact zeros.

Grouped-query attention (Ainslie et al., 2023, arXiv:2305.13245): the query heads of one KV head,
for all rows of a tile, are the rows of one matrix product, so keys are read once for all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.attention_tiles import SPLIT_KEYS, TILE_FIELDS, Tiles
from common.kernels.merge_splits import BLOCK_S, merge_splits_kernel

# 1.4426950408889634 below is log2(e): powers of two are what the hardware computes.


@triton.jit(do_not_specialize=["first_tile"])  # else compiled anew for 0, 1 and sixteens
def attend_splits_kernel(
    partial_ptr,  # f32 [work tiles, KV_HEADS, BLOCK_M, HEAD], not normalised
    maximum_ptr,  # f32 [work tiles, KV_HEADS, BLOCK_M], in units of log2
    total_ptr,  # f32 [work tiles, KV_HEADS, BLOCK_M], relative to 2^maximum
    query_ptr,  # [rows, KV_HEADS * GROUP, HEAD]
    query_row_stride,
    query_head_stride,
    keys_ptr,  # [pages, PAGE_SIZE, KV_HEADS, HEAD]
    values_ptr,
    pages_ptr,  # int32, the sessions' pages one after another
    work_tiles_ptr,  # int32 [work tiles, TILE_FIELDS], see common/kernels/attention_tiles.py
    counts_ptr,  # int32 [2]: rows, work tiles that are real
    first_tile,  # of this launch; partial results are numbered from it
    scale,
    softcap,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    FIELDS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One program: one split of the keys of one KV head, for one tile of rows."""
    kv_head = tl.program_id(0)
    place = tl.program_id(1)
    if first_tile + place >= tl.load(counts_ptr + 1):
        return
    tile_ptr = work_tiles_ptr + (first_tile + place) * FIELDS
    first_page = tl.load(tile_ptr)
    first_row = tl.load(tile_ptr + 1)
    rows = tl.load(tile_ptr + 2)
    position = tl.load(tile_ptr + 3)
    split = tl.load(tile_ptr + 4)

    low = split * SPLIT
    high = tl.minimum(low + SPLIT, position + rows)
    if HAS_WINDOW:
        # Whole blocks only, so that blocks begin at the same keys for every row.
        seen = tl.maximum(position + 1 - window, 0) // BLOCK_N * BLOCK_N
        low = tl.maximum(low, seen)
    if low >= high:
        return  # out of the window of all rows; no row will ask for it

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    row_in_tile = m // GROUP  # the row's index in its tile
    real = row_in_tile < rows
    end = position + row_in_tile + 1  # the row sees keys [begin, end)
    begin = end - window
    query_offset = (first_row + row_in_tile).to(tl.int64) * query_row_stride
    query_offset += (kv_head * GROUP + m % GROUP) * query_head_stride
    query = tl.load(
        query_ptr + query_offset[:, None] + d[None, :],
        mask=real[:, None] & (d < HEAD)[None, :],
        other=0.0,
    )  # [BLOCK_M, BLOCK_D]
    if WIDEN:
        query = query.to(tl.float32)

    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    partial = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for first_key in range(low, high, BLOCK_N):
        n = first_key + tl.arange(0, BLOCK_N)
        inside = n < high
        page = tl.load(pages_ptr + first_page + n // PAGE_SIZE, mask=inside, other=0)
        slot = page.to(tl.int64) * PAGE_SIZE + n % PAGE_SIZE
        offset = (slot * KV_HEADS + kv_head) * HEAD
        if HEAD == BLOCK_D:
            there = inside[:, None]
        else:
            there = inside[:, None] & (d < HEAD)[None, :]
        key = tl.load(keys_ptr + offset[:, None] + d[None, :], mask=there, other=0.0)
        if WIDEN:
            key = key.to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        if HAS_SOFTCAP:
            # tanh(x) = 1 - 2 / (e^2x + 1); Gemma 2, arXiv:2408.00118
            scores = 1.0 - 2.0 / (
                tl.exp2(scores * (scale * 2.0 * 1.4426950408889634 / softcap)) + 1.0
            )
            scores = scores * (softcap * 1.4426950408889634)
        else:
            scores = scores * (scale * 1.4426950408889634)
        visible = n[None, :] < end[:, None]
        if HAS_WINDOW:
            visible = visible & (n[None, :] >= begin[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(maximum, tl.max(scores, 1))
        # A row that has seen nothing yet has no maximum to subtract.
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - level[:, None])
        fade = tl.exp2(maximum - level)
        total = total * fade + tl.sum(weights, 1)
        value = tl.load(values_ptr + offset[:, None] + d[None, :], mask=there, other=0.0)
        weights = weights.to(value.dtype)
        if WIDEN:
            weights, value = weights.to(tl.float32), value.to(tl.float32)
        partial = partial * fade[:, None]
        partial = tl.dot(weights, value, partial, input_precision="ieee")
        maximum = higher

    rows_in_tile = (place.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_M + m
    tl.store(maximum_ptr + rows_in_tile, maximum, mask=real)
    tl.store(total_ptr + rows_in_tile, total, mask=real)
    tl.store(
        partial_ptr + rows_in_tile[:, None] * HEAD + d[None, :],
        partial,
        mask=real[:, None] & (d < HEAD)[None, :],
    )


def paged_attention(
    query: Tensor,  # [rows, heads, head_size]
    keys: Tensor,  # [pages, page_size, kv_heads, head_size]
    values: Tensor,
    pages: Tensor,  # int32 [all sessions' pages]
    work_tiles: Tensor,  # int32 [work tiles, TILE_FIELDS]
    positions: Tensor,  # int32 [rows]
    row_tiles: Tensor,  # int32 [rows]
    rows_in_tile: Tensor,  # int32 [rows]
    counts: Tensor,  # int32 [2]
    tiles: Tiles,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,  # [heads], a logit of each head that has no value
    groups: tuple[tuple[int, int, int, int], ...] | None = None,
    split_keys: int = SPLIT_KEYS,
) -> Tensor:
    """-> [rows, heads, head_size] in the query's dtype; rows from counts[0] on are zero.

    `groups`: (first work tile, work tiles, first row, rows) of each launch; None for one launch of
    all. The keys and values of the rows themselves must have been written
    (common/kernels/kv_write.py).
    """
    rows, heads, size = query.shape
    page_size, kv_heads = keys.shape[1], keys.shape[2]
    if query.stride(2) != 1:
        query = query.contiguous()
    out = torch.empty((rows, heads, size), dtype=query.dtype, device=query.device)
    group = heads // kv_heads
    block_d = max(16, triton.next_power_of_2(size))
    for first_tile, count, first_row, row_count in groups or ((0, work_tiles.shape[0], 0, rows),):
        partial_shape = (count, kv_heads, tiles.block_m)
        partial = torch.empty((*partial_shape, size), dtype=torch.float32, device=query.device)
        maximum = torch.empty(partial_shape, dtype=torch.float32, device=query.device)
        total = torch.empty(partial_shape, dtype=torch.float32, device=query.device)
        attend_splits_kernel[(kv_heads, count)](
            partial,
            maximum,
            total,
            query,
            query.stride(0),
            query.stride(1),
            keys,
            values,
            pages,
            work_tiles,
            counts,
            first_tile,
            scale,
            softcap or 0.0,
            window or 0,
            KV_HEADS=kv_heads,
            GROUP=group,
            HEAD=size,
            PAGE_SIZE=page_size,
            SPLIT=split_keys,
            FIELDS=TILE_FIELDS,
            HAS_SOFTCAP=softcap is not None,
            HAS_WINDOW=window is not None,
            BLOCK_M=tiles.block_m,
            BLOCK_N=tiles.block_n,
            BLOCK_D=block_d,
            # Triton's interpreter multiplies bfloat16 as if it were integers.
            WIDEN=triton.knobs.runtime.interpret and query.dtype == torch.bfloat16,
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
        )
        merge_splits_kernel[(heads, row_count)](
            out,
            partial,
            maximum,
            total,
            positions,
            row_tiles,
            rows_in_tile,
            counts if sinks is None else sinks,
            counts,
            first_tile,
            first_row,
            window or 0,
            KV_HEADS=kv_heads,
            GROUP=group,
            HEAD=size,
            SPLIT=split_keys,
            HAS_WINDOW=window is not None,
            HAS_SINKS=sinks is not None,
            BLOCK_M=tiles.block_m,
            BLOCK_S=BLOCK_S,
            BLOCK_D=block_d,
            num_warps=1 if block_d <= 128 else 2,
        )
    return out
