"""Decisions of ragged, mixed batches: each session as if alone, each rule at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.sampling import SamplingParams
from verifier.adjustments import History, adjust_rows
from verifier.kernels import reference
from verifier.kernels.decision import Adjustments, Decisions, Rule, SamplingBatch, SparseQ
from verifier.kernels.reference import decide, decide_greedy

VOCAB = 12
SEED = 77


def sampling(
    rules: Sequence[Rule], seeds: Sequence[int], positions: Sequence[int], varied: bool = False
) -> SamplingBatch:
    """varied: each session has its own filters."""
    n = len(rules)
    spread = torch.arange(n) if varied else torch.zeros(n, dtype=torch.int64)
    return SamplingBatch(
        rule=torch.tensor([int(rule) for rule in rules], dtype=torch.int8),
        temperature=1.0 + 0.25 * spread,
        top_k=(VOCAB - spread % 5).int(),
        top_p=1.0 - 0.1 * (spread % 3),
        min_p=0.02 * (spread % 2),
        seed=torch.tensor(seeds),
        first_position=torch.tensor(positions),
    )


def pick(batch: SamplingBatch, session: int) -> SamplingBatch:
    return SamplingBatch(**{name: value[[session]] for name, value in vars(batch).items()})


def uniform_q(draft: Tensor) -> SparseQ:
    """Every draft token was sampled from itself and its two neighbours."""
    ids = (draft[:, None] + torch.arange(3)) % VOCAB
    return SparseQ(ids.int(), torch.full((len(draft), 3), 1 / 3))


def test_a_session_in_a_mixed_batch_is_decided_as_if_alone() -> None:
    """All rules, k from 0 to 4, own filters, penalties and seeds; padded ids with huge logits."""
    generator = torch.Generator().manual_seed(3)
    rules = [list(Rule)[i % 4] for i in range(24)]
    ks = [i % 5 for i in range(24)]
    offsets = torch.tensor([0] + [k + 1 for k in ks]).cumsum(0)
    rows = int(offsets[-1])
    logits = torch.randn(rows, VOCAB, generator=generator) * 2
    allowed = torch.arange(VOCAB) < VOCAB - 2
    logits[:, ~allowed] = 50.0
    draft = torch.randint(0, VOCAB - 2, (rows,), generator=generator)
    batch = sampling(rules, list(range(24)), [5 * i for i in range(24)], varied=True)
    q = uniform_q(draft)
    histories = []
    for i, k in enumerate(ks):
        params = SamplingParams(
            repetition_penalty=1.3, presence_penalty=1.5 if i % 2 else None, min_new_tokens=i % 3
        )
        start = int(offsets[i])
        histories.append((History(params, [0, 1], {2}), draft[start : start + k].tolist()))
    inputs = [logits.clone(), draft.clone(), q.probs.clone()]
    together = decide(logits, draft, offsets, batch, q, adjust_rows(histories), allowed)
    assert all(map(torch.equal, inputs, (logits, draft, q.probs))), "inputs are never written"
    for i in range(24):
        own = slice(int(offsets[i]), int(offsets[i + 1]))
        alone = decide(
            logits[own],
            draft[own],
            offsets[i : i + 2] - offsets[i],
            pick(batch, i),
            SparseQ(q.ids[own], q.probs[own]) if ks[i] else None,
            adjust_rows([histories[i]]),
            allowed,
        )
        assert together.accepted_lengths[i] == alone.accepted_lengths[0]
        assert together.next_tokens[i] == alone.next_tokens[0] < VOCAB - 2
    assert 0 < int(together.accepted_lengths.sum()) < sum(ks), "some drafts stood, some fell"


def test_greedy_sessions_never_pay_for_a_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1))
    draft = logits.argmax(dim=-1)
    offsets = torch.tensor([0, 3, 6])
    seen: list[int] = []

    def counting(scores: Tensor, *filters: Tensor) -> Tensor:
        seen.append(len(scores))
        return scores.softmax(dim=-1)

    monkeypatch.setattr(reference, "probabilities", counting)
    expected = decide_greedy(logits, draft, offsets)
    both_greedy = sampling([Rule.GREEDY] * 2, [1, 2], [0, 0])
    made = decide(logits, draft, offsets, both_greedy)
    assert torch.equal(made.next_tokens, expected.next_tokens) and not seen
    nothing = adjust_rows([(History(SamplingParams(presence_penalty=1.0), [], []), [])] * 2)
    assert nothing is not None
    nothing = replace(nothing, offsets=torch.zeros(7, dtype=torch.int64))
    made = decide(logits, draft, offsets, both_greedy, None, nothing)
    assert torch.equal(made.next_tokens, expected.next_tokens) and not seen
    mixed = sampling([Rule.GREEDY, Rule.COUPLED], [1, 2], [0, 0])
    made = decide(logits, draft, offsets, mixed)
    assert made.next_tokens[0] == expected.next_tokens[0]
    assert made.accepted_lengths[0] == 2 and set(seen) == {1}


# --- whole outputs, by rounds --------------------------------------------------------------------

LENGTH = 10
CHAIN = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(9)) * 2


class Output:
    """One session's output from a scripted target: logits depend on the token before."""

    def __init__(self, rule: Rule, seed: int, params: SamplingParams) -> None:
        self.rule, self.seed = rule, seed
        self.tokens: list[int] = [3, 4]  # the prompt first
        self.history = History(params, self.tokens, {0})

    def logits(self, draft: list[int]) -> Tensor:
        return CHAIN[[self.tokens[-1], *draft]]

    def commit(self, draft: list[int], accepted: int, token: int) -> None:
        run = [*draft[:accepted], token]
        self.tokens += run
        self.history.commit(run)


