"""Draft sampling over two small vocabularies, as tests of several packages need it."""

from __future__ import annotations

from typing import Any

import torch

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, OpenSession
from drafter.bridge.bridge import Bridge
from drafter.engine.logits_processors import DraftLogitsProcessors
from drafter.engine.sampling import DraftSampling
from drafter.engine.tokens import DraftSamplingParams
from tests.support.fake_tokenizers import family

BRIDGE = Bridge(family("byte-level"), family("sentencepiece"))  # target, draft
WIDTH = BRIDGE.draft.width
TEXT, INTERSECTION = BridgeMode.TEXT, BridgeMode.INTERSECTION
TARGET_ONLY, REJECTION, COUPLED = (
    AcceptanceRule.TARGET_ONLY,
    AcceptanceRule.REJECTION,
    AcceptanceRule.COUPLED,
)


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return 3 * torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def sampling(rule: AcceptanceRule, seed: int | None = None, q: int = 64, **params: Any) -> Any:
    params = {"temperature": 1.0, "seed": seed, **params}
    spec = OpenSession((5, 6), 30, "", rule=rule, sampling=SamplingParams(**params))
    return DraftSampling(BRIDGE, spec, frozenset({0}), q)


def samples_of(made: DraftSampling, mode: BridgeMode = INTERSECTION) -> DraftSamplingParams:
    sampling = made.params(mode)
    assert sampling is not None
    return sampling


def processors(prompt: tuple[int, ...] = (), ends: tuple[int, ...] = (), **params: Any) -> Any:
    return DraftLogitsProcessors(BRIDGE, SamplingParams(**params), prompt, ends)


def pair_of(text: bytes) -> tuple[int, int]:
    """(target id, draft id) of a shared token."""
    target, draft = BRIDGE.target.id_of(text), BRIDGE.draft.id_of(text)
    assert target is not None and draft is not None
    return target, draft


A, B, C = pair_of(b"a"), pair_of(b"b"), pair_of(b"c")
