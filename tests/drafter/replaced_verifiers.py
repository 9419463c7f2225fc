"""A drafter whose one verifier is replaced by another, in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from client.client import Client, Request
from common.model.paged_model import PagedModel
from common.vocabulary.vocabulary import TokenizerFiles
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import CONTEXT, PROMPTS, draft_model, files, known
from tests.support.fake_services import (
    RunningDrafter,
    RunningVerifier,
    serving_drafter,
    serving_verifier,
)
from tests.support.fake_tokenizers import CHATML
from tests.support.metric_samples import Samples

REQUEST = Request(16, prompt=PROMPTS[0], ignore_eos=True)
SHOUTING = CHATML.replace("<|im_start|>'", "<|im_start|>I, '")
CHAT = (("user", "def add(left, right):"),)


def changed(name: str) -> TokenizerFiles:
    """The wide tokenizer with another template, or another configuration."""
    own = dict(files("wide").files)
    if name == "chat_template":
        own["chat_template.jinja"] = SHOUTING.encode()
    else:
        own["tokenizer_config.json"] = b'{"model_max_length": 77}'
    return TokenizerFiles(own)


UNLIKE: dict[str, dict[str, Any]] = {
    "weights": {"weights": "others"},
    "numerics": {"numerics": "fp16"},
    "tokenizer": {"tokenizer": changed("tokenizer")},
    "chat_template": {"tokenizer": changed("chat_template")},
}


class Replaced:
    """A drafter whose one verifier is replaced by another."""

    def __init__(
        self,
        stack: AsyncExitStack,
        drafter: RunningDrafter,
        client: Client,
        first: RunningVerifier,
    ) -> None:
        self._stack = stack
        self.drafter, self.client = drafter, client
        self.verifier = first

    async def replace(self, **settings: Any) -> None:
        """Another one at the same address; see `verifier`."""
        port = self.verifier.port
        await self.verifier.server.stop()
        self.verifier = await self._stack.enter_async_context(verifier(port, **settings))


def of_drafter(pair: Replaced) -> Samples:
    return Samples(pair.drafter.pair.engine.telemetry.registry)


def verifier(
    port: int = 0,
    tokenizer: TokenizerFiles | None = None,
    model: PagedModel | None = None,
    **settings: Any,
) -> AbstractAsyncContextManager[RunningVerifier]:
    """The wide one of the pair, unless something else is said."""
    model = model or PagedModel(knowing_model(known("wide"), seed=0))
    settings = {"context": CONTEXT, **settings}
    return serving_verifier(model, tokenizer or files("wide"), port, **settings)


@asynccontextmanager
async def one_verifier(
    tokenizer: TokenizerFiles | None = None, **drafter: Any
) -> AsyncIterator[Replaced]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(verifier(tokenizer=tokenizer))
        running = await stack.enter_async_context(
            serving_drafter(draft_model("narrow"), files("narrow"), first.port, **drafter)
        )
        client = await stack.enter_async_context(Client(running.address))
        yield Replaced(stack, running, client, first)
