"""What a GPU accepts: the CPU path's own, session by session. Interpreted kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from common.device.runtime import EagerRuntime
from tests.support.verifier_sessions import VOCAB
from tests.verifier.acceptance.test_sampler import ALL, asking, results_of
from verifier.acceptance.device_sampler import DeviceAcceptanceSampler
from verifier.acceptance.sampler import VerifyOutput, accept_batch
from verifier.batcher import Batch
from verifier.session import Session

pytestmark = pytest.mark.kernels

CPU = torch.device("cpu")
ROWS, SESSIONS = 32, 8
DRAFTS = [[5, 6, 7], [], [8], [9, 10], [5], [6, 7], [], [11, 12, 13, 14]]


def made(real_ids: torch.Tensor | None = None) -> DeviceAcceptanceSampler:
    return DeviceAcceptanceSampler(
        CPU, EagerRuntime(), torch.float32, VOCAB, ROWS, SESSIONS, real_ids
    )


def asking_all(seed: int) -> list[Session]:
    """One session of each kind, processed ones last, as the batcher has them."""
    sessions = [asking(kind, DRAFTS[kind], [4] * kind, seed + kind) for kind in range(len(ALL))]
    return sorted(sessions, key=lambda session: session.spec.sampling.processes_logits)


def logits_for(sessions: list[Session], seed: int) -> torch.Tensor:
    """Some drafts are accepted."""
    rows = [len(session.draft) + 1 for session in sessions]
    logits = 2.0 * torch.randn(sum(rows), VOCAB, generator=torch.Generator().manual_seed(seed))
    for session, part in zip(sessions, logits.split(rows), strict=True):
        for row, token in zip(part, session.draft, strict=False):
            row[token] += 5.0
    return logits


def reported(outputs: Sequence[VerifyOutput | None]) -> list[VerifyOutput | None]:
    return [each and replace(each, logprobs=()) for each in outputs]


def test_sessions_of_all_rules_are_verified_as_on_the_cpu() -> None:
    device = made()
    for seed in (1, 2, 3):
        sessions = asking_all(seed)
        logits = logits_for(sessions, seed)
        before = logits.clone()
        outputs = device.accept(Batch([], sessions, sessions), logits)
        assert outputs == results_of(sessions, logits)
        assert torch.equal(logits, before)


def test_greedy_sessions_alone_and_ids_that_dont_exist() -> None:
    real = torch.ones(VOCAB, dtype=torch.bool)
    real[[3, VOCAB - 1]] = False
    device = made(real)
    sessions = [asking(0, draft, [], 1) for draft in ([5, 6], [], [7])]
    logits = logits_for(sessions, 5)
    logits[:, [3, VOCAB - 1]] = 99.0
    batch = Batch([], sessions, sessions)
    assert device.accept(batch, logits) == accept_batch(batch, logits, real)
    sessions = asking_all(9)
    logits = logits_for(sessions, 9)
    logits[:, 3] = 99.0
    batch = Batch([], sessions, sessions)
    assert device.accept(batch, logits) == accept_batch(batch, logits, real)


def test_a_session_is_verified_as_alone_whoever_sits_beside_it() -> None:
    device = made()
    sessions = asking_all(4)
    logits = logits_for(sessions, 4)
    together = device.accept(Batch([], sessions, sessions), logits)
    rows = logits.split([len(session.draft) + 1 for session in sessions])
    alone = [
        device.accept(Batch([], [session], [session]), part)[0]
        for session, part in zip(sessions, rows, strict=True)
    ]
    assert together == alone


def test_a_pass_without_decisions_launches_nothing() -> None:
    device = made()
    assert device.accept(Batch([], [], []), torch.zeros(0, VOCAB)) == []
    assert device.lag_s >= 0


def test_more_processed_ids_than_there_was_space_for_get_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("verifier.acceptance.device_sampler.PAIRS_PER_ROW", 0)
    device = DeviceAcceptanceSampler(CPU, EagerRuntime(), torch.float32, VOCAB, 1, SESSIONS, None)
    device._adjusting = device._workspace(pairs=1)
    sessions = asking_all(6)
    logits = logits_for(sessions, 6)
    device = made()
    device._adjusting = device._workspace(pairs=1)
    outputs = device.accept(Batch([], sessions, sessions), logits)
    assert outputs == results_of(sessions, logits)


def test_every_kernel_of_a_step_runs_once_at_start() -> None:
    made(torch.arange(VOCAB) != 3).warm_up()


STRANGE = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize(
    ("place", "value", "seed"), list(zip(range(3), STRANGE, (0, 4, 7), strict=True))
)
def test_logits_that_are_no_numbers_end_their_own_session_only(
    place: int, value: float, seed: int
) -> None:
    """One NaN or +inf in a row that a session comes to, or a row of -inf, under each rule."""
    device = made()
    sessions = asking_all(seed)
    logits = logits_for(sessions, seed)
    expected = device.accept(Batch([], sessions, sessions), logits)
    ended = 0
    for half in (0, 1):
        wanted = list(expected)
        broken = logits.clone()
        rows = broken.split([len(session.draft) + 1 for session in sessions])
        for index in range(half, len(sessions), 2):
            was = expected[index]
            assert was is not None
            if place < len(rows[index]):
                rows[index][place, slice(None) if value == -torch.inf else 3] = value
                wanted[index] = None if place <= was.accepted_length else was
        assert device.accept(Batch([], sessions, sessions), broken) == wanted
        ended += wanted.count(None)
    assert ended


def test_greedy_sessions_without_numbers_end_alone() -> None:
    device = made()
    sessions = [asking(0, draft, [], 1) for draft in ([5, 6], [], [7])]
    logits = logits_for(sessions, 5)
    expected = device.accept(Batch([], sessions, sessions), logits)
    for value in STRANGE:
        broken = logits.clone()
        broken[3, slice(None) if value == -torch.inf else 9] = value
        outputs = device.accept(Batch([], sessions, sessions), broken)
        assert outputs == [expected[0], None, expected[2]]


@pytest.mark.parametrize(("kind", "token"), [(1, 4), (5, 5), (7, 9)])
def test_a_processed_id_that_is_not_finite_ends_its_session(kind: int, token: int) -> None:
    """Penalised, biased, and not allowed to come yet."""
    session = asking(kind, [], [4] * (kind == 1), 1)
    logits = logits_for([session], 1)
    logits[0, token] = float("nan")
    assert made().accept(Batch([], [session], [session]), logits) == [None]
