"""Every kernel in the forms that services run: argument types and constants of each compilation.

A new kernel adds a line to CASES, or to tests/kernels/common_variants.py if it is the model
package's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from common.kernels import filter_candidates
from common.kernels import logits_scan as scan
from drafter.kernels import propose
from drafter.kernels.draft_rows import Q_WIDTH
from tests.kernels.common_variants import variants
from verifier.kernels import accept, accept_drafts, reduce, sample, select_candidates, sessions
from verifier.kernels import flat_rows as flat
from verifier.kernels import mask_logits as adjust


@dataclass(frozen=True)
class Case:
    """One compilation: types by argument name, the rest are constants."""

    name: str
    kernel: Any  # a @triton.jit function
    types: dict[str, str]  # argument -> "*bf16", "i32", …; all pointers count as 16-byte aligned
    constants: dict[str, Any] = field(default_factory=dict)
    multiples_of_16: tuple[str, ...] = ()  # integer arguments, as the launcher would find them
    warps: int = 4
    registers: int | None = None  # the launch's maxnreg
    stages: int = 3  # Triton's own default


LOGITS = {"logits": "*bf16", "row_stride": "i32", "width": "i32", "exists": "*i8"}
SESSIONS = {
    "session_offsets": "*i64", "row_sessions": "*i32", "kinds": "*i32", "scales": "*fp32",
    "draft_tokens": "*i64", "sessions": "i32",
}  # fmt: skip
SAMPLING = {
    "rule": "*i8", "temperature": "*fp32", "top_k": "*i32", "top_p": "*fp32", "min_p": "*fp32",
    "seed": "*i64", "seeds": "*i64", "first_position": "*i64",
}  # fmt: skip
SCAN = {
    "tops": "*fp32", "top_blocks": "*i32", "sums": "*fp32", "maxima": "*bf16", "ratios": "*fp16",
    "parts": "i32", "stride": "i32", "chunks": "i32", "blocks": "i32",
}  # fmt: skip
PAIRS = {
    "pair_offsets": "*i64", "pair_ids": "*i32", "processed": "*fp32", "taken": "*bf16",
    "bias": "*fp32", "seen": "*i1", "counts": "*i32", "banned": "*i1", "repetition": "*fp32",
    "presence": "*fp32", "frequency": "*fp32",
}  # fmt: skip
ACCEPTED = {
    "block_list": "*i32", "values": "*fp32", "ids": "*i32", "row_values": "*fp32",
    "candidates": "*i32", "best": "*i32", "stops": "*i32", "keys": "*fp32", "tokens": "*i32",
    "acceptance": "*i64", "few": "*i32", "many": "*i32", "sampled": "*i32", "flat": "*i32",
    "intervals": "*i32", "over_under": "*fp32", "edges": "*i32", "masses": "*fp32",
    "q_ids": "*i32", "q_probs": "*fp32", "q_width": "i32",
}  # fmt: skip
ACCEPTANCE = {**LOGITS, **SESSIONS, **SAMPLING, **SCAN, **PAIRS, **ACCEPTED}
WIDE = ("row_stride",)


PLAIN = {"HAS_MASK": False, "HAS_Q": True, "HAS_PAIRS": False}
ALL = {"HAS_MASK": True, "HAS_Q": True, "HAS_PAIRS": True}
TARGET_ONLY = {"HAS_MASK": False, "HAS_Q": False, "HAS_PAIRS": False}
PROCESSED = {"HAS_MASK": False, "HAS_Q": False, "HAS_PAIRS": True}
PARTS = {"PARTS": 32, "BLOCK": scan.BLOCK}  # of 262,144 ids
FILTER = {**PARTS, "LIMIT": filter_candidates.LIMIT}


def _scan(mask: bool, greedy: bool) -> dict[str, Any]:
    return {"CHUNK": scan.CHUNK, "BLOCK": scan.BLOCK, "HAS_MASK": mask, "ONLY_ARGMAX": greedy,
            "HAS_RATIOS": not greedy, "INTERPRETED": False}  # fmt: skip


def _levels(shift: int) -> int:
    """As a workspace has them: processed values are float32, whatever the logits are."""
    return flat.levels_for(torch.bfloat16 if shift else torch.float32)


def _select(shift: int, mask: bool, pairs: bool) -> dict[str, Any]:
    fixed = {"LEVELS": _levels(shift), "PADDED": 4096, "SHIFT": shift}
    return {**FILTER, **fixed, "HAS_MASK": mask, "HAS_PAIRS": pairs}


def _probe(shift: int, level: int, flags: bool) -> dict[str, Any]:
    fixed = {
        "LEVEL": level,
        "LEVELS": _levels(shift),
        "PADDED": 32,
        "CHUNK": flat.CHUNK,
        "SHIFT": shift,
    }
    return {**fixed, "HAS_MASK": flags, "HAS_PAIRS": flags}


def _accept_drafts(shift: int, whole: bool, flags: dict[str, bool]) -> dict[str, Any]:
    fixed = {"LEVELS": _levels(shift), "CHUNKS": 32, "SHIFT": shift}
    return {**FILTER, **fixed, "WHOLE": whole, **flags}


def _sample(flags: dict[str, bool]) -> dict[str, Any]:
    return {"LIMIT": filter_candidates.LIMIT, "CHUNK": sample.CHUNK, **flags}


def _propose(shift: int, shared: bool, slots: int = Q_WIDTH) -> dict[str, Any]:
    fixed = {"N": slots, "PADDED": 8192, "BLOCK": 32, "SHIFT": shift}
    return {**FILTER, **fixed, "HAS_MASK": shared, "HAS_MAP": shared}


STEPS = {**ACCEPTANCE, "targets": "*i32", "positions": "*i64", "coupled": "*i1"}
FP32 = {**ACCEPTANCE, "logits": "*fp32", "taken": "*fp32", "maxima": "*fp32"}
FP16 = {**ACCEPTANCE, "logits": "*fp16", "taken": "*fp16", "maxima": "*fp16"}
CASES = [
    Case("scan, argmax", scan.scan_rows, ACCEPTANCE, _scan(False, True), WIDE, scan.WARPS),
    Case("scan, argmax, fp32", scan.scan_rows, FP32, _scan(False, True), WIDE, scan.WARPS),
    Case("scan", scan.scan_rows, ACCEPTANCE, _scan(False, False), WIDE, scan.WARPS),
    Case("scan, mask, fp16", scan.scan_rows, FP16, _scan(True, False), WIDE, scan.WARPS),
    Case("scan, fp32", scan.scan_rows, FP32, _scan(False, False), WIDE, scan.WARPS),
    Case(
        "expand_sessions",
        sessions.expand_sessions,
        {**ACCEPTANCE, "offsets": "*i64", "rows": "i32"},
    ),
    Case("mask_logits", adjust.mask_logits, {**ACCEPTANCE, "offsets": "*i64"}, {"HAS_MASK": True}),
    Case("restore", adjust.restore, {**ACCEPTANCE, "offsets": "*i64"}),
    Case(
        "select_candidates",
        select_candidates.select_candidates,
        ACCEPTANCE,
        _select(16, False, False),
        WIDE,
        accept.SELECT_WARPS,
    ),
    Case(
        "narrow, all",
        select_candidates.select_candidates,
        FP32,
        _select(0, True, True),
        WIDE,
        accept.SELECT_WARPS,
    ),
    Case(
        "accept_drafts",
        accept_drafts.accept_drafts,
        ACCEPTANCE,
        _accept_drafts(16, False, PLAIN),
        WIDE,
        accept.ACCEPT_WARPS,
        128,
    ),
    Case(
        "accept drafts, all",
        accept_drafts.accept_drafts,
        FP32,
        _accept_drafts(0, False, ALL),
        WIDE,
        accept.ACCEPT_WARPS,
        128,
    ),
    Case(
        "whole",
        accept_drafts.accept_drafts,
        ACCEPTANCE,
        _accept_drafts(16, True, PLAIN),
        WIDE,
        accept.WHOLE_WARPS,
        128,
    ),
    Case(
        "whole, all",
        accept_drafts.accept_drafts,
        FP32,
        _accept_drafts(0, True, ALL),
        WIDE,
        accept.WHOLE_WARPS,
        128,
    ),
    Case("probe", flat.probe, ACCEPTANCE, _probe(16, 0, False), WIDE, accept.PROBE_WARPS),
    Case("probe, all", flat.probe, FP32, _probe(0, 2, True), WIDE, accept.PROBE_WARPS),
    Case("sample", sample.sample, ACCEPTANCE, _sample(PLAIN), WIDE, accept.SAMPLE_WARPS, 128),
    Case("sample, all", sample.sample, FP32, _sample(ALL), WIDE, accept.SAMPLE_WARPS, 128),
    Case("finish, greedy", reduce.reduce_greedy, ACCEPTANCE, {**PARTS, "HAS_MASK": True}, WIDE),
    Case("choose", sessions.choose, ACCEPTANCE, {"LIMIT": filter_candidates.LIMIT}, warps=1),
    Case(
        "reduce_sessions",
        reduce.reduce_sessions,
        ACCEPTANCE,
        {"PARTS": 64, "LIMIT": filter_candidates.LIMIT},
        warps=1,
    ),
    Case("propose", propose.propose, STEPS, _propose(16, False), WIDE, 16, 128),
    Case("propose, all", propose.propose, STEPS, _propose(0, True), WIDE, 16, 128),
    Case("propose, coupled", propose.propose, STEPS, _propose(16, True, 256), WIDE, 16, 128),
]
for name, flags in (
    ("no q", TARGET_ONLY),
    ("processed", PROCESSED),
):  # beside greedy; sessions with changes
    shift = 16 if flags is TARGET_ONLY else 0
    made = _accept_drafts(shift, False, flags), _accept_drafts(shift, True, flags), _sample(flags)
    CASES += [
        Case(
            f"accept drafts, {name}",
            accept_drafts.accept_drafts,
            ACCEPTANCE,
            made[0],
            WIDE,
            accept.ACCEPT_WARPS,
            128,
        ),
        Case(
            f"whole, {name}",
            accept_drafts.accept_drafts,
            ACCEPTANCE,
            made[1],
            WIDE,
            accept.WHOLE_WARPS,
            128,
        ),
        Case(f"sample, {name}", sample.sample, ACCEPTANCE, made[2], WIDE, accept.SAMPLE_WARPS, 128),
    ]
_PAIRS = _select(0, False, True)
CASES += [
    Case(
        "select candidates, processed",
        select_candidates.select_candidates,
        ACCEPTANCE,
        _PAIRS,
        WIDE,
        accept.SELECT_WARPS,
    ),
    Case("probe, processed", flat.probe, ACCEPTANCE, _probe(0, 2, True), WIDE, accept.PROBE_WARPS),
]
CASES += [
    Case(*(each.name, each.kernel, each.signature, each.constexprs, tuple(each.divisible)),
         each.num_warps, stages=each.num_stages)
    for each in variants()
]  # fmt: skip
