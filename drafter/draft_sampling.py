"""How one session's draft tokens are drawn: which law, which numbers, and what goes with them.

    greedy      the likeliest token
    coupled     what the seed draws at the place that the token would have: both sides draw alike
    rejection   a draw from a short law, which goes along; the likeliest where the text has no law
    no-q        the likeliest: x stands with probability p(x), so that a draw could only be worse

Knows rules and positions. Refuses to know the model, contexts and messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from common.law import draw
from common.rng import Purpose, seed_word
from common.sampling import MAX_SEED, SamplingParams
from common.types import AcceptanceRule, BridgeMode, OpenSession, SparseRow
from drafter.bridge import Bridge
from drafter.draft_adjustments import DraftAdjustments
from drafter.draft_law import cut, draft_law

COUPLED_SLOTS = 1024  # of the draft's likeliest ids that noise is made for; the rest hardly matters
SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that no two rounds of a session have one seed


class Law(NamedTuple):
    """What one draft token was drawn from."""

    ids: list[int]  # of the draft vocabulary, distinct
    probabilities: list[float]  # as many, above 0


class Drawn(NamedTuple):
    """A draft token, and its law where the law goes along."""

    token: int
    law: Law | None


@dataclass(frozen=True)
class Draws:
    """How the tokens of one draft are drawn."""

    params: SamplingParams
    purpose: Purpose  # PROPOSE or COUPLED
    seed: int
    position: int  # of the first draft token, in the target's sequence
    slots: int  # ids of the law that is drawn from
    noise_ids: Tensor  # int64 [draft vocab]: the token id whose noise a draft id has
    first_noise_ids: Tensor  # instead, in the first step


def choose_drawn(
    logits: Tensor,  # [rows, draft vocab], adjusted
    allowed: Sequence[Tensor],  # per row: bool [draft vocab], the ids it may choose
    draws: Sequence[Draws],  # per row
    steps: Sequence[int],  # per row: how many tokens of its draft were drawn before
) -> list[Drawn | None]:
    """One draft token per row; None where nothing may come."""
    vocab = logits.shape[-1]
    params = [each.params for each in draws]

    def column(values: Sequence[float | None], unset: float) -> Tensor:
        return torch.tensor([unset if value is None else value for value in values])

    law = draft_law(
        logits,
        torch.stack(list(allowed)),
        column([each.temperature for each in params], 1.0),
        torch.tensor([min(each.top_k or vocab, vocab) for each in params]),
        column([each.top_p for each in params], 1.0),
        column([each.min_p for each in params], 0.0),
    )
    chosen: list[Drawn | None] = [None] * len(draws)
    for kind in {(each.purpose, each.slots): None for each in draws}:
        rows = [row for row, each in enumerate(draws) if (each.purpose, each.slots) == kind]
        drawn = _draw(law[rows], [draws[row] for row in rows], [steps[row] for row in rows])
        for row, found in zip(rows, drawn, strict=True):
            chosen[row] = found
    return chosen


def _draw(
    law: Tensor,  # float32 [rows, draft vocab]
    draws: Sequence[Draws],  # per row, of one purpose and number of slots
    steps: Sequence[int],  # per row
) -> list[Drawn | None]:
    drawn: list[Drawn | None] = [None] * len(draws)
    short = cut(law, draws[0].slots)
    used = (short.probs > 0).sum(dim=-1).tolist()  # the likeliest come first; 0: nothing may come
    rows = [row for row, count in enumerate(used) if count]
    if not rows:
        return drawn
    ids, probs = short.ids[rows], short.probs[rows]  # [rows that draw, slots]
    seed = torch.tensor([seed_word(draws[row].seed) for row in rows])
    position = torch.tensor([draws[row].position + steps[row] for row in rows])
    noise_of = [draws[row].noise_ids if steps[row] else draws[row].first_noise_ids for row in rows]
    noise_ids = torch.stack([of[own] for of, own in zip(noise_of, ids, strict=True)])
    columns = draw(probs, seed, position, draws[0].purpose, noise_ids)
    goes_along = draws[0].purpose is Purpose.PROPOSE
    for place, (row, column) in enumerate(zip(rows, columns.tolist(), strict=True)):
        told = None
        if goes_along:
            told = Law(ids[place, : used[row]].tolist(), probs[place, : used[row]].tolist())
        drawn[row] = Drawn(int(ids[place, column]), told)
    return drawn


class DraftSampling:
    """One session's. Greedy sessions have adjustments at most."""

    def __init__(
        self, bridge: Bridge, spec: OpenSession, eos_ids: frozenset[int], q_entries: int
    ) -> None:
        """eos_ids: the target's. q_entries: at most so many ids in a law that goes along."""
        self._bridge = bridge
        self._params = spec.sampling
        self._rule = spec.rule
        self._q_entries = q_entries
        self._position = len(spec.prompt)
        self._drafts = 0
        seed = spec.sampling.seed
        self._seed = secrets.randbits(64) if seed is None else seed
        self._own_ids = torch.arange(bridge.draft.width)
        self.adjustments: DraftAdjustments | None = None
        if spec.sampling.adjusts:
            ends = spec.stop_ids if spec.ignore_eos else spec.stop_ids | eos_ids
            self.adjustments = DraftAdjustments(bridge, spec.sampling, spec.prompt, ends)

    @property
    def greedy(self) -> bool:
        """Whether the target's next token is certain."""
        return self._rule is AcceptanceRule.GREEDY

    @property
    def with_q(self) -> bool:
        """Whether each proposed token goes with its law."""
        return self._rule is AcceptanceRule.REJECTION

    def commit(self, target_ids: Sequence[int]) -> None:
        """Output tokens that stand."""
        self._position += len(target_ids)
        if self.adjustments is not None:
            self.adjustments.commit(target_ids)

    def draws(self, mode: BridgeMode, held: bool = False) -> Draws | None:
        """For the next draft; None: the likeliest tokens. held: it begins with a committed space.

        Numbers that nobody shares are fresh for every draft: what became of the last one, lengths
        and modes included, then tells nothing about them, and q is exactly what was drawn from.
        """
        bridge, noise = self._bridge, self._bridge.noise_ids
        if self._rule is AcceptanceRule.COUPLED:
            first = bridge.noise_ids_after_space if held else noise
            seed, slots, purpose = self._seed, COUPLED_SLOTS, Purpose.COUPLED
        elif self.with_q and mode is BridgeMode.INTERSECTION:
            self._drafts += 1
            seed = (self._seed + self._drafts * SEED_STEP) & MAX_SEED
            # Draft ids, since those that share a twin are drawn apart and add up in its law.
            noise = first = self._own_ids
            slots, purpose = self._q_entries, Purpose.PROPOSE
        else:
            return None
        return Draws(self._params, purpose, seed, self._position, slots, noise, first)


def in_target_ids(bridge: Bridge, law: Law) -> SparseRow:
    """The law of the twin of what is drawn from `law`: draft ids that share a twin add up."""
    added: dict[int, float] = {}
    for draft_id, probability in zip(law.ids, law.probabilities, strict=True):
        twin = bridge.twin(draft_id)
        assert twin is not None, "a law is over shared ids only"
        added[twin] = added.get(twin, 0.0) + probability
    return SparseRow(tuple(added), tuple(added.values()))


def certain(token_id: int) -> SparseRow:
    """The law of a token that was not drawn: with it, rejection is no-q."""
    return SparseRow((token_id,), (1.0,))
