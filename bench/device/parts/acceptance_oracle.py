"""Acceptance in float64 as its definition reads, row by row: what kernels are compared with.

Shares nothing with the kernels but the integer randomness. Slow, on any device. Reports how close
each session came to another result, so that rounding can be distinguished from errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common.sampling import rng
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from verifier.acceptance.batch import LogitsProcessors, SamplingBatch

INFINITY = float("inf")


@dataclass(frozen=True)
class Batch:
    """The arguments of `accept`."""

    logits: Tensor
    draft: Tensor
    offsets: Tensor
    sampling: SamplingBatch
    q: SparseDistributions | None = None
    processors: LogitsProcessors | None = None
    allowed: Tensor | None = None


def sampling(sessions: int, vocab: int, device: str = "cpu", **given: Any) -> SamplingBatch:
    """Every session at temperature 1 and unfiltered, but for what is given (one value, or each)."""
    plain: dict[str, tuple[Any, torch.dtype]] = {
        "rule": (AcceptanceRule.TARGET_ONLY, torch.int8),
        "temperature": (1.0, torch.float32),
        "top_k": (vocab, torch.int32),
        "top_p": (1.0, torch.float32),
        "min_p": (0.0, torch.float32),
        "seed": (7, torch.int64),
        "first_position": (11, torch.int64),
    }
    made: dict[str, Tensor] = {}
    for name, (value, dtype) in plain.items():
        value = torch.as_tensor(given.get(name, value), dtype=dtype, device=device)
        made[name] = value.expand(sessions).contiguous()
    return SamplingBatch(**made)


def processed(batch: Batch, row: int, session: int) -> Tensor:
    """float32 [vocab]: steps (1) to (5)."""
    x = batch.logits[row].float().clone()
    a = batch.processors
    if a is not None:
        for at in range(int(a.offsets[row]), int(a.offsets[row + 1])):
            token = int(a.ids[at])
            v = x[token] + a.bias[at]
            if a.seen[at]:
                v = v / a.repetition[session] if v > 0 else v * a.repetition[session]
            c = a.count[at].float()
            v = v - (a.presence[session] * (c > 0) + a.frequency[session] * c)
            x[token] = -INFINITY if a.banned[at] else v
    if batch.allowed is not None:
        x[~batch.allowed] = -INFINITY
    return x


def distribution(batch: Batch, row: int, session: int) -> Tensor:
    """float64 [vocab]: steps (6) to (9)."""
    s = batch.sampling
    x = processed(batch, row, session).double() / float(s.temperature[session])
    k = int(s.top_k[session])
    if k < len(x):
        edge = x.sort(descending=True).values[k - 1]
        x = x.masked_fill(x < edge, -INFINITY)
    top_p = float(s.top_p[session])
    if top_p < 1:
        p = x.softmax(0)
        values, order = x.sort(descending=True)
        over = (
            p[order].cumsum(0) - p[order]
        )  # ties: the first of them has the mass above all of them
        first = torch.searchsorted(-values, -x, right=False)
        keep = over[first] < top_p
        keep |= x == x.max()
        x = x.masked_fill(~keep, -INFINITY)
    p = x.softmax(0)
    p = torch.where(p >= float(s.min_p[session]) * p.max(), p, 0.0)
    return p / p.sum()


def _race(weights: Tensor, seed: Tensor, position: int, purpose: rng.Purpose) -> tuple[int, float]:
    """The winner, and by what factor it won."""
    ids = torch.arange(len(weights))
    e = rng.exponential(seed[None].cpu(), torch.tensor([position]), ids, purpose)
    keys = torch.where(weights > 0, e[0].to(weights) / weights, INFINITY)
    minimum, second = keys.topk(2, largest=False).values
    return int(keys.argmin()), float(second / minimum)


def accept_plainly(batch: Batch) -> tuple[list[tuple[int, int]], list[float]]:
    """Per session (accepted length, next token), and how far its closest call was from the edge."""
    s = batch.sampling
    made: list[tuple[int, int]] = []
    margins: list[float] = []
    for session in range(len(batch.offsets) - 1):
        begin, end = int(batch.offsets[session]), int(batch.offsets[session + 1])
        rule = AcceptanceRule.GREEDY if s.temperature[session] == 0 else int(s.rule[session])
        margin = INFINITY
        for row in range(begin, end):
            last = row == end - 1
            x = int(batch.draft[row])
            position = int(s.first_position[session]) + row - begin
            seed = s.seed[session]
            if rule == AcceptanceRule.GREEDY:
                token = int(processed(batch, row, session).argmax())
                if last or token != x:
                    break
                continue
            p = distribution(batch, row, session)
            if rule == AcceptanceRule.COUPLED:
                token, gap = _race(p, seed, position, rng.Purpose.COUPLED)
                margin = min(margin, gap - 1)
                if last or token != x:
                    break
                continue
            if not last:
                at = torch.tensor([position])
                u = float(rng.uniform(seed[None].cpu(), at, rng.Purpose.ACCEPT)[0])
                chance, q = float(p[x]), torch.zeros_like(p)
                if rule == AcceptanceRule.REJECTION:
                    assert batch.q is not None
                    q.index_add_(0, batch.q.ids[row].long(), batch.q.probs[row].double())
                    chance /= float(q[x])
                margin = min(margin, abs(u - chance))
                if u < chance:
                    continue
                if rule == AcceptanceRule.REJECTION:
                    left = (p - q).clamp(min=0)
                    p = left if left.sum() > 0 else p
                else:
                    p = p.clone()
                    p[x] = 0
            token, gap = _race(p, seed, position, rng.Purpose.SAMPLE)
            margin = min(margin, gap - 1)
            break
        made.append((row - begin, token))
        margins.append(margin)
    return made, margins
