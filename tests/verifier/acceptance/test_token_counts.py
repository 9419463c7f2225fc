"""Histories that grow give what counting everything anew gives, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.sampling.parameters import SamplingParams
from verifier.acceptance.token_counts import History, adjust_rows

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


def entries(histories: Sequence[tuple[History, Sequence[int]]]) -> list[dict[int, Entry]]:
    """By row, without what changes nothing under the session's own parameters."""
    made = adjust_rows(histories)
    height = sum(len(draft) + 1 for _, draft in histories)
    if made is None:
        return [{} for _ in range(height)]
    assert len(made.offsets) == height + 1 and int(made.offsets[-1]) == len(made.ids)
    asked = [h.params for h, draft in histories for _ in range(len(draft) + 1)]
    rows: list[dict[int, Entry]] = []
    for row, own in enumerate(asked):
        repeats = own.repetition_penalty not in (None, 1.0)
        counts = bool(own.presence_penalty or own.frequency_penalty)
        told: dict[int, Entry] = {}
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
                told[int(made.ids[i])] = entry
        rows.append(told)
    return rows


sessions = st.tuples(
    params, tokens.filter(bool), st.lists(tokens, max_size=4), tokens, st.integers(0, 3)
)


@given(st.lists(sessions, min_size=1, max_size=4))
def test_each_row_counts_all_before_it_and_nothing_else(batch) -> None:
    histories, expected = [], []
    for asked, prompt, rounds, draft, resumed in batch:
        resumed = min(resumed, len(prompt))
        begin = len(prompt) - resumed
        history = History(asked, prompt, ENDS, resumed)
        output = list(prompt[begin:])
        for run in rounds:
            history.rows(draft)  # a rejected draft leaves nothing behind
            history.commit(run)
            output += run
        histories.append((history, draft))
        expected += [
            counted_anew(asked, prompt[:begin], [*output, *draft[:row]])
            for row in range(len(draft) + 1)
        ]
    assert entries(histories) == expected


def test_a_session_that_changes_no_logit_adds_nothing() -> None:
    plain = History(SamplingParams(temperature=0.7), [1, 2, 3], ENDS)
    other = History(SamplingParams(presence_penalty=1.0), [1, 2], ENDS)
    plain.commit([4, 4])
    other.commit([5])
    assert adjust_rows([(plain, [6]), (plain, [])]) is None
    made = adjust_rows([(plain, [6]), (other, [])])
    assert made is not None
    assert made.offsets.tolist() == [0, 0, 0, 1]
    assert made.ids.tolist() == [5]
    assert made.presence.tolist() == [0.0, 1.0]


def test_a_ban_ends_with_its_reason() -> None:
    history = History(SamplingParams(min_new_tokens=3), [1], ENDS)
    assert history.acts
    made = adjust_rows([(history, [4, 4, 4, 4])])
    assert made is not None
    banned = made.banned.view(5, len(ENDS)).all(dim=1)
    assert banned.tolist() == [True, True, True, False, False]
    history.commit([4, 4, 4])
    assert not history.acts


@pytest.mark.parametrize("length", [1, 63, 64, 65, 500])
def test_a_history_holds_as_many_ids_as_there_are(length: int) -> None:
    asked = SamplingParams(
        repetition_penalty=1.5, logit_bias=tuple((i, 1.0) for i in range(1000, 1000 + length))
    )
    history = History(asked, list(range(length)), ENDS)
    history.commit([*range(length, 2 * length), 5])
    made = adjust_rows([(history, [])])
    assert made is not None
    assert set(made.ids[made.seen].tolist()) == {*range(2 * length), 5}
    assert float(made.bias.sum()) == length
