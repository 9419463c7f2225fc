"""What a scan says of each row: its top, all ids' mass, and the few candidates of its filters.

One program per row, with all of the row's blocks in registers. Rows whose candidates don't fit are
called flat, and searched by all programs together (verifier/kernels/flat_rows.py). Does not know
thresholds, drafts and rules.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.filter_candidates import collect, floor_for_count, floor_for_mass
from common.kernels.logits_scan import FILTERED, SAMPLED
from common.kernels.row_top import row_top
from common.kernels.sortable_floats import rank_of

_SAMPLED, _FILTERED = tl.constexpr(SAMPLED), tl.constexpr(FILTERED)
PART = tl.constexpr(256)
_MOST_BLOCKS = tl.constexpr(256)  # read again by one program under top-p; more, and all take part


@triton.jit(do_not_specialize=["sessions"])
def select_candidates(
    logits,
    row_stride,
    width,
    exists,
    row_sessions,
    kinds,
    scales,
    tops,
    sums,
    maxima,
    ratios,
    stride,  # of tops and sums
    parts,  # that count: chunks, and the pairs if there are any
    top_k,
    top_p,
    min_p,
    pair_offsets,  # LogitsProcessors.offsets, read if HAS_PAIRS
    pair_ids,
    processed,
    block_list,  # int32 [rows, LIMIT], scratch
    values,  # float32 [rows, LIMIT], written: candidates of filtered rows
    ids,  # int32 [rows, LIMIT]
    row_values,  # float32 [rows, 3], written: top, a floor under the cut, mass of all ids
    candidates,  # int32 [rows], written: how many; over LIMIT: none, the whole row must be read
    flat,  # int32 [rows], written: filtered rows with over LIMIT candidates, in any order
    sampled,  # int32 [3], sampled[2]: their number
    intervals,  # int32 [rows, LEVELS, 2] and
    over_under,  # float32 [rows, LEVELS], level 0 written for flat rows: where top_p's cut can be
    sessions,
    blocks,
    LIMIT: tl.constexpr,
    LEVELS: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
):
    row = tl.program_id(0)
    kind = tl.load(kinds + row)
    if kind >= _SAMPLED:
        scale = tl.load(scales + row)
        top, all_tops = row_top(tops, row, stride, parts, PARTS)
        part = tl.arange(0, PARTS)
        part_sums = tl.load(sums + row * stride + part, mask=part < parts, other=0.0)
        mass = tl.sum(part_sums * tl.exp2((all_tops - top) * scale), 0)
        floor = top * 0 + float("-inf")
        count = row * 0 + LIMIT + 1
        if kind == _FILTERED:
            session = tl.minimum(tl.load(row_sessions + row), sessions - 1)
            keep_k = tl.load(top_k + session)
            keep_p = tl.load(top_p + session)
            minimum = tl.load(min_p + session)
            first = row * 0
            end = row * 0
            if HAS_PAIRS:
                first = tl.load(pair_offsets + row).to(tl.int32)
                end = tl.load(pair_offsets + row + 1).to(tl.int32)
            block = tl.arange(0, PADDED)
            at = maxima + row.to(tl.int64) * blocks
            highest = tl.load(at + block, mask=block < blocks, other=float("-inf")).to(tl.float32)
            most = keep_k * 0 + LIMIT
            if keep_k < width:
                floor = floor_for_count(highest, top, keep_k, SHIFT)
            else:
                rest = (1.0 - keep_p) * mass * 0.999
                at_ratio = ratios + row.to(tl.int64) * blocks + block
                ratio = tl.load(at_ratio, mask=block < blocks, other=0.0).to(tl.float32)
                floor = floor_for_mass(highest, ratio, top, scale, rest, end - first, BLOCK)
                by_min = top + tl.log2(tl.maximum(minimum, 1e-37)) / scale
                by_min -= (tl.abs(top) + tl.abs(by_min)) * 1e-6
                floor = tl.maximum(floor, by_min)
                most = keep_k * 0 + _MOST_BLOCKS
            count = collect(
                logits, row, row_stride, width, exists, highest, floor, most,
                block_list, values, ids, LIMIT, PADDED, BLOCK, HAS_MASK,
            )  # fmt: skip
            if HAS_PAIRS:
                count = _append(
                    pair_ids, processed, first, end, floor, values, ids, row, count, LIMIT
                )
            if count > LIMIT:
                tl.store(flat + tl.atomic_add(sampled + 2, 1), row)
                tl.store(intervals + row * LEVELS * 2, rank_of(floor, SHIFT) - 1)
                tl.store(intervals + row * LEVELS * 2 + 1, rank_of(top, SHIFT))
                tl.store(over_under + row * LEVELS, mass * 0 - 1.0)
        tl.store(row_values + row * 3, top)
        tl.store(row_values + row * 3 + 1, floor)
        tl.store(row_values + row * 3 + 2, mass)
        tl.store(candidates + row, count)


@triton.jit
def _append(pair_ids, processed, first, end, floor, values, ids, row, count, LIMIT: tl.constexpr):
    """Append the processed ids that reach `floor` to the candidates. Returns their number."""
    for start in range(first, end, PART):
        at = start + tl.arange(0, PART)
        x = tl.load(processed + at, mask=at < end, other=float("-inf"))
        good = (x >= floor) & (x > float("-inf"))
        slot = count + tl.cumsum(good.to(tl.int32), 0) - 1
        fits = good & (slot < LIMIT)
        tl.store(values + row * LIMIT + slot, x, mask=fits)
        tl.store(ids + row * LIMIT + slot, tl.load(pair_ids + at, mask=fits, other=0), mask=fits)
        count += tl.sum(good.to(tl.int32), 0)
    tl.debug_barrier()
    return count