def rounds(sessions: list[Output], drafts: list[list[int]]) -> Decisions:
    """One round of all of them, in one batch."""
    padded = [token for draft in drafts for token in [*draft, 0]]
    made = decide(
        torch.cat([s.logits(draft) for s, draft in zip(sessions, drafts, strict=True)]),
        torch.tensor(padded),
        torch.tensor([0] + [len(draft) + 1 for draft in drafts]).cumsum(0),
        sampling([s.rule for s in sessions], [s.seed for s in sessions], list(map(end, sessions))),
        uniform_q(torch.tensor(padded)),
        adjust_rows([(s.history, draft) for s, draft in zip(sessions, drafts, strict=True)]),
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


def plain(rule: Rule, seed: int, params: SamplingParams) -> list[int]:
    """The output without a drafter."""
    session = Output(rule, seed, params)
    while len(session.tokens) < LENGTH + 2:
        rounds([session], [[]])
    return session.tokens[: LENGTH + 2]


@pytest.mark.parametrize("rule", [Rule.COUPLED, Rule.GREEDY])
@given(data=st.data())
def test_the_output_is_a_function_of_prompt_seed_and_parameters(
    rule: Rule, data: st.DataObject
) -> None:
    """Whatever is drafted, however it is split into rounds, and whoever is in the batch: at every
    acceptance, penalties and min_new_tokens included."""
    others = [Rule.NO_Q, Rule.REJECTION, Rule.GREEDY, Rule.COUPLED]
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
    expected = plain(Rule.GREEDY, 0, params)
    assert 0 not in expected[2:6] and expected[6] == 0
    session = Output(Rule.GREEDY, 0, params)
    made = rounds([session], [expected[2:6]])
    assert int(made.accepted_lengths) == 4 and session.tokens == expected[:7]


@pytest.mark.parametrize("rule", [Rule.NO_Q, Rule.REJECTION, Rule.COUPLED])
def test_seeds_that_differ_draw_different_tokens(rule: Rule) -> None:
    sessions = [Output(rule, seed, SamplingParams()) for seed in range(200)]
    for _ in range(12):
        rounds(sessions, [[]] * 200)
    assert len({tuple(session.tokens) for session in sessions}) == 200


# --- edges ---------------------------------------------------------------------------------------


def one_round(
    rule: Rule, p: list[float], token: int, q: SparseQ | None, n: int = 20_000
) -> Decisions:
    """n sessions with other seeds, one draft token each, the same law in both rows."""
    rows = torch.tensor(p).log().repeat(2 * n, 1)
    wide = None if q is None else SparseQ(q.ids.repeat(2 * n, 1), q.probs.repeat(2 * n, 1))
    return decide(
        rows,
        torch.full((2 * n,), token),
        torch.arange(n + 1) * 2,
        sampling([rule] * n, list(range(n)), [4] * n),
        wide,
    )


def test_a_rejected_token_is_never_sampled_again() -> None:
    made = one_round(Rule.NO_Q, [0.5, 0.3, 0.2], 1, None)
    fell = made.accepted_lengths == 0
    assert bool(fell.any()) and not bool(((made.next_tokens == 1) & fell).any())
    made = one_round(
        Rule.REJECTION,
        [0.5, 0.3, 0.2],
        1,
        SparseQ(torch.tensor([[1, 0]]).int(), torch.tensor([[0.9, 0.1]])),
    )
    fell = made.accepted_lengths == 0
    assert bool(fell.any()) and not bool(((made.next_tokens == 1) & fell).any())


def test_a_certain_token_always_stands() -> None:
    certain = SparseQ(torch.tensor([[1]]).int(), torch.tensor([[1.0]]))
    for rule in Rule:
        made = one_round(rule, [0.0, 1.0, 0.0], 1, certain)
        assert bool((made.accepted_lengths == 1).all()) and bool((made.next_tokens == 1).all())


def test_drafts_from_the_targets_own_law_always_stand() -> None:
    p = [0.5, 0.25, 0.25]
    q = SparseQ(torch.arange(3).int()[None], torch.tensor([p]).log().softmax(dim=-1))
    for token in range(3):
        assert bool((one_round(Rule.REJECTION, p, token, q).accepted_lengths == 1).all())


def test_a_token_that_cannot_come_never_stands() -> None:
    q = SparseQ(torch.tensor([[2]]).int(), torch.tensor([[1.0]]))
    for rule in Rule:
        made = one_round(rule, [0.6, 0.4, 0.0], 2, q)
        assert bool((made.accepted_lengths == 0).all()) and bool((made.next_tokens < 2).all())


def test_where_rounding_leaves_no_residual_the_target_itself_is_sampled() -> None:
    """q above p everywhere, here by far more than rounding could make it."""
    p = torch.tensor([[0.5, 0.5]])
    q = SparseQ(torch.tensor([[0, 1]]).int(), torch.tensor([[0.625, 0.5]]))
    made = one_round(Rule.REJECTION, p[0].tolist(), 0, q)
    fell = made.accepted_lengths == 0
    assert bool(fell.any()) and set(made.next_tokens[fell].tolist()) == {0, 1}


def test_adjustments_with_no_entries_change_nothing() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(2))
    empty = torch.zeros(0)
    none = Adjustments(
        offsets=torch.zeros(5, dtype=torch.int64),
        ids=empty.int(),
        bias=empty,
        seen=empty.bool(),
        count=empty.int(),
        banned=empty.bool(),
        repetition=torch.full((2,), 1.5),
        presence=torch.ones(2),
        frequency=torch.ones(2),
    )
    batch = sampling([Rule.COUPLED, Rule.NO_Q], [1, 2], [3, 4])
    args = logits, torch.tensor([1, 0, 2, 0]), torch.tensor([0, 2, 4]), batch
    assert torch.equal(decide(*args).next_tokens, decide(*args, None, none).next_tokens)
