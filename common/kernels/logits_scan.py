"""One read of the logits: what every later step needs to know of each row, and never asks twice.

A row of the vocabulary is cut into chunks of CHUNK ids, one program each, and a chunk into blocks
of BLOCK consecutive ids. Kept of a chunk: its maximum and the first block that holds it; for
sampled rows the sum of exp((x - maximum) / T); for filtered rows every block's maximum, and how
many times that maximum's the block's whole mass is. The last two make filters cheap: they bound
how many ids and how much mass lie under a value, so that the few blocks over it alone are read
again (common/kernels/filter_candidates.py). Chunks never depend on the batch, so neither does a
sum.

A chunk with a NaN has the maximum +inf: whoever takes the row's maximum learns that no distribution
follows from it (common/kernels/row_top.py), without another look.

Both services use this. Does not know sessions, rules, drafts and randomness.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 8192  # ids per program: four 16-byte loads in flight per thread of 8 warps
BLOCK = 64  # ids per block: 1/32 of a bf16 row is written back, for filtered rows only
WARPS = 8

# What a row needs (int32 in `kinds`). SAMPLED and FILTERED rows may become INVALID_LOGITS.
UNUSED, ARGMAX, SAMPLED, FILTERED, INVALID_LOGITS = 0, 1, 2, 3, 4
_SAMPLED, _FILTERED = tl.constexpr(SAMPLED), tl.constexpr(FILTERED)


@triton.jit
def _maximum(a, b):
    """NaN if either is: one instruction, as the maximum that skips them."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def logits_at(logits, row, row_stride, ids, inside, exists, HAS_MASK: tl.constexpr):
    """float32 logits of one row at a block of ids; -inf where not `inside` or no such id exists."""
    at = logits + row.to(tl.int64) * row_stride
    x = tl.load(at + ids, mask=inside, other=float("-inf")).to(tl.float32)
    if HAS_MASK:
        real = tl.load(exists + ids, mask=inside, other=0) != 0
        x = tl.where(real, x, float("-inf"))
    return x


@triton.jit
def logits_of_run(
    logits, row, row_stride, first, width, exists, COUNT: tl.constexpr, HAS_MASK: tl.constexpr
):
    """As `logits_at` first, first + 1, ...: [COUNT], a divisor of CHUNK that divides `first`.

    Unmasked where all lie under `width`, so that loads are 16 bytes wide.
    """
    at = logits + row.to(tl.int64) * row_stride + first
    ids = tl.arange(0, COUNT)
    if first + COUNT <= width:
        loaded = tl.load(at + ids)
    else:
        loaded = tl.load(at + ids, mask=first + ids < width, other=float("-inf"))
    x = loaded.to(tl.float32)
    if HAS_MASK:
        real = tl.load(exists + first + ids) != 0  # padded to whole chunks
        x = tl.where(real, x, float("-inf"))
    return x


@triton.jit
def scan_rows(
    logits,  # [rows, vocab]
    row_stride,
    width,  # ids at and above it don't exist
    exists,  # int8 [chunks * CHUNK], read if HAS_MASK
    kinds,  # int32 [rows]
    scales,  # float32 [rows], log2(e) / temperature
    tops,  # float32 [rows, parts]
    top_blocks,  # int32 [rows, parts]
    sums,  # float32 [rows, parts]
    maxima,  # of the logits' dtype or float32 [rows, chunks * CHUNK // BLOCK]
    ratios,  # float16 [rows, chunks * CHUNK // BLOCK], 1 to BLOCK (0: no id exists)
    parts,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_MASK: tl.constexpr,
    ONLY_ARGMAX: tl.constexpr,
    HAS_RATIOS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    chunk = tl.program_id(0)  # neighbours read neighbouring memory
    row = tl.program_id(1)
    BLOCKS: tl.constexpr = CHUNK // BLOCK
    blocks = tl.arange(0, BLOCKS)
    ids = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]  # [BLOCKS, BLOCK]
    first = chunk * CHUNK
    at = logits + row.to(tl.int64) * row_stride + first
    if first + CHUNK <= width:  # every chunk but the last: no masks
        loaded = tl.load(at + ids)
    else:
        loaded = tl.load(at + ids, mask=first + ids < width, other=float("-inf"))
    x = loaded.to(tl.float32)
    if HAS_MASK:
        real = tl.load(exists + first + ids) != 0  # padded to whole chunks: no masks here either
        x = tl.where(real, x, float("-inf"))
    if INTERPRETED:  # Triton's interpreter is fast at reductions that skip NaN only
        highest = tl.max(tl.where(x == x, x, float("inf")), 1)  # [BLOCKS]
    else:
        highest = tl.reduce(x, 1, _maximum)
    highest = tl.where(highest == highest, highest, float("inf"))
    top = tl.max(highest, 0)
    place = row * parts + chunk
    tl.store(tops + place, top)
    tl.store(
        top_blocks + place,
        chunk * BLOCKS + tl.min(tl.where(highest == top, blocks, BLOCKS - 1), 0),
    )
    if not ONLY_ARGMAX:
        kind = tl.load(kinds + row)
        if kind >= _SAMPLED:
            scale = tl.load(scales + row)
            # By each block's own maximum: unlike the chunk's, it is there without a barrier.
            origin = tl.where(highest == float("-inf"), 0.0, highest)  # -inf - -inf is NaN
            ratio = tl.sum(tl.exp2((x - origin[:, None]) * scale), 1)  # [BLOCKS]
            origin = tl.where(top == float("-inf"), 0.0, top)
            tl.store(sums + place, tl.sum(ratio * tl.exp2((highest - origin) * scale), 0))
            if kind == _FILTERED:
                own = row.to(tl.int64) * (tl.num_programs(0) * BLOCKS) + chunk * BLOCKS + blocks
                tl.store(maxima + own, highest)
                if HAS_RATIOS:
                    tl.store(ratios + own, ratio)


