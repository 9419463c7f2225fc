"""What acceptance costs without our kernels: torch's argmax; a sort, softmax and noise.

Two forms of the latter: torch alone samples for every row, and vLLM's two passes accept first and
sample then, for the row of each session that matters. All sessions have the same number of rows
here, which spares the baselines what raggedness would cost them. Nothing waits for the host, so
that a CUDA graph can replay them too.
"""

from __future__ import annotations

import torch
from torch import Tensor


def greedy(logits: Tensor, draft: Tensor, per_session: int) -> Tensor:
    """Argmax, then accept while the draft equals it. int64 [sessions, 2]."""
    best = logits.argmax(-1).view(-1, per_session)
    return _first(best != draft.view(-1, per_session), best)


def sampled(
    logits: Tensor,  # [rows, vocab]
    draft: Tensor,  # int64 [rows]
    per_session: int,
    temperature: float,
    top_k: int,
    top_p: float,
    q_ids: Tensor | None,  # int64 [rows, n]
    q_probs: Tensor | None,
    every_row: bool = False,
) -> Tensor:
    """vLLM's order: a sort if there is a filter, softmax, accept, noise over what is left.

    every_row: in one pass, as torch alone would do it. int64 [sessions, 2].
    """
    x = logits.float() / temperature
    vocab = x.shape[1]
    if top_k < vocab or top_p < 1:
        x = _filtered(x, top_k, top_p)
    p = x.softmax(-1)
    chance = p.gather(1, draft[:, None])[:, 0]
    if q_ids is not None and q_probs is not None:
        q = torch.where(q_ids == draft[:, None], q_probs, 0.0).sum(1)
        chance = chance / q
    stops = (torch.rand_like(chance) >= chance).view(-1, per_session)
    stops[:, -1] = True
    first = stops.to(torch.int8).argmax(1)  # [sessions]
    rows = torch.arange(len(first), device=x.device) * per_session + first
    chosen = rows
    if every_row:
        rows = torch.arange(len(x), device=x.device)
    weights = p if every_row else p[rows]
    if q_ids is not None and q_probs is not None:
        weights = weights.scatter_add(1, q_ids[rows], -q_probs[rows]).clamp_(min=0)
    else:
        weights = weights.scatter(1, draft[rows, None], 0.0)
    token = (weights / torch.empty_like(weights).exponential_()).argmax(-1)
    token = token[chosen] if every_row else token
    return torch.stack([first, token], 1)


def _filtered(x: Tensor, top_k: int, top_p: float) -> Tensor:
    """vLLM's apply_top_k_top_p: an ascending sort, thresholds on it, and back by a scatter."""
    values, order = x.sort(dim=-1)
    if top_k < x.shape[1]:
        edge = values[:, x.shape[1] - top_k, None]
        values = values.masked_fill(values < edge, float("-inf"))
    if top_p < 1:
        out = values.softmax(-1).cumsum(-1) <= 1 - top_p
        out[:, -1] = False
        values = values.masked_fill(out, float("-inf"))
    return torch.empty_like(x).scatter_(1, order, values)


def _first(stops: Tensor, tokens: Tensor) -> Tensor:
    stops[:, -1] = True
    first = stops.to(torch.int8).argmax(1)
    return torch.stack([first, tokens.gather(1, first[:, None])[:, 0]], 1)
