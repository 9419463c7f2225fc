"""Scripted target and draft laws, whole sessions by the hundred thousand, and a test of their law.

A session's tokens follow a Markov chain p(. | token before). `run` lets the drafter's and the
verifier's own functions produce them, in rounds of k draft tokens, as the services do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from drafter.draft_law import SparseLaw, cut, draft_law, propose, propose_coupled
from verifier.kernels.decision import Decisions, Rule, SamplingBatch, SparseQ
from verifier.kernels.reference import decide

Decide = Callable[..., Decisions]


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

    def exact(self, rule: Rule) -> Tensor:
        """float64 [V ** length]: the joint law of a session's tokens, by loops over values."""
        rows = [self._one_hot(row) if rule == Rule.GREEDY else self._law(row) for row in self.p]
        chain = torch.stack(rows)
        joint = chain[self.vocab]
        for _ in range(1, self.length):
            last = torch.arange(len(joint)) % self.vocab
            joint = (joint[:, None] * chain[last]).reshape(-1)
        return joint

    def _one_hot(self, row: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(row.argmax(), self.vocab).double()

    def _law(self, row: Tensor) -> Tensor:
        law = row ** (1 / self.temperature)
        if self.top_k is not None:
            law = torch.stack([x if int((law > x).sum()) < self.top_k else x * 0 for x in law])
        law = law / law.sum()
        kept = [bool(law[law > x + 1e-9].sum() < self.top_p) or x == law.max() for x in law]
        law = law * torch.tensor(kept)
        law = law * (law >= self.min_p * law.max())
        return law / law.sum()


@dataclass
class _Sessions:
    """Tokens so far of n sessions, and the number of them."""

    tokens: Tensor  # int64 [n, length + k + 1]
    lengths: Tensor  # int64 [n]
    seeds: Tensor  # int64 [n]
    foreign: torch.Generator

    def before(self, active: Tensor, start: int) -> Tensor:
        """int64 [active]: the newest token, `start` where there is none."""
        newest = self.tokens[active].gather(1, (self.lengths[active] - 1).clamp(min=0)[:, None])
        return newest.squeeze(1).masked_fill(self.lengths[active] == 0, start)


def run(
    script: Script, rule: Rule, k: int, sessions: int, decide: Decide = decide, first_seed: int = 0
) -> Tensor:
    """int64 [sessions]: each session's tokens as one number in base V."""
    state = _Sessions(
        torch.zeros(sessions, script.length + k + 1, dtype=torch.int64),
        torch.zeros(sessions, dtype=torch.int64),
        torch.arange(sessions) + first_seed,
        torch.Generator().manual_seed(first_seed),
    )
    while len(active := (state.lengths < script.length).nonzero().squeeze(1)):
        _round(script, rule, k, state, active, decide)
    code = torch.zeros(sessions, dtype=torch.int64)
    for place in range(script.length):
        code = code * script.vocab + state.tokens[:, place]
    return code


def _round(
    script: Script, rule: Rule, k: int, state: _Sessions, active: Tensor, decide: Decide
) -> None:
    n, base, seed = len(active), state.lengths[active], state.seeds[active]
    before = [state.before(active, script.vocab)]  # k + 1 of [n]
    q_ids, q_probs = [], []
    own = torch.arange(script.vocab)
    logits = script.q.log().float()
    law = draft_law(logits, logits.isfinite(), **script.filters(len(logits)))  # [V + 1, V]
    sparse = cut(law, script.slots)
    for step in range(k):
        now = before[-1]
        if rule == Rule.COUPLED:
            drawn = propose_coupled(law[now], own, seed, base + step)
        elif script.foreign or rule != Rule.REJECTION:
            slot = torch.multinomial(sparse.probs, n, replacement=True, generator=state.foreign)
            drawn = sparse.ids[now, slot[now, torch.arange(n)]]
        else:
            mine = SparseLaw(sparse.ids[now], sparse.probs[now])
            drawn = propose(mine, own, seed, base + step)
        before.append(drawn)
        q_ids.append(sparse.ids[now])
        q_probs.append(sparse.probs[now])
    # The last row of each session has no draft token and no q.
    draft = torch.stack([*before[1:], torch.zeros_like(base)], dim=1).reshape(-1)
    q = None
    if k and rule == Rule.REJECTION:
        ids, probs = torch.stack(q_ids, dim=1), torch.stack(q_probs, dim=1)  # [n, k, slots]
        none = torch.zeros_like(probs[:, :1])
        q = SparseQ(
            torch.cat([ids, none.long()], dim=1).flatten(0, 1).int(),
            torch.cat([probs, none], dim=1).flatten(0, 1),
        )
    rows = torch.stack(before, dim=1).reshape(-1)  # [n * (k + 1)]
    made = decide(
        script.p.log().float()[rows],
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
    for step in range(k + 1):
        stays = made.accepted_lengths >= step
        token = torch.where(
            made.accepted_lengths == step, made.next_tokens, draft.view(n, k + 1)[:, step]
        )
        state.tokens[active[stays], (base + step)[stays]] = token[stays]
    state.lengths[active] += made.accepted_lengths + 1


def tail_probability(outcomes: Tensor, law: Tensor) -> float:
    """Pearson's chi-square: how likely outcomes as far from `law` or farther are if they follow it.

    outcomes: int64 [n]; law: float64 [cells]. Cells that expect under five outcomes count as one.
    """
    counts = torch.bincount(outcomes, minlength=len(law)).double()
    expected = law * len(outcomes)
    if bool(counts[law == 0].any()):
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
