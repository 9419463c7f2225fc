"""Hooks into the stages of a session at the drafter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from drafter.service import DrafterService
from drafter.session import SpeculativeSession

STAGES = ("open", "propose", "check", "emit")
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
    pieces = DrafterService._pieces

    def emitting(self: DrafterService, run: Any, text: Any, session: SpeculativeSession) -> Any:
        with pytest.raises(StopIteration):  # this stage can't wait, so that its hook mustn't
            hook(session, "emit").__await__().__next__()
        return pieces(self, run, text, session)

    monkeypatch.setattr(DrafterService, "_pieces", emitting)
