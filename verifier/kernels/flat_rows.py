"""The exact top-p threshold of flat rows, whose nucleus is too large for a list of candidates.

All programs take part: each level cuts the interval that holds the threshold by EDGES values, and
one program per part of the vocabulary adds up the mass over each of them. The next level adds the
parts, in order, and goes on in the interval between two edges. The first levels' edges are evenly
spaced values, which suits distributions; the later ones' evenly spaced float ranks, which suits
bits. What is left when LEVELS are through, `accept_drafts` halves (accept_drafts.py), as it does
all of a row under a top-k of that size, which hardly anybody asks for.

An interval: rank_under < rank of the threshold <= rank_high, and the mass over rank_under, negative
where nobody has added it. Does not know drafts and rules.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from common.kernels.logits_scan import logits_of_run
from common.kernels.sortable_floats import rank_of, value_of
from verifier.kernels.mask_logits import PART

EDGES = 8
BY_VALUE = tl.constexpr(2)  # levels
CHUNK = 8192  # ids per program
_EDGES = tl.constexpr(EDGES)


def levels_for(dtype: torch.dtype) -> int:
    """How many levels leave nothing, or little, of an interval of that dtype's values."""
    return 7 if dtype == torch.float32 else 4


@triton.jit
def _edges(under, high, BY_VALUE: tl.constexpr, SHIFT: tl.constexpr):
    """int32 [EDGES], ascending ranks in [under, high]."""
    at = tl.arange(0, _EDGES) + 1
    step = (high.to(tl.int64) - under.to(tl.int64)) * at // (_EDGES + 1)
    rank = (under.to(tl.int64) + step).to(tl.int32)
    if BY_VALUE:
        bottom = value_of(under, SHIFT)
        value = bottom + (value_of(high, SHIFT) - bottom) * (at * (1.0 / (_EDGES + 1)))
        by_value = tl.minimum(tl.maximum(rank_of(value, SHIFT), under), high)
        rank = tl.where(bottom > -1e30, by_value, rank)
    return rank


@triton.jit
def interval(
    row,
    intervals,
    over_under,
    edges,
    masses,
    goal,
    chunks,
    LEVEL: tl.constexpr,
    LEVELS: tl.constexpr,
    PADDED: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """(rank_under, rank_high, mass over rank_under) with which LEVEL begins."""
    if LEVEL == 0:
        place = row * LEVELS
        under = tl.load(intervals + place * 2)
        high = tl.load(intervals + place * 2 + 1)
        over = tl.load(over_under + place)
        return under, high, over
    else:
        place = row * LEVELS + LEVEL - 1
        under = tl.load(intervals + place * 2)
        high = tl.load(intervals + place * 2 + 1)
        over = tl.load(over_under + place)
        at = tl.arange(0, _EDGES)
        part = tl.arange(0, PADDED)[:, None]
        found = tl.load(
            masses + (place * chunks + part) * _EDGES + at[None, :], mask=part < chunks, other=0.0
        )
        mass = tl.sum(found, 0)  # [EDGES]
        rank = tl.load(edges + place * _EDGES + at)
        inside = (rank > under) & (rank < high)
        kept = inside & (mass < goal)
        gone = inside & (mass >= goal)
        new_high = tl.minimum(high, tl.min(tl.where(kept, rank, high), 0))
        new_under = tl.maximum(under, tl.max(tl.where(gone, rank, under), 0))
        minimum = tl.min(tl.where(gone, mass, float("inf")), 0)
        over = tl.where(new_under > under, minimum, over)
        return new_under, new_high, over


@triton.jit(do_not_specialize=["sessions"])
def probe(
    logits,
    row_stride,
    width,
    exists,
    row_sessions,
    scales,
    top_k,
    top_p,
    pair_offsets,
    processed,
    row_values,  # float32 [rows, 3]: top, floor, mass of all ids
    flat,  # int32 [rows]: rows to be looked at,
    sampled,  # int32 [3]: of which there are sampled[2]
    intervals,  # int32 [rows, LEVELS, 2], written at LEVEL; at 0 by `select_candidates`
    over_under,  # float32 [rows, LEVELS], as intervals
    edges,  # int32 [rows, LEVELS, EDGES], as intervals: ranks
    masses,  # float32 [rows, LEVELS, chunks, EDGES], written at LEVEL
    sessions,
    chunks,
    LEVEL: tl.constexpr,
    LEVELS: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    SHIFT: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
):
    """One level. Programs take rows and chunks in turn."""
    total = tl.load(sampled + 2) * chunks
    work = tl.program_id(0)
    while work < total:
        row = tl.load(flat + work // chunks)
        chunk = work % chunks
        session = tl.minimum(tl.load(row_sessions + row), sessions - 1)
        keep_p = tl.load(top_p + session)
        if (keep_p < 1.0) & (tl.load(top_k + session) >= width):
            scale = tl.load(scales + row)
            top = tl.load(row_values + row * 3)
            goal = keep_p * tl.load(row_values + row * 3 + 2)
            under, high, over = interval(
                row, intervals, over_under, edges, masses, goal, chunks,
                LEVEL, LEVELS, PADDED, SHIFT,
            )  # fmt: skip
            place = row * LEVELS + LEVEL
            if (LEVEL > 0) & (chunk == 0):
                tl.store(intervals + place * 2, under)
                tl.store(intervals + place * 2 + 1, high)
                tl.store(over_under + place, over)
            if high > under + 1:
                which = tl.arange(0, _EDGES)
                rank = _edges(under, high, LEVEL < BY_VALUE, SHIFT)
                if chunk == 0:
                    tl.store(edges + place * _EDGES + which, rank)
                x = logits_of_run(
                    logits, row, row_stride, chunk * CHUNK, width, exists, CHUNK, HAS_MASK
                )
                share = tl.exp2((x - top) * scale)
                for at in range(_EDGES):
                    edge = value_of(tl.sum(tl.where(which == at, rank, 0), 0), SHIFT)
                    mass = tl.sum(tl.where(x > edge, share, 0.0), 0)
                    if HAS_PAIRS and chunk == 0:
                        pair = tl.load(pair_offsets + row).to(tl.int32)
                        pairs = tl.load(pair_offsets + row + 1).to(tl.int32)
                        for start in range(pair, pairs, PART):
                            some = start + tl.arange(0, PART)
                            y = tl.load(processed + some, mask=some < pairs, other=float("-inf"))
                            more = tl.exp2((y - top) * scale)
                            mass += tl.sum(tl.where(y > edge, more, 0.0), 0)
                    tl.store(masses + (place * chunks + chunk) * _EDGES + at, mass)
        work += tl.num_programs(0)
