"""Foreign q is checked row by row before it decides anything, and refused by name."""

from __future__ import annotations

import math

import pytest
import torch

from common.errors import InvalidField
from verifier.q_rows import QRow, check_q_rows, pack_q

GOOD: list[QRow] = [([5, 9], [0.25, 0.75]), ([0], [1.0])]


def check(rows: list[QRow], draft: list[int]) -> None:
    check_q_rows(rows, draft, vocab_size=10, max_slots=3, field="proposal.q")


def test_laws_pass() -> None:
    check(GOOD, [9, 0])
    check([], [])
    check([([1, 2, 3], [0.9995, 0.0, 0.0])], [1])  # within the tolerance; zeros are harmless


@pytest.mark.parametrize(
    ("rows", "draft", "says"),
    [
        (GOOD, [9], r"proposal\.q is 2 rows long"),
        (GOOD[:1], [9, 0], r"proposal\.q is 1 rows long"),
        ([([5, 9], [1.0])], [5], r"q\[0\]\.probabilities is 1 long"),
        ([GOOD[0], ([10], [1.0])], [9, 10], r"q\[1\]\.token_ids is 10; it must be from 0 to 9"),
        ([([-1], [1.0])], [-1], r"q\[0\]\.token_ids is -1"),
        ([([4, 4], [0.5, 0.5])], [4], r"q\[0\]\.token_ids is not distinct"),
        ([([1, 2, 3, 4], [0.25] * 4)], [1], r"4 long; it must be at most 3"),
        ([([4, 5], [1.5, -0.5])], [4], r"q\[0\]\.probabilities is -0\.5"),
        ([([4, 5], [0.5, math.nan])], [4], r"q\[0\]\.probabilities is nan"),
        ([([4, 5], [0.5, math.inf])], [4], r"q\[0\]\.probabilities is inf"),
        ([([4, 5], [0.5, 0.49])], [4], r"the sum of .*q\[0\]\.probabilities is 0\.99"),
        ([([4, 5], [0.5, 0.51])], [4], r"is 1\.01; it must be within 0\.001 of 1"),
        ([([], [])], [4], "is 0"),
        ([([4, 5], [0.5, 0.5])], [6], r"draft token 6 is 0"),
        ([([4, 5], [1.0, 0.0])], [5], r"draft token 5 is 0"),
    ],
)
def test_what_is_no_law_of_the_draft_token_is_refused(
    rows: list[QRow], draft: list[int], says: str
) -> None:
    with pytest.raises(InvalidField, match=says):
        check(rows, draft)


def test_each_session_keeps_its_own_rows() -> None:
    """Sessions with two rows, without q, and with one; each has one row more for its bonus."""
    packed = pack_q([(GOOD, 2), ([], 1), ([([7], [1.0])], 1)])
    assert packed is not None
    assert packed.ids.dtype == torch.int32 and packed.probs.dtype == torch.float32
    expected = [[0.25, 0.75], [1, 0], [0, 0], [0, 0], [0, 0], [1, 0], [0, 0]]
    assert packed.probs.tolist() == expected
    assert packed.ids[0].tolist() == [5, 9] and packed.ids[5, 0] == 7
    assert pack_q([([], 3), ([], 0)]) is None
