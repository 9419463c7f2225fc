"""Draft tokens by kernels, interpreted, against plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from common.kernels.logits_scan import ARGMAX, FILTERED
from common.sampling.distribution import SparseDistributions
from common.sampling.rng import Purpose
from drafter.engine.distribution import draft_distribution, propose
from drafter.kernels.draft_rows import SharedIds, Steps, Workspace
from drafter.kernels.propose import propose_rows

pytestmark = pytest.mark.kernels

CPU = torch.device("cpu")
DISTRIBUTIONS = [  # temperature, top_k (0: off), top_p, min_p
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.5, 0, 0.8, 0.0),
    (1.0, 100, 0.9, 0.02),
]


def steps(vocab: int, kind: int = FILTERED, coupled: bool = False) -> Steps:
    rows = len(DISTRIBUTIONS)
    return Steps(
        torch.full((rows,), kind, dtype=torch.int32),
        torch.tensor([1.4426950408889634 / distribution[0] for distribution in DISTRIBUTIONS]),
        torch.tensor(
            [distribution[1] or vocab for distribution in DISTRIBUTIONS], dtype=torch.int32
        ),
        torch.tensor([distribution[2] for distribution in DISTRIBUTIONS]),
        torch.tensor([distribution[3] for distribution in DISTRIBUTIONS]),
        torch.tensor([3, -5, 1 << 40, 7]),
        torch.tensor([0, 9, 100, 31_000]),
        torch.full((rows,), coupled),
    )


def pair(vocab: int) -> tuple[Tensor, Tensor]:
    """A map that keeps no order, and which of it is shared."""
    targets = (torch.arange(vocab) * 7919 + 13) % 150_000
    shared = torch.arange(vocab) % 5 != 2
    return targets, shared


def distribution_of(
    logits: Tensor, shared: Tensor | None, given: Steps, slots: int = 16
) -> SparseDistributions:
    temperature = 1.4426950408889634 / given.scales
    return draft_distribution(
        logits, shared, temperature, given.top_k, given.top_p, given.min_p, slots=slots
    )


def sampled_from(
    distribution: SparseDistributions, targets: Tensor, given: Steps, coupled: bool
) -> list[list[int]]:
    """[rows] of (draft id, target id): noise by target ids is the verifier's, by draft ids ours."""
    noise_ids = targets if coupled else torch.arange(len(targets))
    purpose = Purpose.COUPLED if coupled else Purpose.PROPOSE
    tokens = propose(distribution, noise_ids, given.seeds, given.positions, purpose)
    return torch.stack([tokens, targets[tokens]], dim=1).tolist()


def added_up(ids: Tensor, probs: Tensor) -> dict[int, float]:
    """A row of q, as it is sent."""
    found: dict[int, float] = {}
    for id_, p in zip(ids.tolist(), probs.tolist(), strict=True):
        if p > 0:
            found[id_] = found.get(id_, 0.0) + p
    return found


@pytest.mark.parametrize(
    ("dtype", "vocab", "coupled"),
    [
        (torch.float32, 17, True),
        (torch.float32, 4097, False),
        (torch.bfloat16, 4097, True),
        (torch.float16, 4097, False),
        (torch.bfloat16, 151_936, True),
    ],
)
def test_q_is_the_masked_filtered_distribution_and_the_token_is_its_sample(
    dtype: torch.dtype, vocab: int, coupled: bool
) -> None:
    torch.manual_seed(vocab)
    logits = (torch.randn(len(DISTRIBUTIONS), vocab) * 3).to(dtype)
    before = logits.clone()
    targets, shared = pair(vocab)
    work = Workspace.empty(len(DISTRIBUTIONS), vocab, CPU, q_width=16)
    given = steps(vocab, coupled=coupled)
    tokens, ids, probs = propose_rows(logits, SharedIds.of(targets, shared, vocab), given, work)
    distribution = distribution_of(logits, shared, given)
    for row in range(len(DISTRIBUTIONS)):
        expected = added_up(targets[distribution.ids[row]], distribution.probs[row])
        assert added_up(ids[row], probs[row]) == pytest.approx(expected, rel=1e-5)
    assert tokens.tolist() == sampled_from(distribution, targets, given, coupled)
    assert torch.equal(logits, before), "a kernel never writes its inputs"


