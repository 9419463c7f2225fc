"""The exact threshold of a row's filters, among its candidates or all of its logits.

Found by halving an interval of float ranks, counting ids or adding masses: it depends on values
alone, as the filters' definition does. Sums have a fixed order, so that the same row gives the same
bits in every batch. Device functions only. Does not know how candidates are found.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.logits_scan import logits_of_run
from common.kernels.sortable_floats import rank_of, value_of

PART = tl.constexpr(1024)  # candidates looked at at a time
_WHOLE_PART = tl.constexpr(4096)  # ids of a whole row looked at at a time


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
