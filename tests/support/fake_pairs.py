"""Drafter and verifier over tiny models that know some text, for each kind of vocabulary pair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from client.client import Client, Output, Request
from client.results import TokenDelta
from common.model.paged_model import PagedModel
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from tests.support.fake_models import knowing_model
from tests.support.fake_services import (
    RunningDrafter,
    RunningVerifier,
    serving_drafter,
    serving_verifier,
)
from tests.support.fake_tokenizers import (
    byte_level_tokenizer,
    files_of,
    sentencepiece_tokenizer,
    vocabulary,
)

# target, draft
PAIRS = {
    "same tokenizer": ("wide", "wide"),
    "two byte-level tokenizers": ("wide", "narrow"),
    "byte fallback for byte-level": ("wide", "sentencepiece"),
    "byte-level for byte fallback": ("sentencepiece", "narrow"),
}
PROMPTS = (
    "The quick brown fox",
    "def add(left, right):",
    "class Room:\n\tdef",
    "for i in range(10):\n        ",
    "x",
    "\n\t  é e\u0301 中 🙂👍🏽 똻",
)
CONTEXT = 120


@cache
def files(name: str) -> TokenizerFiles:
    if name == "sentencepiece":
        return files_of(sentencepiece_tokenizer(size=400))
    return files_of(byte_level_tokenizer(size={"wide": 400, "narrow": 290}[name]))


@cache
def known(name: str) -> Vocabulary:
    return vocabulary(files(name))


@cache
def target_model(name: str) -> PagedModel:
    return PagedModel(knowing_model(known(name), seed=0))


@cache
def draft_model(name: str) -> PagedModel:
    """Not quite the target's opinion, even over the same tokenizer."""
    return PagedModel(knowing_model(known(name), seed=7))


@dataclass
class RunningPair:
    """Both services, and a client of the drafter."""

    verifier: RunningVerifier
    drafter: RunningDrafter
    client: Client

    async def generate(self, prompt: str, max_new_tokens: int = 14, **changes: Any) -> Output:
        return await self.client.generate(Request(max_new_tokens, prompt=prompt, **changes))

    async def assert_nothing_held(self) -> None:
        """Both ends let go of everything, once no call is in progress."""
        await self.drafter.idle()
        await self.generate("x", 1)  # comes to the verifier behind all that was cancelled
        await self.drafter.idle()
        await self.verifier.idle()
        self.drafter.assert_nothing_held()
        self.verifier.assert_nothing_held()


def setting(event: asyncio.Event) -> Callable[[TokenDelta], None]:
    """What shows a stream's first delta."""
    return lambda _: event.set()


@asynccontextmanager
async def serving_pair(
    pair: str = "two byte-level tokenizers",
    verifier: dict[str, Any] | None = None,
    **drafter: Any,
) -> AsyncIterator[RunningPair]:
    """Checks at the end that both are empty."""
    target, draft = PAIRS[pair]
    models = target_model(target), draft_model(draft)
    async with serving_models(models, pair, verifier, **drafter) as running:
        yield running


@asynccontextmanager
async def serving_models(
    models: tuple[PagedModel, PagedModel],
    pair: str,
    verifier: dict[str, Any] | None = None,
    **drafter: Any,
) -> AsyncIterator[RunningPair]:
    """Any target and draft model over the pair's vocabularies."""
    target, draft = PAIRS[pair]
    sizes = {"context": CONTEXT, **(verifier or {})}
    async with (
        serving_verifier(models[0], files(target), **sizes) as checks,
        serving_drafter(models[1], files(draft), checks.port, **drafter) as drafts,
        Client(drafts.address) as client,
    ):
        running = RunningPair(checks, drafts, client)
        yield running
        await running.assert_nothing_held()
