"""Rotary positions for queries and keys, and writing keys and values, in one pass over a row.

Knows products whose split sums are still apart (common/kernels/row_product.py), and the half-split
rotation of rotary embeddings (Su et al., 2021, arXiv:2104.09864) as transformers lays it out.
Does not know where the angles come from and who owns pages.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["rows"])
def rotate_write_kernel(
    query_out_ptr,  # [rows, HEADS, HEAD]
    keys_out_ptr,  # [slots, KV_HEADS, HEAD]
    values_out_ptr,
    product_ptr,  # [SPLITS, rows, (HEADS + 2 * KV_HEADS) * HEAD]
    bias_ptr,  # [(HEADS + 2 * KV_HEADS) * HEAD], if HAS_BIAS
    cos_ptr,  # [rows, HEAD]
    sin_ptr,
    slots_ptr,  # int32 [rows]
    counts_ptr,  # int32 [2]: rows that are real, work tiles
    rows,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,  # at least HEAD / 2
):
    """One program: one head of one row."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    if row >= tl.load(counts_ptr):
        return
    half: tl.constexpr = HEAD // 2
    d = tl.arange(0, BLOCK)
    there = d < half
    wide = row.to(tl.int64)
    dtype: tl.constexpr = query_out_ptr.dtype.element_ty
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD
    first = tl.zeros([BLOCK], tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        part = product_ptr + (split * rows + wide) * width + head * HEAD + d
        first += tl.load(part, mask=there, other=0.0).to(tl.float32)
        second += tl.load(part + half, mask=there, other=0.0).to(tl.float32)
    if HAS_BIAS:
        first += tl.load(bias_ptr + head * HEAD + d, mask=there, other=0.0).to(tl.float32)
        second += tl.load(bias_ptr + head * HEAD + half + d, mask=there, other=0.0).to(tl.float32)
    first, second = first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)
    if head < HEADS + KV_HEADS:
        angle = wide * HEAD + d
        cos = tl.load(cos_ptr + angle, mask=there, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=there, other=0.0).to(tl.float32)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    if head < HEADS:
        out = query_out_ptr + (wide * HEADS + head) * HEAD + d
    else:
        slot = tl.load(slots_ptr + row).to(tl.int64)
        if head < HEADS + KV_HEADS:
            out = keys_out_ptr + (slot * KV_HEADS + head - HEADS) * HEAD + d
        else:
            out = values_out_ptr + (slot * KV_HEADS + head - HEADS - KV_HEADS) * HEAD + d
    tl.store(out, first.to(dtype), mask=there)
    tl.store(out + half, second.to(dtype), mask=there)


def rotate_write(
    keys_out: Tensor,  # [pages, page_size, kv_heads, head_size], written in place
    values_out: Tensor,
    product: Tensor,  # [splits, rows, (heads + 2 * kv_heads) * head_size]: queries, keys, values
    bias: Tensor | None,  # [(heads + 2 * kv_heads) * head_size], not yet in the product
    cos: Tensor,  # [rows, head_size], both halves alike
    sin: Tensor,
    slots: Tensor,  # int32 [rows]
    counts: Tensor,  # int32 [2]; counts[0] rows are real
) -> Tensor:
    """-> rotated queries [rows, heads, head_size]; rows beyond counts[0] hold anything."""
    splits, rows, width = product.shape
    kv_heads, size = keys_out.shape[2], keys_out.shape[3]
    heads = width // size - 2 * kv_heads
    query = torch.empty((rows, heads, size), dtype=keys_out.dtype, device=product.device)
    rotate_write_kernel[(heads + 2 * kv_heads, rows)](
        query,
        keys_out,
        values_out,
        product,
        cos if bias is None else bias,
        cos.contiguous(),
        sin.contiguous(),
        slots,
        counts,
        rows,
        SPLITS=splits,
        HAS_BIAS=bias is not None,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD=size,
        BLOCK=triton.next_power_of_2(size // 2),
        num_warps=1,
    )
    return query
