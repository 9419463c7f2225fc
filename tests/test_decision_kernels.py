"""The decision kernels, interpreted, decide what their plain-torch twin decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.decision_twin import Batch, sampling
from verifier.kernels import reference
from verifier.kernels.decide import Workspace, decide, decide_greedy
from verifier.kernels.decision import Adjustments, Decisions, Rule, SamplingBatch, SparseQ

CPU = torch.device("cpu")
LAWS = {  # of successive sessions
    "temperature": [1.0, 0.7, 1.5, 1.0, 1.0, 1.0],
    "top_p": [1.0, 1.0, 0.8, 0.9, 1.0, 1.0],
    "min_p": [0.0, 0.0, 0.0, 0.02, 0.1, 0.0],
}
TOP_K = [0, 5, 0, 40, 0, 0]  # 0: off


def offsets_of(drafts: list[int]) -> Tensor:
    return torch.tensor([0] + [k + 1 for k in drafts]).cumsum(0)


def likely_drafts(logits: Tensor, offsets: Tensor) -> Tensor:
    """The likeliest id, but for every third row: some drafts stand, some don't."""
    best = logits.argmax(1)
    return torch.where(torch.arange(len(best)) % 3 == 1, (best + 1) % 16, best)


def some_q(logits: Tensor, draft: Tensor, n: int = 6) -> SparseQ:
    """A law near p that could have proposed the draft; its last slot is unused."""
    ids = logits.float().topk(n).indices
    ids[:, 0] = torch.where((ids == draft[:, None]).any(1), ids[:, 0], draft)
    q = (logits.float().gather(1, ids) * 0.8)[:, : n - 1].softmax(1)
    missing = ~(ids[:, : n - 1] == draft[:, None]).any(1)
    ids[missing, 1] = draft[missing]
    return SparseQ(ids.to(torch.int32), torch.nn.functional.pad(q, (0, 1)))


def pairs_of(made: Decisions) -> list[tuple[int, int]]:
    return list(zip(made.accepted_lengths.tolist(), made.next_tokens.tolist(), strict=True))


def workspace(batch: Batch, spare: int = 0, greedy: bool = False) -> Workspace:
    rows, vocab = batch.logits.shape
    pairs = 0 if batch.adjustments is None else len(batch.adjustments.ids)
    sessions = len(batch.offsets) - 1
    work = Workspace.empty(
        rows, sessions + spare, vocab, batch.logits.dtype, CPU, batch.allowed, pairs, greedy
    )
    work.decisions.fill_(-99)  # every place must be written
    return work


def decided(batch: Batch, work: Workspace | None = None) -> list[tuple[int, int]]:
    """By the kernels; the inputs must come back as they were."""
    before = batch.logits.clone()
    made = decide(*vars(batch).values(), work=work or workspace(batch))
    assert torch.equal(batch.logits, before), "logits are as they were"
    return pairs_of(made)


def agrees(batch: Batch) -> list[tuple[int, int]]:
    """What kernels and twin decide."""
    got = decided(batch)
    assert got == pairs_of(reference.decide(*vars(batch).values()))
    return got


def mixed(vocab: int, dtype: torch.dtype, rules: list[int], seed: int = 0) -> Batch:
    torch.manual_seed(seed)
    drafts = [2, 0, 3, 1, 4, 2]
    offsets = offsets_of(drafts)
    logits = (torch.randn(int(offsets[-1]), vocab) * 2).to(dtype)
    logits[:, 3::7] += 3
    draft = likely_drafts(logits, offsets)
    given: dict[str, Any] = {**LAWS, "top_k": [k or vocab for k in TOP_K], "rule": rules}
    made = sampling(len(drafts), vocab, seed=[1, 2, -3, 1 << 40, 5, 6], **given)
    allowed = torch.ones(vocab, dtype=torch.bool)
    allowed[vocab - 1] = False
    return Batch(logits, draft, offsets, made, some_q(logits, draft), None, allowed)


@pytest.mark.parametrize(
    ("dtype", "vocab", "first"),
    [
        (torch.float32, 17, Rule.NO_Q),
        (torch.float16, 17, Rule.COUPLED),
        (torch.float32, 4097, Rule.COUPLED),
        (torch.bfloat16, 4097, Rule.NO_Q),
        (torch.bfloat16, 4097, Rule.REJECTION),
        (torch.float16, 4097, Rule.COUPLED),
    ],
)
def test_ragged_sessions_each_by_its_own_rule_and_law(
    dtype: torch.dtype, vocab: int, first: int
) -> None:
    order = [Rule.GREEDY, Rule.NO_Q, Rule.REJECTION, Rule.COUPLED]
    agrees(mixed(vocab, dtype, [order[(first + session) % 4] for session in range(6)], first))


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.COUPLED])
def test_a_session_of_64_drafts(rule: int) -> None:
    torch.manual_seed(rule)
    vocab, offsets = 100, offsets_of([64, 0])
    logits = torch.randn(66, vocab)
    best = logits.argmax(1)
    logits[torch.arange(66), best] += 12  # nearly certain, so that much stands
    given = sampling(2, vocab, rule=rule, seed=[4, 5])
    q = SparseQ(best[:, None].repeat(1, 2).to(torch.int32), torch.tensor([[1.0, 0.0]] * 66))
    assert agrees(Batch(logits, best, offsets, given, q))[0][0] > 10


