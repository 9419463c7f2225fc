"""Every rule's output follows p exactly, whatever is drafted; biased rules don't.

200,000 sessions per case (2,000 where nothing is sampled), their first tokens tested jointly:
chi-square against the exact distribution at a family-wise error of 1e-4 (Bonferroni over all cases
of this file). Seeds are fixed, so a result is no matter of luck.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from tests.statistics.joint_distributions import Script, run, tail_probability
from verifier.acceptance.batch import AcceptanceOutput, SamplingBatch
from verifier.acceptance.rules import accept

pytestmark = pytest.mark.long

SESSIONS = 200_000
RANDOM = (AcceptanceRule.TARGET_ONLY, AcceptanceRule.REJECTION, AcceptanceRule.COUPLED)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are many and small: threads that wait for each other take longer than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def chain(seed: int, vocab: int, sharpness: float = 1.0) -> Tensor:
    """float64 [vocab + 1, vocab]: a random Markov chain."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(vocab + 1, vocab, generator=generator, dtype=torch.float64)
    return (noise * sharpness).softmax(dim=-1)


def only(distribution: Tensor, ids: range) -> Tensor:
    """The same chain without all other ids."""
    kept = torch.zeros_like(distribution)
    kept[:, ids.start : ids.stop] = distribution[:, ids.start : ids.stop]
    return kept / kept.sum(dim=-1, keepdim=True)


def every(row: list[float]) -> Tensor:
    """A chain of independent tokens."""
    return torch.tensor(row, dtype=torch.float64).repeat(len(row) + 1, 1)


def one_hot(vocab: int) -> Tensor:
    """A chain that is certain: 0, 1, 2, ..., from the start."""
    following = (torch.arange(vocab + 1) + 1) % (vocab + 1) % vocab
    return torch.nn.functional.one_hot(following, vocab).double()


VECTOR_P = [0.5, 0.3, 0.15, 0.05]
VECTOR_Q = [0.1, 0.6, 0.2, 0.1]
VECTOR = Script(every(VECTOR_P), only(every(VECTOR_Q), range(2)), 1)  # ids 0 and 1 are shared

SCRIPTS = {
    "chain": Script(chain(1, 4), chain(2, 4), 5, foreign=False),
    "the design's vector": VECTOR,
    "shared set smaller than either": Script(
        only(chain(3, 8), range(2, 8)), only(chain(4, 8), range(5)), 3
    ),
    "q cut to three ids": Script(chain(5, 8), chain(6, 8), 3, slots=3, foreign=False),
    "drafts never in p's support": Script(
        only(chain(7, 8), range(4)), only(chain(8, 8), range(4, 8)), 3
    ),
    "one-hot p": Script(one_hot(5), chain(9, 5), 5),
    "uniform p": Script(torch.full((17, 16), 1 / 16).double(), chain(10, 16, 2.0), 2),
    "q is p": Script(chain(11, 6), chain(11, 6), 4),
    "top-p above an edge": Script(every([0.5, 0.25, 0.15, 0.1]), chain(12, 4), 4, top_p=0.501),
    "top-p below an edge": Script(every([0.5, 0.25, 0.15, 0.1]), chain(12, 4), 4, top_p=0.499),
    "top-p among ties": Script(every([0.4, 0.2, 0.2, 0.2]), chain(13, 4), 4, top_p=0.5),
    "top-p of 0": Script(chain(14, 4), chain(15, 4), 4, top_p=0.0),
    "64 ids, all filters": Script(
        chain(16, 64), chain(17, 64), 2, temperature=1.5, top_k=20, top_p=0.9, min_p=0.02
    ),
}
CASES = [
    *(("chain", AcceptanceRule.GREEDY, k) for k in (1, 2, 3, 4)),
    *((name, rule, k) for name in SCRIPTS for rule in RANDOM for k in (1, 2, 3, 4)),
]
BIASED = ("argmax match", "masked target", "unnormalised q")
ERROR = 1e-4 / (
    len(CASES) + 2 * len(BIASED)
)  # each biased rule is tested against two distributions at most


