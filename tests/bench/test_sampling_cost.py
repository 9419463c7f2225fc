"""bench.speed.sampling_cost times what its table says it does."""

from __future__ import annotations

import io

import torch
from rich.console import Console

from bench.speed.sampling_cost import DRAFTS, Row, calls_for, measure, rows_of, shown
from common.model.paged_model import PagedModel
from common.sampling.acceptance_rule import AcceptanceRule
from tests.support.fake_models import random_model
from verifier.acceptance.batch import AcceptanceOutput


def test_every_draft_is_accepted_where_the_dearest_case_is_measured() -> None:
    calls = calls_for(PagedModel(random_model("llama")), sessions=3, context=9)
    for rule in (AcceptanceRule.REJECTION, AcceptanceRule.COUPLED):
        made = calls[rule.name]()
        assert isinstance(made, AcceptanceOutput)
        assert made.accepted_lengths.tolist() == [DRAFTS] * 3
    logits = calls["pass"]()
    assert isinstance(logits, torch.Tensor) and len(logits) == 3 * (DRAFTS + 1)
    assert [row.rule for row in rows_of(3, measure(calls, 1))] == [
        "TARGET_ONLY",
        "REJECTION",
        "COUPLED",
    ]


def test_the_share_is_of_pass_and_decision() -> None:
    row = Row(16, "COUPLED", pass_ms=90.0, accept_ms=10.0, noise_ms=4.0)
    console = Console(file=io.StringIO(), width=200)
    console.print(shown([row], "", ""))
    assert isinstance(console.file, io.StringIO)
    assert "4.0%" in console.file.getvalue()
