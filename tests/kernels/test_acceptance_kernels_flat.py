"""Rows with more candidates than one program lists, and batches of greedy sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.device.parts.acceptance_oracle import Batch, sampling
from common.kernels.row_top import NO_TOKEN
from common.sampling.acceptance_rule import AcceptanceRule
from tests.kernels.kernel_results import (
    CPU,
    agrees,
    mixed,
    offsets_of,
    pairs_of,
    results_of,
    some_q,
    workspace,
)
from verifier.acceptance import rules as reference
from verifier.acceptance.batch import LogitsProcessors
from verifier.kernels.accept import Workspace, accept, accept_greedy

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    "distribution", [{"top_p": 0.9}, {"top_k": 1500, "top_p": 0.7}, {"min_p": 0.5}]
)
def test_flat_rows_with_more_candidates_than_places_are_searched_whole(distribution: dict) -> None:
    torch.manual_seed(5)
    vocab, offsets = 4097, offsets_of([1, 0])
    logits = (torch.randn(3, vocab) * 0.1).to(torch.bfloat16)
    draft = logits.argmax(1)
    q = some_q(logits, draft)
    given = sampling(
        2, vocab, rule=[AcceptanceRule.TARGET_ONLY, AcceptanceRule.REJECTION], **distribution
    )
    batch = Batch(logits, draft, offsets, given, q)
    work = workspace(batch)
    assert results_of(batch, work) == agrees(batch)
    assert int(work.sampled[2]) == 3, "all rows were flat"


def test_a_flat_row_with_invalid_logits_gives_nothing_and_the_others_as_before() -> None:
    torch.manual_seed(5)
    vocab = 4097
    logits = (torch.randn(3, vocab) * 0.1).to(torch.bfloat16)
    given = sampling(3, vocab, rule=AcceptanceRule.TARGET_ONLY, top_p=0.9, seed=[1, 2, 3])
    batch = Batch(logits, torch.zeros(3).long(), torch.arange(4), given)
    expected = agrees(batch)
    for value in (float("nan"), float("inf")):
        broken = logits.clone()
        broken[1, 4000] = value
        work = workspace(replace(batch, logits=broken))
        made = accept(broken, *list(vars(batch).values())[1:], work=work)
        assert pairs_of(made) == [expected[0], (0, NO_TOKEN), expected[2]]


@pytest.mark.parametrize(
    ("dtype", "expand_sessions"), [(torch.float32, 0.5), (torch.bfloat16, 40.0)]
)
def test_flat_rows_of_several_parts_with_pairs_and_a_cut_far_from_the_top(
    dtype: torch.dtype, expand_sessions: float
) -> None:
    torch.manual_seed(6)
    vocab = 10_000
    logits = (torch.rand(2, vocab) * expand_sessions).to(dtype)
    given = sampling(
        2,
        vocab,
        rule=AcceptanceRule.TARGET_ONLY,
        top_p=0.9,
        temperature=expand_sessions * 2,
        seed=[1, 2],
    )
    pairs = LogitsProcessors(
        torch.tensor([0, 2, 2]),
        torch.tensor([60, 9000], dtype=torch.int32),
        torch.tensor([4.0, -2.0]),
        torch.zeros(2, dtype=torch.bool),
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(2, dtype=torch.bool),
        *(torch.ones(2), torch.zeros(2), torch.zeros(2)),
    )
    batch = Batch(logits, torch.zeros(2).long(), torch.arange(3), given, None, pairs)
    work = workspace(batch)
    assert results_of(batch, work) == agrees(batch)
    assert int(work.sampled[2]) == 2, "both rows were flat"


@pytest.mark.parametrize(
    ("dtype", "vocab"),
    [(torch.float32, 17), (torch.bfloat16, 4097), (torch.float16, 20_000), (torch.float32, 20_000)],
)
def test_greedy_batches_give_what_plain_torch_gives(dtype: torch.dtype, vocab: int) -> None:
    torch.manual_seed(vocab)
    offsets = offsets_of([0, 3, 20, 1])
    rows = int(offsets[-1])
    logits = torch.randint(-9, 9, (rows, vocab)).to(dtype)  # ties everywhere
    logits[:, 1] = 20.0  # padded
    allowed = torch.arange(vocab) != 1
    allowed[vocab - 4 :] = False
    draft = logits.masked_fill(~allowed, float("-inf")).argmax(1)
    draft[3] += 1
    for some in (None, allowed):
        work = Workspace.empty(rows, 4, vocab, dtype, CPU, some, greedy=True)
        made = accept_greedy(logits, draft, offsets, some, work=work)
        assert pairs_of(made) == pairs_of(reference.accept_greedy(logits, draft, offsets, some))


def test_greedy_rows_beside_sampled_ones_give_the_same() -> None:
    batch = mixed(4097, torch.bfloat16, [AcceptanceRule.GREEDY] * 6)
    assert results_of(batch) == results_of(batch, workspace(batch, greedy=True))


def test_a_workspace_with_space_for_pairs_serves_batches_without_any() -> None:
    batch = mixed(
        300,
        torch.bfloat16,
        [AcceptanceRule.TARGET_ONLY, AcceptanceRule.REJECTION, AcceptanceRule.COUPLED] * 2,
    )
    stage = Workspace.empty(len(batch.logits), 6, 300, torch.bfloat16, CPU, batch.allowed, pairs=40)
    assert results_of(batch, stage) == results_of(batch)
    assert pairs_of(
        accept_greedy(batch.logits, batch.draft, batch.offsets, batch.allowed, work=stage)
    ) == pairs_of(reference.accept_greedy(batch.logits, batch.draft, batch.offsets, batch.allowed))
