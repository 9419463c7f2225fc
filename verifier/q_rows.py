"""Sparse q as it arrives: checked before it is believed, and packed for the decision.

Knows what a law is. Refuses to know where it came from. Nothing can tell whether q really is the
law that was sampled; that is the sender's part of the promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch

from common.errors import InvalidField
from verifier.kernels.decision import SparseQ

QRow: TypeAlias = tuple[Sequence[int], Sequence[float]]  # ids and their probabilities

SUM_TOLERANCE = 1e-3


def check_q_rows(
    rows: Sequence[QRow], draft: Sequence[int], vocab_size: int, max_slots: int, field: str
) -> None:
    """Raise InvalidField, naming the row below `field`, unless each draft token has its law.

    Ids in range and distinct, probabilities neither negative nor NaN, sum within 1e-3 of one, and
    the draft token's own probability above 0.
    """
    if len(rows) != len(draft):
        raise InvalidField(field, f"{len(rows)} rows long", f"{len(draft)}, one per draft token")
    for index, ((ids, probs), token) in enumerate(zip(rows, draft, strict=True)):
        _check_row(ids, probs, token, vocab_size, max_slots, f"{field}[{index}]")


def _check_row(
    ids: Sequence[int],
    probs: Sequence[float],
    token: int,
    vocab_size: int,
    max_slots: int,
    field: str,
) -> None:
    if len(ids) != len(probs):
        raise InvalidField(
            f"{field}.probabilities", f"{len(probs)} long", f"{len(ids)}, one per token id"
        )
    if len(ids) > max_slots:
        raise InvalidField(f"{field}.token_ids", f"{len(ids)} long", f"at most {max_slots}")
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidField(f"{field}.token_ids", token_id, f"from 0 to {vocab_size - 1}")
    if len(set(ids)) < len(ids):
        raise InvalidField(f"{field}.token_ids", "not distinct", "distinct")
    for prob in probs:
        if not 0 <= prob < math.inf:  # NaN too
            raise InvalidField(f"{field}.probabilities", prob, "finite and not negative")
    total = math.fsum(probs)
    if abs(total - 1) > SUM_TOLERANCE:
        raise InvalidField(
            f"the sum of {field}.probabilities", f"{total:g}", f"within {SUM_TOLERANCE:g} of 1"
        )
    if sum(prob for token_id, prob in zip(ids, probs, strict=True) if token_id == token) <= 0:
        raise InvalidField(
            f"{field}'s probability of the draft token {token}", 0, "above 0: it was sampled"
        )


def pack_q(sessions: Sequence[tuple[Sequence[QRow], int]]) -> SparseQ | None:
    """Of each session its rows (none if it has no q) and its k: [k + 1 rows each, slots]; None if
    no session has q."""
    slots = max((len(ids) for rows, _ in sessions for ids, _ in rows), default=0)
    if slots == 0:
        return None
    all_ids: list[list[int]] = []
    all_probs: list[list[float]] = []
    for rows, k in sessions:
        assert len(rows) in (0, k)
        for ids, probs in [*rows, *[([], [])] * (k + 1 - len(rows))]:
            unused = slots - len(ids)
            all_ids.append([*ids, *[0] * unused])
            all_probs.append([*probs, *[0.0] * unused])
    return SparseQ(
        torch.tensor(all_ids, dtype=torch.int32), torch.tensor(all_probs, dtype=torch.float32)
    )
