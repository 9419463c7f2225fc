"""What each row's distribution is, in three numbers, and whether its draft token is accepted.

The exact threshold of a filtered row, the mass kept, and acceptance. Does not know how candidates
are found (verifier/kernels/select_candidates.py, flat_rows.py) and tokens sampled (sample.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.filter_threshold import threshold
from common.kernels.logits_scan import ARGMAX, FILTERED, INVALID_LOGITS, SAMPLED
from common.kernels.rng import ACCEPT, uniform
from common.kernels.row_top import NO_TOKEN, is_finite, row_argmax
from common.kernels.sortable_floats import rank_of
from verifier.kernels.flat_rows import interval
from verifier.kernels.mask_logits import value_at
from verifier.kernels.sample import Q_SLICE
from verifier.kernels.sessions import RULE_REJECTION

_ARGMAX, _SAMPLED, _FILTERED = tl.constexpr(ARGMAX), tl.constexpr(SAMPLED), tl.constexpr(FILTERED)
_INVALID_LOGITS, _NO_TOKEN = tl.constexpr(INVALID_LOGITS), tl.constexpr(NO_TOKEN)
_Q_SLICE = tl.constexpr(Q_SLICE)


@triton.jit(do_not_specialize=["sessions", "q_width"])
def accept_drafts(
    logits,
    row_stride,
    width,
    exists,
    draft_tokens,  # int64 [rows]
    session_offsets,  # int64 [sessions + 1]
    row_sessions,
    kinds,  # INVALID_LOGITS is written where a row has no distribution
    scales,
    tops,
    top_blocks,
    parts,
    rule,
    top_k,
    top_p,
    min_p,
    seed,
    first_position,
    q_ids,  # int32 [rows, q_width], read if HAS_Q
    q_probs,
    q_width,
    pair_offsets,  # LogitsProcessors.offsets, read if HAS_PAIRS
    pair_ids,
    processed,
    values,
    row_values,  # float32 [rows, 3]: top, cut (a floor, before), mass kept (of all ids, before)
    candidates,
    flat,  # read if WHOLE, as all to `masses`
    sampled,
    intervals,
    over_under,
    edges,
    masses,
    best,  # int32 [rows], written for ARGMAX rows
    stops,  # int32 [rows], written: 1 where the draft token is rejected
    sessions,
    chunks,
    LIMIT: tl.constexpr,
    LEVELS: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
    WHOLE: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_Q: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
):
    """WHOLE: flat rows, which programs take in turn; else all others, one program for each."""
    work = tl.program_id(0)
    total = work + 1
    if WHOLE:
        total = tl.load(sampled + 2)
    while work < total:
        row = work
        if WHOLE:
            row = tl.load(flat + work)
        kind = tl.load(kinds + row)
        session = tl.minimum(tl.load(row_sessions + row), sessions - 1)
        is_last = row == tl.load(session_offsets + session + 1).to(tl.int32) - 1
        draft = tl.load(draft_tokens + row).to(tl.int32)
        count = row * 0
        if not WHOLE:  # flat rows come here first, too
            lossless = (kind < _SAMPLED) | is_finite(tl.load(row_values + row * 3))
            if not lossless:  # no candidates, and no top of its own: nothing is sampled from it
                kind = kind * 0 + _INVALID_LOGITS
                tl.store(kinds + row, kind)
                tl.store(candidates + row, 0)
                tl.store(row_values + row * 3, 0.0)
                tl.store(stops + row, 1)
        mine = (kind == _FILTERED) | (kind == _SAMPLED)
        if not WHOLE:
            if kind == _ARGMAX:
                token, highest = row_argmax(
                    logits, row, row_stride, width, exists, tops, top_blocks, parts, chunks,
                    PARTS, BLOCK, HAS_MASK,
                )  # fmt: skip
                if HAS_PAIRS:
                    pair_top = tl.load(tops + row * parts + parts - 1)
                    pair = tl.load(top_blocks + row * parts + parts - 1)
                    lowest = tl.where(pair_top == highest, tl.minimum(pair, token), token)
                    token = tl.where(pair_top > highest, pair, lowest)
                    token = tl.where(is_finite(tl.maximum(pair_top, highest)), token, _NO_TOKEN)
                tl.store(best + row, token)
                tl.store(stops + row, (is_last | (token != draft)).to(tl.int32))
            if kind == _FILTERED:
                count = tl.load(candidates + row)
                mine = count <= LIMIT
        if mine:
            scale = tl.load(scales + row)
            top = tl.load(row_values + row * 3)
            cut = tl.load(row_values + row * 3 + 1)
            mass = tl.load(row_values + row * 3 + 2)
            minimum = tl.load(min_p + session)
            if kind == _FILTERED:
                first = row * 0
                end = row * 0
                if HAS_PAIRS:
                    first = tl.load(pair_offsets + row).to(tl.int32)
                    end = tl.load(pair_offsets + row + 1).to(tl.int32)
                keep_k = tl.load(top_k + session)
                keep_p = tl.load(top_p + session)
                under = rank_of(cut, SHIFT) - 1
                high = rank_of(top, SHIFT)
                over = mass * 0 - 1.0
                if WHOLE and (keep_k >= width) & (keep_p < 1.0):
                    under, high, over = interval(
                        row, intervals, over_under, edges, masses, keep_p * mass, chunks,
                        LEVELS, LEVELS, CHUNKS, SHIFT,
                    )  # fmt: skip
                cut, mass = threshold(
                    logits, row, row_stride, width, exists, processed, first, end, values, count,
                    cut, under, high, over, top, scale, mass, keep_k, keep_p, minimum,
                    WHOLE, LIMIT, SHIFT, HAS_MASK, HAS_PAIRS,
                )  # fmt: skip
                tl.store(row_values + row * 3 + 1, cut)
                tl.store(row_values + row * 3 + 2, mass)
            x = value_at(
                logits, row, row_stride, width, exists, pair_offsets, pair_ids, processed, draft,
                HAS_MASK, HAS_PAIRS,
            )  # fmt: skip
            share = tl.exp2((x - top) * scale)
            p = tl.where((x >= cut) & (share >= minimum), share / mass, 0.0)
            if HAS_Q and tl.load(rule + session) == RULE_REJECTION:
                q = p * 0.0
                for start in range(0, q_width, _Q_SLICE):
                    slot = start + tl.arange(0, _Q_SLICE)
                    there = slot < q_width
                    same = tl.load(q_ids + row * q_width + slot, mask=there, other=-1) == draft
                    some = tl.load(q_probs + row * q_width + slot, mask=there & same, other=0.0)
                    q += tl.sum(some, 0)
                p = p / q  # accept with probability min(1, p / q)
            offset = row - tl.load(session_offsets + session).to(tl.int32)
            position = tl.load(first_position + session).to(tl.int32) + offset
            u = uniform(tl.load(seed + session), position, ACCEPT)
            tl.store(stops + row, (is_last | (u >= p)).to(tl.int32))
        work += tl.num_programs(0)
