"""What a scan's parts say of a whole row: its maximum, whose that is, and whether it is valid.

A row whose maximum isn't finite has none: a NaN or +inf is among its logits, or no id may come. Its
token is NO_TOKEN, which kernels hand on instead of an id, and who fetches their results turns into
what it means (no host value ever has it). Device functions only.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.logits_scan import logits_at

NO_TOKEN = -1
_NO_TOKEN = tl.constexpr(NO_TOKEN)


@triton.jit
def is_finite(top):
    """Whether a row with that maximum has valid logits: no NaN, no +inf, an id that may come."""
    return (top > float("-inf")) & (top < float("inf"))


@triton.jit
def row_top(tops, row, stride, parts, PARTS: tl.constexpr):
    """The maximum of the row's first `parts` parts, and all of their maxima."""
    part = tl.arange(0, PARTS)
    all_tops = tl.load(tops + row * stride + part, mask=part < parts, other=float("-inf"))
    return tl.max(all_tops, 0), all_tops


@triton.jit
def row_argmax(
    logits,
    row,
    row_stride,
    width,
    exists,
    tops,
    top_blocks,
    stride,
    chunks,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """The lowest id that has the row's maximum, and that: only its block is read again.

    NO_TOKEN where the row has no distribution.
    """
    top, all_tops = row_top(tops, row, stride, chunks, PARTS)
    part = tl.arange(0, PARTS)
    blocks = tl.load(top_blocks + row * stride + part, mask=part < chunks, other=0x7FFFFFFF)
    block = tl.min(tl.where(all_tops == top, blocks, 0x7FFFFFFF), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = logits_at(logits, row, row_stride, ids, ids < width, exists, HAS_MASK)
    token = tl.min(tl.where(x == top, ids, 0x7FFFFFFF), 0)
    return tl.where(is_finite(top), token, _NO_TOKEN), top
