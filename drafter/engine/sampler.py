"""A draft step's inputs, and its tokens on the CPU: one token for each session, from its logits.

Knows what a session needs of a step, and healing beside it. Does not know sessions and batches
(drafter/engine/engine.py), and how tokens are sampled (drafter/engine/tokens.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from common.types import SparseDistribution
from drafter.bridge.bridge import Bridge
from drafter.engine.healing import choose_extension
from drafter.engine.logits_processors import DraftLogitsProcessors
from drafter.engine.tokens import DraftSamplingParams, choose


@dataclass(frozen=True)
class SamplerInput:
    """What one session wants of a step: a token from its last logit row."""

    rows: int  # of logits; where there are two, the first is before `last`, for healing
    last: int  # the newest token that was read
    drafted: Sequence[int]  # tokens of this draft so far
    allowed: Tensor  # bool [draft vocab]: on a device it must be one of the bridge's own masks
    sampling: DraftSamplingParams | None  # None: the likeliest
    processors: DraftLogitsProcessors | None


@dataclass(frozen=True)
class SampledToken:
    """The token, or None where nothing may come; healed: it replaces the context's last one."""

    token: int | None
    distribution: SparseDistribution | None = (
        None  # what it was sampled from, where that goes along
    )
    healed: bool = False


class Sampler(Protocol):
    """Who chooses draft tokens: picked at start, by the device."""

    @property
    def lag_s(self) -> float:
        """How long the last forward pass went on after its call had returned."""

    def enter(self) -> None:
        """Called once on the engine's thread, before all else."""

    def warm_up(self) -> None:
        """Make at start what would otherwise be made in a step."""

    def choose(self, logits: Tensor, inputs: Sequence[SamplerInput]) -> list[SampledToken]:
        """logits: [sum of rows, draft vocab], in the order of `inputs`."""


class HostSampler:
    """On the CPU, in plain torch."""

    lag_s = 0.0

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def enter(self) -> None: ...

    def warm_up(self) -> None: ...

    def choose(self, logits: Tensor, inputs: Sequence[SamplerInput]) -> list[SampledToken]:
        if not inputs:
            return []
        rows = torch.tensor([each.rows for each in inputs]).cumsum(0) - 1
        scores = logits[rows]  # [sessions, draft vocab], a copy
        for index, each in enumerate(inputs):
            if each.processors is not None:
                scores[index] = each.processors.applied(scores[index], each.drafted)
        steps = [len(each.drafted) for each in inputs]
        sampled = choose(
            scores, [each.allowed for each in inputs], [each.sampling for each in inputs], steps
        )
        chosen = [
            SampledToken(None) if made is None else SampledToken(made.token, made.distribution)
            for made in sampled
        ]
        for index, each in enumerate(inputs):
            if each.rows == 2:
                row, longer = int(rows[index]), self._bridge.draft_extensions(each.last)
                extension = choose_extension(
                    logits[row - 1], logits[row], each.last, longer, each.sampling is not None
                )
                if extension is not None:
                    chosen[index] = replace(chosen[index], token=extension, healed=True)
        return chosen
