"""A session follows p though one with the same seed went before it: neither teaches the other.

Two requests with one seed and an explicit rule share random numbers. Were the mode of the second
chosen by how the first one fared, its draft token would depend on the number that accepts it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import torch

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, OpenSession
from drafter.bridge.bridge import Bridge
from drafter.bridge.proposer import AutoChooser, ModeStats
from drafter.drafting import Drafted, Drafting
from drafter.engine.engine import DraftEngine
from drafter.engine.sampling import DraftSampling
from drafter.statistics import StreamStatistics
from tests.statistics.joint_distributions import tail_probability
from tests.support.fake_tokenizers import family
from verifier.acceptance.batch import SamplingBatch
from verifier.acceptance.rules import accept

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
DRAFTS = {BridgeMode.TEXT: 0, BridgeMode.INTERSECTION: 1}  # what each mode proposes
SEEDS = 4000
BRIDGE = Bridge(family("byte-level"), family("byte-level"))
ENGINE = cast(DraftEngine, SimpleNamespace(open=lambda: None))


def verdicts(draft: int) -> list[list[int]]:
    """What is committed of one draft token and its next one, for each seed."""
    made = accept(
        P.log().float().repeat(2 * SEEDS, 1),
        torch.tensor([draft, 0]).repeat(SEEDS),
        2 * torch.arange(SEEDS + 1),
        SamplingBatch(
            rule=torch.full((SEEDS,), int(AcceptanceRule.TARGET_ONLY), dtype=torch.int8),
            seed=torch.arange(SEEDS),
            first_position=torch.full((SEEDS,), 7),
            temperature=torch.ones(SEEDS),
            top_k=torch.full((SEEDS,), len(P), dtype=torch.int32),
            top_p=torch.ones(SEEDS),
            min_p=torch.zeros(SEEDS),
        ),
        None,
    )
    accepted, following = made.accepted_lengths.tolist(), made.next_tokens.tolist()
    return [[draft, n] if a else [n] for a, n in zip(accepted, following, strict=True)]


def second_tokens(explicit_seed: bool) -> list[int]:
    """The first token of each seed's second session."""
    outcomes = {mode: verdicts(draft) for mode, draft in DRAFTS.items()}
    tokens = []
    for seed in range(SEEDS):
        chooser = AutoChooser(0.1, 0.03)
        for mode in DRAFTS:  # known, and equally good: the first outcome decides
            chooser.sampled.pair[mode] = ModeStats(8, 12, 9.04)
        sampling = SamplingParams(temperature=1.0, seed=seed if explicit_seed else None)
        spec = OpenSession((5,), 8, "", rule=AcceptanceRule.TARGET_ONLY, sampling=sampling)
        committed: list[int] = []
        for _ in range(2):
            own = DraftSampling(BRIDGE, spec, frozenset(), 64)
            statistics = StreamStatistics()
            drafting = Drafting(BRIDGE, ENGINE, chooser, {}, BridgeMode.AUTO, own, None, statistics)
            mode = chooser.sampled.choose(drafting._mode_stats)
            committed = outcomes[mode][seed]
            drafted = Drafted([DRAFTS[mode]], mode, 1, [DRAFTS[mode]])
            drafting.committed(committed, drafted)
        tokens.append(committed[0])
    return tokens


def test_the_second_of_two_sessions_with_one_seed_follows_p() -> None:
    assert tail_probability(torch.tensor(second_tokens(explicit_seed=True)), P) > 1e-4


def test_the_test_can_tell() -> None:
    """Taught by a sibling with the same numbers, as before, the second token is biased."""
    assert tail_probability(torch.tensor(second_tokens(explicit_seed=False)), P) < 1e-9
