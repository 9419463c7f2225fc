"""What a launch of drafter/kernels/propose.py takes: the shared ids, how rows sample, its memory.

Knows tensors and their shapes. Does not know sessions: a row is a draft step of someone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.kernels.filter_candidates import LIMIT
from common.kernels.logits_scan import RealIds, Scan

Q_WIDTH = 64  # ids of a q row: half a KiB on the wire
_BLOCK = 32  # ids: top_k needs as many blocks, and draft vocabularies are small


@dataclass(frozen=True)
class SharedIds:
    """Which draft ids have a target id, and which. Made once per pair."""

    real: RealIds
    targets: Tensor | None  # int32 [draft vocab]; None: the vocabularies are one

    @staticmethod
    def of(targets: Tensor | None, shared: Tensor | None, vocab: int) -> SharedIds:
        """targets: int [vocab], read where shared (bool [vocab]) holds; None for one vocabulary.

        Synchronises with the device: not for a step.
        """
        if targets is None:
            return SharedIds(RealIds.of(shared, vocab), None)
        return SharedIds(RealIds.of(shared, vocab), targets.to(torch.int32).contiguous())


@dataclass(frozen=True)
class Steps:
    """How each row's draft token is sampled. Tensors [rows] on the device."""

    kinds: Tensor  # int32, common.kernels.logits_scan: ARGMAX, or FILTERED for all that are sampled
    scales: Tensor  # float32, log2(e) / temperature
    top_k: Tensor  # int32; the draft vocabulary = off
    top_p: Tensor  # float32; 1 = off
    min_p: Tensor  # float32; 0 = off
    seeds: Tensor  # int64
    positions: Tensor  # int64, index in the target's sequence of the token drafted
    coupled: Tensor  # bool


@dataclass(frozen=True)
class Workspace:
    """All memory that proposing needs, results included; every step overwrites it."""

    scan: Scan
    block_list: Tensor
    values: Tensor
    ids: Tensor
    tokens: Tensor  # int32 [rows, 2]: draft id, target id
    q_ids: Tensor  # int32 [rows, N], target ids
    q_probs: Tensor  # float32 [rows, N]

    @staticmethod
    def empty(rows: int, vocab: int, device: torch.device, q_width: int = Q_WIDTH) -> Workspace:
        """q_width: a power of two."""

        def integers(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        return Workspace(
            Scan.empty(rows, vocab, device, block=_BLOCK),
            integers(rows, LIMIT),
            torch.empty(rows, LIMIT, device=device),
            integers(rows, LIMIT),
            integers(rows, 2),
            integers(rows, q_width),
            torch.empty(rows, q_width, device=device),
        )
