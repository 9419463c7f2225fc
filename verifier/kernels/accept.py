"""Acceptance on a GPU: one read of the logits, some small launches, and no wait for the host.

    expand_sessions    rows learn their session                        sessions.py
    mask_logits        processed ids are taken out (if there are any)  mask_logits.py
    scan               every logit once                                common/kernels/logits_scan.py
    select_candidates  the candidates of each filtered row             select_candidates.py
    probe              thresholds of flat rows, level by level         flat_rows.py
    accept_drafts      distribution and acceptance, flat rows first    accept_drafts.py
    choose             the rows whose sample matters                   sessions.py
    sample             their tokens                                    sample.py
    reduce_sessions    accepted lengths and next tokens                reduce.py
    restore            processed ids are put back                      mask_logits.py

A batch of greedy sessions takes scan and reduce_greedy alone. `accept` and `accept_greedy` are
verifier/acceptance/rules.py's for a device: the same integers from the same numbers, but for sums
that rounding leaves on the other side of a threshold. Launches depend on shapes only, and all
memory is the workspace's, so that a CUDA graph may hold them.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from common.kernels.filter_candidates import LIMIT
from common.kernels.logits_scan import BLOCK, scan
from common.kernels.logits_scan import CHUNK as SCAN_CHUNK
from common.kernels.sortable_floats import shift_for
from common.sampling.distribution import SparseDistributions
from verifier.acceptance.batch import AcceptanceOutput, LogitsProcessors, SamplingBatch
from verifier.kernels import flat_rows as flat
from verifier.kernels.accept_drafts import accept_drafts
from verifier.kernels.mask_logits import mask_logits, restore
from verifier.kernels.reduce import reduce_greedy, reduce_sessions
from verifier.kernels.sample import CHUNK, sample
from verifier.kernels.select_candidates import select_candidates
from verifier.kernels.sessions import ROWS, choose, expand_sessions
from verifier.kernels.workspace import Workspace

__all__ = ["Workspace", "accept", "accept_greedy"]

SELECT_WARPS = 8
PROBE_WARPS = 8
ACCEPT_WARPS = 4
WHOLE_WARPS = 16
SAMPLE_WARPS = 8
PROGRAMS = 264  # two for each of an H200's processors, where programs take work in turn


def accept_greedy(
    logits: Tensor,  # [rows, vocab], float32, bfloat16 or float16
    draft_tokens: Tensor,  # int64 [rows]; any valid id in a session's last row
    offsets: Tensor,  # int64 [sessions + 1]
    allowed: Tensor | None = None,  # the one that the workspace was made with
    *,
    work: Workspace,
) -> AcceptanceOutput:
    """Greedy sessions' results, in the workspace's memory: the next call overwrites them."""
    assert allowed is work.allowed
    real = work.real
    sessions = len(offsets) - 1
    if sessions:
        scan(logits, real, work.scan)
        reduce_greedy[(sessions,)](
            logits, logits.stride(0), real.width, real.mask if real.mask is not None else logits,
            draft_tokens, offsets, work.scan.tops, work.scan.top_blocks, work.scan.parts,
            work.acceptance, work.scan.chunks,
            PARTS=triton.next_power_of_2(work.scan.chunks),
            BLOCK=BLOCK,
            HAS_MASK=real.mask is not None,
            num_warps=4,
        )  # fmt: skip
    return _acceptance(work, sessions)


def accept(
    logits: Tensor,  # [rows, vocab]; has holes while this runs with processors
    draft_tokens: Tensor,  # int64 [rows]
    offsets: Tensor,  # int64 [sessions + 1]
    sampling: SamplingBatch,
    q: SparseDistributions | None = None,  # needed if a session's rule is REJECTION
    processors: LogitsProcessors | None = None,
    allowed: Tensor | None = None,  # the one that the workspace was made with
    *,
    work: Workspace,
) -> AcceptanceOutput:
    """Each session by its own rule, in the workspace's memory: the next call overwrites it.

    A greedy workspace doesn't read `sampling`.
    """
    assert allowed is work.allowed
    rows = logits.shape[0]
    sessions = len(offsets) - 1
    # A workspace with space for pairs takes the kernels that read them, whether a batch has any.
    space = work.scan.parts > work.scan.chunks
    has_pairs = processors is not None and (space or len(processors.ids) > 0)
    if work.greedy:
        assert not has_pairs
        return accept_greedy(logits, draft_tokens, offsets, allowed, work=work)
    if not sessions or not rows:
        work.acceptance[:sessions].zero_()
        return _acceptance(work, sessions)
    real, found = work.real, work.scan
    assert not has_pairs or space, "a workspace without space for pairs"
    read = (logits, logits.stride(0), real.width, real.mask if real.mask is not None else logits)
    q_ids, q_probs = (q.ids, q.probs) if q is not None else (work.ids, work.values)
    q_width = q_ids.shape[1] if q is not None else 0
    pair_offsets = processors.offsets if processors is not None else offsets
    pair_ids = processors.ids if processors is not None else work.ids
    flags = {"HAS_MASK": real.mask is not None, "HAS_PAIRS": has_pairs}
    q_flags = {"HAS_Q": q is not None}
    chunks, flat_chunks = work.keys.shape[1], work.masses.shape[2]
    levels = work.masses.shape[1]
    shared: dict[str, Any] = {
        "LIMIT": LIMIT,
        "LEVELS": levels,
        "PARTS": triton.next_power_of_2(found.parts),
        "BLOCK": BLOCK,
        # By the workspace, not the batch: a row's sums may not depend on who has pairs beside it.
        "SHIFT": 0 if found.parts > found.chunks else shift_for(logits.dtype),
    }
    expand_sessions[(triton.cdiv(rows, int(ROWS.value)),)](
        offsets, sampling.rule, sampling.temperature, sampling.top_k, sampling.top_p,
        sampling.min_p, work.row_sessions, work.kinds, work.scales, work.sampled, rows, sessions,
        real.width, num_warps=4,
    )  # fmt: skip
    if processors is not None and has_pairs:
        mask_logits[(rows,)](
            *read, work.row_sessions, work.kinds,
            work.scales, pair_offsets, pair_ids, processors.bias, processors.seen,
            processors.count, processors.banned, processors.repetition, processors.presence,
            processors.frequency, work.taken, work.processed, found.tops, found.top_blocks,
            found.sums, found.parts, sessions, HAS_MASK=real.mask is not None, num_warps=4,
        )  # fmt: skip
    scan(logits, real, found, work.kinds, work.scales)
    ratios = found.ratios if found.ratios is not None else found.maxima
    select_candidates[(rows,)](
        *read, work.row_sessions, work.kinds, work.scales, found.tops, found.sums, found.maxima,
        ratios, found.parts, found.chunks + has_pairs, sampling.top_k, sampling.top_p,
        sampling.min_p, pair_offsets, pair_ids, work.processed, work.block_list, work.values,
        work.ids, work.row_values, work.candidates, work.flat, work.sampled, work.intervals,
        work.over_under, sessions, found.maxima.shape[1],
        PADDED=triton.next_power_of_2(found.chunks) * (SCAN_CHUNK // BLOCK),
        num_warps=SELECT_WARPS, **shared, **flags,
    )  # fmt: skip
    for level in range(levels):
        flat.probe[(min(rows * flat_chunks, PROGRAMS),)](
            *read, work.row_sessions, work.scales, sampling.top_k, sampling.top_p, pair_offsets,
            work.processed, work.row_values, work.flat, work.sampled, work.intervals,
            work.over_under, work.edges, work.masses, sessions, flat_chunks,
            LEVEL=level, LEVELS=levels, PADDED=triton.next_power_of_2(flat_chunks),
            CHUNK=flat.CHUNK, SHIFT=shared["SHIFT"], num_warps=PROBE_WARPS, **flags,
        )  # fmt: skip
    for whole, warps in ((False, ACCEPT_WARPS), (True, WHOLE_WARPS)):
        accept_drafts[(min(rows, PROGRAMS // 2) if whole else rows,)](
            *read, draft_tokens, offsets, work.row_sessions, work.kinds, work.scales, found.tops,
            found.top_blocks, found.parts, sampling.rule, sampling.top_k, sampling.top_p,
            sampling.min_p, sampling.seed, sampling.first_position, q_ids, q_probs, q_width,
            pair_offsets, pair_ids, work.processed, work.values, work.row_values, work.candidates,
            work.flat, work.sampled, work.intervals, work.over_under, work.edges, work.masses,
            work.best, work.stops, sessions, found.chunks,
            CHUNKS=triton.next_power_of_2(flat_chunks), WHOLE=whole, num_warps=warps,
            maxnreg=128,  # as for `sample`
            **shared, **flags, **q_flags,
        )  # fmt: skip
    choose[(sessions,)](
        offsets, work.kinds, sampling.rule, work.stops, work.candidates, work.few, work.many,
        work.sampled, LIMIT=LIMIT, num_warps=1,
    )  # fmt: skip
    sample[(min(rows * chunks, PROGRAMS),)](
        *read, draft_tokens, offsets, work.row_sessions, work.scales, sampling.rule,
        sampling.min_p, sampling.seed, sampling.first_position, q_ids, q_probs, q_width,
        pair_offsets, pair_ids, work.processed, work.values, work.ids, work.row_values,
        work.candidates, work.few, work.many, work.sampled, work.keys, work.tokens, chunks,
        sessions,
        LIMIT=LIMIT, CHUNK=CHUNK, num_warps=SAMPLE_WARPS,
        maxnreg=128,  # ptxas would rather spill than hold one program less per processor
        **flags, **q_flags,
    )  # fmt: skip
    reduce_sessions[(sessions,)](
        draft_tokens, offsets, work.kinds, sampling.rule, work.best, work.stops, work.candidates,
        work.keys, work.tokens, work.acceptance, chunks, PARTS=triton.next_power_of_2(chunks),
        LIMIT=LIMIT, num_warps=1,
    )  # fmt: skip
    if has_pairs:
        restore[(rows,)](logits, logits.stride(0), pair_offsets, pair_ids, work.taken, num_warps=4)
    return _acceptance(work, sessions)


def _acceptance(work: Workspace, sessions: int) -> AcceptanceOutput:
    made = work.acceptance[:sessions]
    return AcceptanceOutput(made[:, 0], made[:, 1])
