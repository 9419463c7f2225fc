"""The verifier's step: how many sessions' proposals are checked in one pass of the target model.

    step = pack, forward, accept, commit

Knows the model, the batcher and the acceptance sampler. Does not know the network: results leave
through each session's mailbox.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from common.engine.telemetry import EngineTelemetry
from common.engine.thread import EngineThread, Mailbox
from common.errors import InvalidField, ModelFailed, OverCapacity, PromptTooLong, RankLost
from common.kv.pages import PagePool
from common.model.language_model import LanguageModel
from common.types import OpenSession, Proposal, SparseDistribution, Verdict
from verifier.acceptance.draft_distributions import check_draft_distributions
from verifier.acceptance.sampler import AcceptanceSampler, HostAcceptanceSampler, VerifyOutput
from verifier.batcher import Batch, Batcher
from verifier.session import Session

log = logging.getLogger(__name__)

# Of the last pass: how long a pass may wait for sessions that are about to be back.
BATCHING_DELAY = 0.05
PAGES_S = 0.05  # between two looks whether pages have come free by time alone
RETRY_MS = 1000  # how long a refused session should wait; about the length of a few rounds


@dataclass(frozen=True)
class Limits:
    """What the verifier takes at most."""

    max_sessions: int
    max_draft_tokens: int
    max_context_length: int
    max_batch_tokens: int
    max_q_entries: int


class VerifierEngine:
    """The target model, on its own thread, checking rounds of all sessions together."""

    def __init__(
        self,
        model: LanguageModel,
        pool: PagePool,
        limits: Limits,
        eos_ids: frozenset[int],
        real_ids: torch.Tensor | None = None,  # bool [vocab]: ids the tokenizer has; None: all
        threads: int = 0,
        acceptance: AcceptanceSampler | None = None,  # None: on the CPU
    ) -> None:
        assert pool.capacity_tokens >= limits.max_context_length
        assert limits.max_batch_tokens > limits.max_draft_tokens
        self.limits = limits
        self.eos_ids = eos_ids
        self.vocab_size = model.vocab_size
        self.pool = pool
        self._model = model
        self._real_count = model.vocab_size if real_ids is None else int(real_ids.sum())
        self._batcher = Batcher(limits.max_batch_tokens)
        self.telemetry = EngineTelemetry(
            "target", pool, self._batcher.waiting, lambda: model.eager_passes
        )
        self._pass_s = 0.0  # the last forward pass
        self._open_sessions = 0  # on the event loop, so that admission answers at once
        self._acceptance = HostAcceptanceSampler(real_ids) if acceptance is None else acceptance
        self._thread = EngineThread(
            "verifier-engine",
            self.step,
            threads,
            enter=self._acceptance.enter,
            at_end=model.close,
        )
        self.start, self.stop = self._thread.start, self._thread.stop
        self.on_death, self.busy_s = self._thread.on_death, self._thread.busy_s
        self.die_of = self._thread.die  # from any thread

    # --- the step -----------------------------------------------------------------------------

    def step(self) -> bool:
        """Pack, forward, accept, commit. False when nobody waits."""
        limit = time.monotonic() + BATCHING_DELAY * self._pass_s
        self._thread.wait_for_more(lambda: self._batcher.expected_by(limit))
        batch = self._batcher.next_batch()
        if batch is None:
            return self._wait_for_pages()
        self._check(batch)
        return True

    def _check(self, batch: Batch) -> None:
        """Forward, accept, commit; where that raises, each half by itself, to find whose fault."""
        try:
            began = time.monotonic()
            logits = self._model.forward(batch.chunks)
            forwarded = time.monotonic()
            outputs = self._acceptance.accept(batch, logits)
            forwarded += self._acceptance.lag_s
            self._pass_s = forwarded - began
            self.telemetry.passed(self._pass_s, [len(chunk.tokens) for chunk in batch.chunks])
        except RankLost:
            raise
        except Exception as cause:
            self._fail(batch, cause)
        else:
            self._commit(batch, outputs, began, forwarded)

    def _wait_for_pages(self) -> bool:
        """Whether anybody waits: those who have the pages are about to ask, end, or be idle."""
        if not self._batcher.waiting():
            return False
        self._thread.wait_for_one(PAGES_S)
        return True

    def _commit(
        self, batch: Batch, outputs: Sequence[VerifyOutput | None], began: float, forwarded: float
    ) -> None:
        for session, chunk in zip(batch.running, batch.chunks, strict=True):
            session.sequence.ran(len(chunk.tokens))
            session.ran(began, forwarded - began)
        accepted_s = time.monotonic() - forwarded
        size = (len(batch.running), batch.rows)
        for session, made in zip(batch.verified, outputs, strict=True):
            if made is None:
                log.error("logits after %d tokens aren't finite", session.committed_length)
                self._end(session, "its logits aren't finite")
                continue
            session.commit(made.accepted_length, made.next_token, accepted_s, size, made.logprobs)

    def _fail(self, batch: Batch, cause: Exception) -> None:
        """What one session brings must end no other: keys and values are written again alike."""
        sessions = len(batch.running)
        log.exception("a pass with %d rows of %d sessions failed", batch.rows, sessions)
        self.telemetry.failed()
        self._acceptance.check()
        if sessions == 1:
            self._end(batch.running[0], type(cause).__name__)
            return
        for half in batch.halves():
            self._check(half)

    def _end(self, session: Session, why: str) -> None:
        self._batcher.remove(session)
        session.mailbox.post(ModelFailed(f"the target model failed: {why}"))

    # --- called on the event loop -------------------------------------------------------------

    def open(
        self, spec: OpenSession, draft: Sequence[int] = (), q: Sequence[SparseDistribution] = ()
    ) -> Session:
        """Admit a session and begin its round 0: prefill, and `draft` checked with it.

        Raises OverCapacity, PromptTooLong, InvalidDistribution or InvalidField; nothing is held
        then.
        """
        if self._open_sessions >= self.limits.max_sessions:
            raise OverCapacity("sessions", self.limits.max_sessions, RETRY_MS)
        if not spec.prompt:
            raise InvalidField("open.prompt_token_ids", "empty", "at least one token")
        if len(spec.prompt) >= self.limits.max_context_length:
            raise PromptTooLong(len(spec.prompt), self.limits.max_context_length - 1)
        self._check_ends(spec)
        self._check_draft(spec, draft, q, "draft_token_ids", "q")
        mailbox: Mailbox[Verdict] = Mailbox()
        session = Session(spec, self.pool, self.eos_ids, self.limits.max_context_length, mailbox)
        self._open_sessions += 1
        now = time.monotonic()
        self._thread.call(lambda: self._begin(session, draft, q, now, first=True))
        return session

    def propose(self, session: Session, proposal: Proposal) -> None:
        """Check a proposal. Raises WrongRound, OutOfOrder, InvalidDistribution or InvalidField."""
        session.expect(proposal)
        draft, q = proposal.token_ids, proposal.q
        self._check_draft(session.spec, draft, q, "proposal.token_ids", "proposal.q")
        now = time.monotonic()
        self._thread.call(lambda: self._begin(session, draft, q, now, first=False))

    def close(self, session: Session) -> None:
        """Free the session's pages before the next step. Must be called once per `open`."""
        self._open_sessions -= 1
        self._thread.call(lambda: self._batcher.remove(session))

    @property
    def open_sessions(self) -> int:
        return self._open_sessions

    def _begin(
        self,
        session: Session,
        draft: Sequence[int],
        q: Sequence[SparseDistribution],
        asked_at: float,
        first: bool,
    ) -> None:
        if first:
            self._batcher.add(session)
        session.ask(draft, asked_at, q)
        self._batcher.wait(session)

    def _check_ends(self, spec: OpenSession) -> None:
        """Without any id left p would not exist, and its row would fail the whole pass."""
        if spec.sampling.min_new_tokens and len(spec.ends(self.eos_ids)) >= self._real_count:
            raise InvalidField(
                "open.stop_token_ids",
                f"{len(spec.stop_ids)} ids long",
                "fewer than all ids, since sampling.min_new_tokens keeps them away at first",
            )

    def _check_draft(
        self,
        spec: OpenSession,
        draft: Sequence[int],
        q: Sequence[SparseDistribution],
        draft_field: str,
        q_field: str,
    ) -> None:
        if len(draft) > self.limits.max_draft_tokens:
            raise InvalidField(
                draft_field, f"{len(draft)} tokens long", f"at most {self.limits.max_draft_tokens}"
            )
        check_draft_distributions(
            q_field, q, draft, spec.rule, self.vocab_size, self.limits.max_q_entries
        )
