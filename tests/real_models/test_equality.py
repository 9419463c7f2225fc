"""Real models: every pair gives the target's own greedy ids, however they are drafted and batched.

In float32 and in int8. And in float32 the target's own ids are transformers' own, up to near-ties,
which are printed with their gap.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from client.client import Client, Request
from common.model.language_model import LanguageModel, Packing
from common.model.loading import load_model
from common.types import BridgeMode, Origin
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from common.weights.resolve import resolve
from tests.kv.preemptions import count_preemptions
from tests.support.fake_services import serving_drafter, serving_verifier

pytestmark = pytest.mark.models

PROMPTS = (
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "Once upon a time, in a village by the sea, there lived an old clockmaker who",
    "\n\t  é e\u0301 中 🙂👍🏽 똻 = [",
    "x",
    "class Stack:\n\tdef __init__(self):\n\t\tself.items = []\n\n\tdef push(self, item):\n",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of",
    "for i in range(10):\n        print(i",
    "中文：今天天气很好，",
)
EVERY_WAY = tuple(product((1, 3, 5, 8), BridgeMode))
CONTEXT = 128
GAP = 1e-2  # of two logits that another order of summing may swap


@dataclass(frozen=True)
class Pair:
    """How much of it is run: the 1.5B target takes half a second for a row."""

    target: str
    draft: str
    prompts: int
    linear: Packing = "exact"  # of the target
    tokens: int = 12

    def __str__(self) -> str:
        return f"{self.draft} for {self.target}, {self.linear}"

    @property
    def needed(self) -> tuple[tuple[str, Packing], tuple[str, Packing]]:
        """Target and draft model."""
        drafting: Packing = "fp16" if self.linear == "exact" else "int8"
        return (self.target, self.linear), (self.draft, drafting)


PAIRS = (
    Pair("gemma-3-270m", "smollm2-135m", 8),
    Pair("smollm2-135m", "qwen2.5-coder-0.5b", 8),
    Pair("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", 4),
    Pair("qwen2.5-coder-1.5b", "smollm2-135m", 4),
    Pair("qwen2.5-coder-1.5b", "smollm2-135m", 8, "int8"),
    Pair("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", 8, "int8"),
    Pair("smollm2-135m", "qwen2.5-coder-0.5b", 8, "int8"),
    Pair("gemma-3-270m", "smollm2-135m", 8, "int8"),
)
_loaded: dict[tuple[str, Packing], LanguageModel] = {}


@pytest.fixture(scope="module", params=PAIRS, ids=str)
def pair(request: pytest.FixtureRequest) -> Pair:
    """One pair after the other; what the next one doesn't need leaves memory first."""
    wanted: Pair = request.param
    for key in set(_loaded) - set(wanted.needed):
        del _loaded[key]
    gc.collect()
    for key in wanted.needed:
        if key not in _loaded:
            _loaded[key] = load_model(resolve(key[0]), key[1])
    return wanted


@asynccontextmanager
async def serving(pair: Pair, pages: int) -> AsyncIterator[Client]:
    target, draft = (_loaded[key] for key in pair.needed)
    assert target.row_invariant
    target_files, draft_files = (
        TokenizerFiles.from_directory(resolve(name)) for name in (pair.target, pair.draft)
    )
    sizes: dict[str, Any] = {
        "context": CONTEXT,
        "max_batch_tokens": 64,
        "threads": 0,
        "pages": pages,
    }
    async with (
        serving_verifier(target, target_files, **sizes) as verifier,
        serving_drafter(draft, draft_files, verifier.port, **sizes) as drafter,
        Client(drafter.address) as client,
    ):
        yield client
        await drafter.idle()
        await verifier.idle()
        drafter.assert_nothing_held()
        verifier.assert_nothing_held()


_expected: dict[tuple[str, Packing, int, int], dict[str, tuple[int, ...]]] = {}


async def expected(client: Client, pair: Pair) -> dict[str, tuple[int, ...]]:
    """Each prompt's ids at k = 0, by itself; once for each target."""
    key = (pair.target, pair.linear, pair.prompts, pair.tokens)
    if key not in _expected:
        _expected[key] = {
            prompt: (
                await client.generate(Request(pair.tokens, prompt=prompt, draft_steps=0))
            ).token_ids
            for prompt in PROMPTS[: pair.prompts]
        }
    return _expected[key]


async def test_alone_the_ids_are_the_targets_own(pair: Pair) -> None:
    """Every k in every mode, each with the next prompt."""
    async with serving(pair, pages=2 * CONTEXT // 4) as client:
        truth = await expected(client, pair)
        accepted = 0
        for number, (steps, mode) in enumerate(EVERY_WAY):
            prompt = PROMPTS[number % len(truth)]
            request = Request(pair.tokens, prompt=prompt, draft_steps=steps, bridge=mode)
            output = await client.generate(request)
            assert output.token_ids == truth[prompt], (steps, mode, prompt)
            accepted += output.origins.count(Origin.DRAFT)
        assert accepted > 0


async def test_eight_at_once_joining_leaving_and_preempted_the_ids_are_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every k in every mode with every prompt, outputs of any length, in a pool for few of them."""
    order = random.Random(str(pair))
    async with serving(pair, pages=CONTEXT // 4 + 4) as client:
        truth = await expected(client, pair)
        preempted = count_preemptions(monkeypatch)
        work = [(*way, prompt) for way, prompt in product(EVERY_WAY, truth)]
        order.shuffle(work)
        places = asyncio.Semaphore(8)

        async def one(steps: int, mode: BridgeMode, prompt: str) -> None:
            length = order.randint(pair.tokens // 2, pair.tokens)
            async with places:
                output = await client.generate(
                    Request(length, prompt=prompt, draft_steps=steps, bridge=mode)
                )
            assert output.token_ids == truth[prompt][:length], (steps, mode, prompt)

        await asyncio.gather(*(one(*each) for each in work))
        print(f"{pair}: {len(preempted)} preemptions")
        assert preempted


IN_FLOAT32 = [each for each in PAIRS if each.linear == "exact"]


@pytest.mark.parametrize("pair", IN_FLOAT32, ids=str, indirect=True)
async def test_the_targets_own_ids_are_transformers_own_up_to_near_ties(pair: Pair) -> None:
    """Plain attention over the whole text at once: by induction, the ids of a greedy loop."""
    async with serving(pair, pages=CONTEXT // 4) as client:
        truth = await expected(client, pair)
    folder = resolve(pair.target)
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    vocabulary = Vocabulary(TokenizerFiles.from_directory(folder), theirs.config.vocab_size, ())
    for prompt, ids in truth.items():
        before = vocabulary.encode_prompt(prompt)
        with torch.inference_mode():
            text = torch.tensor([[*before, *ids]])
            logits = theirs(text, use_cache=False).logits[0, len(before) - 1 : -1]
            logits[:, ~torch.from_numpy(vocabulary.real)] = float("-inf")
        wrong = (logits.argmax(-1) != torch.tensor(ids)).nonzero()
        if len(wrong):
            at = int(wrong[0])
            gap = float(logits[at].max() - logits[at, ids[at]])
            print(f"{pair.target}: {prompt!r} diverges at token {at}, logit gap {gap:.2e}")
            assert gap < GAP
