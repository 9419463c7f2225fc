"""Seeds mean something: output is a function of prompt, seed and parameters, and nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from tests.kernels.acceptance_batches import VOCAB, sampling, uniform_q
from verifier.acceptance.batch import AcceptanceOutput
from verifier.acceptance.rules import accept
from verifier.acceptance.token_counts import TokenCounts, processor_rows

pytestmark = pytest.mark.long

SEED = 77
LENGTH = 10
CHAIN = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(9)) * 2


class Output:
    """One session's output from a scripted target: logits depend on the token before."""

    def __init__(self, rule: AcceptanceRule, seed: int, params: SamplingParams) -> None:
        self.rule, self.seed = rule, seed
        self.tokens: list[int] = [3, 4]  # the prompt first
        self.token_counts = TokenCounts(params, self.tokens, {0})

    def logits(self, draft: list[int]) -> Tensor:
        return CHAIN[[self.tokens[-1], *draft]]

    def commit(self, draft: list[int], accepted: int, token: int) -> None:
        run = [*draft[:accepted], token]
        self.tokens += run
        self.token_counts.commit(run)


def rounds(sessions: list[Output], drafts: list[list[int]]) -> AcceptanceOutput:
    """One round of all of them, in one batch."""
    padded = [token for draft in drafts for token in [*draft, 0]]
    made = accept(
        torch.cat([s.logits(draft) for s, draft in zip(sessions, drafts, strict=True)]),
        torch.tensor(padded),
        torch.tensor([0] + [len(draft) + 1 for draft in drafts]).cumsum(0),
        sampling([s.rule for s in sessions], [s.seed for s in sessions], list(map(end, sessions))),
        uniform_q(torch.tensor(padded)),
        processor_rows(
            [(s.token_counts, draft) for s, draft in zip(sessions, drafts, strict=True)]
        ),
    )
    for session, draft, a, token in zip(
        sessions,
        drafts,
        made.accepted_lengths.tolist(),
        made.next_tokens.tolist(),
        strict=True,
    ):
        session.commit(draft, a, token)
    return made


def end(session: Output) -> int:
    return len(session.tokens)


PARAMS = [
    SamplingParams(),
    SamplingParams(frequency_penalty=-2.0, presence_penalty=1.5),
    SamplingParams(frequency_penalty=2.0, repetition_penalty=1.4, min_new_tokens=6),
    SamplingParams(presence_penalty=-2.0, logit_bias=((5, 3.0), (0, 6.0)), min_new_tokens=4),
]


def plain(rule: AcceptanceRule, seed: int, params: SamplingParams) -> list[int]:
    """The output without a drafter."""
    session = Output(rule, seed, params)
    while len(session.tokens) < LENGTH + 2:
        rounds([session], [[]])
    return session.tokens[: LENGTH + 2]


@pytest.mark.parametrize("rule", [AcceptanceRule.COUPLED, AcceptanceRule.GREEDY])
@given(data=st.data())
def test_the_output_is_a_function_of_prompt_seed_and_parameters(
    rule: AcceptanceRule, data: st.DataObject
) -> None:
    """Whatever is drafted, however it is split into rounds, and whoever is in the batch: at every
    acceptance, penalties and min_new_tokens included."""
    others = [
        AcceptanceRule.TARGET_ONLY,
        AcceptanceRule.REJECTION,
        AcceptanceRule.GREEDY,
        AcceptanceRule.COUPLED,
    ]
    sessions = [Output(rule, SEED + i, params) for i, params in enumerate(PARAMS)]
    sessions += [Output(other, 5, PARAMS[i]) for i, other in enumerate(others)]
    expected = [plain(rule, SEED + i, params) for i, params in enumerate(PARAMS)]
    while min(map(end, sessions[: len(PARAMS)])) < LENGTH + 2:
        drafts = []
        for i, session in enumerate(sessions):
            draft = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=4))
            if i < len(PARAMS) and data.draw(st.booleans()):  # the right tokens, then some others
                draft = expected[i][end(session) :][:4] + draft[:1]
            drafts.append(draft)
        rounds(sessions, drafts)
    for session, tokens in zip(sessions, expected, strict=False):
        assert session.tokens[: LENGTH + 2] == tokens


def test_min_new_tokens_counts_tokens_and_not_rounds() -> None:
    """Id 0 ends, and a bias makes it likeliest; it comes as the fifth token of a round."""
    params = SamplingParams(logit_bias=((0, 100.0),), min_new_tokens=4)
    expected = plain(AcceptanceRule.GREEDY, 0, params)
    assert 0 not in expected[2:6] and expected[6] == 0
    session = Output(AcceptanceRule.GREEDY, 0, params)
    made = rounds([session], [expected[2:6]])
    assert int(made.accepted_lengths) == 4 and session.tokens == expected[:7]


@pytest.mark.parametrize(
    "rule", [AcceptanceRule.TARGET_ONLY, AcceptanceRule.REJECTION, AcceptanceRule.COUPLED]
)
def test_seeds_that_differ_sample_different_tokens(rule: AcceptanceRule) -> None:
    sessions = [Output(rule, seed, SamplingParams()) for seed in range(200)]
    for _ in range(20):
        rounds(sessions, [[]] * 200)
    assert len({tuple(session.tokens) for session in sessions}) == 200
