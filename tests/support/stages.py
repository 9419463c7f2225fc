"""Hooks into the stages of a session at the drafter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from drafter.generate.reply import Reply
from drafter.session import SpeculativeSession

STAGES = ("open", "propose", "verify", "emit")
Hook = Callable[[SpeculativeSession, str], Awaitable[None]]


def at_every_stage(monkeypatch: pytest.MonkeyPatch, hook: Hook) -> None:
    """Have `hook` run in the drafter as a session comes to a stage."""
    for stage in STAGES[:3]:
        original = getattr(SpeculativeSession, stage)

        async def entered(
            session: SpeculativeSession, *arguments: Any, stage: str = stage, do: Any = original
        ) -> Any:
            await hook(session, stage)
            return await do(session, *arguments)

        monkeypatch.setattr(SpeculativeSession, stage, entered)
    deltas = Reply.deltas

    def emitting(self: Reply, run: Any) -> Any:
        with pytest.raises(StopIteration):  # this stage can't wait, so that its hook mustn't
            hook(self._session, "emit").__await__().__next__()
        return deltas(self, run)

    monkeypatch.setattr(Reply, "deltas", emitting)
