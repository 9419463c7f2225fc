"""Sparse q as it arrives: checked, and packed for acceptance.

Knows what makes a distribution, and what a rule wants of a proposal. Does not know where a row
came from. A wrong row would not fail later: it would bend the output's distribution without a
trace. Nothing can show whether q really is the distribution that was sampled; that is the sender's
part of the promise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from common.errors import InvalidDistribution
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from common.types import SparseDistribution

SUM_TOLERANCE = 1e-3  # float32 rounding of some hundred values is far below


def check_draft_distributions(
    field: str,
    rows: Sequence[SparseDistribution],
    draft: Sequence[int],
    rule: AcceptanceRule,
    vocab_size: int,
    max_entries: int,
) -> None:
    """Raise InvalidDistribution, naming the row in `field`, unless the rows suit the rule.

    Under REJECTION each draft token has its distribution: ids in range and distinct, probabilities
    neither negative nor NaN, sum within 1e-3 of one, the draft token's own above 0. Otherwise no
    rows.
    """
    if rule is not AcceptanceRule.REJECTION:
        if rows:
            raise InvalidDistribution(
                field, f"{len(rows)} rows long", f"empty under the rule {rule.label}"
            )
        return
    if len(rows) != len(draft):
        raise InvalidDistribution(
            field, f"{len(rows)} rows long", f"{len(draft)}, one per draft token"
        )
    for index, (row, token) in enumerate(zip(rows, draft, strict=True)):
        _check_row(f"{field}[{index}]", row, token, vocab_size, max_entries)


def _check_row(
    name: str, row: SparseDistribution, token: int, vocab_size: int, max_entries: int
) -> None:
    ids, values = f"{name}.token_ids", f"{name}.probabilities"
    if len(row.ids) > max_entries:
        raise InvalidDistribution(ids, f"{len(row.ids)} long", f"at most {max_entries}")
    for place, token_id in enumerate(row.ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidDistribution(f"{ids}[{place}]", token_id, f"in [0, {vocab_size})")
    if len(set(row.ids)) < len(row.ids):
        twice, times = Counter(row.ids).most_common(1)[0]
        raise InvalidDistribution(ids, f"{times} times {twice}", "distinct")
    for place, value in enumerate(row.probabilities):
        if not 0 <= value < math.inf:  # NaN too
            raise InvalidDistribution(f"{values}[{place}]", value, "finite and not negative")
    total = math.fsum(row.probabilities)
    if abs(total - 1) > SUM_TOLERANCE:
        raise InvalidDistribution(values, f"{total:.6g} in sum", f"within {SUM_TOLERANCE:g} of 1")
    if not dict(zip(row.ids, row.probabilities, strict=True)).get(token):
        raise InvalidDistribution(
            values, f"0 for the draft token {token}", "above 0 for it, since it was sampled"
        )


def pack_draft_distributions(
    sessions: Sequence[tuple[Sequence[SparseDistribution], int]],
) -> SparseDistributions | None:
    """Of each session its rows (none if it has no q) and its k: [k + 1 rows each, slots]; None if
    no session has q. There are as many slots as the longest row needs."""
    slots = max((len(row.ids) for rows, _ in sessions for row in rows), default=0)
    if slots == 0:
        return None
    height = sum(k + 1 for _, k in sessions)
    ids, probabilities = np.zeros((height, slots), np.int32), np.zeros((height, slots), np.float32)
    begin = 0
    for rows, k in sessions:
        assert len(rows) in (0, k)
        for place, row in enumerate(rows, start=begin):
            ids[place, : len(row.ids)] = row.ids
            probabilities[place, : len(row.ids)] = row.probabilities
        begin += k + 1
    return SparseDistributions(torch.from_numpy(ids), torch.from_numpy(probabilities))