def test_everything_stands_or_nothing_does() -> None:
    vocab = 50
    offsets = offsets_of([3, 3, 3, 3])
    certain = torch.full((16, vocab), -30.0)
    certain[:, 7] = 30.0
    draft = torch.full((16,), 7)
    draft[4:8] = 9
    draft[12:] = 9
    q = SparseQ(draft[:, None].to(torch.int32), torch.ones(16, 1))
    rules = [Rule.NO_Q, Rule.NO_Q, Rule.REJECTION, Rule.REJECTION]
    batch = Batch(certain, draft, offsets, sampling(4, vocab, rule=rules), q)
    assert agrees(batch) == [(3, 7), (0, 7), (3, 7), (0, 7)]
    coupled = replace(batch, sampling=sampling(4, vocab, rule=Rule.COUPLED))
    assert agrees(coupled) == [(3, 7), (0, 7), (3, 7), (0, 7)]


def test_rounds_without_drafts_are_plain_sampling() -> None:
    torch.manual_seed(3)
    logits = torch.randn(4, 300)
    given = sampling(
        4, 300, rule=[Rule.NO_Q, Rule.REJECTION, Rule.COUPLED, Rule.GREEDY], seed=[1, 2, 3, 4]
    )
    q = SparseQ(torch.zeros(4, 3, dtype=torch.int32), torch.zeros(4, 3))
    draft = torch.zeros(4, dtype=torch.long)
    assert [a for a, _ in agrees(Batch(logits, draft, torch.arange(5), given, q))] == [0] * 4


def test_a_rejected_token_is_never_drawn_again() -> None:
    vocab = 8
    logits = torch.zeros(40, vocab)
    draft = torch.full((40,), 5)
    given = sampling(20, vocab, rule=Rule.NO_Q, seed=list(range(20)))
    made = agrees(Batch(logits, draft, torch.arange(21) * 2, given))
    rejected = [token for accepted, token in made if accepted == 0]
    assert len(rejected) > 10 and 5 not in rejected


@pytest.mark.parametrize("law", [{"top_p": 0.9}, {"top_k": 1500, "top_p": 0.7}, {"min_p": 0.5}])
def test_flat_rows_with_more_candidates_than_places_are_searched_whole(law: dict) -> None:
    torch.manual_seed(5)
    vocab, offsets = 4097, offsets_of([1, 0])
    logits = (torch.randn(3, vocab) * 0.1).to(torch.bfloat16)
    draft = logits.argmax(1)
    q = some_q(logits, draft)
    given = sampling(2, vocab, rule=[Rule.NO_Q, Rule.REJECTION], **law)
    batch = Batch(logits, draft, offsets, given, q)
    work = workspace(batch)
    assert decided(batch, work) == agrees(batch)
    assert int(work.drawn[2]) == 3, "all rows were flat"


