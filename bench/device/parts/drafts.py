"""Draft steps by kernels on a device: checked against float64, and timed.

Does not know acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from bench.device.budget import Budget
from bench.device.parts.acceptance_oracle import Batch, distribution, processed, sampling
from bench.device.table import Row
from common.kernels.logits_scan import FILTERED
from common.sampling import rng
from drafter.kernels.draft_rows import SharedIds, Steps, Workspace

LOG2_E = 1.4426950408889634
PROPOSE = rng.Purpose.PROPOSE
CHECKED = 64  # rows, at most: each is sorted in float64


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
    """Draft steps over a shared vocabulary: checked against float64, then timed."""
    from bench.device.timing import microseconds, sets_for
    from drafter.kernels.propose import propose_rows

    reported: list[Row] = []
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
        checked = check(sets[0][:CHECKED], targets, shared, steps, tokens, ids, probs)
        calls = [partial(propose_rows, x, made, steps, work) for x in sets]
        took = microseconds(calls, device)
        reported.append(
            {
                "kernel": "propose",
                "rows": rows,
                "vocab": vocab,
                "us": took,
                "bytes": size,
                "share_of_copy": size / took * 1e6 / copy,
                **checked,
            }
        )
    return reported


def check(
    logits: Tensor,  # bfloat16 [rows, vocab], those that are checked
    targets: Tensor,
    shared: Tensor,
    steps: Steps,
    tokens: Tensor,  # int32 [all rows, 2]
    ids: Tensor,  # int32 [all rows, slots]
    probs: Tensor,
) -> Row:
    """q and the token sampled from it, row by row, by the filters' definition in float64.

    Where an id lies so near a filter's edge that rounding matters, a row counts as close and not
    as wrong; so does a sample that was won by less than rounding.
    """
    rows, vocab = logits.shape
    offsets = torch.arange(rows + 1, device=logits.device)
    distributions = sampling(
        rows, vocab, str(logits.device), temperature=LOG2_E / steps.scales[:rows],
        top_k=steps.top_k[:rows], top_p=steps.top_p[:rows], min_p=steps.min_p[:rows],
    )  # fmt: skip
    batch = Batch(logits, tokens[:rows, 0].long(), offsets, distributions, None, None, shared)
    worst, wrong, close = 0.0, 0, 0
    for row in range(rows):
        p, order = distribution(batch, row, row).sort(descending=True, stable=True)
        kept, order = p[: ids.shape[1]] / p[: ids.shape[1]].sum(), order[: ids.shape[1]]
        expected = torch.zeros(vocab, dtype=torch.float64, device=logits.device)
        found = expected.scatter_add(0, ids[row].long(), probs[row].double())
        expected.scatter_add_(0, targets[order], kept)
        apart = float((expected - found).abs().max())
        noise = rng.exponential(
            steps.seeds[row, None].cpu(), steps.positions[row, None].cpu(), order.cpu(), PROPOSE
        )[0]
        race = torch.where(kept > 0, noise.to(kept) / kept, torch.inf)
        minimum, second = race.topk(2, largest=False).values
        sampled = int(order[int(race.argmin())]) == int(tokens[row, 0])
        near = near_edge(batch, row, ids.shape[1]) < 1e-5
        close += near or float(second / minimum) < 1 + 1e-4
        worst = max(worst, 0.0 if near else apart)
        wrong += not near and (apart > 1e-5 or not (sampled or float(second / minimum) < 1 + 1e-4))
    return {
        "checked": rows, "close": close, "wrong": wrong, "worst_difference_of_q": worst,
        "right": not wrong,
    }  # fmt: skip


def near_edge(batch: Batch, row: int, slots: int) -> float:
    """How near to top-p the mass above an id comes, of those that q has slots for."""
    top_p = float(batch.sampling.top_p[row])
    if top_p >= 1:
        return 1.0
    x = processed(batch, row, row).double() / float(batch.sampling.temperature[row])
    p = x.softmax(0).sort(descending=True).values
    return float((p.cumsum(0) - p - top_p)[:slots].abs().min())
