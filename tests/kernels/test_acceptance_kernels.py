"""The acceptance kernels, interpreted, give what their reference in plain torch gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.device.parts.acceptance_oracle import Batch, sampling
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from tests.kernels.kernel_results import agrees, mixed, offsets_of, results_of, some_q
from verifier.acceptance.batch import SamplingBatch

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    ("dtype", "vocab", "first"),
    [
        (torch.float32, 17, AcceptanceRule.TARGET_ONLY),
        (torch.float16, 17, AcceptanceRule.COUPLED),
        (torch.float32, 4097, AcceptanceRule.COUPLED),
        (torch.bfloat16, 4097, AcceptanceRule.TARGET_ONLY),
        (torch.float16, 4097, AcceptanceRule.REJECTION),
    ],
)
def test_variable_length_sessions_each_by_its_own_rule_and_distribution(
    dtype: torch.dtype, vocab: int, first: int
) -> None:
    order = [
        AcceptanceRule.GREEDY,
        AcceptanceRule.TARGET_ONLY,
        AcceptanceRule.REJECTION,
        AcceptanceRule.COUPLED,
    ]
    agrees(mixed(vocab, dtype, [order[(first + session) % 4] for session in range(6)], first))


@pytest.mark.parametrize("vocab", [100, 4097])
def test_a_session_of_64_drafts(vocab: int) -> None:
    torch.manual_seed(2)
    offsets = offsets_of([64, 0])
    logits = torch.randn(66, vocab)
    best = logits.argmax(1)
    logits[torch.arange(66), best] += 12  # nearly certain, so that much is accepted
    given = sampling(2, vocab, rule=AcceptanceRule.REJECTION, seed=[4, 5])
    q = SparseDistributions(
        best[:, None].repeat(1, 2).to(torch.int32), torch.tensor([[1.0, 0.0]] * 66)
    )
    assert agrees(Batch(logits, best, offsets, given, q))[0][0] > 10


@pytest.mark.parametrize("entries", [1, 64, 65, 256])
@pytest.mark.parametrize("distribution", [{}, {"top_k": 40}])
def test_rows_of_q_of_any_length(entries: int, distribution: dict) -> None:
    """Of one kernel's slice, and of several; over the vocabulary, and over candidates."""
    torch.manual_seed(entries)
    vocab, offsets = 4097, offsets_of([1] * 6)
    logits = torch.randn(12, vocab) * 2
    ids = torch.rand(12, vocab).topk(entries).indices
    ids[:, -1] = logits.argmax(1)  # distinct: taken from the others
    ids[:, :-1][ids[:, :-1] == ids[:, -1:]] = vocab - 1
    q = (torch.rand(12, entries) + 0.01).softmax(1)
    draft = ids.gather(1, torch.randint(entries, (12, 1)))[:, 0]
    draft[::4] = ids[::4, -1]
    given = sampling(6, vocab, rule=AcceptanceRule.REJECTION, seed=list(range(6)), **distribution)
    assert max(
        a
        for a, _ in agrees(Batch(logits, draft, offsets, given, SparseDistributions(ids.int(), q)))
    )


def test_everything_is_accepted_or_nothing_does() -> None:
    vocab = 50
    offsets = offsets_of([3, 3, 3, 3])
    one_hot = torch.full((16, vocab), -30.0)
    one_hot[:, 7] = 30.0
    draft = torch.full((16,), 7)
    draft[4:8] = 9
    draft[12:] = 9
    q = SparseDistributions(draft[:, None].to(torch.int32), torch.ones(16, 1))
    rules = [
        AcceptanceRule.TARGET_ONLY,
        AcceptanceRule.TARGET_ONLY,
        AcceptanceRule.REJECTION,
        AcceptanceRule.REJECTION,
    ]
    batch = Batch(one_hot, draft, offsets, sampling(4, vocab, rule=rules), q)
    assert agrees(batch) == [(3, 7), (0, 7), (3, 7), (0, 7)]
    coupled = replace(batch, sampling=sampling(4, vocab, rule=AcceptanceRule.COUPLED))
    assert agrees(coupled) == [(3, 7), (0, 7), (3, 7), (0, 7)]


