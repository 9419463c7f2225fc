"""How one session's draft tokens are sampled, by acceptance rule, and what is sent with them.

    greedy       the likeliest token, and so under every rule where filters leave one token
    coupled      what the seed samples at the token's own position: both sides sample alike
    rejection    a sample from a sparse distribution, which is sent with it; the likeliest token
                 where the draft crosses as text, which has no q
    target-only  the likeliest: x is accepted with probability p(x), a sample could only be worse

Knows rules and positions. Does not know the model, contexts and messages, and how a sample is
made (drafter/engine/tokens.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import MAX_SEED
from common.sampling.rng import Purpose
from common.types import BridgeMode, OpenSession, SparseDistribution
from drafter.bridge.bridge import Bridge
from drafter.engine.logits_processors import DraftLogitsProcessors
from drafter.engine.tokens import DraftSamplingParams

COUPLED_SLOTS = 1024  # of the draft's likeliest ids that noise is made for; the rest hardly matters
SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that no two rounds of a session have one seed


class DraftSampling:
    """One session's. Where one token alone can come, it has logits processors at most."""

    def __init__(
        self, bridge: Bridge, spec: OpenSession, eos_ids: frozenset[int], q_entries: int
    ) -> None:
        """eos_ids: the target's. q_entries: the most ids in a distribution that is sent."""
        self._bridge = bridge
        self._params = spec.sampling
        self._rule = spec.rule
        self._q_entries = q_entries
        self._position = len(spec.prompt)
        self._drafts = 0
        seed = spec.sampling.seed
        self._seed = secrets.randbits(64) if seed is None else seed
        self.processors: DraftLogitsProcessors | None = None
        if spec.sampling.processes_logits:
            begun = len(spec.prompt) - spec.resumed_output_tokens
            prompt, output = spec.prompt[:begun], spec.prompt[begun:]
            self.processors = DraftLogitsProcessors(
                bridge, spec.sampling, prompt, spec.ends(eos_ids)
            )
            self.processors.commit(output)

    @property
    def greedy(self) -> bool:
        """Whether the target takes its likeliest token, by the rule or by a filter."""
        return self._params.one_token

    @property
    def outcomes_are_its_own(self) -> bool:
        """Whether nothing of how its drafts fare is known to a session that comes after it.

        With an explicit seed and a rule that samples acceptance, another session may have the same
        random numbers: what this one's outcomes teach would give away the other's. With Gumbel-max
        coupling a draft changes nothing, and without a seed the numbers are nobody else's.
        """
        certain = AcceptanceRule.GREEDY, AcceptanceRule.COUPLED
        return self._params.seed is None or self._rule in certain

    @property
    def with_q(self) -> bool:
        """Whether each proposed token goes with its distribution."""
        return self._rule is AcceptanceRule.REJECTION

    def limit_q(self, entries: int) -> None:
        """The most ids in a distribution that is sent from now on."""
        self._q_entries = entries

    def commit(self, target_ids: Sequence[int]) -> None:
        """Count committed output tokens."""
        self._position += len(target_ids)
        if self.processors is not None:
            self.processors.commit(target_ids)

    def params(self, mode: BridgeMode, after_space: bool = False) -> DraftSamplingParams | None:
        """Of the next draft; None: the likeliest tokens. after_space: with a healing prefix.

        Numbers that nobody shares are fresh for every draft: what became of the last one, lengths
        and modes included, then reveals nothing about them, and q is exactly what was sampled from.
        What a draft goes on with ahead of its verdict has numbers of its own, too: by position.
        """
        bridge, noise = self._bridge, self._bridge.noise_ids
        if self.greedy:
            return None
        if self._rule is AcceptanceRule.COUPLED:
            first = bridge.noise_ids_after_space if after_space else noise
            seed, slots, purpose = self._seed, COUPLED_SLOTS, Purpose.COUPLED
        elif self.with_q and mode is BridgeMode.INTERSECTION:
            self._drafts += 1
            seed = (self._seed + self._drafts * SEED_STEP) & MAX_SEED
            # Draft ids, since those that share a mapped token are sampled apart and add up there.
            noise = first = bridge.draft_ids
            slots, purpose = self._q_entries, Purpose.PROPOSE
        else:
            return None
        # With a seed the same drafts must come again: how far ahead one gets is a matter of time.
        ahead = purpose is Purpose.COUPLED or self._params.seed is None
        return DraftSamplingParams(
            self._params, purpose, seed, self._position, slots, noise, first, ahead
        )


def in_target_ids(bridge: Bridge, distribution: SparseDistribution) -> SparseDistribution:
    """`distribution` in target ids: draft ids that share a mapped token add up."""
    added: dict[int, float] = {}
    for draft_id, probability in zip(distribution.ids, distribution.probabilities, strict=True):
        mapped_id = bridge.mapped_id(draft_id)
        assert mapped_id is not None, "a distribution is over shared ids only"
        added[mapped_id] = added.get(mapped_id, 0.0) + probability
    return SparseDistribution(tuple(added), tuple(added.values()))


def one_hot(token_id: int) -> SparseDistribution:
    """The distribution of a token that was not sampled: with it, rejection is target-only."""
    return SparseDistribution((token_id,), (1.0,))
