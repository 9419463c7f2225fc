"""Prompt lookup: proposals out of the committed text itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drafter.bridge.prompt_lookup import LONGEST, PER_MATCHED, PromptLookup


def test_what_followed_two_matching_tokens_lengthens_the_proposal() -> None:
    lookup = PromptLookup([1, 2, 3, 4, 5, 1])
    assert lookup.improve([2]) == [2, 3, 4, 5, 1]


def test_the_newest_continuation_wins() -> None:
    lookup = PromptLookup([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
    assert lookup.improve([]) == [4, 9, 1, 2]


def test_behind_a_sampled_draft_nothing_of_it_is_replaced() -> None:
    lookup = PromptLookup([1, 2, 3, 4, 5, 6, 1, 2, 3, 4])
    assert lookup.improve([]) == lookup.lengthen([]) == [5, 6, 1, 2, 3, 4]
    assert lookup.lengthen([9]) == [9]
    assert lookup.lengthen([5]) == [5, 6, 1, 2, 3, 4]


def test_one_matching_token_proposes_nothing() -> None:
    assert PromptLookup([1, 2, 3, 1]).improve([]) == []


def test_the_draft_model_goes_first_until_lookup_has_been_right_more_often() -> None:
    lookup = PromptLookup([1, 2, 3, 4, 1, 2, 3])
    assert lookup.improve([7])[0] == 7  # they disagree, and nobody has a record
    lookup.extend([4, 1, 2, 3])  # lookup was right
    assert lookup.improve([7])[0] == 4
    lookup.extend([7, 1, 2, 3])  # the draft model was right
    assert lookup.improve([8])[0] == 8


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=5))
def test_every_looked_up_token_was_in_the_text_after_the_same_tokens(
    committed: list[int], proposal: list[int]
) -> None:
    lookup = PromptLookup(committed)
    improved = lookup.improve(proposal)
    assert improved[: len(proposal)] == proposal
    added = improved[len(proposal) :]
    assert len(added) <= PER_MATCHED * LONGEST
    text = [*committed, *proposal]
    if added:
        run = [*text[-2:], *added]
        assert any(committed[at : at + len(run)] == run for at in range(len(committed)))


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60))
def test_committing_token_by_token_or_at_once_is_the_same(ids: list[int], cut: int) -> None:
    at_once, bit_by_bit = PromptLookup(ids), PromptLookup(ids[:cut])
    for token_id in ids[cut:]:
        bit_by_bit.extend([token_id])
    assert at_once.improve([]) == bit_by_bit.improve([])