@pytest.mark.parametrize("coupled", [False, True])
def test_draft_ids_that_share_a_target_id_race_apart_and_add_up(coupled: bool) -> None:
    """With one number for both, the likelier of them alone would count."""
    vocab, rows = 40, 24
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(3)).expand(rows, -1)
    targets = torch.arange(vocab) // 2
    given = Steps(*(value[:1].expand(rows).contiguous() for value in vars(steps(vocab)).values()))
    given = replace(given, seeds=torch.arange(rows), coupled=torch.full((rows,), coupled))
    work = Workspace.empty(rows, vocab, CPU, q_width=16)
    made = SharedIds.of(targets, torch.ones(vocab, dtype=torch.bool), vocab)
    tokens, ids, probs = propose_rows(logits, made, given, work)
    distribution = distribution_of(logits, None, given)
    assert tokens.tolist() == sampled_from(distribution, targets, given, coupled)
    reported = added_up(ids[0], probs[0])
    assert reported == pytest.approx(
        added_up(targets[distribution.ids[0]], distribution.probs[0]), rel=1e-5
    )
    assert len(reported) < 16


def test_the_likeliest_shared_id_is_proposed_and_mapped() -> None:
    torch.manual_seed(1)
    vocab = 9000
    logits = torch.randn(len(DISTRIBUTIONS), vocab).to(torch.bfloat16)
    targets, shared = pair(vocab)
    logits[:, 2] = 50.0  # the likeliest of all has no target id
    logits[1, [8001, 8006]] = 40.0  # of equals the lowest
    work = Workspace.empty(len(DISTRIBUTIONS), vocab, CPU)
    made = SharedIds.of(targets, shared, vocab)
    tokens, ids, probs = propose_rows(logits, made, steps(vocab, ARGMAX), work)
    best = logits.masked_fill(~shared, float("-inf")).argmax(1)
    assert tokens[:, 0].tolist() == best.tolist()
    assert tokens[1, 0] == 8001
    assert tokens[:, 1].tolist() == targets[best].tolist()
    assert ids[:, 0].tolist() == targets[best].tolist()
    assert probs[:, 0].eq(1).all() and probs[:, 1:].eq(0).all()


def test_one_vocabulary_needs_no_map_and_no_mask() -> None:
    torch.manual_seed(2)
    vocab = 4097
    logits = torch.randn(len(DISTRIBUTIONS), vocab)
    work = Workspace.empty(len(DISTRIBUTIONS), vocab, CPU, q_width=16)
    given = steps(vocab)
    tokens, _, _ = propose_rows(logits, SharedIds.of(None, None, vocab), given, work)
    distribution = distribution_of(logits, None, given)
    assert tokens.tolist() == sampled_from(distribution, torch.arange(vocab), given, False)


def test_of_equal_logits_the_lowest_ids_make_q() -> None:
    """At the cut and under every filter, as in plain torch."""
    vocab = 300
    flat = torch.zeros(len(DISTRIBUTIONS), vocab)
    stairs = (
        torch.randn(len(DISTRIBUTIONS), vocab, generator=torch.Generator().manual_seed(8))
    ).round()
    for logits in (flat, stairs):
        work, given = Workspace.empty(len(DISTRIBUTIONS), vocab, CPU, q_width=16), steps(vocab)
        tokens, ids, probs = propose_rows(logits, SharedIds.of(None, None, vocab), given, work)
        distribution = distribution_of(logits, None, given)
        for row in range(len(DISTRIBUTIONS)):
            expected = added_up(distribution.ids[row], distribution.probs[row])
            assert added_up(ids[row], probs[row]) == pytest.approx(expected, rel=1e-5)
        assert tokens.tolist() == sampled_from(distribution, torch.arange(vocab), given, False)
        if logits is flat:
            assert ids[0].tolist() == list(range(16))
            assert torch.equal(probs[0], torch.full((16,), 1 / 16))


def test_more_equal_logits_than_candidates_propose_the_argmax_and_say_so() -> None:
    vocab = 40_000
    work = Workspace.empty(1, vocab, CPU)
    one = Steps(*(value[:1] for value in vars(steps(vocab)).values()))
    tokens, ids, probs = propose_rows(
        torch.zeros(1, vocab), SharedIds.of(None, None, vocab), one, work
    )
    assert tokens.tolist() == [[0, 0]]
    assert ids[0, 0] == 0 and probs[0, 0] == 1 and probs[0, 1:].sum() == 0


def test_no_rows_are_no_launch() -> None:
    tokens, _, _ = propose_rows(
        torch.empty(0, 100),
        SharedIds.of(None, None, 100),
        Steps(*(value[:0] for value in vars(steps(100)).values())),
        Workspace.empty(0, 100, CPU),
    )
    assert tokens.shape == (0, 2)
