"""Scripted target and draft distributions, sessions by the hundred thousand, and a test.

A session's tokens follow a Markov chain p(. | token before). `run` lets the drafter's and the
verifier's own functions produce them, in rounds of k draft tokens, as the services do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from common.sampling.rng import Purpose
from drafter.engine.distribution import draft_distribution, propose
from verifier.acceptance.batch import AcceptanceOutput, SamplingBatch
from verifier.acceptance.rules import accept

Decide = Callable[..., AcceptanceOutput]


@dataclass(frozen=True)
class Script:
    """Two chains over one vocabulary, and the request's filters. Row V of each is the start."""

    p: Tensor  # float64 [V + 1, V], before the filters
    q: Tensor  # float64 [V + 1, V]
    length: int  # tokens per session
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    slots: int = 64
    foreign: bool = True  # q is sampled by any generator; False: by the drafter's own

    @property
    def vocab(self) -> int:
        return self.p.shape[-1]

    def filters(self, n: int) -> dict[str, Tensor]:
        """The filters of n sessions."""
        k = self.vocab if self.top_k is None else self.top_k
        return {
            "temperature": torch.full((n,), self.temperature),
            "top_k": torch.full((n,), k, dtype=torch.int32),
            "top_p": torch.full((n,), self.top_p),
            "min_p": torch.full((n,), self.min_p),
        }

    def exact(self, rule: AcceptanceRule) -> Tensor:
        """float64 [V ** length]: the joint distribution of a session's tokens, by loops."""
        rows = [
            self._one_hot(row) if rule == AcceptanceRule.GREEDY else self._distribution(row)
            for row in self.p
        ]
        chain = torch.stack(rows)
        joint = chain[self.vocab]
        for _ in range(1, self.length):
            last = torch.arange(len(joint)) % self.vocab
            joint = (joint[:, None] * chain[last]).reshape(-1)
        return joint

    def _one_hot(self, row: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(row.argmax(), self.vocab).double()

    def _distribution(self, row: Tensor) -> Tensor:
        distribution = row ** (1 / self.temperature)
        if self.top_k is not None:
            distribution = torch.stack(
                [x if int((distribution > x).sum()) < self.top_k else x * 0 for x in distribution]
            )
        distribution = distribution / distribution.sum()
        kept = [
            bool(distribution[distribution > x + 1e-9].sum() < self.top_p)
            or x == distribution.max()
            for x in distribution
        ]
        distribution = distribution * torch.tensor(kept)
        distribution = distribution * (distribution >= self.min_p * distribution.max())
        return distribution / distribution.sum()


@dataclass
class _Sessions:
    """Tokens so far of n sessions, and the number of them."""

    tokens: Tensor  # int64 [n, length + k + 1]
    lengths: Tensor  # int64 [n]
    seeds: Tensor  # int64 [n]
    foreign: torch.Generator

    def before(self, active: Tensor, start: int) -> Tensor:
        """int64 [active]: the newest token, `start` where there is none."""
        lengths = self.lengths[active]
        newest = self.tokens.index_select(0, active).gather(1, (lengths - 1).clamp(min=0)[:, None])
        return newest.squeeze(1).masked_fill(lengths == 0, start)


def run(
    script: Script,
    rule: AcceptanceRule,
    k: int,
    sessions: int,
    accept: Decide = accept,
    first_seed: int = 0,
) -> Tensor:
    """int64 [sessions]: each session's tokens as one number in base V."""
    state = _Sessions(
        torch.zeros(sessions, script.length + k + 1, dtype=torch.int64),
        torch.zeros(sessions, dtype=torch.int64),
        torch.arange(sessions) + first_seed,
        torch.Generator().manual_seed(first_seed),
    )
    while len(active := (state.lengths < script.length).nonzero().squeeze(1)):
        _round(script, rule, k, state, active, accept)
    code = torch.zeros(sessions, dtype=torch.int64)
    for place in range(script.length):
        code = code * script.vocab + state.tokens[:, place]
    return code


def _round(
    script: Script, rule: AcceptanceRule, k: int, state: _Sessions, active: Tensor, accept: Decide
) -> None:
    n, base, seed = len(active), state.lengths[active], state.seeds[active]
    before = [state.before(active, script.vocab)]  # k + 1 of [n]
    own = torch.arange(script.vocab)
    logits = script.q.log().float()
    slots = script.vocab if rule == AcceptanceRule.COUPLED else script.slots
    sparse = draft_distribution(
        logits, logits.isfinite(), **script.filters(len(logits)), slots=slots
    )
    for step in range(k):
        now = before[-1]
        if rule != AcceptanceRule.COUPLED and (script.foreign or rule != AcceptanceRule.REJECTION):
            sampled = sparse.ids[now, _slots(sparse.probs, now, state.foreign)]
        else:
            mine = SparseDistributions(
                sparse.ids.index_select(0, now), sparse.probs.index_select(0, now)
            )
            purpose = Purpose.COUPLED if rule == AcceptanceRule.COUPLED else Purpose.PROPOSE
            sampled = propose(mine, own, seed, base + step, purpose)
        before.append(sampled)
    # The last row of each session has no draft token, and its q isn't read.
    draft = torch.stack([*before[1:], torch.zeros_like(base)], dim=1).reshape(-1)
    rows = torch.stack(before, dim=1).reshape(-1)  # [n * (k + 1)]
    q = None
    if k and rule == AcceptanceRule.REJECTION:
        q = SparseDistributions(
            sparse.ids.int().index_select(0, rows), sparse.probs.index_select(0, rows)
        )
    made = accept(
        script.p.log().float().index_select(0, rows),
        draft,
        torch.arange(n + 1) * (k + 1),
        SamplingBatch(
            rule=torch.full((n,), int(rule), dtype=torch.int8),
            seed=seed,
            first_position=base,
            **script.filters(n),
        ),
        q,
    )
    places = torch.arange(k + 1)
    token = torch.where(
        places == made.accepted_lengths[:, None], made.next_tokens[:, None], draft.view(n, k + 1)
    )
    # What comes behind the next token isn't committed: a later round overwrites it.
    tokens = state.tokens.index_select(0, active)
    tokens.scatter_(1, base[:, None] + places, token)
    state.tokens.index_copy_(0, active, tokens)
    state.lengths[active] += made.accepted_lengths + 1


def _slots(probs: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """int64 [n]: a slot of each row (int64 [n]) by the inverse CDF. probs: [states, slots]."""
    states, slots = probs.shape
    below = probs.double().cumsum(dim=-1)
    # One search for all: row r's steps lie in (r, r + 1].
    steps = below / below[:, -1:] + torch.arange(states)[:, None]
    at = torch.rand(len(rows), generator=generator).double() + rows  # float32, so exact below 1
    return torch.searchsorted(steps.flatten(), at, right=True) - rows * slots


def tail_probability(outputs: Tensor, distribution: Tensor) -> float:
    """Pearson's chi-square: the probability of outputs this far from a distribution they follow.

    outputs: int64 [n]; distribution: float64 [cells]. Cells that expect under five outputs count
    as one.
    """
    counts = torch.bincount(outputs, minlength=len(distribution)).double()
    expected = distribution * len(outputs)
    if bool(counts[distribution == 0].any()):
        return 0.0
    few = expected < 5
    if bool(few.any()):
        rest = torch.stack([counts[few].sum(), expected[few].sum()])
        counts, expected = counts[~few], expected[~few]
        if rest[1] >= 5:
            counts, expected = torch.cat([counts, rest[:1]]), torch.cat([expected, rest[1:]])
        else:
            counts[0], expected[0] = counts[0] + rest[0], expected[0] + rest[1]
    freedom = len(expected) - 1
    if freedom == 0:
        return 1.0
    chi = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), chi / 2))
