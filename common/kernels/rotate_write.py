"""Rotary positions for queries and keys, and writing keys and values, in one pass over a row.

Knows the half-split rotation of rotary embeddings (Su et al., 2021, arXiv:2104.09864) as
transformers lays it out. Refuses to know where the angles come from and who owns pages.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rotate_write_kernel(
    query_out_ptr,  # [rows, HEADS, HEAD]
    keys_out_ptr,  # [slots, KV_HEADS, HEAD]
    values_out_ptr,
    qkv_ptr,  # [rows, (HEADS + 2 * KV_HEADS) * HEAD]
    cos_ptr,  # [rows, HEAD]
    sin_ptr,
    slots_ptr,  # int32 [rows]
    counts_ptr,  # int32 [2]: rows that are real, items
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
    at = qkv_ptr + wide * ((HEADS + 2 * KV_HEADS) * HEAD) + head * HEAD + d
    first = tl.load(at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(at + half, mask=there, other=0.0).to(tl.float32)
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
    tl.store(out, first.to(query_out_ptr.dtype.element_ty), mask=there)
    tl.store(out + half, second.to(query_out_ptr.dtype.element_ty), mask=there)


def rotate_write(
    keys_out: Tensor,  # [pages, page_size, kv_heads, head_size], written in place
    values_out: Tensor,
    qkv: Tensor,  # [rows, (heads + 2 * kv_heads) * head_size]: queries, keys, values
    cos: Tensor,  # [rows, head_size], both halves alike
    sin: Tensor,
    slots: Tensor,  # int32 [rows]
    counts: Tensor,  # int32 [2]; counts[0] rows are real
) -> Tensor:
    """-> rotated queries [rows, heads, head_size]; rows beyond counts[0] hold anything."""
    rows, width = qkv.shape
    kv_heads, size = keys_out.shape[2], keys_out.shape[3]
    heads = width // size - 2 * kv_heads
    query = torch.empty((rows, heads, size), dtype=qkv.dtype, device=qkv.device)
    rotate_write_kernel[(heads + 2 * kv_heads, rows)](
        query,
        keys_out,
        values_out,
        qkv,
        cos,
        sin,
        slots,
        counts,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD=size,
        BLOCK=triton.next_power_of_2(size // 2),
        num_warps=1,
    )
    return query
