"""The specification of greedy acceptance, against a loop that anyone can read."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from verifier.acceptance.rules import accept_greedy

VOCAB = 6


def simple(rows: list[list[float]], draft: list[int], allowed: list[bool]) -> tuple[int, int]:
    """One session: accept while the draft token is the likeliest id, then add the likeliest."""
    for position, row in enumerate(rows):
        best = max((i for i in range(VOCAB) if allowed[i]), key=lambda i: (row[i], -i))
        if position == len(draft) or draft[position] != best:
            return position, best
    raise AssertionError("the last row has no draft token")


values = st.sampled_from([-2.0, 0.0, 1.0, 3.0])  # few, so that ties are common
row = st.lists(values, min_size=VOCAB, max_size=VOCAB)
draft_ids = st.integers(0, VOCAB - 1)
session = st.lists(draft_ids, max_size=5).flatmap(
    lambda draft: st.tuples(
        st.just(draft), st.lists(row, min_size=len(draft) + 1, max_size=len(draft) + 1)
    )
)
masks = st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB).filter(any)


def accept(
    sessions: list[tuple[list[int], list[list[float]]]], allowed: list[bool] | None = None
) -> list[tuple[int, int]]:
    logits = torch.tensor([row for _, rows in sessions for row in rows])
    draft = torch.tensor([token for draft, _ in sessions for token in [*draft, 0]])
    offsets = torch.tensor([0] + [len(rows) for _, rows in sessions]).cumsum(0)
    inputs = logits.clone()
    mask = None if allowed is None else torch.tensor(allowed)
    made = accept_greedy(logits, draft, offsets, mask)
    assert torch.equal(logits, inputs), "a kernel never writes its inputs"
    return list(zip(made.accepted_lengths.tolist(), made.next_tokens.tolist(), strict=True))


@given(sessions=st.lists(session, min_size=1, max_size=6), allowed=masks)
def test_it_gives_what_the_simple_loop_gives(
    sessions: list[tuple[list[int], list[list[float]]]], allowed: list[bool]
) -> None:
    assert accept(sessions, allowed) == [simple(rows, draft, allowed) for draft, rows in sessions]
    everything = [True] * VOCAB
    assert accept(sessions) == [simple(rows, draft, everything) for draft, rows in sessions]


def one_hot(*best: int) -> list[list[float]]:
    return [[float(i == token) for i in range(VOCAB)] for token in best]


def test_nothing_everything_and_mixed_lengths_in_one_batch() -> None:
    sessions = [
        ([1, 2, 3], one_hot(5, 2, 3, 4)),  # nothing is accepted, though later tokens would be
        ([1, 2, 3], one_hot(1, 2, 3, 4)),  # all of it does: the next token is a bonus
        ([], one_hot(5)),
        ([1, 2], one_hot(1, 5, 4)),
    ]
    assert accept(sessions) == [(0, 5), (3, 4), (0, 5), (1, 5)]


def test_rounds_without_drafts_are_plain_decoding() -> None:
    assert accept([([], one_hot(token)) for token in (3, 0, 5)]) == [(0, 3), (0, 0), (0, 5)]


def test_a_session_whose_last_token_looks_drafted_still_ends_there() -> None:
    """The last row's draft token is shown as 0, and 0 may be the likeliest id."""
    assert accept([([0], one_hot(0, 0)), ([0], one_hot(0, 0))]) == [(1, 0), (1, 0)]


def test_ties_take_the_lowest_id() -> None:
    assert accept([([2], [[0.0] * VOCAB] * 2)]) == [(0, 0)]
    assert accept([([2], [[0.0] * VOCAB] * 2)], [False, False, True, True, True, True]) == [(1, 2)]


def test_ids_that_do_not_exist_are_never_chosen() -> None:
    rows = [[-9.0, -8.0, 0.0, 0.0, 9.0, 9.0]] * 2  # padded ids with the largest logits
    assert accept([([4], rows)], [True, True, False, False, False, False]) == [(0, 1)]
