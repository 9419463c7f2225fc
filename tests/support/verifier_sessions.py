"""Whole sessions at a verifier: alone, with drafts of known worth, and beside another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from common.model.paged_model import PagedModel
from common.types import OpenSession, Proposal, Verdict
from common.vocabulary.vocabulary import TokenizerFiles
from tests.support.fake_models import random_model
from tests.support.fake_services import RunningVerifier, serving_verifier
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of
from tests.support.verify_streams import Stream

VOCAB = 400
CONTEXT = 120
PROMPT = (20, 50, 80, 110)


@cache
def files() -> TokenizerFiles:
    return files_of(byte_level_tokenizer())


@cache
def model() -> PagedModel:
    return PagedModel(random_model("llama", VOCAB))


@asynccontextmanager
async def serving(**sizes: Any) -> AsyncIterator[RunningVerifier]:
    """A verifier that holds nothing once its calls are over."""
    async with serving_verifier(model(), files(), context=CONTEXT, **sizes) as verifier:
        yield verifier
        await verifier.idle()
        verifier.assert_nothing_held()


async def output(verifier: RunningVerifier, spec: OpenSession) -> list[int]:
    """A whole session at k = 0: the target alone."""
    return await checked(verifier, spec, [], 0)


async def checked(
    verifier: RunningVerifier,
    spec: OpenSession,
    truth: list[int],
    k: int,
    opened: asyncio.Barrier | None = None,
) -> list[int]:
    """A whole session of rounds with k draft tokens: all of them right, or the last one wrong.

    With `opened`, it waits after its first verdict until all others are as far.
    """
    stream, tokens = Stream(verifier), list[int]()
    verdict = await stream.send(spec)
    if opened is not None:
        await opened.wait()
    while True:
        assert verdict.next_token is not None
        tokens.append(verdict.next_token)
        if verdict.finish_reason is not None:
            assert await stream.ended()
            return tokens
        stage = spec.max_new_tokens - len(tokens) - 1
        draft = truth[len(tokens) :][: min(k, stage)]
        wrong = draft and verdict.round % 2
        if wrong:
            draft[-1] = (draft[-1] + 1) % VOCAB
        proposal = Proposal(verdict.round + 1, verdict.committed_length, tuple(draft))
        verdict = await stream.send(proposal)
        assert verdict.accepted_length == len(draft) - bool(wrong)
        tokens += draft[: verdict.accepted_length]


class Neighbour:
    """A session that runs beside others, and what it would have given alone."""

    def __init__(self, verifier: RunningVerifier) -> None:
        self._verifier = verifier
        self._spec = verifier.open((33, 44, 55), max_new_tokens=10, ignore_eos=True)
        self._stream = Stream(verifier)
        self._tokens: list[int] = []
        self._verdict: Verdict | None = None

    async def step(self) -> None:
        last = self._verdict
        content = Proposal(last.round + 1, last.committed_length, ()) if last else self._spec
        self._verdict = await self._stream.send(content)
        assert self._verdict.next_token is not None
        self._tokens.append(self._verdict.next_token)

    async def finish(self) -> None:
        """Go on to the end, and compare bit for bit with a session that ran alone."""
        while self._verdict is None or self._verdict.finish_reason is None:
            await self.step()
        assert self._tokens == await output(self._verifier, self._spec)


async def beside_another(verifier: RunningVerifier, act: Callable[[], Awaitable[Any]]) -> Any:
    """What `act` gives, while another session is in its middle; that one isn't disturbed."""
    neighbour = Neighbour(verifier)
    await neighbour.step()
    await neighbour.step()
    result = await act()
    await neighbour.finish()
    return result
