"""Both services as on a GPU, kernels interpreted and eager steps: what they say is the CPU's own.

Shows that engines, kernels and copies fit together; nothing about a GPU's speed or its rounding.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from client.client import Output
from common.model.paged_model import PagedModel
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode
from drafter.engine.engine import DraftEngine
from tests.statistics.sampled_sessions import (
    COUPLED,
    GREEDY,
    REJECTION,
    TARGET_ONLY,
    half_right,
    run,
    sampled,
)
from tests.support.fake_models import knowing_model, random_model
from tests.support.fake_pairs import PAIRS, RunningPair, known, serving_models
from tests.support.fake_services import RunningVerifier, serving_verifier
from tests.support.verifier_sessions import PROMPT, VOCAB, checked, files, output
from verifier.engine import VerifierEngine

pytestmark = pytest.mark.kernels


@pytest.fixture(autouse=True)
def _one_engine_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter keeps its place in a launch's grid once for the whole process."""
    lock = threading.Lock()

    def locked(step: Any) -> Any:
        def run_step(engine: Any) -> bool:
            with lock:
                return bool(step(engine))

        return run_step

    for engine in (VerifierEngine, DraftEngine):
        monkeypatch.setattr(engine, "step", locked(engine.step))


SIZES: dict[str, Any] = {"context": 60, "max_batch_tokens": 64, "max_sessions": 12}


def target(kernels: bool) -> PagedModel:
    return PagedModel(random_model("llama", VOCAB, num_hidden_layers=1), kernels=kernels)


def spec_of(verifier: RunningVerifier) -> Any:
    return verifier.open(PROMPT, max_new_tokens=10, ignore_eos=True)


async def test_greedy_output_is_the_cpus_at_every_k() -> None:
    async with serving_verifier(target(kernels=False), files(), **SIZES) as alone:
        truth = await output(alone, spec_of(alone))
    async with serving_verifier(target(kernels=True), files(), **SIZES) as verifier:
        assert verifier.engine._model.graph_sizes > 0
        opened = asyncio.Barrier(9)
        found = await asyncio.gather(
            *(checked(verifier, spec_of(verifier), truth, k, opened) for k in range(9))
        )
        assert found == [truth] * 9
        await verifier.idle()
        verifier.assert_nothing_held()


async def test_sessions_of_every_rule_get_what_the_cpu_gives_them() -> None:
    """The same drafts and distributions, among each other, with penalties and log-probabilities."""

    async def all_of(verifier: RunningVerifier) -> list[Any]:
        asked = [
            sampled(verifier, GREEDY, presence_penalty=1.5, logprobs=2),
            sampled(verifier, TARGET_ONLY, seed=3, top_p=0.9),
            sampled(verifier, REJECTION, seed=4, top_k=30),
            sampled(verifier, REJECTION, seed=5, repetition_penalty=1.3, min_p=0.05),
            sampled(verifier, COUPLED, logprobs=0),
            sampled(verifier, COUPLED, seed=9, min_new_tokens=3, logit_bias=((40, 5.0),)),
        ]
        opened = asyncio.Barrier(len(asked))
        drafts = half_right([33, 34, 35, 36, 37] * 4, 3)
        runs = [run(verifier, spec, drafts, opened) for spec in asked]
        return list(await asyncio.gather(*runs))

    async with serving_verifier(target(kernels=False), files(), **SIZES) as alone:
        expected = await all_of(alone)
    async with serving_verifier(target(kernels=True), files(), **SIZES) as verifier:
        found = await all_of(verifier)
    for got, wanted in zip(found, expected, strict=True):
        assert (got.tokens, got.accepted) == (wanted.tokens, wanted.accepted)
        for one, other in zip(got.logprobs, wanted.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.top_ids == other.top_ids


ASKED: list[dict[str, Any]] = [
    {"bridge": BridgeMode.TEXT},
    {"bridge": BridgeMode.INTERSECTION},
    {"bridge": BridgeMode.TEXT, "sampling": SamplingParams(temperature=0.8, seed=5)},
    {
        "bridge": BridgeMode.INTERSECTION,
        "sampling": SamplingParams(temperature=0.8, seed=6, presence_penalty=0.5),
    },
]
WITH_Q = {
    "bridge": BridgeMode.INTERSECTION,
    "sampling": SamplingParams(temperature=0.8),
    "rule": REJECTION,
}
PAIR = "two byte-level tokenizers"


def models(kernels: bool) -> tuple[PagedModel, PagedModel]:
    target, draft = (known(name) for name in PAIRS[PAIR])
    return (
        PagedModel(knowing_model(target, seed=0), kernels=kernels),
        PagedModel(knowing_model(draft, seed=7), kernels=kernels),
    )


async def said(pair: RunningPair, asked: list[dict[str, Any]]) -> list[Output]:
    return list(
        await asyncio.gather(
            *(pair.generate("The quick brown fox", 8, draft_steps=3, **each) for each in asked)
        )
    )


async def test_a_pair_on_a_device_says_what_the_pair_on_the_cpu_says() -> None:
    """Greedy and seeded text; unseeded text ends, and its drafts come with valid distributions."""
    sizes = {"max_batch_tokens": 48, "max_sessions": 6}
    async with serving_models(models(False), PAIR, sizes, max_sessions=6) as pair:
        expected = await said(pair, ASKED)
    async with serving_models(models(True), PAIR, sizes, max_sessions=6) as pair:
        *found, free = await said(pair, [*ASKED, WITH_Q])
        assert (await pair.client.pair()).drafting
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert [each.text for each in found] == [each.text for each in expected]
    greedy = [each.statistics.accepted_by_position for each in found[:2]]
    assert greedy == [each.statistics.accepted_by_position for each in expected[:2]]
    assert any(sum(each.statistics.accepted_by_position) for each in found)
    assert len(free.token_ids) == 8 and free.statistics.drafting