@dataclass(frozen=True)
class RealIds:
    """Which ids exist. Read off the tokenizer once, so that no step has to look."""

    width: int  # all at and above it don't exist
    mask: Tensor | None = None  # int8 [chunks * CHUNK], if holes lie below

    @staticmethod
    def of(allowed: Tensor | None, vocab: int) -> RealIds:
        """allowed: bool [vocab], or None for all. Synchronises with the device: not for a step."""
        if allowed is None:
            return RealIds(vocab)
        width = int(allowed.nonzero().max()) + 1 if bool(allowed.any()) else 0
        if bool(allowed[:width].all()):
            return RealIds(width)
        padded = torch.zeros(triton.cdiv(vocab, CHUNK) * CHUNK, dtype=torch.int8)
        padded[:vocab] = allowed
        return RealIds(width, padded.to(allowed.device))


@dataclass(frozen=True)
class Scan:
    """Where a scan leaves what it found. Made once per shape; every scan overwrites it."""

    tops: Tensor  # float32 [rows, parts]
    top_blocks: Tensor  # int32 [rows, parts]
    sums: Tensor  # float32 [rows, parts], relative to the part's own top
    maxima: Tensor  # of the dtype given [rows, blocks]
    ratios: Tensor | None  # float16 [rows, blocks]: a block's mass / its maximum's
    block: int  # ids per block
    chunks: int
    parts: int  # chunks, and one more where the caller adds a part of its own

    @staticmethod
    def empty(
        rows: int, vocab: int, device: torch.device, extra: int = 0, filters: bool = True,
        dtype: torch.dtype = torch.float32, ratios: bool = False, block: int = BLOCK,
    ) -> Scan:  # fmt: skip
        """dtype: the logits', or float32. filters: for rows that are FILTERED too."""
        blocks = triton.cdiv(vocab, CHUNK) * (CHUNK // block)
        chunks = triton.cdiv(vocab, CHUNK)
        parts = chunks + extra
        return Scan(
            torch.empty(rows, parts, device=device),
            torch.empty(rows, parts, device=device, dtype=torch.int32),
            torch.empty(rows, parts, device=device),
            torch.empty(rows if filters else 0, blocks, device=device, dtype=dtype),
            torch.empty(rows, blocks, device=device, dtype=torch.float16) if ratios else None,
            block,
            chunks,
            parts,
        )


def scan(
    logits: Tensor,  # [rows, vocab], float32, bfloat16 or float16, last dimension contiguous
    real: RealIds,
    into: Scan,
    kinds: Tensor | None = None,  # int32 [rows]; None: only maxima are asked for
    scales: Tensor | None = None,  # float32 [rows]
    warps: int = WARPS,
) -> None:
    """Fill `into`. Reads each logit once, and nothing of the host waits."""
    rows = logits.shape[0]
    if not rows:
        return
    assert logits.stride(1) == 1
    scan_rows[(into.chunks, rows)](
        logits,
        logits.stride(0),
        real.width,
        real.mask if real.mask is not None else logits,
        kinds if kinds is not None else logits,
        scales if scales is not None else logits,
        into.tops,
        into.top_blocks,
        into.sums,
        into.maxima,
        into.ratios if into.ratios is not None else into.maxima,
        into.parts,
        CHUNK=CHUNK,
        BLOCK=into.block,
        HAS_MASK=real.mask is not None,
        ONLY_ARGMAX=kinds is None,
        HAS_RATIOS=into.ratios is not None,
        INTERPRETED=triton.knobs.runtime.interpret,
        num_warps=warps,
    )