def test_rounds_without_drafts_are_plain_sampling() -> None:
    torch.manual_seed(3)
    logits = torch.randn(4, 300)
    given = sampling(
        4,
        300,
        rule=[
            AcceptanceRule.TARGET_ONLY,
            AcceptanceRule.REJECTION,
            AcceptanceRule.COUPLED,
            AcceptanceRule.GREEDY,
        ],
        seed=[1, 2, 3, 4],
    )
    q = SparseDistributions(torch.zeros(4, 3, dtype=torch.int32), torch.zeros(4, 3))
    draft = torch.zeros(4, dtype=torch.long)
    assert [a for a, _ in agrees(Batch(logits, draft, torch.arange(5), given, q))] == [0] * 4


def test_a_rejected_token_is_never_sampled_again() -> None:
    vocab = 8
    logits = torch.zeros(40, vocab)
    draft = torch.full((40,), 5)
    given = sampling(20, vocab, rule=AcceptanceRule.TARGET_ONLY, seed=list(range(20)))
    made = agrees(Batch(logits, draft, torch.arange(21) * 2, given))
    rejected = [token for accepted, token in made if accepted == 0]
    assert len(rejected) > 10 and 5 not in rejected


@pytest.mark.parametrize("distribution", [{}, {"top_k": 50, "top_p": 0.9}])
def test_a_real_vocabulary_in_bfloat16(distribution: dict) -> None:
    torch.manual_seed(6)
    vocab = 151_936
    logits = (torch.randn(2, vocab) * 2).to(torch.bfloat16)
    logits[:, 140_000] = 12.0
    allowed = torch.arange(vocab) < 151_665
    logits[:, 151_700] = 20.0
    draft = torch.tensor([140_000, 0])
    given = sampling(1, vocab, rule=AcceptanceRule.TARGET_ONLY, **distribution)
    agrees(Batch(logits, draft, torch.tensor([0, 2]), given, None, None, allowed))


@pytest.mark.parametrize(
    "rule", [AcceptanceRule.GREEDY, AcceptanceRule.REJECTION, AcceptanceRule.COUPLED]
)
def test_a_real_vocabulary_under_every_other_rule(rule: AcceptanceRule) -> None:
    torch.manual_seed(7)
    logits = (torch.randn(2, 151_936) * 2).to(torch.bfloat16)
    draft = logits.argmax(1)
    given = sampling(1, 151_936, rule=rule, top_p=0.9 if rule is AcceptanceRule.REJECTION else 1.0)
    batch = Batch(logits, draft, torch.tensor([0, 2]), given, some_q(logits, draft))
    agrees(batch)


def test_spare_sessions_and_rows_of_a_graph_give_nothing() -> None:
    batch = mixed(
        50,
        torch.float32,
        [
            AcceptanceRule.TARGET_ONLY,
            AcceptanceRule.GREEDY,
            AcceptanceRule.COUPLED,
            AcceptanceRule.TARGET_ONLY,
            AcceptanceRule.GREEDY,
            AcceptanceRule.GREEDY,
        ],
    )
    batch = replace(batch, q=None)
    want = results_of(batch)
    rows = len(batch.logits)
    padded = replace(
        batch,
        logits=torch.cat([batch.logits, torch.zeros(3, 50)]),
        draft=torch.cat([batch.draft, torch.zeros(3, dtype=torch.long)]),
        offsets=torch.cat([batch.offsets, torch.tensor([rows, rows])]),
        sampling=SamplingBatch(*(torch.cat([v, v[:2]]) for v in vars(batch.sampling).values())),
    )
    assert results_of(padded) == [*want, (0, 0), (0, 0)]


def test_no_sessions_are_no_launch() -> None:
    nothing = Batch(
        torch.empty(0, 9), torch.empty(0, dtype=torch.long), torch.zeros(1).long(), sampling(0, 9)
    )
    assert results_of(nothing) == []


def test_a_sessions_decision_does_not_depend_on_its_neighbours() -> None:
    batch = mixed(
        4097,
        torch.bfloat16,
        [
            AcceptanceRule.TARGET_ONLY,
            AcceptanceRule.REJECTION,
            AcceptanceRule.COUPLED,
            AcceptanceRule.TARGET_ONLY,
            AcceptanceRule.REJECTION,
            AcceptanceRule.GREEDY,
        ],
        4,
    )
    together = results_of(batch)
    begin, end = int(batch.offsets[2]), int(batch.offsets[3])
    assert batch.q is not None
    alone = Batch(
        batch.logits[begin:end],
        batch.draft[begin:end],
        torch.tensor([0, end - begin]),
        SamplingBatch(*(v[2:3] for v in vars(batch.sampling).values())),
        SparseDistributions(batch.q.ids[begin:end], batch.q.probs[begin:end]),
        None,
        batch.allowed,
    )
    assert results_of(alone) == together[2:3]
