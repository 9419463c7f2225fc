"""Samples a token of a row: Gumbel-max, the id of the minimum of exponential / weight.

Rows are sampled from where that can matter (verifier/kernels/sessions.py, `choose`), by as many
programs as fill a GPU, which take rows and chunks in turn. Filtered rows look at their candidates
only, others at the vocabulary, a chunk of it per program, with four ids' noise from each Philox
block. Where the rule's own weights are all nothing a part keeps the minimum of p's, for residuals
that rounding leaves empty. Does not know filters and acceptance.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.logits_scan import logits_of_run
from common.kernels.rng import COUPLED, SAMPLE, exponential, run_exponential
from verifier.kernels.sessions import RULE_COUPLED, RULE_REJECTION, RULE_TARGET_ONLY

CHUNK = 4096  # ids per program
Q_SLICE = 32  # entries of a row of q looked at at a time: its length compiles nothing; 64 spill
_PART, _Q_SLICE = tl.constexpr(256), tl.constexpr(Q_SLICE)
_NOBODY = tl.constexpr(0x7FFFFFFF)
_NO_MASS = tl.constexpr(
    2.0**-100
)  # as in verifier/acceptance/rules.py: below it a residual is rounding


@triton.jit
def _minimum(noise, weight, mass, ids):
    """(min(noise / weight), its id: of equals the lowest); infinite without weight."""
    key = tl.where(weight > _NO_MASS * mass, noise / weight, float("inf"))
    minimum = tl.min(key, 0)
    return minimum, tl.min(tl.where(key == minimum, ids, _NOBODY), 0)


@triton.jit
def _sooner(key, token, other_key, other_token):
    """The lesser of two; of equal keys the lowest id."""
    better = (other_key < key) | ((other_key == key) & (other_token < token))
    return tl.where(better, other_key, key), tl.where(better, other_token, token)


@triton.jit
def _offer(
    x,
    ids,
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
    HAS_Q: tl.constexpr,
):
    """The minimum of _PART listed ids by the rule's own weights, and by p's."""
    share = tl.where(kept, tl.exp2((x - top) * scale), 0.0)
    noise = exponential(seed, position, ids, purpose)
    plain_key, plain_token = _minimum(noise, share, mass, ids)
    own = tl.where(ids == excluded, 0.0, share)
    if HAS_Q and q_count > 0:
        q = own * 0.0
        for first in range(0, q_count, _Q_SLICE):
            slot = first + tl.arange(0, _Q_SLICE)
            listed = tl.load(q_row + slot, mask=slot < q_count, other=-1)
            probs = tl.load(q_probs_row + slot, mask=slot < q_count, other=0.0)
            q += tl.sum(tl.where(ids[:, None] == listed[None, :], probs[None, :], 0.0), 1)
        own = tl.maximum(own - q * mass, 0.0)
    key, token = _minimum(noise, own, mass, ids)
    return key, token, plain_key, plain_token


@triton.jit
def _less_q(
    own,  # [CHUNK]
    ids,
    first,
    mass,
    q_row,
    q_probs_row,
    q_count,
    CHUNK: tl.constexpr,
):
    """Weights less q's. A chunk of a vocabulary holds few of its ids, which are taken in turn."""
    for start in range(0, q_count, _Q_SLICE):
        slot = start + tl.arange(0, _Q_SLICE)
        listed = tl.load(q_row + slot, mask=slot < q_count, other=-1)
        probs = tl.load(q_probs_row + slot, mask=slot < q_count, other=0.0)
        near = (listed >= first) & (listed < first + CHUNK) & (probs > 0.0)
        waiting = tl.where(near, listed, _NOBODY)
        token = tl.min(waiting, 0)
        while token != _NOBODY:
            q = tl.sum(tl.where(near & (listed == token), probs, 0.0), 0)
            own = tl.where(ids == token, tl.maximum(own - q * mass, 0.0), own)
            waiting = tl.where(waiting == token, _NOBODY, waiting)
            token = tl.min(waiting, 0)
    return own


