"""A draft engine that is driven step by step, over a model whose opinions are written in the test.

The model keeps token ids where a real one keeps keys and values, and reads its context from there:
a wrong rollback shows as a context that nobody wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.paged_model import PagedModel
from drafter.bridge.bridge import Bridge
from drafter.engine.engine import DraftEngine
from drafter.engine.session import Draft, DraftRequest, DraftSession

PAGE_SIZE = 4
Opinion = Callable[[tuple[int, ...]], dict[int, float]]  # context -> likely ids and their logits


class ScriptedModel:
    """Logits are 0 but for what `opinion` says of a context."""

    def __init__(self, width: int, pages: int, opinion: Opinion) -> None:
        self.width = width
        self.opinion = opinion
        self.kept: list[int | None] = [None] * (pages * PAGE_SIZE)
        self.read: list[list[tuple[int, ...]]] = []  # of each step, of each chunk: the new tokens

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        rows = []
        self.read.append([tuple(chunk.tokens) for chunk in chunks])
        for chunk in chunks:
            begin, end = chunk.table.length, chunk.table.length + len(chunk.tokens)
            slots = [
                chunk.table.pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in range(end)
            ]
            for slot, token in zip(slots[begin:], chunk.tokens, strict=True):
                self.kept[slot] = token
            context = tuple(cast(int, self.kept[slot]) for slot in slots)
            for length in range(end - chunk.logit_rows + 1, end + 1):
                row = torch.zeros(self.width)
                for token, logit in self.opinion(context[:length]).items():
                    row[token] = logit
                rows.append(row)
        return torch.stack(rows) if rows else torch.empty(0, self.width)


class DrivenEngine:
    """A draft engine whose thread never starts: the test takes its steps."""

    def __init__(
        self, bridge: Bridge, opinion: Opinion, pages: int = 32, run_ahead: bool = False
    ) -> None:
        self.model = ScriptedModel(bridge.draft.width, pages, opinion)
        self.pool = PagePool(pages, PAGE_SIZE)
        model = cast(PagedModel, self.model)
        self.engine = DraftEngine(model, self.pool, bridge, 64, 64, run_ahead=run_ahead)
        self.open, self.close = self.engine.open, self.engine.close

    async def ask(
        self, session: DraftSession, context: Sequence[int], steps: int, **how: Any
    ) -> asyncio.Task[Draft]:
        """Have a draft begun; the engine knows of it, and has taken no step."""
        task = asyncio.create_task(self.engine.draft(session, context, DraftRequest(steps, **how)))
        await asyncio.sleep(0)
        self.obey()
        return task

    def obey(self) -> None:
        """Do what the engine was called for."""
        self.engine._thread._drain(block=False)

    def run(self) -> int:
        """Steps until nobody wants any more."""
        steps = 0
        while self.engine.step():
            self.pool.check()
            steps += 1
        return steps
