"""Writing the keys and values of a batch's rows into their pages, on the device.

Knows slots. Does not know pages' owners. Rows beyond the real count write nothing, so a batch
that was padded for a CUDA graph needs no page to spoil.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def write_kv_kernel(
    keys_out_ptr,  # [slots, KV_HEADS, HEAD]
    values_out_ptr,
    keys_ptr,  # [rows, KV_HEADS, HEAD], strided
    key_row_stride,
    key_head_stride,
    values_ptr,
    value_row_stride,
    value_head_stride,
    slots_ptr,  # int32 [rows]
    counts_ptr,  # int32 [2]: rows that are real, work tiles
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: one row."""
    row = tl.program_id(0)
    if row >= tl.load(counts_ptr):
        return
    slot = tl.load(slots_ptr + row).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < KV_HEADS * HEAD
    head, d = at // HEAD, at % HEAD
    wide = row.to(tl.int64)
    key = tl.load(
        keys_ptr + wide * key_row_stride + head * key_head_stride + d, mask=there, other=0.0
    )
    value = tl.load(
        values_ptr + wide * value_row_stride + head * value_head_stride + d, mask=there, other=0.0
    )
    tl.store(keys_out_ptr + slot * (KV_HEADS * HEAD) + at, key, mask=there)
    tl.store(values_out_ptr + slot * (KV_HEADS * HEAD) + at, value, mask=there)


def write_kv(
    keys_out: Tensor,  # [pages, page_size, kv_heads, head_size], written in place
    values_out: Tensor,
    keys: Tensor,  # [rows, kv_heads, head_size]
    values: Tensor,
    slots: Tensor,  # int32 [rows]: page * page_size + place in the page
    counts: Tensor,  # int32 [2]; counts[0] rows are real
) -> None:
    """Keep keys and values of the first counts[0] rows in their slots."""
    rows, kv_heads, size = keys.shape
    if keys.stride(2) != 1:
        keys = keys.contiguous()
    if values.stride(2) != 1:
        values = values.contiguous()
    write_kv_kernel[(rows,)](
        keys_out,
        values_out,
        keys,
        keys.stride(0),
        keys.stride(1),
        values,
        values.stride(0),
        values.stride(1),
        slots,
        counts,
        KV_HEADS=kv_heads,
        HEAD=size,
        BLOCK=triton.next_power_of_2(kv_heads * size),
        num_warps=4,
    )
