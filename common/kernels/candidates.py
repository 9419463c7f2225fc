"""The few ids of a row that can pass its filters, and the exact threshold, without sorting.

A scan leaves every block's maximum, and its mass beside it. From those follows a floor that
certainly lies at or under the filters' threshold; blocks whose maximum reaches it are read again,
and what reaches it in them is a candidate. The threshold is then found among candidates by halving
an interval of float ranks, counting ids or adding masses, which is exact: it depends on values
alone, as the filters' definition does. Rows with more than LIMIT candidates (flat laws) take the
same search over all their logits.

Sums have a fixed order, so that the same row gives the same bits in every batch. Device functions
only.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.order import rank_of, value_of
from common.kernels.scan import logits_at, logits_of_run

LIMIT = 1024  # candidates of a row; more, and the whole row is searched
STEP = tl.constexpr(32)  # blocks read again at a time
PART = tl.constexpr(1024)  # candidates looked at at a time
_WHOLE_PART = tl.constexpr(4096)  # ids of a whole row looked at at a time


@triton.jit
def floor_for_count(highest, top, count, SHIFT: tl.constexpr):
    """A value that at least `count` ids reach, as that many blocks' maxima do; -inf if fewer exist.

    highest: float32 [blocks]. Not the highest such value: it stops when little is left to gain.
    """
    real = highest > float("-inf")
    reach = tl.sum(real.to(tl.int32), 0)  # all of them reach the least
    least = tl.min(tl.where(real, highest, top), 0)
    least = tl.where(reach >= count, least, float("-inf"))
    low = rank_of(least, SHIFT)
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
    floor -= (tl.abs(top) + tl.abs(floor)) * 1e-6  # the law's own rounding may not matter here
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
    most_blocks,  # as many are read again, LIMIT at most; of more blocks the row is called flat
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


@triton.jit
def _weight(x, cut, top, scale, min_p, STRICT: tl.constexpr, COUNT: tl.constexpr):
    if STRICT:
        over = x > cut
    else:
        over = x >= cut
    over = over & (x > float("-inf"))
    if COUNT:
        return tl.sum(over.to(tl.float32), 0)
    else:
        share = tl.exp2((x - top) * scale)
        return tl.sum(tl.where(over & (share >= min_p), share, 0.0), 0)


@triton.jit
def weigh(
    logits,  # read if WHOLE
    row,
    row_stride,
    width,
    exists,
    extra,  # float32, values beside the row's own; read if WHOLE and HAS_EXTRA
    extra_first,
    extra_end,
    values,  # float32 [rows, LIMIT], read if not WHOLE
    count,
    cut,
    top,
    scale,
    min_p,
    STRICT: tl.constexpr,
    COUNT: tl.constexpr,
    WHOLE: tl.constexpr,
    LIMIT: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_EXTRA: tl.constexpr,
):
    """Ids over `cut`: their number, or the sum of their exp((x - top) / T), in fixed order."""
    total = top * 0
    if WHOLE:
        for first in range(0, width, _WHOLE_PART):
            x = logits_of_run(logits, row, row_stride, first, width, exists, _WHOLE_PART, HAS_MASK)
            total += _weight(x, cut, top, scale, min_p, STRICT, COUNT)
        if HAS_EXTRA:
            for start in range(extra_first, extra_end, PART):
                at = start + tl.arange(0, PART)
                y = tl.load(extra + at, mask=at < extra_end, other=float("-inf"))
                total += _weight(y, cut, top, scale, min_p, STRICT, COUNT)
    else:
        for first in range(0, count, PART):
            at = first + tl.arange(0, PART)
            x = tl.load(values + row * LIMIT + at, mask=at < count, other=float("-inf"))
            total += _weight(x, cut, top, scale, min_p, STRICT, COUNT)
    return total


@triton.jit
def threshold(
    logits,
    row,
    row_stride,
    width,
    exists,
    extra,
    extra_first,
    extra_end,
    values,
    count,
    floor,
    under,  # what is known of top_p's cut, if top_k is off: its rank is in (under, highest],
    highest,
    over_under,  # and ids over `under` weigh that much; negative if nobody has added them
    top,
    scale,
    whole_mass,
    top_k,
    top_p,
    min_p,
    WHOLE: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFT: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_EXTRA: tl.constexpr,
):
    """(cut, mass): x >= cut and exp((x - top) / T) >= min_p are kept and weigh `mass` together.

    top_k keeps values that fewer than k ids exceed, top_p those that are exceeded by less than that
    mass of what top_k left; width and 1 switch them off. whole_mass: of all ids; the top weighs 1.
    """
    low = rank_of(floor, SHIFT)
    last = rank_of(top, SHIFT)
    mass = whole_mass
    known = over_under
    if top_k < width:
        high = last + 1
        while high > low + 1:  # the highest value that k ids reach
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            reached = weigh(
                logits, row, row_stride, width, exists, extra, extra_first, extra_end,
                values, count, value_of(middle, SHIFT), top, scale, 0.0,
                False, True, WHOLE, LIMIT, HAS_MASK, HAS_EXTRA,
            )  # fmt: skip
            enough = reached >= top_k
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
        under = low - 1
        highest = last
        known = mass * 0 - 1.0
        if top_p < 1.0:
            mass = weigh(
                logits, row, row_stride, width, exists, extra, extra_first, extra_end,
                values, count, value_of(low, SHIFT), top, scale, 0.0,
                False, False, WHOLE, LIMIT, HAS_MASK, HAS_EXTRA,
            )  # fmt: skip
            known = mass
    if top_p < 1.0:
        high = highest  # nothing exceeds the maximum: it always stays
        while high > under + 1:  # the lowest value that less than top_p exceeds
            middle = (under >> 1) + (high >> 1) + (under & high & 1)
            over = weigh(
                logits, row, row_stride, width, exists, extra, extra_first, extra_end,
                values, count, value_of(middle, SHIFT), top, scale, 0.0,
                True, False, WHOLE, LIMIT, HAS_MASK, HAS_EXTRA,
            )  # fmt: skip
            kept = over < top_p * mass
            high = tl.where(kept, middle, high)
            under = tl.where(kept, under, middle)
            known = tl.where(kept, known, over)
        low = high
    else:
        known = mass * 0 - 1.0
    cut = value_of(low, SHIFT)
    mass = known  # what exceeds the value before the cut is what reaches the cut
    if (known < 0.0) | (min_p > 0.0):
        mass = weigh(
            logits, row, row_stride, width, exists, extra, extra_first, extra_end,
            values, count, cut, top, scale, min_p,
            False, False, WHOLE, LIMIT, HAS_MASK, HAS_EXTRA,
        )  # fmt: skip
    return cut, mass
