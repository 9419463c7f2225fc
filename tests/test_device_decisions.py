"""What a GPU's decisions are: the CPU path's own, session by session. Interpreted kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from common.device_runtime import Called
from tests.test_decision_batch import ALL, asking, decided
from tests.verifier_sessions import VOCAB
from verifier.batcher import Batch
from verifier.decision_batch import Outcome, decide_batch
from verifier.device_decisions import DeviceDecisions
from verifier.session import Session

pytestmark = pytest.mark.kernels

CPU = torch.device("cpu")
ROWS, SESSIONS = 32, 8
DRAFTS = [[5, 6, 7], [], [8], [9, 10], [5], [6, 7], [], [11, 12, 13, 14]]


def made(real_ids: torch.Tensor | None = None) -> DeviceDecisions:
    return DeviceDecisions(CPU, Called(), torch.float32, VOCAB, ROWS, SESSIONS, real_ids)


def asking_all(seed: int) -> list[Session]:
    """One session of each kind, adjusted ones last, as the batcher has them."""
    sessions = [asking(kind, DRAFTS[kind], [4] * kind, seed + kind) for kind in range(len(ALL))]
    return sorted(sessions, key=lambda session: session.spec.sampling.adjusts)


def logits_for(sessions: list[Session], seed: int) -> torch.Tensor:
    """Some drafts stand."""
    rows = [len(session.draft) + 1 for session in sessions]
    logits = 2.0 * torch.randn(sum(rows), VOCAB, generator=torch.Generator().manual_seed(seed))
    for session, part in zip(sessions, logits.split(rows), strict=True):
        for row, token in zip(part, session.draft, strict=False):
            row[token] += 5.0
    return logits


def told(outcomes: Sequence[Outcome | None]) -> list[Outcome | None]:
    return [each and replace(each, logprobs=()) for each in outcomes]


def test_sessions_of_all_rules_are_decided_as_on_the_cpu() -> None:
    device = made()
    for seed in (1, 2, 3):
        sessions = asking_all(seed)
        logits = logits_for(sessions, seed)
        before = logits.clone()
        outcomes = device.decide(Batch([], sessions, sessions), logits)
        assert outcomes == decided(sessions, logits)
        assert torch.equal(logits, before)


def test_greedy_sessions_alone_and_ids_that_dont_exist() -> None:
    real = torch.ones(VOCAB, dtype=torch.bool)
    real[[3, VOCAB - 1]] = False
    device = made(real)
    sessions = [asking(0, draft, [], 1) for draft in ([5, 6], [], [7])]
    logits = logits_for(sessions, 5)
    logits[:, [3, VOCAB - 1]] = 99.0
    batch = Batch([], sessions, sessions)
    assert device.decide(batch, logits) == decide_batch(batch, logits, real)
    sessions = asking_all(9)
    logits = logits_for(sessions, 9)
    logits[:, 3] = 99.0
    batch = Batch([], sessions, sessions)
    assert device.decide(batch, logits) == decide_batch(batch, logits, real)


def test_a_session_is_decided_as_alone_whoever_sits_beside_it() -> None:
    device = made()
    sessions = asking_all(4)
    logits = logits_for(sessions, 4)
    together = device.decide(Batch([], sessions, sessions), logits)
    rows = logits.split([len(session.draft) + 1 for session in sessions])
    alone = [
        device.decide(Batch([], [session], [session]), part)[0]
        for session, part in zip(sessions, rows, strict=True)
    ]
    assert together == alone


def test_a_pass_without_decisions_launches_nothing() -> None:
    device = made()
    assert device.decide(Batch([], [], []), torch.zeros(0, VOCAB)) == []
    assert device.lag_s >= 0


def test_more_adjusted_ids_than_there_was_room_for_get_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("verifier.device_decisions.PAIRS_PER_ROW", 0)
    device = DeviceDecisions(CPU, Called(), torch.float32, VOCAB, 1, SESSIONS, None)
    device._adjusting = device._workspace(pairs=1)
    sessions = asking_all(6)
    logits = logits_for(sessions, 6)
    device = made()
    device._adjusting = device._workspace(pairs=1)
    outcomes = device.decide(Batch([], sessions, sessions), logits)
    assert outcomes == decided(sessions, logits)


def test_every_kernel_of_a_step_runs_once_at_start() -> None:
    made(torch.arange(VOCAB) != 3).warm_up()
