"""Histories that grow give what counting everything anew gives, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.sampling.parameters import SamplingParams
from verifier.acceptance.token_counts import TokenCounts, processor_rows

Entry = tuple[float, bool, int, bool]  # bias, seen, count, banned
IDS = 12
ENDS = (2, 3)

tokens = st.lists(st.integers(0, IDS - 1), max_size=12)
params = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([None, 1.0, 1.3]),
    presence_penalty=st.sampled_from([None, 0.0, -2.0, 1.5]),
    frequency_penalty=st.sampled_from([None, 0.0, 0.5]),
    logit_bias=st.sampled_from([(), ((3, 1.5),), ((0, -4.0), (7, 2.0))]),
    min_new_tokens=st.integers(0, 9),
)


def counted_anew(
    asked: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> dict[int, Entry]:
    """Every entry that means something, from the definitions."""
    bias, seen, said = dict(asked.logit_bias), {*prompt, *output}, Counter(output)
    repeats = asked.repetition_penalty not in (None, 1.0)
    counts = bool(asked.presence_penalty or asked.frequency_penalty)
    banning = len(output) < asked.min_new_tokens
    made = {}
    for i in range(IDS):
        entry = (
            bias.get(i, 0.0),
            repeats and i in seen,
            said[i] if counts else 0,
            banning and i in ENDS,
        )
        if any(entry):
            made[i] = entry
    return made


def entries(
    all_token_counts: Sequence[tuple[TokenCounts, Sequence[int]]],
) -> list[dict[int, Entry]]:
    """By row, without what changes nothing under the session's own parameters."""
    made = processor_rows(all_token_counts)
    height = sum(len(draft) + 1 for _, draft in all_token_counts)
    if made is None:
        return [{} for _ in range(height)]
    assert len(made.offsets) == height + 1 and int(made.offsets[-1]) == len(made.ids)
    asked = [h.params for h, draft in all_token_counts for _ in range(len(draft) + 1)]
    rows: list[dict[int, Entry]] = []
    for row, own in enumerate(asked):
        repeats = own.repetition_penalty not in (None, 1.0)
        counts = bool(own.presence_penalty or own.frequency_penalty)
        reported: dict[int, Entry] = {}
        begin, end = int(made.offsets[row]), int(made.offsets[row + 1])
        assert len(set(made.ids[begin:end].tolist())) == end - begin
        for i in range(begin, end):
            entry = (
                float(made.bias[i]),
                repeats and bool(made.seen[i]),
                int(made.count[i]) if counts else 0,
                bool(made.banned[i]),
            )
            if any(entry):
                reported[int(made.ids[i])] = entry
        rows.append(reported)
    return rows


sessions = st.tuples(
    params, tokens.filter(bool), st.lists(tokens, max_size=4), tokens, st.integers(0, 3)
)


@given(st.lists(sessions, min_size=1, max_size=4))
def test_each_row_counts_all_before_it_and_nothing_else(batch) -> None:
    all_token_counts, expected = [], []
    for asked, prompt, rounds, draft, resumed in batch:
        resumed = min(resumed, len(prompt))
        begin = len(prompt) - resumed
        token_counts = TokenCounts(asked, prompt, ENDS, resumed)
        output = list(prompt[begin:])
        for run in rounds:
            token_counts.rows(draft)  # a rejected draft leaves nothing behind
            token_counts.commit(run)
            output += run
        all_token_counts.append((token_counts, draft))
        expected += [
            counted_anew(asked, prompt[:begin], [*output, *draft[:row]])
            for row in range(len(draft) + 1)
        ]
    assert entries(all_token_counts) == expected


def test_a_session_that_changes_no_logit_adds_nothing() -> None:
    plain = TokenCounts(SamplingParams(temperature=0.7), [1, 2, 3], ENDS)
    other = TokenCounts(SamplingParams(presence_penalty=1.0), [1, 2], ENDS)
    plain.commit([4, 4])
    other.commit([5])
    assert processor_rows([(plain, [6]), (plain, [])]) is None
    made = processor_rows([(plain, [6]), (other, [])])
    assert made is not None
    assert made.offsets.tolist() == [0, 0, 0, 1]
    assert made.ids.tolist() == [5]
    assert made.presence.tolist() == [0.0, 1.0]


def test_a_ban_ends_with_its_reason() -> None:
    token_counts = TokenCounts(SamplingParams(min_new_tokens=3), [1], ENDS)
    assert token_counts.acts
    made = processor_rows([(token_counts, [4, 4, 4, 4])])
    assert made is not None
    banned = made.banned.view(5, len(ENDS)).all(dim=1)
    assert banned.tolist() == [True, True, True, False, False]
    token_counts.commit([4, 4, 4])
    assert not token_counts.acts


@pytest.mark.parametrize("length", [1, 63, 64, 65, 500])
def test_a_history_holds_as_many_ids_as_there_are(length: int) -> None:
    asked = SamplingParams(
        repetition_penalty=1.5, logit_bias=tuple((i, 1.0) for i in range(1000, 1000 + length))
    )
    token_counts = TokenCounts(asked, list(range(length)), ENDS)
    token_counts.commit([*range(length, 2 * length), 5])
    made = processor_rows([(token_counts, [])])
    assert made is not None
    assert set(made.ids[made.seen].tolist()) == {*range(2 * length), 5}
    assert float(made.bias.sum()) == length
