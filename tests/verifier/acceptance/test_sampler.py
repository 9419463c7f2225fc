"""A batch mixes rules and parameters freely: each session gets what it would get alone."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from common.kv.pages import PagePool
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import OpenSession
from tests.statistics.sampled_sessions import COUPLED, GREEDY, REJECTION, TARGET_ONLY, distributions
from tests.support.verifier_sessions import VOCAB
from verifier.acceptance.sampler import VerifyOutput, accept_batch, sampling_batch
from verifier.batcher import Batch
from verifier.session import Session

ALL: list[tuple[AcceptanceRule, dict[str, Any]]] = [
    (GREEDY, {}),
    (GREEDY, {"presence_penalty": 2.0, "logprobs": 3}),
    (TARGET_ONLY, {"temperature": 1.5}),
    (TARGET_ONLY, {"temperature": 0.7, "top_k": 30, "repetition_penalty": 1.2}),
    (REJECTION, {"temperature": 1.0}),
    (REJECTION, {"temperature": 2.0, "top_p": 0.9, "logit_bias": ((5, 3.0),)}),
    (COUPLED, {"temperature": 1.0, "min_p": 0.05}),
    (COUPLED, {"temperature": 0.5, "min_new_tokens": 2, "logprobs": 0}),
]


class Silent:
    def post(self, result: object) -> None:
        pass


def asking(kind: int, draft: list[int], token_counts: list[int], seed: int) -> Session:
    """A session in its second round, with these draft tokens."""
    rule, params = ALL[kind]
    spec = OpenSession(
        (1, 2, 3), 100, "", frozenset({9}), rule, sampling=SamplingParams(seed=seed, **params)
    )
    made = Session(spec, PagePool(64, 4), frozenset(), 200, Silent())  # type: ignore[arg-type]
    made.ask((), 0.0)
    made.ran(0.0, 0.0)
    for token in token_counts:
        made.commit(0, token, 0.0, (1, 1))
        made.ask((), 0.0)
        made.ran(0.0, 0.0)
    made.ask(draft, 0.0, distributions(draft, seed) if rule is REJECTION else ())
    return made


def results_of(sessions: list[Session], logits: torch.Tensor) -> list[VerifyOutput | None]:
    return accept_batch(Batch([], sessions, sessions), logits, None)


drafts = st.lists(st.integers(0, VOCAB - 1), max_size=5)
kinds = st.integers(0, len(ALL) - 1)


@given(
    st.lists(st.tuples(kinds, drafts, drafts, st.integers(0, 2**64 - 1)), min_size=1, max_size=8),
    st.integers(0, 1000),
    st.floats(0.1, 4.0),
)
def test_each_session_is_verified_as_alone(asked, noise: int, expand_sessions: float) -> None:
    sessions = [asking(kind, draft, said, seed) for kind, draft, said, seed in asked]
    generator = torch.Generator().manual_seed(noise)
    rows = [len(session.draft) + 1 for session in sessions]
    logits = expand_sessions * torch.randn(sum(rows), VOCAB, generator=generator)
    for session, part in zip(
        sessions, logits.split(rows), strict=True
    ):  # so that some are accepted
        for row, token in zip(part, session.draft, strict=False):
            row[token] += 3.0 * expand_sessions
    together = results_of(sessions, logits)
    alone = [
        results_of([session], part)[0]
        for session, part in zip(sessions, logits.split(rows), strict=True)
    ]
    assert together == alone


@given(st.integers(0, 3), kinds, st.sampled_from([float("nan"), float("inf")]), st.integers(0, 99))
def test_a_row_with_invalid_logits_ends_its_session_if_it_is_reached(
    place: int, kind: int, value: float, noise: int
) -> None:
    """And nobody else notices, whoever sits before and behind it."""
    sessions = [asking(other, [4, 5, 6], [], 7) for other in (kind, *range(len(ALL)))]
    logits = torch.randn(4 * len(sessions), VOCAB, generator=torch.Generator().manual_seed(noise))
    for row, token in zip(logits, [4, 5, 6], strict=False):
        row[token] += 3.0
    whole = results_of(sessions, logits)
    logits[place, noise % VOCAB] = value
    broken = results_of(sessions, logits)
    assert broken[1:] == whole[1:]
    assert whole[0] is not None
    assert broken[0] == (None if place <= whole[0].accepted_length else whole[0])


def test_of_an_id_that_does_not_exist_nothing_matters() -> None:
    session = asking(2, [4], [], 7)
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    real = torch.arange(VOCAB) < VOCAB - 1
    whole = accept_batch(Batch([], [session], [session]), logits, real)
    logits[:, -1] = float("nan")
    assert accept_batch(Batch([], [session], [session]), logits, real) == whole != [None]


def test_what_is_not_set_is_off() -> None:
    session = asking(2, [], [], 5)
    made = sampling_batch([session], VOCAB)
    assert made.rule.tolist() == [AcceptanceRule.TARGET_ONLY]
    assert (made.top_k.tolist(), made.top_p.tolist(), made.min_p.tolist()) == ([VOCAB], [1], [0])
    assert made.seed.tolist() == [5]
    assert made.first_position.tolist() == [3]


def test_a_whole_number_is_as_good_as_its_float() -> None:
    """A temperature of 1 and a penalty of 2 are what 1.0 and 2.0 are."""
    spec = OpenSession(
        (1,),
        9,
        "",
        rule=TARGET_ONLY,
        sampling=SamplingParams(temperature=1, top_p=1, presence_penalty=2),
    )
    session = Session(spec, PagePool(8, 4), frozenset(), 50, Silent())  # type: ignore[arg-type]
    session.ask((), 0.0)
    (made,) = results_of([session], torch.zeros(1, VOCAB))
    assert made is not None and made.accepted_length == 0


def test_chunks_of_long_prompts_give_nothing() -> None:
    assert accept_batch(Batch([], [asking(0, [], [], 1)], []), torch.zeros(0, VOCAB), None) == []
