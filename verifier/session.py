"""One session at the verifier: what it asked for, what is committed, where it ends.

Knows the order of rounds and the cut at the first reason to stop. Does not know models, batches
and the network.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence as Seq

from common.engine.sequence import Sequence
from common.engine.thread import Mailbox
from common.errors import OutOfOrder, WrongRound
from common.kv.pages import PagePool
from common.sampling.rng import seed_word
from common.types import (
    FinishReason,
    OpenSession,
    Proposal,
    RoundCost,
    SparseDistribution,
    TokenLogprobs,
    Verdict,
)
from verifier.acceptance.token_counts import TokenCounts

LATE = 1.5  # times as long away as the last time: not expected any more


def cut_run(
    run: Seq[int],
    output_length: int,
    committed_length: int,
    stops: frozenset[int],
    max_new_tokens: int,
    context_limit: int,
) -> tuple[int, FinishReason | None]:
    """How many tokens of a run are committed, and why the session ends there, if it does.

    The first reason inside the run wins; at one token a stop id comes before the limits.
    """
    for count, token in enumerate(run, start=1):
        if token in stops:
            return count, FinishReason.STOP
        if output_length + count >= max_new_tokens:
            return count, FinishReason.LENGTH
        if committed_length + count >= context_limit:
            return count, FinishReason.CONTEXT
    return len(run), None


class Session:
    """Written on the engine's thread; read elsewhere only between a verdict and a proposal."""

    def __init__(
        self,
        spec: OpenSession,
        pool: PagePool,
        eos_ids: frozenset[int],
        context_limit: int,
        mailbox: Mailbox[Verdict],
    ) -> None:
        self.spec = spec
        self.mailbox = mailbox
        self.sequence = Sequence(pool, spec.prompt)
        self.round = 0  # of the round being checked, or expected next
        self.committed_length = len(spec.prompt)
        self.finish_reason: FinishReason | None = None
        self.q: tuple[SparseDistribution, ...] = ()  # of the draft tokens being checked
        seed = spec.sampling.seed
        # As int64. Without a seed, numbers that no other session has, here or anywhere.
        self.seed = seed_word(secrets.randbits(64) if seed is None else seed)
        self._stops = spec.ends(eos_ids)
        self.token_counts = TokenCounts(
            spec.sampling, spec.prompt, self._stops, spec.resumed_output_tokens
        )
        self._context_limit = context_limit
        self.due_at: float | None = None  # when the next proposal is expected, once that is known
        self._answered_at: float | None = None
        self._asked_at = 0.0
        self._started_at: float | None = None
        self._forward_s = 0.0
        self._away_s: float | None = None  # between the last verdict and its proposal
        self._in_flight = False

    @property
    def draft(self) -> list[int]:
        """The draft tokens being checked."""
        return self.sequence.tokens[self.committed_length :]

    @property
    def takes_argmax(self) -> bool:
        """Whether this round needs the argmax of the target's logits only."""
        return self.spec.sampling.greedy and not self.token_counts.acts

    def expect(self, proposal: Proposal) -> None:
        """Raise WrongRound or OutOfOrder unless the proposal is the one that comes next."""
        if self.finish_reason is not None or self._in_flight:
            state = "is being checked" if self._in_flight else "ended the session"
            raise OutOfOrder(f"proposal.round is {proposal.round}, but round {self.round} {state}")
        if proposal.round != self.round:
            raise WrongRound("round", proposal.round, self.round, self.committed_length)
        if proposal.base_length != self.committed_length:
            raise WrongRound(
                "base_length", proposal.base_length, self.committed_length, self.committed_length
            )

    def ask(self, draft: Seq[int], asked_at: float, q: Seq[SparseDistribution] = ()) -> None:
        """Begin a round that was asked for at `asked_at` (time.monotonic).

        q: the distribution of each draft token if the rule is rejection, otherwise empty.
        Draft tokens past the session's end can't be accepted, so they don't run.
        """
        limit = min(
            self.spec.max_new_tokens - (self.committed_length - len(self.spec.prompt)),
            self._context_limit - self.committed_length,
        )
        draft, self.q = draft[: limit - 1], tuple(q[: limit - 1])
        del self.sequence.tokens[self.committed_length :]
        self.sequence.tokens.extend(draft)
        self.sequence.wanted = len(draft) + 1
        # The last committed token's logits are needed again if a longer proposal follows a cut one.
        self.sequence.table.truncate(min(self.sequence.table.length, self.committed_length - 1))
        if self._answered_at is not None:
            self._away_s = asked_at - self._answered_at
        self.due_at = None
        self._asked_at, self._started_at, self._forward_s = asked_at, None, 0.0
        self._in_flight = True

    def ran(self, started_at: float, forward_s: float) -> None:
        """A forward pass with some of this session's rows began at `started_at`."""
        if self._started_at is None:
            self._started_at = started_at
        self._forward_s += forward_s

    def commit(
        self,
        accepted: int,
        next_token: int,
        accept_s: float,
        batch: tuple[int, int],
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> None:
        """End the round: commit, roll back, and post the verdict.

        batch: its (sessions, rows). logprobs: of the whole run, if the session wants them.
        """
        run = [*self.draft[:accepted], next_token]
        count, self.finish_reason = cut_run(
            run,
            self.committed_length - len(self.spec.prompt),
            self.committed_length,
            self._stops,
            self.spec.max_new_tokens,
            self._context_limit,
        )
        del self.sequence.tokens[self.committed_length :]
        self.sequence.tokens.extend(run[:count])
        self.committed_length += count
        self.token_counts.commit(run[:count])
        self.sequence.wanted = 1
        # The keys of rejected draft tokens go; the newest token has none yet.
        self.sequence.table.truncate(min(self.sequence.table.length, self.committed_length - 1))
        assert self._started_at is not None
        cost = RoundCost(
            queue_us=round((self._started_at - self._asked_at) * 1e6),
            forward_us=round(self._forward_s * 1e6),
            accept_us=round(accept_s * 1e6),
            batch_sessions=batch[0],
            batch_rows=batch[1],
        )
        verdict = Verdict(
            round=self.round,
            accepted_length=min(accepted, count),
            next_token=next_token if count == len(run) else None,
            committed_length=self.committed_length,
            finish_reason=self.finish_reason,
            cost=cost,
            logprobs=logprobs[:count],
        )
        self.round += 1
        self._in_flight = False
        self._answered_at = time.monotonic()
        if self._away_s is not None and self.finish_reason is None:
            self.due_at = self._answered_at + LATE * self._away_s
        self.mailbox.post(verdict)
