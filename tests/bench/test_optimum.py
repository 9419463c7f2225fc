"""As much is accepted as can be: each rule's acceptance is its theory's, on rows of live rounds.

Seeds are fixed, so a result is no matter of luck. Lossless acceptance with other seeds would fail
here with a chance of 1e-4 in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from bench.acceptance import optimum
from bench.acceptance.optimum import RULES, compare, expected, meeting_of
from bench.acceptance.optimum_rows import Meeting, Rounds, Row
from bench.support.target_prompts import TargetPrompt
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from common.sampling.parameters import SamplingParams
from tests.support.fake_pairs import CONTEXT, PROMPTS, draft_model, files, known, target_model
from verifier.acceptance.batch import AcceptanceOutput, SamplingBatch
from verifier.acceptance.rules import accept

TRIALS = 800
SIGMAS = 4.7  # a normal variable is farther out with a chance below 1e-4 / 30


@pytest.fixture(scope="module")
def rows() -> Sequence[Row]:
    """Of sessions with three draft steps, by two models that agree for the most part."""
    models = (target_model("wide"), files("wide"), draft_model("wide"), files("wide"))
    made = Rounds(*models, CONTEXT, SamplingParams(temperature=1.0))
    asked = [
        TargetPrompt(p, tuple(known("wide").encode_prompt(p)), beginning=p) for p in PROMPTS[:4]
    ]
    with made.running():
        asyncio.run(made.record(asked, 24, 3, lambda *_: None))
    return made.rows


@pytest.mark.long
def test_acceptance_per_position_is_within_one_percent_of_the_optimum(rows: Sequence[Row]) -> None:
    """Rejection's is sum min(p, q); coupled and target-only against their own theory."""
    found = compare(rows, TRIALS)
    assert {each.position for each in found} == {None, 0, 1, 2}
    for each in found:
        print(each.rule, each.position, each.rows, f"{each.measured:.4f} {each.theory:.4f}")
        assert abs(each.measured - each.theory) < SIGMAS * each.error + 1e-6, each
    everything = {each.rule: each for each in found if each.position is None}
    for each in everything.values():
        assert abs(each.off) < 0.01, each
    best = everything["rejection"]
    assert best.rows == len(rows) > 60 and best.theory > 0.4
    assert all(abs(each.off) < 0.01 for each in found if each.rule == "rejection")
    assert everything["coupled"].theory < best.optimum
    assert everything["target_only"].theory < best.theory
    # The rounds themselves: one draft each, so far less certain.
    assert best.live == pytest.approx(best.theory, abs=SIGMAS * 0.5 / len(rows) ** 0.5)


def test_a_rule_that_accepts_otherwise_is_reported(
    rows: Sequence[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """q before it was renormalised, as a public system tests with, moves the mean past an error."""

    def unnormalised(
        logits: Tensor,
        draft: Tensor,
        offsets: Tensor,
        sampling: SamplingBatch,
        q: SparseDistributions,
    ) -> AcceptanceOutput:
        return accept(logits, draft, offsets, sampling, SparseDistributions(q.ids, q.probs * 0.9))

    monkeypatch.setattr(optimum, "accept", unnormalised)
    some = [row for row in rows if row.position == 0]
    meetings = [meeting_of(row, AcceptanceRule.REJECTION) for row in some]
    got = [
        optimum.measured(AcceptanceRule.REJECTION, each, TRIALS, i)
        for i, each in enumerate(meetings)
    ]
    must = [expected(AcceptanceRule.REJECTION, each.p, each.q) for each in meetings]
    off = sum(got) / sum(must) - 1
    assert off > 0.01


@pytest.mark.parametrize("seed", range(4))
def test_the_theory_is_what_its_definition_says(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.rand(7, generator=generator, dtype=torch.float64) ** 3 for _ in range(2))
    p[seed], q[-1] = 0.0, 0.0  # ids that one of the distributions rules out
    p, q = p / p.sum(), q / q.sum()
    both = [x for x in range(7) if p[x] > 0 and q[x] > 0]
    by_id = [1 / sum(max(float(p[y] / p[x]), float(q[y] / q[x])) for y in range(7)) for x in both]
    assert expected(AcceptanceRule.COUPLED, p, q) == pytest.approx(sum(by_id))
    assert expected(AcceptanceRule.REJECTION, p, q) == pytest.approx(
        sum(map(min, p.tolist(), q.tolist()))
    )
    assert expected(AcceptanceRule.TARGET_ONLY, p, q) == pytest.approx(float(p @ q))


@pytest.mark.parametrize("rule", RULES)
def test_distributions_that_agree_or_exclude_each_other(rule: AcceptanceRule) -> None:
    p = torch.tensor([0.5, 0.25, 0.25, 0.0])
    assert expected(rule, p, p) == pytest.approx(
        0.375 if rule == AcceptanceRule.TARGET_ONLY else 1.0
    )
    same, never = Meeting(p, p), Meeting(p, torch.tensor([0.0, 0.0, 0.0, 1.0]))
    if rule != AcceptanceRule.TARGET_ONLY:
        assert optimum.measured(rule, same, 300, 0) == 1.0
    assert expected(rule, never.p, never.q) == 0.0
    assert optimum.measured(rule, never, 300, 0) == 0.0
