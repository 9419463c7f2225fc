"""From sessions to rows and back: who owns a row and what it asks for; where a session stops.

Does not know logits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.kernels.logits_scan import ARGMAX, FILTERED, SAMPLED, UNUSED
from common.sampling.acceptance_rule import AcceptanceRule

_UNUSED, _ARGMAX = tl.constexpr(UNUSED), tl.constexpr(ARGMAX)
_SAMPLED, _FILTERED = tl.constexpr(SAMPLED), tl.constexpr(FILTERED)
# As in AcceptanceRule: kernels read globals only if they are constexpr.
RULE_GREEDY = tl.constexpr(AcceptanceRule.GREEDY.value)
RULE_TARGET_ONLY = tl.constexpr(AcceptanceRule.TARGET_ONLY.value)
RULE_REJECTION = tl.constexpr(AcceptanceRule.REJECTION.value)
RULE_COUPLED = tl.constexpr(AcceptanceRule.COUPLED.value)
ROWS = tl.constexpr(64)
SESSIONS = tl.constexpr(32)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["rows", "sessions"])  # else compiled anew for 1 and for sixteens
def expand_sessions(
    offsets,  # int64 [sessions + 1]
    rule,  # int8 [sessions]
    temperature,  # float32 [sessions]
    top_k,
    top_p,
    min_p,
    row_sessions,  # int32 [rows], written: `sessions` where nobody owns the row
    kinds,  # int32 [rows], written
    scales,  # float32 [rows], written: log2(e) / temperature
    sampled,  # int32 [3], written: no row is to be sampled yet, none is flat
    rows,
    sessions,
    width,
):
    """ROWS rows per program. A row's session is the number of sessions that end at or before it."""
    if tl.program_id(0) == 0:
        tl.store(sampled, 0)
        tl.store(sampled + 1, 0)
        tl.store(sampled + 2, 0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    owner = tl.zeros([ROWS], tl.int32)
    for first in range(0, sessions, SESSIONS):
        session = first + tl.arange(0, SESSIONS)
        end = tl.load(offsets + 1 + session, mask=session < sessions, other=0x7FFFFFFF)
        owner += tl.sum((end[None, :] <= row[:, None]).to(tl.int32), 1)
    owned = (row < rows) & (owner < sessions)
    temperature = tl.load(temperature + owner, mask=owned, other=0.0)
    greedy = (tl.load(rule + owner, mask=owned, other=RULE_GREEDY) == RULE_GREEDY) | (
        temperature == 0.0
    )
    filtered = tl.load(top_k + owner, mask=owned, other=0x7FFFFFFF) < width
    filtered = filtered | (tl.load(top_p + owner, mask=owned, other=1.0) < 1.0)
    filtered = filtered | (tl.load(min_p + owner, mask=owned, other=0.0) > 0.0)
    kind = tl.where(greedy, _ARGMAX, tl.where(filtered, _FILTERED, _SAMPLED))
    tl.store(row_sessions + row, owner, mask=row < rows)
    tl.store(kinds + row, tl.where(owned, kind, _UNUSED), mask=row < rows)
    tl.store(scales + row, LOG2_E / tl.where(temperature == 0.0, 1.0, temperature), mask=row < rows)


@triton.jit
def first_stop(stops, first, end):
    """The first row in [first, end) whose draft token is rejected; the last row always stops."""
    stop = end - 1
    for start in range(first, end, ROWS):
        row = start + tl.arange(0, ROWS)
        stopped = tl.load(stops + row, mask=row < end, other=0) != 0
        stop = tl.minimum(stop, tl.min(tl.where(stopped, row, 0x7FFFFFFF), 0))
    return stop


@triton.jit
def choose(
    session_offsets,
    kinds,
    rule,
    stops,
    candidates,
    few,  # int32 [rows], written: rows to be sampled from their candidates, in any order
    many,  # int32 [rows], written: rows to be sampled from the vocabulary
    sampled,  # int32 [3], sampled[0] and [1]: counts of both
    LIMIT: tl.constexpr,
):
    """A session's first row that stopped, or all rows of a coupled one. One program per session."""
    session = tl.program_id(0)
    begin = tl.load(session_offsets + session).to(tl.int32)
    end = tl.load(session_offsets + session + 1).to(tl.int32)
    if tl.load(kinds + begin, mask=begin < end, other=_UNUSED) >= _SAMPLED:
        first = begin
        last = end
        if tl.load(rule + session) != RULE_COUPLED:
            first = first_stop(stops, begin, end)
            last = first + 1
        # A session's rows share their filters, but not how many candidates these leave.
        for start in range(first, last, ROWS):
            row = start + tl.arange(0, ROWS)
            inside = row < last
            count = tl.load(candidates + row, mask=inside, other=0)
            short = inside & (count <= LIMIT)
            long = inside & (count > LIMIT)
            shorts = tl.sum(short.to(tl.int32), 0)
            longs = tl.sum(long.to(tl.int32), 0)
            slot = tl.atomic_add(sampled, shorts) + tl.cumsum(short.to(tl.int32), 0) - 1
            tl.store(few + slot, row, mask=short)
            slot = tl.atomic_add(sampled + 1, longs) + tl.cumsum(long.to(tl.int32), 0) - 1
            tl.store(many + slot, row, mask=long)
