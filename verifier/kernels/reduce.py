"""The last launch: per session the accepted length and the next token, in one small integer tensor.

One program per session; its rows are looked at ROWS at a time. Does not know distributions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.logits_scan import ARGMAX
from common.kernels.row_top import NO_TOKEN, is_finite
from verifier.kernels.sessions import RULE_COUPLED, first_stop

_ARGMAX, _NO_TOKEN = tl.constexpr(ARGMAX), tl.constexpr(NO_TOKEN)
ROWS = tl.constexpr(8)
_NONE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def reduce_greedy(
    logits,
    row_stride,
    width,
    exists,
    draft_tokens,  # int64 [rows]
    session_offsets,  # int64 [sessions + 1]
    tops,  # float32 [rows, stride]
    top_blocks,
    stride,
    # int64 [sessions, 2], written: accepted length, next token; zeros without rows. NO_TOKEN where
    # the session's result depends on a row with invalid logits.
    acceptance,
    chunks,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """For batches of greedy sessions only: argmax and acceptance, straight after the scan."""
    session = tl.program_id(0)
    begin = tl.load(session_offsets + session).to(tl.int32)
    end = tl.load(session_offsets + session + 1).to(tl.int32)
    stop = end - 1
    next_token = begin * 0
    going = begin < end
    start = begin
    while going:
        row = start + tl.arange(0, ROWS)
        part = tl.arange(0, PARTS)
        inside = (row < end)[:, None] & (part < chunks)[None, :]
        place = row[:, None] * stride + part[None, :]
        all_tops = tl.load(tops + place, mask=inside, other=float("-inf"))
        blocks = tl.load(top_blocks + place, mask=inside, other=_NONE)
        top = tl.max(all_tops, 1)  # [ROWS]
        block = tl.min(tl.where(all_tops == top[:, None], blocks, _NONE), 1)
        lossless = (row < end) & is_finite(top)
        block = tl.where(lossless, block, 0)
        ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        inside = (row < end)[:, None] & (ids < width)
        at = logits + row.to(tl.int64)[:, None] * row_stride + ids
        x = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
        if HAS_MASK:
            real = tl.load(exists + ids, mask=inside, other=0) != 0
            x = tl.where(real, x, float("-inf"))
        best = tl.min(tl.where(x == top[:, None], ids, _NONE), 1)  # [ROWS]
        best = tl.where(lossless, best, _NO_TOKEN)
        draft = tl.load(draft_tokens + row, mask=row < end, other=0).to(tl.int32)
        stopped = (row < end) & ((row == end - 1) | (best != draft))
        first = tl.min(tl.where(stopped, row, _NONE), 0)
        going = first == _NONE
        stop = tl.where(going, stop, first)
        next_token = tl.where(going, next_token, tl.sum(tl.where(row == first, best, 0), 0))
        start += ROWS
    _write(acceptance, session, begin, end, stop, next_token)


@triton.jit
def reduce_sessions(
    draft_tokens,
    session_offsets,
    kinds,
    rule,
    best,  # int32 [rows], of ARGMAX rows
    stops,  # int32 [rows]
    candidates,  # int32 [rows]
    keys,  # float32 [rows, chunks, 2]
    tokens,  # int32 [rows, chunks, 2]
    acceptance,  # int64 [sessions, 2], written as by finish_greedy
    chunks,
    PARTS: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """For batches of any rules."""
    session = tl.program_id(0)
    begin = tl.load(session_offsets + session).to(tl.int32)
    end = tl.load(session_offsets + session + 1).to(tl.int32)
    stop = end - 1
    next_token = begin * 0
    if begin < end:
        is_argmax = tl.load(kinds + begin) == _ARGMAX
        if (tl.load(rule + session) == RULE_COUPLED) & (is_argmax == 0):
            going = begin < end
            row = begin
            while going:
                next_token = _sampled(keys, tokens, candidates, row, chunks, PARTS, LIMIT)
                stop = row
                draft = tl.load(draft_tokens + row).to(tl.int32)
                going = (row < end - 1) & (draft == next_token)
                row += 1
        else:
            stop = first_stop(stops, begin, end)
            if is_argmax:
                next_token = tl.load(best + stop)
            else:
                next_token = _sampled(keys, tokens, candidates, stop, chunks, PARTS, LIMIT)
    _write(acceptance, session, begin, end, stop, next_token)


@triton.jit
def _sampled(keys, tokens, candidates, row, chunks, PARTS: tl.constexpr, LIMIT: tl.constexpr):
    """The row's token: the minimum over its chunks; p's where the rule's weights are all zero."""
    part = tl.arange(0, PARTS)
    place = (row * chunks + part) * 2
    parts = tl.where(tl.load(candidates + row) <= LIMIT, 1, chunks)  # candidates are one part
    own = tl.load(keys + place, mask=part < parts, other=float("inf"))
    plain = tl.load(keys + place + 1, mask=part < parts, other=float("inf"))
    which = tl.load(tokens + place, mask=part < parts, other=_NONE)
    plain_which = tl.load(tokens + place + 1, mask=part < parts, other=_NONE)
    minimum = tl.min(own, 0)
    if minimum == float("inf"):
        minimum = tl.min(plain, 0)
        return tl.min(tl.where(plain == minimum, plain_which, _NONE), 0)
    else:
        return tl.min(tl.where(own == minimum, which, _NONE), 0)


@triton.jit
def _write(acceptance, session, begin, end, stop, next_token):
    """The pair as int64; a session without rows (a graph's spare slot) gives nothing.

    Nothing could be sampled where the row has no distribution.
    """
    next_token = tl.where(next_token == _NONE, _NO_TOKEN, next_token)
    accepted = tl.where(begin < end, stop - begin, 0)
    tl.store(acceptance + session * 2, accepted.to(tl.int64))
    tl.store(acceptance + session * 2 + 1, next_token.to(tl.int64))