@triton.jit(do_not_specialize=["sessions", "q_width"])
def sample(
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
    processed,
    values,
    ids,
    row_values,
    candidates,
    few,
    many,
    sampled,
    keys,  # float32 [rows, chunks, 2], written for sampled rows: the rule's minimum; p's, or inf
    tokens,  # int32 [rows, chunks, 2], written: whose they are
    chunks,
    sessions,
    LIMIT: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_Q: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
):
    shorts = tl.load(sampled)
    total = shorts + tl.load(sampled + 1) * chunks
    work = tl.program_id(0)
    while work < total:
        chunk = tl.where(work < shorts, 0, (work - shorts) % chunks)
        if work < shorts:
            row = tl.load(few + work)
        else:
            row = tl.load(many + (work - shorts) // chunks)
        session = tl.minimum(tl.load(row_sessions + row), sessions - 1)
        begin = tl.load(session_offsets + session).to(tl.int32)
        end = tl.load(session_offsets + session + 1).to(tl.int32)
        how = tl.load(rule + session)
        scale = tl.load(scales + row)
        top = tl.load(row_values + row * 3)
        cut = tl.load(row_values + row * 3 + 1)
        mass = tl.load(row_values + row * 3 + 2)
        count = tl.load(candidates + row)
        minimum = tl.load(min_p + session)
        seed = tl.load(seeds + session)
        position = tl.load(first_position + session).to(tl.int32) + row - begin
        purpose = tl.where(how == RULE_COUPLED, COUPLED, SAMPLE)
        replaces = row < end - 1  # a draft token was rejected: what it could have been is taken out
        draft = tl.load(draft_tokens + row).to(tl.int32)
        excluded = tl.where(replaces & (how == RULE_TARGET_ONLY), draft, _NOBODY)
        q_count = tl.where(replaces & (how == RULE_REJECTION), q_width, 0)
        q_row = q_ids + row * q_width
        q_probs_row = q_probs + row * q_width
        key = top * 0 + float("inf")
        token = row * 0 + _NOBODY
        plain_key = key
        plain_token = token
        if count <= LIMIT:
            for begin_at in range(0, count, _PART):
                at = begin_at + tl.arange(0, _PART)
                inside = at < count
                y = tl.load(values + row * LIMIT + at, mask=inside, other=float("-inf"))
                listed = tl.load(ids + row * LIMIT + at, mask=inside, other=_NOBODY)
                kept = inside & (y >= cut) & (tl.exp2((y - top) * scale) >= minimum)
                a, a_token, b, b_token = _offer(
                    y, listed, kept, top, scale, mass, seed, position, purpose,
                    excluded, q_row, q_probs_row, q_count, HAS_Q,
                )  # fmt: skip
                key, token = _sooner(key, token, a, a_token)
                plain_key, plain_token = _sooner(plain_key, plain_token, b, b_token)
        else:
            first = chunk * CHUNK
            some = first + tl.arange(0, CHUNK)
            x = logits_of_run(logits, row, row_stride, first, width, exists, CHUNK, HAS_MASK)
            share = tl.exp2((x - top) * scale)
            share = tl.where((x >= cut) & (share >= minimum), share, 0.0)
            noise = run_exponential(seed, position, first, purpose, CHUNK)
            own = tl.where(some == excluded, 0.0, share)
            if HAS_Q and q_count > 0:
                own = _less_q(own, some, first, mass, q_row, q_probs_row, q_count, CHUNK)
            key, token = _minimum(noise, own, mass, some)
            if key == float("inf"):  # else p's own minimum is never needed
                plain_key, plain_token = _minimum(noise, share, mass, some)
            if HAS_PAIRS:
                pair = tl.load(pair_offsets + row).to(tl.int32)
                pairs = tl.load(pair_offsets + row + 1).to(tl.int32)
                pairs = tl.where(chunk == 0, pairs, pair)
                for start in range(pair, pairs, _PART):
                    at = start + tl.arange(0, _PART)
                    y = tl.load(processed + at, mask=at < pairs, other=float("-inf"))
                    listed = tl.load(pair_ids + at, mask=at < pairs, other=_NOBODY)
                    kept = (y >= cut) & (y > float("-inf"))
                    kept = kept & (tl.exp2((y - top) * scale) >= minimum)
                    a, a_token, b, b_token = _offer(
                        y, listed, kept, top, scale, mass, seed, position, purpose,
                        excluded, q_row, q_probs_row, q_count, HAS_Q,
                    )  # fmt: skip
                    key, token = _sooner(key, token, a, a_token)
                    plain_key, plain_token = _sooner(plain_key, plain_token, b, b_token)
        place = (row * chunks + chunk) * 2
        tl.store(keys + place, key)
        tl.store(keys + place + 1, plain_key)
        tl.store(tokens + place, token)
        tl.store(tokens + place + 1, plain_token)
        work += tl.num_programs(0)
