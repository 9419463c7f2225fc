"""Draft steps by kernels on a device: checked against torch, and timed.

Refuses to know decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from bench.device_budget import Budget
from bench.device_table import Row


def logits_like(rows: int, vocab: int, device: torch.device, flat: bool = False) -> torch.Tensor:
    """bfloat16 [rows, vocab]: noise, and unless flat a head of 64 ids as models have it."""
    x = torch.randn(rows, vocab, device=device, dtype=torch.bfloat16)
    if not flat:
        x *= 2
        head = torch.randint(0, vocab, (rows, 64), device=device)
        bonus = torch.linspace(14, 5, 64, device=device).to(torch.bfloat16)
        x.scatter_add_(1, head, bonus.expand(rows, 64).contiguous())
    return x


def check_and_measure(
    device: torch.device, shapes: Sequence[tuple[int, int]], copy: float, budget: Budget
) -> list[Row]:
    """Draft steps over a shared vocabulary: q rows and tokens checked against torch, then timed."""
    from bench.device_timing import microseconds, sets_for
    from common.kernels.scan import FILTERED
    from drafter.kernels.draft_rows import SharedIds, Steps, Workspace
    from drafter.kernels.propose import propose_rows
    from drafter.kernels.reference import draft_law

    told: list[Row] = []
    for rows, vocab in shapes:
        if not budget.allows(f"draft steps at {rows} x {vocab}"):
            continue
        targets = torch.randperm(vocab, device=device)
        shared = torch.rand(vocab, device=device) < 0.8
        made = SharedIds.of(targets, shared, vocab)
        steps = Steps(
            torch.full((rows,), FILTERED, dtype=torch.int32, device=device),
            torch.full((rows,), 1.4426950408889634 / 0.8, device=device),
            torch.full((rows,), vocab, dtype=torch.int32, device=device),
            torch.full((rows,), 0.95, device=device),
            torch.zeros(rows, device=device),
            torch.randint(0, 1 << 62, (rows,), device=device),
            torch.arange(rows, device=device),
            torch.zeros(rows, dtype=torch.bool, device=device),
        )
        size = rows * vocab * 2
        count = 1 if device.type == "cpu" else sets_for(size)
        sets = [logits_like(rows, vocab, device) for _ in range(count)]
        work = Workspace.empty(rows, vocab, device)
        tokens, ids, probs = propose_rows(sets[0], made, steps, work)
        some = slice(min(rows, 8))
        filters = (steps.top_k[some], steps.top_p[some], steps.min_p[some])
        heat = torch.full_like(steps.top_p[some], 0.8)
        law = draft_law(sets[0][some], shared, heat, *filters, slots=64)
        expected = torch.zeros(len(heat), vocab, device=device)
        found = expected.scatter_add(1, ids[some].long(), probs[some])
        expected.scatter_add_(1, targets[law.ids], law.probs)
        worst = float((expected - found).abs().max())
        drawn = bool((ids[some] == tokens[some, 1:]).any(dim=1).all())
        calls = [partial(propose_rows, x, made, steps, work) for x in sets]
        took = microseconds(calls, device)
        told.append(
            {
                "kernel": "propose",
                "rows": rows,
                "vocab": vocab,
                "us": took,
                "bytes": size,
                "share_of_copy": size / took * 1e6 / copy,
                "worst_difference_of_q": worst,
                "right": worst < 1e-4 and drawn,
            }
        )
    return told
