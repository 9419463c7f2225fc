"""Logit bias, penalties and ids that may not come yet, on the few (row, id) pairs that have any.

A processed value is a float32 that a bfloat16 logit can't hold, and copying [rows, vocab] for a few
ids would cost more than the acceptance. So the pairs are taken out: `mask_logits` keeps each
processed value beside the logits and leaves -inf in its place, every later kernel reads the row as
usual and the row's pairs as one part more, and `restore` puts the logits back bit for bit. Whoever
shares the logits in this stream sees them unchanged before and after it; only in between they have
holes.

An id is once in a row's list at most. Does not know filters, drafts and randomness.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.logits_scan import SAMPLED

_SAMPLED = tl.constexpr(SAMPLED)
PART = tl.constexpr(256)


@triton.jit(do_not_specialize=["sessions"])
def mask_logits(
    logits,  # [rows, vocab], written: -inf at the pairs
    row_stride,
    width,
    exists,
    row_sessions,  # int32 [rows]
    kinds,
    scales,
    offsets,  # int64 [rows + 1]
    ids,  # int32 [n]
    bias,
    seen,
    counts,
    banned,
    repetition,  # float32 [sessions]
    presence,
    frequency,
    taken,  # [n], of the logits' dtype: the values that were there
    processed,  # float32 [n]
    tops,  # the pairs are the row's last part: its maximum,
    top_blocks,  # the lowest id that has it (an id, not a block),
    sums,  # and its sum
    parts,
    sessions,
    HAS_MASK: tl.constexpr,
):
    """One program per row: (1) bias, (2) repetition, (3) presence and frequency, (4) banned."""
    row = tl.program_id(0)
    session = tl.load(row_sessions + row)
    first = tl.load(offsets + row).to(tl.int32)
    end = tl.load(offsets + row + 1).to(tl.int32)
    end = tl.where(session < sessions, end, first)
    owner = tl.minimum(session, sessions - 1)
    again = tl.load(repetition + owner)
    once = tl.load(presence + owner)
    each = tl.load(frequency + owner)
    scale = tl.load(scales + row)
    top = again * 0 + float("-inf")
    best = first * 0 + 0x7FFFFFFF
    at_row = logits + row.to(tl.int64) * row_stride
    for start in range(first, end, PART):
        at = start + tl.arange(0, PART)
        inside = at < end
        token = tl.load(ids + at, mask=inside, other=0)
        old = tl.load(at_row + token, mask=inside, other=0.0)
        tl.store(taken + at, old, mask=inside)
        x = old.to(tl.float32) + tl.load(bias + at, mask=inside, other=0.0)
        was_seen = tl.load(seen + at, mask=inside, other=0) != 0
        x = tl.where(was_seen, tl.where(x > 0, tl.div_rn(x, again + x * 0), x * again), x)
        count = tl.load(counts + at, mask=inside, other=0)
        x = x - (tl.where(count > 0, once, 0.0) + each * count.to(tl.float32))
        gone = (tl.load(banned + at, mask=inside, other=0) != 0) | (token >= width)
        if HAS_MASK:
            gone = gone | (tl.load(exists + token, mask=inside, other=1) == 0)
        x = tl.where(gone | (at >= end), float("-inf"), x)
        # Taken out, it must still show that the row is invalid; see common/kernels/logits_scan.py.
        strange = inside & ((old != old) | (old == float("inf")))
        x = tl.where(strange, float("inf"), x)
        tl.store(processed + at, x, mask=inside)
        tl.store(at_row + token, float("-inf"), mask=inside)
        part_top = tl.max(x, 0)
        part_best = tl.min(tl.where((x == part_top) & inside, token, 0x7FFFFFFF), 0)
        best = tl.where(
            part_top > top,
            part_best,
            tl.where(part_top == top, tl.minimum(best, part_best), best),
        )
        top = tl.maximum(top, part_top)
    total = again * 0
    if tl.load(kinds + row) >= _SAMPLED:
        tl.debug_barrier()  # what this program stored is read by its other threads
        origin = tl.where(top == float("-inf"), 0.0, top)
        for start in range(first, end, PART):
            at = start + tl.arange(0, PART)
            x = tl.load(processed + at, mask=at < end, other=float("-inf"))
            total += tl.sum(tl.exp2((x - origin) * scale), 0)
    place = row * parts + parts - 1
    tl.store(tops + place, top)
    tl.store(top_blocks + place, best)
    tl.store(sums + place, total)


@triton.jit
def restore(logits, row_stride, offsets, ids, taken):
    """Put back what `mask_logits` took. One program per row."""
    row = tl.program_id(0)
    first = tl.load(offsets + row).to(tl.int32)
    end = tl.load(offsets + row + 1).to(tl.int32)
    at_row = logits + row.to(tl.int64) * row_stride
    for start in range(first, end, PART):
        at = start + tl.arange(0, PART)
        token = tl.load(ids + at, mask=at < end, other=0)
        tl.store(at_row + token, tl.load(taken + at, mask=at < end, other=0.0), mask=at < end)


@triton.jit
def value_at(
    logits,
    row,
    row_stride,
    width,
    exists,
    offsets,
    ids,
    processed,
    token,
    HAS_MASK: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
):
    """One id's logit as every later step sees it: processed, -inf if it doesn't exist."""
    x = tl.load(logits + row.to(tl.int64) * row_stride + token).to(tl.float32)
    there = token < width
    if HAS_MASK:
        there = there & (tl.load(exists + token) != 0)
    x = tl.where(there, x, float("-inf"))
    if HAS_PAIRS:
        first = tl.load(offsets + row).to(tl.int32)
        end = tl.load(offsets + row + 1).to(tl.int32)
        for start in range(first, end, PART):
            at = start + tl.arange(0, PART)
            same = (tl.load(ids + at, mask=at < end, other=-1) == token) & (at < end)
            found = tl.load(processed + at, mask=same, other=float("-inf"))
            x = tl.maximum(x, tl.max(found, 0))  # the logit itself is -inf where a pair holds it
    return x
