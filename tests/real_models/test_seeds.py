"""Real models: a seed gives the same ids with two drafters, with none, at any k, among others.

smollm2-135m is the target, over the vocabularies of two others; all three fit 6 GiB.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from client.client import Client, Output, Request
from common.model.paged_model import PagedModel
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, Origin
from common.vocabulary.vocabulary import TokenizerFiles
from common.weights.resolve import resolve
from tests.kv.preemptions import count_preemptions
from tests.statistics.sampled_sessions import run, sampled
from tests.support.fake_services import RunningVerifier, serving_drafter, serving_verifier

pytestmark = pytest.mark.models

TARGET, DRAFTS = "smollm2-135m", ("qwen2.5-coder-0.5b", "gemma-3-270m")
PROMPTS = (
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "Once upon a time, in a village by the sea, there lived an old clockmaker who",
    "\n\t  é e\u0301 中 🙂👍🏽 똻 = [",
)
DISTRIBUTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "seed": 0},
    {"temperature": 0.7, "top_p": 0.9, "seed": 2**64 - 1, "logprobs": 1},
    {"temperature": 1.5, "top_k": 40, "min_p": 0.02, "seed": 7, "presence_penalty": 1.5},
)
MIXED: tuple[dict[str, Any], ...] = (
    *DISTRIBUTIONS,
    {"temperature": 0.0},
    {"temperature": 1.5, "top_k": 1, "seed": 4},
    {"temperature": 1.0, "top_p": 0.1, "seed": 4},
    {"temperature": 1.0},  # unseeded: rejection or target-only
    {"temperature": 1.5, "frequency_penalty": 0.5},
)
STEPS = ((0, 1, 8), (2, 4, 5), (3, 6, 7))  # by distribution: k = 0 to 8 in all
TOKENS, CONTEXT = 10, 96


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, PagedModel]]:
    loaded = {TARGET: PagedModel.load(resolve(TARGET), "exact")}
    yield loaded | {name: PagedModel.load(resolve(name), "fp16") for name in DRAFTS}
    loaded.clear()


@dataclass
class Running:
    """One verifier, and a client of each drafter on it."""

    verifier: RunningVerifier
    clients: tuple[Client, ...]
    encode: Any  # text -> target ids


@asynccontextmanager
async def serving(models: dict[str, PagedModel], pages: int) -> AsyncIterator[Running]:
    sizes: dict[str, Any] = {"context": CONTEXT, "max_batch_tokens": 64, "threads": 0}
    target_files = TokenizerFiles.from_directory(resolve(TARGET))
    async with AsyncExitStack() as stack:
        checks = serving_verifier(models[TARGET], target_files, pages=pages, **sizes)
        verifier = await stack.enter_async_context(checks)
        drafters, clients = [], []
        for name in DRAFTS:
            files = TokenizerFiles.from_directory(resolve(name))
            given = {**sizes, "context": 2 * CONTEXT, "pages": CONTEXT}
            made = serving_drafter(models[name], files, verifier.port, **given)
            drafters.append(await stack.enter_async_context(made))
            clients.append(await stack.enter_async_context(Client(drafters[-1].address)))
        encode = drafters[0].pair.bridge.target.encode_prompt
        yield Running(verifier, tuple(clients), encode)
        for drafter in drafters:
            await drafter.idle()
            drafter.assert_nothing_held()
        await verifier.idle()
        verifier.assert_nothing_held()


def request_of(prompt: str, distribution: dict[str, Any], steps: int) -> Request:
    sampling = SamplingParams(**distribution)
    return Request(TOKENS, prompt=prompt, sampling=sampling, draft_steps=steps, ignore_eos=True)


async def test_alone_the_drafter_and_k_change_nothing(models: dict[str, PagedModel]) -> None:
    """Each with its own prompt, first without a drafter: by a client of the verifier."""
    accepted = [0, 0]
    async with serving(models, pages=2 * CONTEXT // 4) as running:
        for prompt, distribution, every in zip(PROMPTS, DISTRIBUTIONS, STEPS, strict=True):
            spec = sampled(
                running.verifier,
                AcceptanceRule.COUPLED,
                running.encode(prompt),
                TOKENS,
                **distribution,
            )
            truth = await run(running.verifier, spec)
            for place, client in enumerate(running.clients):
                for number, steps in enumerate(every):
                    mode = (BridgeMode.TEXT, BridgeMode.INTERSECTION)[(place + number) % 2]
                    request = replace(request_of(prompt, distribution, steps), bridge=mode)
                    output = await client.generate(request)
                    assert list(output.token_ids) == truth.tokens, (
                        distribution,
                        place,
                        steps,
                        mode,
                    )
                    assert list(output.logprobs) == truth.logprobs
                    accepted[place] += output.origins.count(Origin.DRAFT)
    print(f"accepted of {DRAFTS}: {accepted}")
    assert all(accepted)


async def test_among_sixteen_mixed_requests_and_after_preemption_a_seed_changes_nothing(
    models: dict[str, PagedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded beside unseeded, temperature 0 beside 1.5, top_k 1 beside top_p 0.1, all at once."""
    order = random.Random(3)
    async with serving(models, pages=CONTEXT // 4 + 16) as running:
        asked = [
            request_of(PROMPTS[number % len(PROMPTS)], distribution, 0)
            for number, distribution in enumerate(MIXED * 2)
        ]
        assert len(asked) == 16
        fixed = [
            each.sampling.greedy or each.sampling.seed is not None  # the same each time
            for each in asked
        ]
        alone = [
            await running.clients[0].generate(each) if known else None
            for each, known in zip(asked, fixed, strict=True)
        ]
        preempted = count_preemptions(monkeypatch)

        async def one(number: int) -> Output:
            steps, mode = (5 * number + 3) % 9, order.choice(list(BridgeMode))
            client = running.clients[number % len(running.clients)]
            return await client.generate(replace(asked[number], draft_steps=steps, bridge=mode))

        outputs = await asyncio.gather(*(one(number) for number in range(16)))
        for output, expected in zip(outputs, alone, strict=True):
            if expected is not None:
                assert output.token_ids == expected.token_ids
                assert output.logprobs == expected.logprobs
        unseeded = [o.token_ids for o, expected in zip(outputs, alone, strict=True) if not expected]
        assert len(unseeded) == len(set(unseeded)) == 4
        print(f"{len(preempted)} preemptions")
        assert preempted