@pytest.mark.parametrize(("dtype", "spread"), [(torch.float32, 0.5), (torch.bfloat16, 40.0)])
def test_flat_rows_of_several_parts_with_pairs_and_a_cut_far_from_the_top(
    dtype: torch.dtype, spread: float
) -> None:
    torch.manual_seed(6)
    vocab = 10_000
    logits = (torch.rand(2, vocab) * spread).to(dtype)
    given = sampling(2, vocab, rule=Rule.NO_Q, top_p=0.9, temperature=spread * 2, seed=[1, 2])
    pairs = Adjustments(
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
    assert decided(batch, work) == agrees(batch)
    assert int(work.drawn[2]) == 2, "both rows were flat"


@pytest.mark.parametrize("law", [{}, {"top_k": 50, "top_p": 0.9}])
def test_a_real_vocabulary_in_bfloat16(law: dict) -> None:
    torch.manual_seed(6)
    vocab = 151_936
    logits = (torch.randn(2, vocab) * 2).to(torch.bfloat16)
    logits[:, 140_000] = 12.0
    allowed = torch.arange(vocab) < 151_665
    logits[:, 151_700] = 20.0
    draft = torch.tensor([140_000, 0])
    given = sampling(1, vocab, rule=Rule.NO_Q, **law)
    agrees(Batch(logits, draft, torch.tensor([0, 2]), given, None, None, allowed))


def adjusted_batch(dtype: torch.dtype) -> Batch:
    batch = mixed(
        400,
        dtype,
        [Rule.NO_Q, Rule.REJECTION, Rule.COUPLED, Rule.GREEDY, Rule.NO_Q, Rule.GREEDY],
        9,
    )
    rows = len(batch.logits)
    sizes = torch.tensor([row % 5 * 20 for row in range(rows)])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    ids = [batch.logits[row].topk(int(n)).indices for row, n in enumerate(sizes)]
    n = int(offsets[-1])
    pairs = Adjustments(
        offsets,
        torch.cat(ids).to(torch.int32),
        torch.randn(n) * (torch.arange(n) % 3 == 0),
        torch.arange(n) % 2 == 0,
        (torch.arange(n) % 4).to(torch.int32),
        torch.arange(n) % 11 == 0,
        torch.linspace(0.8, 1.6, 6),
        torch.linspace(0, 1, 6),
        torch.linspace(0.5, 0, 6),
    )
    return replace(batch, adjustments=pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias_penalties_and_banned_ids_change_the_law_and_not_the_logits(
    dtype: torch.dtype,
) -> None:
    agrees(adjusted_batch(dtype))


def test_an_adjusted_id_can_win_over_all_others_and_a_banned_one_never_does() -> None:
    logits = torch.zeros(2, 70)
    logits[:, 3] = 5.0
    pairs = Adjustments(
        torch.tensor([0, 2, 3]),
        torch.tensor([60, 3, 3], dtype=torch.int32),
        torch.tensor([4.0, 0.0, 0.0]),
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(3, dtype=torch.int32),
        torch.tensor([False, True, True]),
        *(torch.ones(2), torch.zeros(2), torch.zeros(2)),
    )
    batch = Batch(
        logits,
        torch.zeros(2).long(),
        torch.arange(3),
        sampling(2, 70, rule=Rule.GREEDY),
        None,
        pairs,
    )
    assert agrees(batch) == [(0, 60), (0, 0)]


def test_spare_sessions_and_rows_of_a_graph_decide_nothing() -> None:
    batch = mixed(
        50,
        torch.float32,
        [Rule.NO_Q, Rule.GREEDY, Rule.COUPLED, Rule.NO_Q, Rule.GREEDY, Rule.GREEDY],
    )
    batch = replace(batch, q=None)
    want = decided(batch)
    rows = len(batch.logits)
    padded = replace(
        batch,
        logits=torch.cat([batch.logits, torch.zeros(3, 50)]),
        draft=torch.cat([batch.draft, torch.zeros(3, dtype=torch.long)]),
        offsets=torch.cat([batch.offsets, torch.tensor([rows, rows])]),
        sampling=SamplingBatch(*(torch.cat([v, v[:2]]) for v in vars(batch.sampling).values())),
    )
    assert decided(padded) == [*want, (0, 0), (0, 0)]


def test_no_sessions_are_no_launch() -> None:
    nothing = Batch(
        torch.empty(0, 9), torch.empty(0, dtype=torch.long), torch.zeros(1).long(), sampling(0, 9)
    )
    assert decided(nothing) == []


def test_a_sessions_decision_does_not_depend_on_its_neighbours() -> None:
    batch = mixed(
        4097,
        torch.bfloat16,
        [Rule.NO_Q, Rule.REJECTION, Rule.COUPLED, Rule.NO_Q, Rule.REJECTION, Rule.GREEDY],
        4,
    )
    together = decided(batch)
    begin, end = int(batch.offsets[2]), int(batch.offsets[3])
    assert batch.q is not None
    alone = Batch(
        batch.logits[begin:end],
        batch.draft[begin:end],
        torch.tensor([0, end - begin]),
        SamplingBatch(*(v[2:3] for v in vars(batch.sampling).values())),
        SparseQ(batch.q.ids[begin:end], batch.q.probs[begin:end]),
        None,
        batch.allowed,
    )
    assert decided(alone) == together[2:3]


@pytest.mark.parametrize(
    ("dtype", "vocab"),
    [(torch.float32, 17), (torch.bfloat16, 4097), (torch.float16, 20_000), (torch.float32, 20_000)],
)
def test_greedy_batches_decide_as_plain_torch_does(dtype: torch.dtype, vocab: int) -> None:
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
        made = decide_greedy(logits, draft, offsets, some, work=work)
        assert pairs_of(made) == pairs_of(reference.decide_greedy(logits, draft, offsets, some))


def test_greedy_rows_beside_sampled_ones_decide_the_same() -> None:
    batch = mixed(4097, torch.bfloat16, [Rule.GREEDY] * 6)
    assert decided(batch) == decided(batch, workspace(batch, greedy=True))


def test_a_workspace_with_room_for_pairs_serves_batches_without_any() -> None:
    batch = mixed(300, torch.bfloat16, [Rule.NO_Q, Rule.REJECTION, Rule.COUPLED] * 2)
    room = Workspace.empty(len(batch.logits), 6, 300, torch.bfloat16, CPU, batch.allowed, pairs=40)
    assert decided(batch, room) == decided(batch)
    assert pairs_of(
        decide_greedy(batch.logits, batch.draft, batch.offsets, batch.allowed, work=room)
    ) == pairs_of(reference.decide_greedy(batch.logits, batch.draft, batch.offsets, batch.allowed))
