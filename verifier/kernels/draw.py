"""Drawing a token from a settled row: Gumbel-max, the id of the least exponential / weight.

Rows are drawn from where that can matter (verifier/kernels/sessions.py, `choose`), by as many
programs as fill a GPU, which take rows and chunks in turn. Filtered rows look at their candidates
only, others at the vocabulary, a chunk of it per program. Beside the least of the rule's own
weights a part keeps the least of p's, for residuals that rounding leaves empty. Refuses to know
filters and acceptance.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.scan import logits_at
from common.rng_triton import COUPLED, SAMPLE, exponential

CHUNK = 8192  # ids per program
_PART = tl.constexpr(1024)
_TOGETHER = tl.constexpr(4)
_NO_Q, _REJECTION, _COUPLED = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # decision.py
_NOBODY = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _sooner(key, id, keys, ids):
    """The least of (key, id) and a block of them; of equal keys the lowest id."""
    least = tl.min(keys, 0)
    lowest = tl.min(tl.where(keys == least, ids, 0x7FFFFFFF), 0)
    better = (least < key) | ((least == key) & (lowest < id))
    return tl.where(better, least, key), tl.where(better, lowest, id)


@triton.jit
def _offer(
    x,
    ids,
    first,
    end,
    kept,
    top,
    scale,
    mass,
    seed,
    position,
    purpose,
    excluded,
    q_row,
    q_probs_row,
    q_count,
    Q_PADDED: tl.constexpr,
    HAS_Q: tl.constexpr,
):
    """Keys of a block of ids in [first, end): by the rule's own weights, and by p's."""
    weight = tl.where(kept, tl.exp2((x - top) * scale) / mass, 0.0)
    noise = exponential(seed, position, ids, purpose)
    plain = tl.where(weight > 0, noise / weight, float("inf"))
    weight = tl.where(ids == excluded, 0.0, weight)
    if HAS_Q:
        slots = tl.arange(0, Q_PADDED)
        listed = tl.load(q_row + slots, mask=slots < q_count, other=-1)
        near = (listed >= first) & (listed < end)
        if tl.max(near.to(tl.int32), 0) != 0:  # most parts of a vocabulary hold none of them
            for some in range(0, q_count, _TOGETHER):
                for one in tl.static_range(_TOGETHER):  # that many loads at once
                    there = some + one < q_count
                    token = tl.load(q_row + some + one, mask=there, other=-1)
                    q = tl.load(q_probs_row + some + one, mask=there, other=0.0)
                    weight = tl.where(ids == token, tl.maximum(weight - q, 0.0), weight)
    return tl.where(weight > 0, noise / weight, float("inf")), plain


@triton.jit
def draw(
    logits,
    row_stride,
    width,
    exists,
    draft_tokens,
    session_offsets,
    row_sessions,
    scales,
    rule,
    min_p,
    seeds,
    first_position,
    q_ids,
    q_probs,
    q_width,
    pair_offsets,
    pair_ids,
    adjusted,
    values,
    ids,
    row_values,
    candidates,
    few,
    many,
    drawn,
    keys,  # float32 [rows, chunks, 2], written for drawn rows: the rule's own least, p's least
    tokens,  # int32 [rows, chunks, 2], written: whose they are
    chunks,
    sessions,
    LIMIT: tl.constexpr,
    CHUNK: tl.constexpr,
    Q_PADDED: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_Q: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
):
    shorts = tl.load(drawn)
    total = shorts + tl.load(drawn + 1) * chunks
    item = tl.program_id(0)
    while item < total:
        chunk = tl.where(item < shorts, 0, (item - shorts) % chunks)
        if item < shorts:
            row = tl.load(few + item)
        else:
            row = tl.load(many + (item - shorts) // chunks)
        session = tl.minimum(tl.load(row_sessions + row), sessions - 1)
        begin = tl.load(session_offsets + session).to(tl.int32)
        end = tl.load(session_offsets + session + 1).to(tl.int32)
        how = tl.load(rule + session)
        scale = tl.load(scales + row)
        top = tl.load(row_values + row * 3)
        cut = tl.load(row_values + row * 3 + 1)
        mass = tl.load(row_values + row * 3 + 2)
        count = tl.load(candidates + row)
        least = tl.load(min_p + session)
        seed = tl.load(seeds + session)
        position = tl.load(first_position + session).to(tl.int32) + row - begin
        purpose = tl.where(how == _COUPLED, COUPLED, SAMPLE)
        replaces = row < end - 1  # a draft token didn't stand: what it could have been is taken out
        draft = tl.load(draft_tokens + row).to(tl.int32)
        excluded = tl.where(replaces & (how == _NO_Q), draft, _NOBODY)
        q_count = tl.where(replaces & (how == _REJECTION), q_width, 0)
        q_row = q_ids + row * q_width
        q_probs_row = q_probs + row * q_width
        key = top * 0 + float("inf")
        token = row * 0 + _NOBODY
        plain_key = key
        plain_token = token
        if count <= LIMIT:
            for first in range(0, count, _PART):
                at = first + tl.arange(0, _PART)
                inside = at < count
                x = tl.load(values + row * LIMIT + at, mask=inside, other=float("-inf"))
                some = tl.load(ids + row * LIMIT + at, mask=inside, other=_NOBODY)
                kept = inside & (x >= cut) & (tl.exp2((x - top) * scale) >= least)
                own, plain = _offer(
                    x, some, 0, _NOBODY, kept, top, scale, mass, seed, position, purpose,
                    excluded, q_row, q_probs_row, q_count, Q_PADDED, HAS_Q,
                )  # fmt: skip
                key, token = _sooner(key, token, own, some)
                plain_key, plain_token = _sooner(plain_key, plain_token, plain, some)
        else:
            stop = tl.minimum((chunk + 1) * CHUNK, width)
            for first in range(chunk * CHUNK, stop, _PART):
                some = first + tl.arange(0, _PART)
                x = logits_at(logits, row, row_stride, some, some < width, exists, HAS_MASK)
                kept = (x >= cut) & (x > float("-inf"))
                kept = kept & (tl.exp2((x - top) * scale) >= least)
                own, plain = _offer(
                    x, some, first, first + _PART, kept, top, scale, mass, seed, position, purpose,
                    excluded, q_row, q_probs_row, q_count, Q_PADDED, HAS_Q,
                )  # fmt: skip
                key, token = _sooner(key, token, own, some)
                plain_key, plain_token = _sooner(plain_key, plain_token, plain, some)
            if HAS_PAIRS:
                pair = tl.load(pair_offsets + row).to(tl.int32)
                pairs = tl.load(pair_offsets + row + 1).to(tl.int32)
                pairs = tl.where(chunk == 0, pairs, pair)
                for first in range(pair, pairs, _PART):
                    at = first + tl.arange(0, _PART)
                    x = tl.load(adjusted + at, mask=at < pairs, other=float("-inf"))
                    some = tl.load(pair_ids + at, mask=at < pairs, other=_NOBODY)
                    kept = (x >= cut) & (x > float("-inf"))
                    kept = kept & (tl.exp2((x - top) * scale) >= least)
                    own, plain = _offer(
                        x, some, 0, _NOBODY, kept, top, scale, mass, seed, position, purpose,
                        excluded, q_row, q_probs_row, q_count, Q_PADDED, HAS_Q,
                    )  # fmt: skip
                    key, token = _sooner(key, token, own, some)
                    plain_key, plain_token = _sooner(plain_key, plain_token, plain, some)
        place = (row * chunks + chunk) * 2
        tl.store(keys + place, key)
        tl.store(keys + place + 1, plain_key)
        tl.store(tokens + place, token)
        tl.store(tokens + place + 1, plain_token)
        item += tl.num_programs(0)
