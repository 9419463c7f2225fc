"""All memory that acceptance on a GPU needs, made once per shape: a step allocates nothing.

Every call overwrites it, so one workspace serves one stream. Knows shapes. Does not know what
is done with them (verifier/kernels/accept.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from common.kernels.filter_candidates import LIMIT
from common.kernels.logits_scan import RealIds, Scan
from verifier.kernels import flat_rows as flat
from verifier.kernels.sample import CHUNK


@dataclass(frozen=True)
class Workspace:
    """For batches of at most `rows` rows and `sessions` sessions, over the ids that exist."""

    greedy: bool  # for batches of greedy sessions only
    allowed: Tensor | None  # bool [vocab], as given; None: all exist
    real: RealIds  # the same, as kernels want it
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
    flat: Tensor  # int32 [rows]
    sampled: Tensor  # int32 [3]: how many rows are in few, many and flat
    intervals: Tensor  # int32 [rows, levels, 2]
    over_under: Tensor  # float32 [rows, levels]
    edges: Tensor  # int32 [rows, levels, EDGES]
    masses: Tensor  # float32 [rows, levels, chunks, EDGES]
    keys: Tensor  # float32 [rows, chunks, 2]
    tokens: Tensor  # int32 [rows, chunks, 2]
    taken: Tensor  # [pairs], of the logits' dtype
    processed: Tensor  # float32 [pairs]
    acceptance: Tensor  # int64 [sessions, 2]: accepted length, next token

    @staticmethod
    def empty(
        rows: int, sessions: int, vocab: int, dtype: torch.dtype, device: torch.device,
        allowed: Tensor | None = None, pairs: int = 0, greedy: bool = False,
    ) -> Workspace:  # fmt: skip
        """dtype: the logits'. pairs: processed (row, id) pairs at most; 0 if none ever are, which
        spares bfloat16 rows half of the steps to a threshold.

        Looks at `allowed` (waits for the device): not for a step.
        """
        some = 0 if greedy else rows
        chunks = triton.cdiv(vocab, CHUNK)
        levels = flat.levels_for(torch.float32 if pairs else dtype)  # processed values are float32

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        def integers(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        return Workspace(
            greedy=greedy,
            allowed=allowed,
            real=RealIds.of(allowed, vocab),
            scan=Scan.empty(
                rows, vocab, device, extra=int(pairs > 0), filters=not greedy, dtype=dtype,
                ratios=not greedy,
            ),
            row_sessions=integers(some),
            kinds=integers(some),
            scales=floats(some),
            block_list=integers(some, LIMIT),
            values=floats(some, LIMIT),
            ids=integers(some, LIMIT),
            row_values=floats(some, 3),
            candidates=integers(some),
            best=integers(some),
            stops=integers(some),
            few=integers(some),
            many=integers(some),
            flat=integers(some),
            sampled=integers(3),
            intervals=integers(some, levels, 2),
            over_under=floats(some, levels),
            edges=integers(some, levels, flat.EDGES),
            masses=floats(some, levels, triton.cdiv(vocab, flat.CHUNK), flat.EDGES),
            keys=floats(some, chunks, 2),
            tokens=integers(some, chunks, 2),
            taken=torch.empty(pairs, dtype=dtype, device=device),
            processed=floats(pairs),
            acceptance=torch.empty(sessions, 2, dtype=torch.int64, device=device),
        )  # fmt: skip
