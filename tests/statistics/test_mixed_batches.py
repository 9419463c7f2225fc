"""Sessions verified in mixed batches follow p: their own q, positions and counts reach the kernels.

The rules themselves are tested by the hundred thousand in test_exact_distributions.py; here the
distribution goes through proposals, sessions and batches, with a penalty that separates the second
token from the first.
"""

from __future__ import annotations

import random

import pytest
import torch

from common.kv.pages import PagePool
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import OpenSession, SparseDistribution, Verdict
from tests.statistics.joint_distributions import tail_probability
from tests.statistics.sampled_sessions import COUPLED, REJECTION, TARGET_ONLY
from verifier.acceptance.sampler import accept_batch
from verifier.batcher import Batch
from verifier.session import Session

pytestmark = pytest.mark.long

VOCAB, K, SESSIONS = 5, 2, 6000
LOGITS = torch.tensor([1.0, 0.5, 0.0, -0.5, -2.0])
PRESENCE = 1.5
POOL = PagePool(1, 4)


class Silent:
    def post(self, verdict: Verdict) -> None:
        pass


def distribution_after(output: list[int]) -> torch.Tensor:
    """float64 [vocab]: p, from the definition of the presence penalty."""
    logits = LOGITS.double().clone()
    for token in set(output):
        logits[token] -= PRESENCE
    return logits.softmax(dim=-1)


def joint_distribution() -> torch.Tensor:
    """float64 [vocab ** 2], of the first two tokens."""
    first = distribution_after([])
    return torch.cat([first[token] * distribution_after([token]) for token in range(VOCAB)])


def asking(rule: AcceptanceRule, rng: random.Random) -> Session:
    """A session in its first round, with drafts from distributions that all differ."""
    rows, draft = [], []
    for _ in range(K):
        ids = rng.sample(range(VOCAB), rng.randrange(1, VOCAB))
        weights = [rng.random() for _ in ids]
        rows.append(SparseDistribution(tuple(ids), tuple(w / sum(weights) for w in weights)))
        draft.append(rng.choices(ids, weights)[0])
    params = SamplingParams(temperature=1.0, presence_penalty=PRESENCE, seed=rng.getrandbits(64))
    spec = OpenSession((1,), K + 1, "", rule=rule, sampling=params)
    session = Session(spec, POOL, frozenset(), 99, Silent())  # type: ignore[arg-type]
    session.ask(draft, 0.0, rows if rule is REJECTION else ())
    return session


def round_of(sessions: list[Session]) -> None:
    logits = LOGITS.expand(sum(session.sequence.wanted for session in sessions), VOCAB)
    for session, made in zip(
        sessions, accept_batch(Batch([], [], sessions), logits, None), strict=True
    ):
        assert made is not None
        session.ran(0.0, 0.0)
        session.commit(made.accepted_length, made.next_token, 0.0, (1, 1))


@pytest.fixture(scope="module")
def outputs() -> dict[AcceptanceRule, torch.Tensor]:
    """int64 [sessions] by rule: first token times vocab plus second; all rules in one batch."""
    rng, rules = random.Random(0), (TARGET_ONLY, REJECTION, COUPLED)
    sessions = [asking(rules[i % 3], rng) for i in range(SESSIONS)]
    round_of(sessions)
    while left := [session for session in sessions if session.finish_reason is None]:
        for session in left:
            session.ask((), 0.0)
        round_of(left)
    made: dict[AcceptanceRule, list[int]] = {rule: [] for rule in rules}
    for session in sessions:
        _, first, second, *_ = session.sequence.tokens
        made[session.spec.rule].append(first * VOCAB + second)
    return {rule: torch.tensor(values) for rule, values in made.items()}


@pytest.mark.parametrize("rule", [TARGET_ONLY, REJECTION, COUPLED])
def test_two_tokens_follow_the_distribution_whatever_was_drafted(rule, outputs) -> None:
    assert tail_probability(outputs[rule], joint_distribution()) > 1e-3


def test_the_same_outputs_refuse_a_distribution_without_the_penalty(outputs) -> None:
    unaware = torch.cat(
        [distribution_after([])[token] * distribution_after([]) for token in range(VOCAB)]
    )
    assert tail_probability(outputs[REJECTION], unaware) < 1e-6
