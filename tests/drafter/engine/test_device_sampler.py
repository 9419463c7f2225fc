"""What draft tokens a GPU chooses: the CPU path's own, question by question; interpreted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from common.device.runtime import EagerRuntime
from common.sampling.parameters import SamplingParams
from common.sampling.rng import Purpose
from drafter.engine.device_sampler import DeviceSampler
from drafter.engine.sampler import HostSampler, SampledToken, SamplerInput
from drafter.engine.tokens import DraftSamplingParams
from tests.statistics.sampled_drafts import BRIDGE, WIDTH, A, B, logits, processors

pytestmark = pytest.mark.kernels

CPU = torch.device("cpu")
REAL, SHARED, SPACED = BRIDGE.draft_real, BRIDGE.shared, BRIDGE.draft_spaced


def sampling(
    purpose: Purpose, spaced: bool = False, seed: int = 7, **params: Any
) -> DraftSamplingParams:
    noise = BRIDGE.draft_ids if purpose is Purpose.PROPOSE else BRIDGE.noise_ids
    first = BRIDGE.noise_ids_after_space if spaced else noise
    slots = 64 if purpose is Purpose.PROPOSE else 1024
    given = SamplingParams(**{"temperature": 0.8, **params})
    return DraftSamplingParams(given, purpose, seed, 40, slots, noise, first)


def likeliest(allowed: torch.Tensor = REAL, **changes: Any) -> SamplerInput:
    return replace(SamplerInput(1, A[1], (), allowed, None, None), **changes)


QUESTIONS = [
    likeliest(),
    likeliest(SHARED, drafted=(B[1],)),
    likeliest(SPACED),
    likeliest(SHARED, sampling=sampling(Purpose.PROPOSE)),
    likeliest(
        SHARED, drafted=(5, 6), sampling=sampling(Purpose.PROPOSE, seed=(1 << 63) + 5, top_p=0.9)
    ),
    likeliest(SHARED, sampling=sampling(Purpose.PROPOSE, top_k=5, min_p=0.02)),
    likeliest(SHARED, sampling=sampling(Purpose.COUPLED, top_k=40)),
    likeliest(SHARED, drafted=(5,), sampling=sampling(Purpose.COUPLED, spaced=True, top_p=0.7)),
    likeliest(REAL, processors=processors((A[0],), repetition_penalty=1.5)),
    likeliest(
        SHARED,
        drafted=(A[1],),
        sampling=sampling(Purpose.PROPOSE),
        processors=processors((A[0], B[0]), presence_penalty=1.5, logit_bias=((B[0], 4.0),)),
    ),
]


def made(q_entries: int = 64, sessions: int = 16) -> DeviceSampler:
    return DeviceSampler(BRIDGE, CPU, EagerRuntime(), torch.float32, sessions, q_entries)


def assert_same(got: list[SampledToken], expected: list[SampledToken]) -> None:
    assert [(each.token, each.healed) for each in got] == [
        (each.token, each.healed) for each in expected
    ]
    for one, other in zip(got, expected, strict=True):
        assert (one.distribution is None) is (other.distribution is None)
        if one.distribution is not None and other.distribution is not None:
            mine = dict(zip(one.distribution.ids, one.distribution.probabilities, strict=True))
            theirs = dict(
                zip(other.distribution.ids, other.distribution.probabilities, strict=True)
            )
            assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("seed", [1, 2])
def test_all_kinds_of_sessions_in_one_step_choose_as_on_the_cpu(seed: int) -> None:
    scores = logits(seed, len(QUESTIONS))
    before = scores.clone()
    got = made().choose(scores, QUESTIONS)
    assert_same(got, HostSampler(BRIDGE).choose(scores, QUESTIONS))
    assert torch.equal(scores, before)


def test_ids_that_are_not_mapped_are_sampled_with_noise_of_their_own() -> None:
    """Other noise than the CPU's, which nobody shares; those with a mapped_id have the target's."""
    alone = (~SHARED & SPACED).nonzero().squeeze(1)
    assert len(alone) > 4
    scores = torch.full((8, WIDTH), -50.0)
    scores[:, alone] = 0.0
    inputs = [
        likeliest(mask, sampling=sampling(Purpose.COUPLED, mask is SPACED, seed, top_k=20))
        for seed in range(4)
        for mask in (REAL, SPACED)
    ]
    tokens = {each.token for each in made(sessions=8).choose(scores, inputs)}
    assert len(tokens) > 1 and tokens <= set(alone.tolist())


def test_committed_text_is_healed_as_on_the_cpu() -> None:
    """One token with longer ones that are likelier, one without, and one whose next is sampled."""
    space = BRIDGE.draft.id_of(b" ")
    assert space is not None
    longer = BRIDGE.draft_extensions(space)
    assert len(longer) > 1
    inputs = [
        likeliest(rows=2, last=space),
        likeliest(),
        likeliest(rows=2, last=space),
        likeliest(rows=2, last=space, sampling=sampling(Purpose.COUPLED)),
        likeliest(rows=2, last=min(BRIDGE.draft.special_ids)),  # no plain text: nothing is longer
    ]
    scores = logits(3, 9)
    scores[0, longer[1]] = 30.0
    scores[3, space] = 40.0
    scores[5, [space, int(longer[0])]] = torch.tensor([19.0, 19.5])
    got = made().choose(scores, inputs)
    assert_same(got, HostSampler(BRIDGE).choose(scores, inputs))
    assert [each.healed for each in got] == [True, False, False, True, False]


def test_a_distribution_is_cut_to_a_power_of_two() -> None:
    inputs = [likeliest(SHARED, sampling=sampling(Purpose.PROPOSE))]
    (choice,) = made(q_entries=7).choose(logits(4), inputs)
    assert choice.distribution is not None and len(choice.distribution.ids) == 4
    assert sum(choice.distribution.probabilities) == pytest.approx(1)
    assert choice.token in choice.distribution.ids


def test_where_nothing_may_come_there_is_no_choice() -> None:
    scores = torch.full((1, WIDTH), float("-inf"))
    inputs = [likeliest(SHARED, sampling=sampling(Purpose.PROPOSE))]
    assert made().choose(scores, inputs) == [SampledToken(None)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_choose_nothing_and_disturb_nobody(value: float) -> None:
    scores = logits(3, len(QUESTIONS))
    device = made()
    expected = device.choose(scores, QUESTIONS)
    for half in (0, 1):
        wanted, broken = list(expected), scores.clone()
        for place in range(half, len(QUESTIONS), 2):
            broken[place, QUESTIONS[place].allowed.nonzero()[-1]] = value
            wanted[place] = SampledToken(None)
        assert device.choose(broken, QUESTIONS) == wanted
    broken = torch.full_like(scores, value)
    assert device.choose(broken, QUESTIONS) == [SampledToken(None)] * len(QUESTIONS)


def test_a_step_that_finishes_nobody_launches_nothing() -> None:
    device = made()
    assert device.choose(torch.empty(0, WIDTH), []) == []
    assert device.lag_s >= 0


def test_every_kernel_of_a_step_runs_once_at_start() -> None:
    made(sessions=1).warm_up()
