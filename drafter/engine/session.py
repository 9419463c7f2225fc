"""One session in the draft engine: its draft request, and what it has drafted, also ahead.

    context | draft handed out | guess of the target's next token | the draft after that
            '--- judged at the verifier ---'   '--- ahead of its verdict ---'

What was drafted ahead is the next draft, or its beginning, if the verdict confirms it: if the next
context is what this session has read, to the token. Only tokens that no verifier has seen count,
and each was sampled from its own distribution before anything was known of the verdict, so that a
draft is as good as a fresh one under every rule. Knows draft ids. Does not know passes and other
sessions.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum

import torch

from common.engine.sequence import Sequence
from common.engine.thread import Mailbox
from common.kv.pages import PagePool
from common.types import SparseDistribution
from drafter.engine.logits_processors import DraftLogitsProcessors
from drafter.engine.sampler import SampledToken, SamplerInput
from drafter.engine.tokens import DraftSamplingParams


class DraftFailed(Exception):
    """The draft model raised; the session goes on with k = 0. Never leaves the drafter."""


@dataclass(frozen=True)
class Draft:
    """Draft ids, newest last, and where their time went (seconds).

    `healed`: the first of them replaces the context's last id, whose bytes it begins
    with ("token healing"), rather than after it. `distributions`: what each was sampled from, where
    that goes along with it.
    """

    ids: list[int]
    distributions: list[SparseDistribution]
    healed: bool
    forward_s: float
    queue_s: float


@dataclass(frozen=True)
class DraftRequest:
    """What one draft is to be."""

    steps: int  # draft ids at most
    allowed: torch.Tensor | None = None  # bool [draft vocab]; None: all real ids
    allowed_first: torch.Tensor | None = None  # instead, in the first step
    heal: bool = False  # see Draft.healed
    sampling: DraftSamplingParams | None = None  # None: the likeliest
    processors: DraftLogitsProcessors | None = None

    @property
    def ahead(self) -> bool:
        """Whether more may be drafted before the verdict. Penalties change under it as tokens are
        committed."""
        return self.processors is None and (self.sampling is None or self.sampling.ahead)

    def continues(self, before: DraftRequest, tokens: int) -> bool:
        """Whether what was drafted ahead for `before`, behind `tokens` ids, does for this, too."""
        if self.allowed_first is not None:
            return False
        if self.allowed is not before.allowed or (self.sampling is None) != (
            before.sampling is None
        ):
            return False
        if self.sampling is None or before.sampling is None:
            return True
        # A seed's numbers belong to positions in the target's sequence.
        return self.sampling.position == before.sampling.position + tokens


class RunAheadResult(Enum):
    """What became of what was drafted ahead of a verdict."""

    HIT = "hit"  # a whole draft
    PART = "part"  # the beginning of one, or the guess before it
    MISS = "miss"


class DraftSession:
    """Written on the engine's thread only."""

    def __init__(self, pool: PagePool) -> None:
        self.sequence = Sequence(pool, [])
        self.mailbox: Mailbox[Draft] = Mailbox()
        self.owed = 0  # draft ids that the draft asked for still lacks
        self.asked_at = 0.0
        self.forward_s = 0.0  # of passes for the draft asked for
        self._request = DraftRequest(0)
        self._drafted: list[int] = []  # since the context, ahead included
        self._distributions: list[SparseDistribution] = []  # of as many, where they go along
        self._handed = 0  # so many of them are the draft asked for
        self._healed = False
        self._ended = True  # nothing can be drafted after the newest id

    def begin(self, context: Seq[int], request: DraftRequest) -> RunAheadResult | None:
        """Want a draft after `context`. Returns what became of what was drafted ahead, if any was.

        Where it is a HIT, nothing is owed.
        """
        ahead = len(self._drafted) - self._handed
        confirmed = self._confirmed(context, request)
        kept, distributions = confirmed or ([], [])
        wanted = 2 if request.heal and len(context) > 1 and not kept else 1
        self.sequence.rewrite([*context, *kept], wanted)
        self._request, self._drafted, self._distributions = request, kept, distributions
        self._ended = self._ended and bool(kept)
        self._healed = False
        self._handed = min(len(kept), request.steps)
        self.owed = 0 if kept and self._ended else request.steps - self._handed
        if ahead <= 0:
            return None
        return (
            RunAheadResult.MISS
            if confirmed is None
            else RunAheadResult.PART
            if self.owed
            else RunAheadResult.HIT
        )

    def sampler_input(self, real: torch.Tensor) -> SamplerInput:
        """What the next step is to choose. real: bool [draft vocab], ids that exist."""
        request = self._request
        allowed = real if request.allowed is None else request.allowed
        if not self._drafted and request.allowed_first is not None:
            allowed = request.allowed_first
        wanted, last = self.sequence.wanted, self.sequence.tokens[-1]
        return SamplerInput(
            wanted, last, self._drafted, allowed, request.sampling, request.processors
        )

    def take(self, chosen: SampledToken, stops: frozenset[int]) -> None:
        """One draft id more, asked for or ahead; or none."""
        if chosen.token is None or not self._request.steps:  # without steps, reading was all
            self._ended, self.owed = True, 0
            return
        if chosen.distribution is not None:
            self._distributions.append(chosen.distribution)
        if chosen.healed and not self._drafted:
            self._healed = True
            del self.sequence.tokens[-1]
            self.sequence.table.truncate(len(self.sequence.tokens))
        self._drafted.append(chosen.token)
        self.sequence.tokens.append(chosen.token)
        self.sequence.wanted = 1
        self._ended = chosen.token in stops
        if self.owed:
            self._handed += 1
            self.owed = 0 if self._ended else self.owed - 1

    def draft(self, queue_s: float) -> Draft:
        """What was asked for, once nothing is owed."""
        ids, distributions = self._drafted[: self._handed], self._distributions[: self._handed]
        return Draft(ids, distributions, self._healed, self.forward_s, queue_s)

    def may_run_ahead(self, max_context_length: int) -> bool:
        """Whether one more id is worth drafting before it is asked for: to the next draft's end."""
        return (
            self.owed == 0
            and not self._ended
            and self._request.ahead
            and len(self._drafted) < self._handed + 1 + self._request.steps
            and len(self.sequence.tokens) < max_context_length
            and self.sequence.pending == 1
        )

    def forget_ahead(self) -> None:
        """Nothing that was drafted ahead counts any more."""
        ahead = len(self._drafted) - self._handed
        self._ended = True
        for these in (self._drafted, self._distributions, self.sequence.tokens):
            del these[len(these) - ahead :]
        self.sequence.table.truncate(min(self.sequence.table.length, len(self.sequence.tokens)))

    def _confirmed(
        self, context: Seq[int], request: DraftRequest
    ) -> tuple[list[int], list[SparseDistribution]] | None:
        """What was drafted ahead and follows `context`, with its distributions; may be empty.

        None if something else was committed, or the request differs.
        """
        tokens = self.sequence.tokens
        behind = len(context) - (len(tokens) - len(self._drafted))  # of what was drafted
        if not self._handed <= behind <= len(self._drafted) or not request.steps:
            return None
        if not request.continues(self._request, behind) or tokens[: len(context)] != list(context):
            return None
        return self._drafted[behind:], self._distributions[behind:]
