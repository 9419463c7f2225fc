"""Batches for acceptance kernels, and what kernels and their reference give for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.device.parts.acceptance_oracle import Batch, sampling
from common.sampling.distribution import SparseDistributions
from verifier.acceptance import rules as reference
from verifier.acceptance.batch import AcceptanceOutput
from verifier.kernels.accept import Workspace, accept

CPU = torch.device("cpu")
DISTRIBUTIONS = {  # of successive sessions
    "temperature": [1.0, 0.7, 1.5, 1.0, 1.0, 1.0],
    "top_p": [1.0, 1.0, 0.8, 0.9, 1.0, 1.0],
    "min_p": [0.0, 0.0, 0.0, 0.02, 0.1, 0.0],
}
TOP_K = [0, 5, 0, 40, 0, 0]  # 0: off


def offsets_of(drafts: list[int]) -> Tensor:
    return torch.tensor([0] + [k + 1 for k in drafts]).cumsum(0)


def likely_drafts(logits: Tensor, offsets: Tensor) -> Tensor:
    """The likeliest id, but for every third row: some drafts are accepted, some aren't."""
    best = logits.argmax(1)
    return torch.where(torch.arange(len(best)) % 3 == 1, (best + 1) % 16, best)


def some_q(logits: Tensor, draft: Tensor, n: int = 6) -> SparseDistributions:
    """A distribution near p that could have proposed the draft; its last slot is unused."""
    ids = logits.float().topk(n).indices
    ids[:, 0] = torch.where((ids == draft[:, None]).any(1), ids[:, 0], draft)
    q = (logits.float().gather(1, ids) * 0.8)[:, : n - 1].softmax(1)
    missing = ~(ids[:, : n - 1] == draft[:, None]).any(1)
    ids[missing, 1] = draft[missing]
    return SparseDistributions(ids.to(torch.int32), torch.nn.functional.pad(q, (0, 1)))


def pairs_of(made: AcceptanceOutput) -> list[tuple[int, int]]:
    return list(zip(made.accepted_lengths.tolist(), made.next_tokens.tolist(), strict=True))


def workspace(batch: Batch, spare: int = 0, greedy: bool = False) -> Workspace:
    rows, vocab = batch.logits.shape
    pairs = 0 if batch.processors is None else len(batch.processors.ids)
    sessions = len(batch.offsets) - 1
    work = Workspace.empty(
        rows, sessions + spare, vocab, batch.logits.dtype, CPU, batch.allowed, pairs, greedy
    )
    work.acceptance.fill_(-99)  # every place must be written
    return work


def results_of(batch: Batch, work: Workspace | None = None) -> list[tuple[int, int]]:
    """By the kernels; the inputs must come back as they were."""
    before = batch.logits.clone()
    made = accept(*vars(batch).values(), work=work or workspace(batch))
    assert torch.equal(batch.logits, before), "logits are as they were"
    return pairs_of(made)


def agrees(batch: Batch) -> list[tuple[int, int]]:
    """What kernels and reference give."""
    got = results_of(batch)
    assert got == pairs_of(reference.accept(*vars(batch).values()))
    return got


def mixed(vocab: int, dtype: torch.dtype, rules: list[int], seed: int = 0) -> Batch:
    torch.manual_seed(seed)
    drafts = [2, 0, 3, 1, 4, 2]
    offsets = offsets_of(drafts)
    logits = (torch.randn(int(offsets[-1]), vocab) * 2).to(dtype)
    logits[:, 3::7] += 3
    draft = likely_drafts(logits, offsets)
    given: dict[str, Any] = {**DISTRIBUTIONS, "top_k": [k or vocab for k in TOP_K], "rule": rules}
    made = sampling(len(drafts), vocab, seed=[1, 2, -3, 1 << 40, 5, 6], **given)
    allowed = torch.ones(vocab, dtype=torch.bool)
    allowed[vocab - 1] = False
    return Batch(logits, draft, offsets, made, some_q(logits, draft), None, allowed)
