"""The decision on a GPU: one read of the logits, some small launches, and no wait for the host.

    spread   rows learn their session                    sessions.py
    punch    adjusted ids are taken out (if any are)     adjust.py
    scan     every logit once                            common/kernels/scan.py
    narrow   the candidates of each filtered row         settle.py
    settle   law and acceptance of each row, twice:      settle.py
             from candidates; from flat rows' logits
    choose   the rows whose draw matters                 sessions.py
    draw     their tokens                                draw.py
    finish   accepted lengths and next tokens            finish.py
    restore  adjusted ids are put back                   adjust.py

A batch of greedy sessions takes scan and finish_greedy alone. The twin is
verifier/kernels/reference.py: the same integers from the same numbers, but for sums that rounding
leaves on the other side of a threshold. Launches depend on shapes only, and all memory is the
workspace's, so that a CUDA graph may hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from common.kernels.candidates import LIMIT
from common.kernels.order import shift_for
from common.kernels.scan import BLOCK, RealIds, Scan, scan
from common.kernels.scan import CHUNK as SCAN_CHUNK
from verifier.kernels.adjust import punch, restore
from verifier.kernels.decision import Adjustments, SamplingBatch, SparseQ
from verifier.kernels.draw import CHUNK, draw
from verifier.kernels.finish import finish, finish_greedy
from verifier.kernels.sessions import ROWS, choose, spread
from verifier.kernels.settle import narrow, settle

NARROW_WARPS = 8
SETTLE_WARPS = 4
WHOLE_WARPS = 16
DRAW_WARPS = 4
DRAW_PROGRAMS = 1056  # eight for each of an H200's processors


@dataclass(frozen=True)
class Workspace:
    """All memory that deciding needs. Made once per shape; every decision overwrites it."""

    scan: Scan
    row_sessions: Tensor  # int32 [rows]
    kinds: Tensor  # int32 [rows]
    scales: Tensor  # float32 [rows]
    block_list: Tensor  # int32 [rows, LIMIT]
    values: Tensor  # float32 [rows, LIMIT]
    ids: Tensor  # int32 [rows, LIMIT]
    row_values: Tensor  # float32 [rows, 3]
    candidates: Tensor  # int32 [rows]
    best: Tensor  # int32 [rows]
    stops: Tensor  # int32 [rows]
    few: Tensor  # int32 [rows]
    many: Tensor  # int32 [rows]
    drawn: Tensor  # int32 [2]
    keys: Tensor  # float32 [rows, chunks, 2]
    tokens: Tensor  # int32 [rows, chunks, 2]
    taken: Tensor  # [pairs], of the logits' dtype
    adjusted: Tensor  # float32 [pairs]
    decisions: Tensor  # int64 [sessions, 2]: accepted length, next token

    @staticmethod
    def empty(
        rows: int, sessions: int, vocab: int, dtype: torch.dtype, device: torch.device,
        pairs: int = 0, greedy: bool = False,
    ) -> Workspace:  # fmt: skip
        """pairs: adjusted (row, id) pairs at most. greedy: for batches of greedy sessions only."""
        some = 0 if greedy else rows
        chunks = triton.cdiv(vocab, CHUNK)

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        def integers(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        return Workspace(
            Scan.empty(rows, vocab, device, extra=int(pairs > 0), filters=not greedy),
            integers(some),
            integers(some),
            floats(some),
            integers(some, LIMIT),
            floats(some, LIMIT),
            integers(some, LIMIT),
            floats(some, 3),
            integers(some),
            integers(some),
            integers(some),
            integers(some),
            integers(some),
            integers(2),
            floats(some, chunks, 2),
            integers(some, chunks, 2),
            torch.empty(pairs, dtype=dtype, device=device),
            floats(pairs),
            torch.empty(sessions, 2, dtype=torch.int64, device=device),
        )


def decide_greedy(
    logits: Tensor,  # [rows, vocab], float32, bfloat16 or float16
    draft_tokens: Tensor,  # int64 [rows]; any valid id in a session's last row
    offsets: Tensor,  # int64 [sessions + 1]
    real: RealIds,
    work: Workspace,
) -> Tensor:
    """int64 [sessions, 2]: accepted length and next token of greedy sessions."""
    sessions = len(offsets) - 1
    decisions = work.decisions[:sessions]
    if not sessions:
        return decisions
    scan(logits, real, work.scan)
    finish_greedy[(sessions,)](
        logits,
        logits.stride(0),
        real.width,
        real.mask if real.mask is not None else logits,
        draft_tokens,
        offsets,
        work.scan.tops,
        work.scan.top_blocks,
        decisions,
        work.scan.chunks,
        PARTS=triton.next_power_of_2(work.scan.chunks),
        BLOCK=BLOCK,
        HAS_MASK=real.mask is not None,
        num_warps=4,
    )
    return decisions


def decide(
    logits: Tensor,  # [rows, vocab]; has holes while this runs if adjustments are given (adjust.py)
    draft_tokens: Tensor,  # int64 [rows]
    offsets: Tensor,  # int64 [sessions + 1]
    sampling: SamplingBatch,
    q: SparseQ | None,
    adjustments: Adjustments | None,
    real: RealIds,
    work: Workspace,
) -> Tensor:
    """int64 [sessions, 2]: accepted length and next token, each session by its own rule and law."""
    rows = logits.shape[0]
    sessions = len(offsets) - 1
    decisions = work.decisions[:sessions]
    if not sessions or not rows:
        return decisions.zero_()
    has_pairs = adjustments is not None and len(adjustments.ids) > 0
    assert work.scan.parts == work.scan.chunks + has_pairs
    exists = real.mask if real.mask is not None else logits
    has_mask = real.mask is not None
    q_ids, q_probs = (q.ids, q.probs) if q is not None else (work.ids, work.values)
    q_width = q_ids.shape[1] if q is not None else 0
    pair_offsets = adjustments.offsets if adjustments is not None else offsets
    pair_ids = adjustments.ids if adjustments is not None else work.ids
    q_padded = triton.next_power_of_2(max(q_width, 1))
    found = work.scan
    spread[(triton.cdiv(rows, int(ROWS.value)),)](
        offsets, sampling.rule, sampling.temperature, sampling.top_k, sampling.top_p,
        sampling.min_p, work.row_sessions, work.kinds, work.scales, work.drawn, rows, sessions,
        real.width, num_warps=4,
    )  # fmt: skip
    if adjustments is not None and has_pairs:
        punch[(rows,)](
            logits, logits.stride(0), real.width, exists, work.row_sessions, work.kinds,
            work.scales, pair_offsets, pair_ids, adjustments.bias, adjustments.seen,
            adjustments.count, adjustments.banned, adjustments.repetition, adjustments.presence,
            adjustments.frequency, work.taken, work.adjusted, found.tops, found.top_blocks,
            found.sums, found.parts, sessions, HAS_MASK=has_mask, num_warps=4,
        )  # fmt: skip
    scan(logits, real, found, work.kinds, work.scales)
    common: dict[str, Any] = {
        "LIMIT": LIMIT,
        "PARTS": triton.next_power_of_2(found.parts),
        "BLOCK": BLOCK,
        "SHIFT": 0 if has_pairs else shift_for(logits.dtype),
        "HAS_MASK": has_mask,
        "HAS_PAIRS": has_pairs,
    }
    narrow[(rows,)](
        logits, logits.stride(0), real.width, exists, work.row_sessions, work.kinds, work.scales,
        found.tops, found.sums, found.maxima, found.parts, sampling.top_k, sampling.top_p,
        sampling.min_p, pair_offsets, pair_ids, work.adjusted, work.block_list, work.values,
        work.ids, work.row_values, work.candidates, sessions, found.maxima.shape[1],
        PADDED=triton.next_power_of_2(found.chunks) * (SCAN_CHUNK // BLOCK),
        num_warps=NARROW_WARPS,
        **common,
    )  # fmt: skip
    for whole, warps in ((False, SETTLE_WARPS), (True, WHOLE_WARPS)):
        settle[(rows,)](
            logits, logits.stride(0), real.width, exists, draft_tokens, offsets, work.row_sessions,
            work.kinds, work.scales, found.tops, found.top_blocks, found.parts, sampling.rule,
            sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed, sampling.first_position,
            q_ids, q_probs, q_width, pair_offsets, pair_ids, work.adjusted, work.values,
            work.row_values, work.candidates, work.best, work.stops, sessions, found.chunks,
            Q_PADDED=q_padded, WHOLE=whole, HAS_Q=q is not None, num_warps=warps, **common,
        )  # fmt: skip
    choose[(sessions,)](
        offsets, work.kinds, sampling.rule, work.stops, work.candidates, work.few, work.many,
        work.drawn, LIMIT=LIMIT, num_warps=1,
    )  # fmt: skip
    chunks = work.keys.shape[1]
    draw[(min(rows * chunks, DRAW_PROGRAMS),)](
        logits, logits.stride(0), real.width, exists, draft_tokens, offsets, work.row_sessions,
        work.scales, sampling.rule, sampling.min_p, sampling.seed, sampling.first_position, q_ids,
        q_probs, q_width, pair_offsets, pair_ids, work.adjusted, work.values, work.ids,
        work.row_values, work.candidates, work.few, work.many, work.drawn, work.keys, work.tokens,
        chunks, sessions,
        LIMIT=LIMIT,
        CHUNK=CHUNK,
        Q_PADDED=q_padded,
        HAS_MASK=has_mask,
        HAS_Q=q is not None,
        HAS_PAIRS=has_pairs,
        num_warps=DRAW_WARPS,
        maxnreg=128,  # ptxas would rather spill for one program more per processor
    )  # fmt: skip
    finish[(sessions,)](
        draft_tokens, offsets, work.kinds, sampling.rule, work.best, work.stops, work.candidates,
        work.keys, work.tokens, decisions, chunks, PARTS=triton.next_power_of_2(chunks),
        LIMIT=LIMIT, num_warps=1,
    )  # fmt: skip
    if has_pairs:
        restore[(rows,)](logits, logits.stride(0), pair_offsets, pair_ids, work.taken, num_warps=4)
    return decisions
