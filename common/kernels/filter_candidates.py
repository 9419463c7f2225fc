"""The few ids of a row that can pass its filters, without sorting.

A scan leaves every block's maximum, and its mass beside it. From those follows a floor that
certainly lies at or under the filters' threshold; blocks whose maximum reaches it are read again,
and what reaches it in them is a candidate. common/kernels/filter_threshold.py goes on from
there. Device functions only.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.logits_scan import logits_at
from common.kernels.sortable_floats import rank_of, value_of

LIMIT = 1024  # candidates of a row; more, and the whole row is searched
STEP = tl.constexpr(32)  # blocks read again at a time


@triton.jit
def floor_for_count(highest, top, count, SHIFT: tl.constexpr):
    """A value that at least `count` ids reach, as that many blocks' maxima do; -inf if fewer exist.

    highest: float32 [blocks]. Not the highest such value: it stops when little is left to gain.
    """
    real = highest > float("-inf")
    reach = tl.sum(real.to(tl.int32), 0)  # all of them reach the minimum
    minimum = tl.min(tl.where(real, highest, top), 0)
    minimum = tl.where(reach >= count, minimum, float("-inf"))
    low = rank_of(minimum, SHIFT)
    high = tl.where(reach >= count, rank_of(top, SHIFT) + 1, low)
    while (high > low + 1) & (reach > count + count // 8 + 8):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        reached = tl.sum((highest >= value_of(middle, SHIFT)).to(tl.int32), 0)
        enough = reached >= count
        low = tl.where(enough, middle, low)
        reach = tl.where(enough, reached, reach)
        high = tl.where(enough, high, middle)
    return value_of(low, SHIFT)


@triton.jit
def floor_for_mass(highest, ratio, top, scale, rest, others, BLOCK: tl.constexpr):
    """A value under which all ids together weigh less than `rest` (the top weighs 1), or -inf.

    highest, ratio: float32 [blocks], as a scan leaves them; others: how many further ids may lie
    anywhere. A block whose maximum lies under the value weighs what it weighs; of others all ids
    but one may lie under it, and weigh no more than they do nor than that many at the value.
    """
    most = tl.exp2((highest - top) * scale)  # [blocks], what its maximum weighs
    all_but = tl.maximum(ratio * 1.001 - 1.0, 0.0) * most  # float16 rounds by up to 0.0005
    near = top * 0
    far = top * 0 + 64.0  # 2**-64 of 262,144 ids is no mass at all
    for _ in range(10):
        middle = (near + far) * 0.5
        one = tl.exp2(-middle)
        under = tl.where(most < one, all_but + most, tl.minimum(all_but, one * (BLOCK - 1)))
        light = tl.sum(under, 0) + others * one < rest
        far = tl.where(light, middle, far)
        near = tl.where(light, near, middle)
    floor = top - far / scale
    floor -= (
        tl.abs(top) + tl.abs(floor)
    ) * 1e-6  # the distribution's own rounding may not matter here
    return tl.where(far < 64.0, floor, float("-inf"))


@triton.jit
def collect(
    logits,
    row,
    row_stride,
    width,
    exists,
    highest,  # float32 [PADDED], the row's block maxima
    floor,
    most_blocks,  # as many are read again, LIMIT at most; a row with more blocks is flat
    block_list,  # int32 [rows, LIMIT], scratch
    values,  # float32 [rows, LIMIT]
    ids,  # int32 [rows, LIMIT]
    LIMIT: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """Write the ids that reach `floor`, ascending, and their values.

    Returns how many reach it; something over LIMIT if they don't fit.
    """
    block = tl.arange(0, PADDED)
    wanted = (highest >= floor) & (highest > float("-inf"))
    blocks = tl.sum(wanted.to(tl.int32), 0)
    count = blocks + LIMIT
    base = row * LIMIT
    if blocks <= most_blocks:
        rank = tl.cumsum(wanted.to(tl.int32), 0) - 1
        tl.store(block_list + base + rank, block, mask=wanted)
        tl.debug_barrier()
        count = blocks * 0
        for first in range(0, blocks, STEP):
            at = first + tl.arange(0, STEP)
            which = tl.load(block_list + base + at, mask=at < blocks, other=0)
            square = which[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
            inside = (at < blocks)[:, None] & (square < width)
            found = logits_at(logits, row, row_stride, square, inside, exists, HAS_MASK)
            x = tl.reshape(found, [STEP * BLOCK])
            token = tl.reshape(square, [STEP * BLOCK])
            good = (x >= floor) & (x > float("-inf"))
            slot = count + tl.cumsum(good.to(tl.int32), 0) - 1
            fits = good & (slot < LIMIT)
            tl.store(values + base + slot, x, mask=fits)
            tl.store(ids + base + slot, token, mask=fits)
            count += tl.sum(good.to(tl.int32), 0)
        tl.debug_barrier()
    return count
