"""Acceptance in mixed batches: each session as if alone, each rule at its edges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from common.sampling.parameters import SamplingParams
from tests.kernels.acceptance_batches import VOCAB, pick, sampling, uniform_q
from verifier.acceptance import rules as reference
from verifier.acceptance.batch import AcceptanceOutput, LogitsProcessors
from verifier.acceptance.rules import accept, accept_greedy
from verifier.acceptance.token_counts import TokenCounts, processor_rows


def test_a_session_in_a_mixed_batch_is_verified_as_if_alone() -> None:
    """All rules, k from 0 to 4, own filters, penalties and seeds; padded ids with huge logits."""
    generator = torch.Generator().manual_seed(3)
    rules = [list(AcceptanceRule)[i % 4] for i in range(24)]
    ks = [i % 5 for i in range(24)]
    offsets = torch.tensor([0] + [k + 1 for k in ks]).cumsum(0)
    rows = int(offsets[-1])
    logits = torch.randn(rows, VOCAB, generator=generator) * 2
    allowed = torch.arange(VOCAB) < VOCAB - 2
    logits[:, ~allowed] = 50.0
    draft = torch.randint(0, VOCAB - 2, (rows,), generator=generator)
    batch = sampling(rules, list(range(24)), [5 * i for i in range(24)], varied=True)
    q = uniform_q(draft)
    all_token_counts = []
    for i, k in enumerate(ks):
        params = SamplingParams(
            repetition_penalty=1.3, presence_penalty=1.5 if i % 2 else None, min_new_tokens=i % 3
        )
        start = int(offsets[i])
        all_token_counts.append(
            (TokenCounts(params, [0, 1], {2}), draft[start : start + k].tolist())
        )
    inputs = [logits.clone(), draft.clone(), q.probs.clone()]
    together = accept(logits, draft, offsets, batch, q, processor_rows(all_token_counts), allowed)
    assert all(map(torch.equal, inputs, (logits, draft, q.probs))), "inputs are never written"
    for i in range(24):
        own = slice(int(offsets[i]), int(offsets[i + 1]))
        alone = accept(
            logits[own],
            draft[own],
            offsets[i : i + 2] - offsets[i],
            pick(batch, i),
            SparseDistributions(q.ids[own], q.probs[own]) if ks[i] else None,
            processor_rows([all_token_counts[i]]),
            allowed,
        )
        assert together.accepted_lengths[i] == alone.accepted_lengths[0]
        assert together.next_tokens[i] == alone.next_tokens[0] < VOCAB - 2
    assert 0 < int(together.accepted_lengths.sum()) < sum(ks), (
        "some drafts are accepted, some rejected"
    )


def test_greedy_sessions_never_pay_for_a_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1))
    draft = logits.argmax(dim=-1)
    offsets = torch.tensor([0, 3, 6])
    seen: list[int] = []

    def counting(scores: Tensor, *filters: Tensor) -> Tensor:
        seen.append(len(scores))
        return scores.softmax(dim=-1)

    monkeypatch.setattr(reference, "probabilities", counting)
    expected = accept_greedy(logits, draft, offsets)
    both_greedy = sampling([AcceptanceRule.GREEDY] * 2, [1, 2], [0, 0])
    made = accept(logits, draft, offsets, both_greedy)
    assert torch.equal(made.next_tokens, expected.next_tokens) and not seen
    nothing = processor_rows([(TokenCounts(SamplingParams(presence_penalty=1.0), [], []), [])] * 2)
    assert nothing is not None
    nothing = replace(nothing, offsets=torch.zeros(7, dtype=torch.int64))
    made = accept(logits, draft, offsets, both_greedy, None, nothing)
    assert torch.equal(made.next_tokens, expected.next_tokens) and not seen
    mixed = sampling([AcceptanceRule.GREEDY, AcceptanceRule.COUPLED], [1, 2], [0, 0])
    made = accept(logits, draft, offsets, mixed)
    assert made.next_tokens[0] == expected.next_tokens[0]
    assert made.accepted_lengths[0] == 2 and set(seen) == {1}


def one_round(
    rule: AcceptanceRule, p: list[float], token: int, q: SparseDistributions | None, n: int = 20_000
) -> AcceptanceOutput:
    """n sessions with other seeds, one draft token each, the same distribution in both rows."""
    rows = torch.tensor(p).log().repeat(2 * n, 1)
    wide = (
        None if q is None else SparseDistributions(q.ids.repeat(2 * n, 1), q.probs.repeat(2 * n, 1))
    )
    return accept(
        rows,
        torch.full((2 * n,), token),
        torch.arange(n + 1) * 2,
        sampling([rule] * n, list(range(n)), [4] * n),
        wide,
    )


def test_a_rejected_token_is_never_sampled_again() -> None:
    made = one_round(AcceptanceRule.TARGET_ONLY, [0.5, 0.3, 0.2], 1, None)
    rejected = made.accepted_lengths == 0
    assert bool(rejected.any()) and not bool(((made.next_tokens == 1) & rejected).any())
    made = one_round(
        AcceptanceRule.REJECTION,
        [0.5, 0.3, 0.2],
        1,
        SparseDistributions(torch.tensor([[1, 0]]).int(), torch.tensor([[0.9, 0.1]])),
    )
    rejected = made.accepted_lengths == 0
    assert bool(rejected.any()) and not bool(((made.next_tokens == 1) & rejected).any())


def test_a_certain_token_is_always_accepted() -> None:
    one_hot = SparseDistributions(torch.tensor([[1]]).int(), torch.tensor([[1.0]]))
    for rule in AcceptanceRule:
        made = one_round(rule, [0.0, 1.0, 0.0], 1, one_hot)
        assert bool((made.accepted_lengths == 1).all()) and bool((made.next_tokens == 1).all())


def test_drafts_from_the_targets_own_distribution_are_always_accepted() -> None:
    p = [0.5, 0.25, 0.25]
    q = SparseDistributions(torch.arange(3).int()[None], torch.tensor([p]).log().softmax(dim=-1))
    for token in range(3):
        assert bool((one_round(AcceptanceRule.REJECTION, p, token, q).accepted_lengths == 1).all())


def test_a_token_that_cannot_come_is_never_accepted() -> None:
    q = SparseDistributions(torch.tensor([[2]]).int(), torch.tensor([[1.0]]))
    for rule in AcceptanceRule:
        made = one_round(rule, [0.6, 0.4, 0.0], 2, q)
        assert bool((made.accepted_lengths == 0).all()) and bool((made.next_tokens < 2).all())


def test_where_rounding_leaves_no_residual_the_target_itself_is_sampled() -> None:
    """q above p everywhere, here by far more than rounding could make it."""
    p = torch.tensor([[0.5, 0.5]])
    q = SparseDistributions(torch.tensor([[0, 1]]).int(), torch.tensor([[0.625, 0.5]]))
    made = one_round(AcceptanceRule.REJECTION, p[0].tolist(), 0, q)
    rejected = made.accepted_lengths == 0
    assert bool(rejected.any()) and set(made.next_tokens[rejected].tolist()) == {0, 1}


def test_logits_processors_with_no_entries_change_nothing() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(2))
    empty = torch.zeros(0)
    none = LogitsProcessors(
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
    batch = sampling([AcceptanceRule.COUPLED, AcceptanceRule.TARGET_ONLY], [1, 2], [3, 4])
    args = logits, torch.tensor([1, 0, 2, 0]), torch.tensor([0, 2, 4]), batch
    assert torch.equal(accept(*args).next_tokens, accept(*args, None, none).next_tokens)