@pytest.mark.parametrize(("name", "rule", "k"), CASES)
def test_the_output_follows_the_targets_distribution(
    name: str, rule: AcceptanceRule, k: int
) -> None:
    script = SCRIPTS[name]
    sessions = (
        2_000 if rule == AcceptanceRule.GREEDY else SESSIONS
    )  # greedy outputs are all the same
    outputs = run(script, rule, k, sessions, first_seed=CASES.index((name, rule, k)) * SESSIONS)
    assert tail_probability(outputs, script.exact(rule)) > ERROR


# --- rules that public systems have, which the same test must refuse ---------------------------


def argmax_match(
    logits: Tensor,
    draft: Tensor,
    offsets: Tensor,
    sampling: SamplingBatch,
    q: SparseDistributions | None,
) -> AcceptanceOutput:
    """Accept while the draft token is the likeliest, sample p where it isn't."""
    one_hot = logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True), float("-inf"))
    greedy = SamplingBatch(
        **{**vars(sampling), "rule": torch.full_like(sampling.rule, AcceptanceRule.GREEDY)}
    )
    accepted = accept(one_hot, draft, offsets, greedy).accepted_lengths
    rows = offsets[:-1] + accepted  # each gives the next token, as a row without a draft does
    last = torch.arange(len(rows) + 1)
    return AcceptanceOutput(
        accepted, accept(logits[rows], draft[rows], last, sampling, None).next_tokens
    )


def masked_target(
    logits: Tensor,
    draft: Tensor,
    offsets: Tensor,
    sampling: SamplingBatch,
    q: SparseDistributions | None,
) -> AcceptanceOutput:
    """The target's logits without an id that the draft lacks."""
    lacking = torch.tensor([False, False, False, True])
    return accept(logits.masked_fill(lacking, float("-inf")), draft, offsets, sampling, q)


def unnormalised_q(
    logits: Tensor,
    draft: Tensor,
    offsets: Tensor,
    sampling: SamplingBatch,
    q: SparseDistributions | None,
) -> AcceptanceOutput:
    """The draft's own probabilities, though its tokens were sampled from the shared ids only."""
    assert q is not None
    full = torch.tensor(VECTOR_Q)[q.ids.long()] * (q.probs > 0)
    return accept(logits, draft, offsets, sampling, SparseDistributions(q.ids, full))


@pytest.mark.parametrize(
    ("biased", "gives"),
    [
        (unnormalised_q, [3 / 7, 3 / 7, 0.75 / 7, 0.25 / 7]),  # .429, .429, .107, .036
        (masked_target, [10 / 19, 6 / 19, 3 / 19, 0.0]),  # .526, .316, .158, 0
        (argmax_match, None),
    ],
)
def test_biased_rules_fail_the_same_test(biased, gives: list[float] | None) -> None:
    outputs = run(VECTOR, AcceptanceRule.REJECTION, 1, SESSIONS, accept=biased)
    assert tail_probability(outputs, VECTOR.exact(AcceptanceRule.REJECTION)) < ERROR
    if gives is not None:  # they are wrong in just the way that the design says
        assert tail_probability(outputs, torch.tensor(gives, dtype=torch.float64)) > ERROR


def test_acceptance_is_the_optimum() -> None:
    """Rejection accepts the first draft token with probability sum min(p, q), which no rule
    beats, and sum p q without q."""
    script = SCRIPTS["chain"]
    p, q = script.p[-1], script.q[-1]
    rates = {}
    for rule in RANDOM:
        counted: list[Tensor] = []

        def counting(*args, counted: list[Tensor] = counted) -> AcceptanceOutput:
            made = accept(*args)
            counted.append(made.accepted_lengths)
            return made

        run(Script(script.p, script.q, 1), rule, 1, SESSIONS, accept=counting)
        rates[rule] = float(counted[0].double().mean())
    five_sigma = 5 * (0.25 / SESSIONS) ** 0.5
    optimum = float(torch.minimum(p, q).sum())
    assert abs(rates[AcceptanceRule.REJECTION] - optimum) < five_sigma
    assert abs(rates[AcceptanceRule.TARGET_ONLY] - float((p * q).sum())) < five_sigma
    assert float((p * q).sum()) < rates[AcceptanceRule.COUPLED] < optimum + five_sigma
