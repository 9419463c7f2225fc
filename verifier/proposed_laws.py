"""Whether the rows of q in a proposal can be the laws that its draft tokens were sampled from.

Knows what makes a law and what the acceptance rule wants of it. Refuses to know how it is used:
a wrong row would not fail there, it would bend the output's law without a trace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from common.errors import InvalidLaw
from common.types import AcceptanceRule, SparseRow

TOLERANCE = 1e-3  # of a row's sum: float32 rounding of some hundred values is far below


def check_laws(
    field: str,
    q: Sequence[SparseRow],
    draft: Sequence[int],
    rule: AcceptanceRule,
    vocab_size: int,
    max_entries: int,
) -> None:
    """Raise InvalidLaw, naming the row as `field`[i], at the first that can't be."""
    if rule is not AcceptanceRule.REJECTION:
        if q:
            raise InvalidLaw(field, f"{len(q)} rows long", f"empty under the rule {rule.value}")
        return
    if len(q) != len(draft):
        raise InvalidLaw(
            field, f"{len(q)} rows long", f"as long as the draft tokens, which are {len(draft)}"
        )
    for index, (row, token) in enumerate(zip(q, draft, strict=True)):
        _check_law(f"{field}[{index}]", row, token, vocab_size, max_entries)


def _check_law(name: str, row: SparseRow, token: int, vocab_size: int, max_entries: int) -> None:
    ids, values = f"{name}.token_ids", f"{name}.probabilities"
    if len(row.ids) > max_entries:
        raise InvalidLaw(ids, f"{len(row.ids)} ids long", f"at most {max_entries}")
    for place, token_id in enumerate(row.ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidLaw(f"{ids}[{place}]", token_id, f"in [0, {vocab_size})")
    if len(set(row.ids)) < len(row.ids):
        twice, times = Counter(row.ids).most_common(1)[0]
        raise InvalidLaw(ids, f"{times} times {twice}", "distinct")
    for place, value in enumerate(row.probabilities):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidLaw(f"{values}[{place}]", value, "a number, at least 0")
    total = math.fsum(row.probabilities)
    if abs(total - 1) > TOLERANCE:
        raise InvalidLaw(values, f"{total:.6g} in sum", f"1 within {TOLERANCE:g}")
    if not dict(zip(row.ids, row.probabilities, strict=True)).get(token):
        raise InvalidLaw(
            name, f"without its draft token {token}", "a law that gives it more than 0"
        )
