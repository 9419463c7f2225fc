"""Rows of q: what passes as a distribution, and whose rows end up where."""

from __future__ import annotations

import torch

from common.types import SparseDistribution
from tests.statistics.sampled_sessions import REJECTION
from verifier.acceptance.draft_distributions import (
    check_draft_distributions,
    pack_draft_distributions,
)

GOOD = (SparseDistribution((5, 9), (0.25, 0.75)), SparseDistribution((0,), (1.0,)))


def test_distributions_pass() -> None:
    nearly_one = SparseDistribution((1, 2, 3), (0.9995, 0.0, 0.0))  # zeros are harmless
    for rows, draft in ((GOOD, (9, 0)), ((), ()), ((nearly_one,), (1,))):
        check_draft_distributions(
            "proposal.q", rows, draft, REJECTION, vocab_size=10, max_entries=3
        )


def test_each_session_keeps_its_own_rows() -> None:
    """Sessions with two rows, without q, and with one; each has one row more for its bonus."""
    packed = pack_draft_distributions(
        [(GOOD, 2), ((), 1), ((SparseDistribution((7,), (1.0,)),), 1)]
    )
    assert packed is not None
    assert packed.ids.dtype == torch.int32 and packed.probs.dtype == torch.float32
    expected = [[0.25, 0.75], [1, 0], [0, 0], [0, 0], [0, 0], [1, 0], [0, 0]]
    assert packed.probs.tolist() == expected
    assert packed.ids[0].tolist() == [5, 9] and packed.ids[5, 0] == 7
    assert pack_draft_distributions([((), 3), ((), 0)]) is None
