"""Adjustments of every row count the tokens before it, as a loop over them would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.sampling import SamplingParams
from verifier.adjustments import History, adjust_rows

ids = st.integers(0, 9)
params = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([None, 1.0, 1.5]),
    presence_penalty=st.sampled_from([None, 0.0, -2.0]),
    frequency_penalty=st.sampled_from([None, 2.0]),
    logit_bias=st.dictionaries(ids, st.just(1.5), max_size=2).map(lambda x: tuple(x.items())),
    min_new_tokens=st.integers(0, 6),
)
sessions = st.lists(
    st.tuples(
        params,
        st.lists(ids, min_size=1, max_size=4),
        st.lists(ids, max_size=4),
        st.lists(ids, max_size=3),
    ),
    min_size=1,
    max_size=3,
)


@given(batch=sessions, ends=st.sets(ids, max_size=2))
def test_each_row_counts_what_is_before_it(
    batch: list[tuple[SamplingParams, list[int], list[int], list[int]]], ends: set[int]
) -> None:
    histories = []
    for asked, prompt, output, draft in batch:
        history = History(asked, prompt, ends)
        for token in output:  # in any rounds
            history.commit([token])
        histories.append((history, draft))
    made = adjust_rows(histories)
    if made is None:
        assert not any(asked.adjusts for asked, *_ in batch)
        return
    row = 0
    for session, (asked, prompt, output, draft) in enumerate(batch):
        for drafted in range(len(draft) + 1):
            before = output + draft[:drafted]
            span = slice(int(made.offsets[row]), int(made.offsets[row + 1]))
            entries = {
                token: (float(bias), bool(seen), int(count), bool(banned))
                for token, bias, seen, count, banned in zip(
                    made.ids[span].tolist(),
                    made.bias[span],
                    made.seen[span],
                    made.count[span],
                    made.banned[span],
                    strict=True,
                )
            }
            assert len(entries) == span.stop - span.start, "an id occurs once"
            for token in range(10):
                bias, seen, count, banned = entries.get(token, (0.0, False, 0, False))
                assert bias == dict(asked.logit_bias).get(token, 0.0)
                assert banned == (token in ends and len(before) < asked.min_new_tokens)
                if asked.repetition_penalty == 1.5:
                    assert seen == (token in prompt + before)
                if asked.presence_penalty or asked.frequency_penalty:
                    assert count == before.count(token)
            row += 1
        assert made.repetition[session] == (asked.repetition_penalty or 1.0)
        assert made.presence[session] == (asked.presence_penalty or 0.0)
        assert made.frequency[session] == (asked.frequency_penalty or 0.0)
    assert row == len(made.offsets) - 1 and made.offsets[-1] == len(made.ids)
