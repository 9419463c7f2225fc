"""Where acceptance's time goes on a GPU, launch by launch, and what other tile sizes would take.

Stages of `python -m bench.device` that run when they are asked for. Does not know whether
acceptance is right (bench/device/parts/acceptance.py checks).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from bench.device.budget import Budget
from bench.device.parts.acceptance import CASES, inputs, ours, workspace
from bench.device.parts.drafts import logits_like
from bench.device.table import Row
from bench.device.timing import microseconds, sets_for

VOCAB = 151_936
ROWS = (512, 8)
VARIANTS: list[dict[str, int]] = [  # of constants in verifier.kernels.accept
    {},
    {"SELECT_WARPS": 4},
    {"SELECT_WARPS": 16},
    {"PROBE_WARPS": 4},
    {"PROBE_WARPS": 16},
    {"ACCEPT_WARPS": 2},
    {"ACCEPT_WARPS": 8},
    {"SAMPLE_WARPS": 4},
    {"SAMPLE_WARPS": 16},
    {"CHUNK": 2048, "SAMPLE_WARPS": 4},
    {"CHUNK": 8192, "SAMPLE_WARPS": 16},
    {"PROGRAMS": 132},
    {"PROGRAMS": 528},
    {"PROGRAMS": 1056},
]
CONCERNS = {  # cases whose time a constant can change much
    "top-k top-p, q": ("SELECT_WARPS", "ACCEPT_WARPS"),
    "top-p, no q": ("SELECT_WARPS", "ACCEPT_WARPS", "PROGRAMS"),
    "top-p, flat": ("PROBE_WARPS", "PROGRAMS"),
    "no filter, q": ("SAMPLE_WARPS", "CHUNK", "PROGRAMS"),
    "coupled": ("SAMPLE_WARPS", "CHUNK", "PROGRAMS"),
}


def launches(device: torch.device, budget: Budget) -> list[Row]:
    """Times of the filtered scan by chunk and warps, and of acceptance by VARIANTS."""
    found: list[Row] = []
    for rows in ROWS:
        found += _scans(device, rows, budget)
        for name, concerns in CONCERNS.items():
            sets = [
                inputs(rows, VOCAB, device, CASES[name]) for _ in range(sets_for(rows * VOCAB * 2))
            ]
            for variant in VARIANTS:
                if variant and not set(variant) & set(concerns):
                    continue
                if not budget.allows(f"{name} at {rows} rows with {variant}"):
                    continue
                with _constants(variant):
                    work = workspace(rows, VOCAB, device, False)
                    took = microseconds([partial(ours, one, work) for one in sets], device, 0.03)
                found.append({"rows": rows, "kernel": name, "us": took, **variant})
    return found


@contextmanager
def _constants(variant: dict[str, int]) -> Iterator[None]:
    from verifier.kernels import accept as accept
    from verifier.kernels import workspace

    homes: list[tuple[Any, str]] = [
        (home, name) for name in variant for home in (accept, workspace) if hasattr(home, name)
    ]
    usual = [getattr(home, name) for home, name in homes]
    try:
        for home, name in homes:
            setattr(home, name, variant[name])
        yield
    finally:
        for (home, name), value in zip(homes, usual, strict=True):
            setattr(home, name, value)


def _scans(device: torch.device, rows: int, budget: Budget) -> list[Row]:
    import triton

    from common.kernels.logits_scan import BLOCK, scan_rows

    sets = [logits_like(rows, VOCAB, device) for _ in range(sets_for(rows * VOCAB * 2))]
    found: list[Row] = []
    kinds = torch.full((rows,), 3, device=device, dtype=torch.int32)
    scales = torch.full((rows,), 1.8, device=device)
    for chunk, warps in (
        (2048, 2),
        (2048, 4),
        (4096, 4),
        (4096, 8),
        (8192, 4),
        (8192, 8),
        (8192, 16),
    ):
        if not budget.allows(f"scan of {rows} rows in chunks of {chunk}"):
            continue
        chunks = triton.cdiv(VOCAB, chunk)
        tops, sums = (torch.empty(rows, chunks, device=device) for _ in range(2))
        blocks = torch.empty(rows, chunks, device=device, dtype=torch.int32)
        shape = (rows, chunks * (chunk // BLOCK))
        maxima = torch.empty(shape, device=device, dtype=torch.bfloat16)
        ratios = torch.empty(shape, device=device, dtype=torch.float16)
        calls = [
            partial(
                scan_rows[(chunks, rows)], x, VOCAB, VOCAB, x, kinds, scales, tops, blocks, sums,
                maxima, ratios, chunks, CHUNK=chunk, BLOCK=BLOCK, HAS_MASK=False,
                ONLY_ARGMAX=False, HAS_RATIOS=True, INTERPRETED=False, num_warps=warps,
            )
            for x in sets
        ]  # fmt: skip
        took = microseconds(calls, device, 0.02)
        found.append({"rows": rows, "kernel": "scan", "us": took, "chunk": chunk, "warps": warps})
    return found


def profile(device: torch.device, budget: Budget) -> list[Row]:
    """Microseconds of each launch, by torch's profiler; accept_drafts and probe in all."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    found: list[Row] = []
    for rows in (512, 64, 8):
        for name, case in CASES.items():
            if not budget.allows(f"profile of {name} at {rows} rows"):
                continue
            one = inputs(rows, VOCAB, device, case)
            work = workspace(rows, VOCAB, device, not case)
            ours(one, work)
            torch.cuda.synchronize()
            with profiled(activities=[ProfilerActivity.CUDA]) as seen:
                for _ in range(5):
                    ours(one, work)
                torch.cuda.synchronize()
            times = {
                event.key: round(event.self_device_time_total / 5, 1)
                for event in seen.key_averages()
                if event.self_device_time_total > 0
            }
            counts = {"flat": int(work.sampled[2])} if case else {}
            found.append({"kernel": name, "rows": rows, **counts, **times})
    return found
