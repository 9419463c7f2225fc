"""Plain torch: the specification of every decision kernel, the CPU path, and the test oracle.

Pure functions: inputs are never written, offsets are arguments. Refuses to know sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Decisions:
    """One decision per session in a ragged batch."""

    accepted_lengths: Tensor  # int64 [sessions], 0 <= a <= k
    next_tokens: Tensor  # int64 [sessions]


def decide_greedy(
    logits: Tensor,  # [rows, vocab]; session s owns rows [offsets[s], offsets[s + 1])
    draft_tokens: Tensor,  # int64 [rows]; row i's draft token, ignored in a session's last row
    offsets: Tensor,  # int64 [sessions + 1]; k + 1 rows per session
    allowed: Tensor | None = None,  # bool [vocab]; ids that exist; None allows all
) -> Decisions:
    """Accept while the draft token is the argmax (Leviathan et al., 2023, arXiv:2211.17192, T = 0).

    Row j of a session holds p after the base and j draft tokens. Ties take the lowest id.
    """
    if allowed is not None and not bool(allowed.all()):
        logits = logits.masked_fill(~allowed, float("-inf"))
    best = logits.argmax(dim=-1)  # [rows]
    rows = torch.arange(len(best))
    session = torch.bucketize(rows, offsets[1:], right=True)  # [rows], which session owns a row
    last = offsets[1:] - 1  # [sessions], the row of the bonus token
    stops = best != draft_tokens
    stops[last] = True
    # The first row of each session at which drafting stops is its accepted length.
    first = torch.full_like(last, len(best)).scatter_reduce(
        0, session[stops], rows[stops], reduce="amin"
    )
    return Decisions(first - offsets[:-1], best[first])
