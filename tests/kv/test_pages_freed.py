"""What a client leaves behind is freed within one round: at most one engine step comes between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from client.client import Request
from drafter.engine.engine import DraftEngine
from tests.support.fake_pairs import CONTEXT, PROMPTS, known, serving_pair
from verifier.batcher import Batcher
from verifier.engine import VerifierEngine

Service = type[VerifierEngine] | type[DraftEngine]


@dataclass
class Steps:
    """One engine's steps that did something, and how many passed from `close` to freed pages."""

    begun: int = 0
    closed_at: dict[Any, int] = field(default_factory=dict)
    waited: list[int] = field(default_factory=list)  # of each session
    freed: int = 0  # pages, of sessions that held some
    due: list[tuple[int, asyncio.Task[Any]]] = field(default_factory=list)

    def cancel_in(self, steps: int, task: asyncio.Task[Any]) -> None:
        """Have the task cancelled while that step runs."""
        self.due.append((self.begun + steps, task))

    def begin(self) -> None:
        """On the engine's thread. Counted before the step runs: a cancel in a step is its own."""
        self.begun += 1
        for at, task in [*self.due]:
            if at <= self.begun:
                self.due.remove((at, task))
                task.get_loop().call_soon_threadsafe(task.cancel)

    def free(self, session: Any, holding: int) -> None:
        assert session.sequence.table.pages == []
        if session in self.closed_at:
            self.waited.append(self.begun - self.closed_at.pop(session))
            self.freed += holding


@contextmanager
def counting(service: Service, freeing: type, free: str) -> Iterator[Steps]:
    """Count in engines made from now on; `freeing.free(session)` gives a session's pages back."""
    steps = Steps()
    step, close, giving = service.step, service.close, getattr(freeing, free)

    def stepping(self: Any) -> bool:
        steps.begin()
        did: bool = step(self)
        steps.begun -= not did
        return did

    def closing(self: Any, session: Any) -> None:
        steps.closed_at[session] = steps.begun
        close(self, session)

    def freed(self: Any, session: Any) -> None:
        holding = len(session.sequence.table.pages)
        giving(self, session)
        steps.free(session, holding)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "step", stepping)
        patch.setattr(service, "close", closing)
        patch.setattr(freeing, free, freed)
        yield steps


@pytest.mark.parametrize("stage", ["prefill", "rounds"])
async def test_a_cancelled_sessions_pages_are_free_within_one_step(stage: str) -> None:
    """While others keep both engines busy, each request is cancelled in another step."""
    choose = random.Random(stage)
    prefill = stage == "prefill"
    with (
        counting(VerifierEngine, Batcher, "remove") as verifier,
        counting(DraftEngine, DraftEngine, "_end") as drafter,
    ):
        async with serving_pair(verifier={"max_batch_tokens": 12}) as pair:
            whole = (known("wide").encode_bytes("".join(PROMPTS).encode()) or []) * 4

            async def cancelled() -> None:
                length = choose.randint(60, 90) if prefill else choose.randint(2, 20)
                ids, begun = tuple(whole[:length]), asyncio.Event()
                request = Request(CONTEXT - length, prompt_ids=ids, ignore_eos=True)
                task = asyncio.create_task(pair.client.generate(request, lambda _: begun.set()))
                if not prefill:
                    await begun.wait()
                verifier.cancel_in(choose.randint(1, 6), task)
                await asyncio.gather(task, return_exceptions=True)

            async def worker() -> None:
                for _ in range(10):
                    await cancelled()

            await asyncio.gather(*(worker() for _ in range(6)))
    for steps in (verifier, drafter):
        assert len(steps.waited) >= 20 and not steps.closed_at
        assert max(steps.waited) <= 1
        assert steps.freed > 40
