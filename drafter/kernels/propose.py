"""Draft tokens on a GPU: the shared vocabulary's argmax or sample, in target ids, and its q row.

    scan      every draft logit once, ids without a target id left out    logits_scan.py
    propose   token, target id, and the N ids that q is made of

q is the distribution sampled from, exactly: the masked, scaled, filtered distribution cut to its N
largest ids (of equal values the lowest ids) and renormalised. The mapped token is
drafter/engine/distribution.py. Does not know sessions and models: a row is a draft step of
someone.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from common.kernels.filter_candidates import LIMIT, collect, floor_for_count
from common.kernels.filter_threshold import threshold, weigh
from common.kernels.logits_scan import CHUNK, SAMPLED, scan
from common.kernels.rng import COUPLED, PROPOSE, exponential
from common.kernels.row_top import is_finite, row_argmax, row_top
from common.kernels.sortable_floats import rank_of, shift_for, value_of
from drafter.kernels.draft_rows import SharedIds, Steps, Workspace

_MOST = tl.constexpr(512)  # ids that top_k counts at most; more are cut to Q_WIDTH anyway
_SAMPLED = tl.constexpr(SAMPLED)


@triton.jit
def propose(
    logits,  # [rows, draft vocab]
    row_stride,
    width,
    exists,
    targets,  # int32 [draft vocab], read if HAS_MAP: target ids; any value where nothing is shared
    kinds,
    scales,
    top_k,  # int32 [rows]
    top_p,  # float32 [rows]
    min_p,  # float32 [rows]
    seeds,  # int64 [rows]
    positions,  # int64 [rows], of the target's sequence
    coupled,  # bool [rows]: sampled with the noise that the verifier sampling with
    tops,
    top_blocks,
    sums,
    maxima,
    block_list,  # int32 [rows, LIMIT], scratch
    values,  # float32 [rows, LIMIT], scratch
    ids,  # int32 [rows, LIMIT], scratch
    tokens,  # int32 [rows, 2], written: draft id, target id
    q_ids,  # int32 [rows, N], written for sampled rows: target ids, ascending by draft id; an id
    # comes twice where two draft ids share it, and its probabilities add up
    q_probs,  # float32 [rows, N], written: 0 in unused slots
    chunks,
    blocks,
    N: tl.constexpr,
    LIMIT: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_MAP: tl.constexpr,
):
    """One program per row. Over LIMIT equal logits at the edge: the argmax alone.

    Of a row with invalid logits, which `tops` shows, some id that exists and a q that means
    nothing.
    """
    row = tl.program_id(0)
    token, top = row_argmax(
        logits, row, row_stride, width, exists, tops, top_blocks, chunks, chunks,
        PARTS, BLOCK, HAS_MASK,
    )  # fmt: skip
    token = tl.maximum(token, 0)
    slots = tl.arange(0, N)
    count = row * 0 + LIMIT + 1
    if (tl.load(kinds + row) >= _SAMPLED) & is_finite(top):
        scale = tl.load(scales + row)
        keep_k = tl.load(top_k + row)
        keep_k = tl.where(keep_k < width, tl.minimum(keep_k, _MOST), keep_k)
        keep_p = tl.load(top_p + row)
        minimum = tl.load(min_p + row)
        part = tl.arange(0, PARTS)
        _top, all_tops = row_top(tops, row, chunks, chunks, PARTS)
        part_sums = tl.load(sums + row * chunks + part, mask=part < chunks, other=0.0)
        mass = tl.sum(part_sums * tl.exp2((all_tops - top) * scale), 0)
        block = tl.arange(0, PADDED)
        at = maxima + row.to(tl.int64) * blocks
        highest = tl.load(at + block, mask=block < blocks, other=float("-inf"))
        wanted = tl.where(keep_k < width, tl.maximum(keep_k, N), N)
        floor = floor_for_count(highest, top, wanted, SHIFT)
        count = collect(
            logits, row, row_stride, width, exists, highest, floor, LIMIT,
            block_list, values, ids, LIMIT, PADDED, BLOCK, HAS_MASK,
        )  # fmt: skip
        if count <= LIMIT:
            cut, _mass = threshold(
                logits, row, row_stride, width, exists, sums, 0, 0, values, count,
                floor, rank_of(floor, SHIFT) - 1, rank_of(top, SHIFT), mass * 0 - 1.0,
                top, scale, mass, keep_k, keep_p, 0.0,
                False, LIMIT, SHIFT, HAS_MASK, False,
            )  # fmt: skip
            low = rank_of(floor, SHIFT)
            high = rank_of(top, SHIFT) + 1
            while high > low + 1:  # the highest value that N ids reach
                middle = (low >> 1) + (high >> 1) + (low & high & 1)
                reached = weigh(
                    logits, row, row_stride, width, exists, sums, 0, 0, values, count,
                    value_of(middle, SHIFT), top, scale, 0.0,
                    False, True, False, LIMIT, HAS_MASK, False,
                )  # fmt: skip
                low = tl.where(reached >= N, middle, low)
                high = tl.where(reached >= N, high, middle)
            edge = value_of(low, SHIFT)
            at_candidate = tl.arange(0, LIMIT)
            inside = at_candidate < count
            x = tl.load(values + row * LIMIT + at_candidate, mask=inside, other=float("-inf"))
            some = tl.load(ids + row * LIMIT + at_candidate, mask=inside, other=0)
            share = tl.exp2((x - top) * scale)
            kept = inside & (x >= cut) & (share >= minimum)
            over = kept & (x > edge)
            tied = kept & (x == edge)
            free = N - tl.sum(over.to(tl.int32), 0)
            # Candidates ascend by id, so that the first of equal ones are the lowest ids.
            kept = over | (tied & (tl.cumsum(tied.to(tl.int32), 0) <= free))
            number = tl.sum(kept.to(tl.int32), 0)
            total = tl.sum(tl.where(kept, share, 0.0), 0)
            target = some
            if HAS_MAP:
                target = tl.load(targets + some, mask=kept, other=0)
            slot = tl.cumsum(kept.to(tl.int32), 0) - 1
            tl.store(q_ids + row * N + slot, target, mask=kept)
            tl.store(q_probs + row * N + slot, share / total, mask=kept)
            tl.store(q_ids + row * N + slots, slots * 0, mask=slots >= number)
            tl.store(q_probs + row * N + slots, slots * 0.0, mask=slots >= number)
            # The verifier's noise is keyed by target ids. Numbers of the drafter's own are keyed by
            # draft ids, as those that share a target id add up in q and so race apart.
            shares_noise = tl.load(coupled + row) != 0
            purpose = tl.where(shares_noise, COUPLED, PROPOSE)
            keyed = tl.where(shares_noise, target, some)
            position = tl.load(positions + row).to(tl.int32)
            noise = exponential(tl.load(seeds + row), position, keyed, purpose)
            keys = tl.where(kept, noise / share, float("inf"))
            won = keys == tl.min(keys, 0)
            lowest = tl.min(tl.where(won, keyed, 0x7FFFFFFF), 0)
            token = tl.min(tl.where(won & (keyed == lowest), some, 0x7FFFFFFF), 0)
    token = tl.where(token < width, token, 0)
    target_token = token
    if HAS_MAP:
        target_token = tl.load(targets + token)
    if count > LIMIT:
        only = (slots == 0).to(tl.int32)
        tl.store(q_ids + row * N + slots, only * target_token)
        tl.store(q_probs + row * N + slots, only.to(tl.float32))
    tl.store(tokens + row * 2, token)
    tl.store(tokens + row * 2 + 1, target_token)


def propose_rows(
    logits: Tensor,  # [rows, draft vocab], float32, bfloat16 or float16
    shared: SharedIds,
    steps: Steps,
    work: Workspace,
) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens int32 [rows, 2], q ids int32 [rows, N], q float32 [rows, N]), all in the workspace.

    An ARGMAX row's q is 1 at its token. Nothing waits for the host.
    """
    rows = logits.shape[0]
    if rows:
        real, found = shared.real, work.scan
        scan(logits, real, found, steps.kinds, steps.scales)
        propose[(rows,)](
            logits, logits.stride(0), real.width,
            real.mask if real.mask is not None else logits,
            shared.targets if shared.targets is not None else work.tokens,
            steps.kinds, steps.scales, steps.top_k, steps.top_p, steps.min_p, steps.seeds,
            steps.positions, steps.coupled, found.tops, found.top_blocks, found.sums, found.maxima,
            work.block_list, work.values, work.ids, work.tokens, work.q_ids, work.q_probs,
            found.chunks, found.maxima.shape[1],
            N=work.q_ids.shape[1],
            LIMIT=LIMIT,
            PARTS=triton.next_power_of_2(found.chunks),
            PADDED=triton.next_power_of_2(found.chunks) * (CHUNK // found.block),
            BLOCK=found.block,
            SHIFT=shift_for(logits.dtype),
            HAS_MASK=real.mask is not None,
            HAS_MAP=shared.targets is not None,
            num_warps=16,
            maxnreg=128,  # ptxas would rather spill than hold one program per processor
        )  # fmt: skip
    return work.tokens[:rows], work.q_ids[:rows], work.q_probs[:rows]
