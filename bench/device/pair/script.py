"""Acceptance at a scripted rate: drafts that are the target's recorded output, spoilt now and then.

Knows what each stream's output was at k = 0, and which positions a draft gets right: a sample for
each (stream, position), from common/sampling/rng.py, so that the same ones are accepted whatever k
and batch are. The draft model's own steps run as ever, and their time is real; only what they chose
is replaced. Does not know how rounds are timed. Never part of a service:
bench/device/pair/service.py puts it in.

A stream is known by its prompt's first id. Both models have one tokenizer here, so that ids are
ids.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.device.pair.folders import IDS
from common.sampling import rng
from drafter.engine.engine import DraftEngine
from drafter.engine.session import DraftSession


class Script:
    """What to draft, read anew whenever the file is another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0
        self._truths: dict[int, list[int]] = {}
        self._stands: dict[int, list[bool]] = {}

    @staticmethod
    def write(path: Path, rate: float, outputs: Sequence[Sequence[int]]) -> None:
        """outputs: prompt and output of each stream."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"rate": rate, "outputs": [list(each) for each in outputs]}))
        part.replace(path)

    def refresh(self) -> None:
        if not self._path.exists() or self._path.stat().st_mtime_ns == self._seen:
            return
        self._seen = self._path.stat().st_mtime_ns
        reported = json.loads(self._path.read_text())
        self._truths = {output[0]: output for output in reported["outputs"]}
        self._stands = {
            first: accepted(first, len(output), reported["rate"])
            for first, output in self._truths.items()
        }

    def token(self, before: Sequence[int], own: int | None) -> int | None:
        """What to draft after `before`; the model's own where nothing is recorded."""
        truth = self._truths.get(before[0])
        if truth is None or own is None or len(before) >= len(truth):
            return own
        right = truth[len(before)]
        return right if self._stands[before[0]][len(before)] else (right + 1) % IDS


def accepted(stream: int, length: int, rate: float) -> list[bool]:
    """Which positions of a stream are drafted rightly."""
    seed = torch.full((length,), stream + 1, dtype=torch.int64)
    return (rng.uniform(seed, torch.arange(length), rng.Purpose.ACCEPT) < rate).tolist()


def expected_length(rate: float, k: int) -> float:
    """Mean acceptance length where each of k draft tokens is accepted at that rate."""
    return sum(rate**count for count in range(k + 1))


class ScriptedEngine(DraftEngine):
    """The draft engine, but for what it drafts. `script` is set before one is made."""

    script: Script

    def open(self) -> DraftSession:
        self.script.refresh()
        return super().open()

    def _advance(self, session: DraftSession, chosen: Any) -> None:
        """chosen: a token, or what holds one beside its distribution."""
        tokens = session.sequence.tokens
        if dataclasses.is_dataclass(chosen) and not isinstance(chosen, type):
            own = chosen.token  # type: ignore[attr-defined]
            chosen = dataclasses.replace(chosen, token=self.script.token(tokens, own))
        else:
            chosen = self.script.token(tokens, chosen)
        super()._advance(session, chosen)
