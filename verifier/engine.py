"""THE OTHER MAP: how many sessions' proposals are checked in one pass of the target model.

    step = pack, forward, decide, commit

Knows the model, the batcher and the decision. Refuses to know the network: results leave through
each session's mailbox.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from common.engine_thread import EngineThread, Mailbox
from common.errors import InvalidField, ModelFailed, OverCapacity, PromptTooLong
from common.kv_cache import PagePool
from common.model import PagedModel
from common.types import OpenSession, Proposal, Verdict
from verifier.batcher import Batch, Batcher
from verifier.kernels.reference import Decisions, decide_greedy
from verifier.session import Session

log = logging.getLogger(__name__)

GATHER = 0.05  # of the last pass: how long a pass may wait for sessions that are about to be back
RETRY_MS = 1000  # what a refused session is told to wait; about the length of a few rounds


@dataclass(frozen=True)
class Limits:
    """What the verifier takes at most."""

    max_sessions: int
    max_draft_tokens: int
    max_context_length: int
    max_batch_tokens: int


class VerifierEngine:
    """The target model, on its own thread, checking rounds of all sessions together."""

    def __init__(
        self,
        model: PagedModel,
        pool: PagePool,
        limits: Limits,
        eos_ids: frozenset[int],
        real_ids: torch.Tensor | None = None,  # bool [vocab]: ids the tokenizer has; None: all
        threads: int = 0,
    ) -> None:
        assert pool.capacity_tokens >= limits.max_context_length
        assert limits.max_batch_tokens > limits.max_draft_tokens
        self.limits = limits
        self.eos_ids = eos_ids
        self.vocab_size = model.vocab_size
        self.pool = pool
        self._model = model
        self._real_ids = real_ids
        self._batcher = Batcher(limits.max_batch_tokens)
        self._pass_s = 0.0  # the last forward pass
        self._open_sessions = 0  # on the event loop, so that admission answers at once
        self._thread = EngineThread("verifier-engine", self.step, threads)
        self.start, self.stop = self._thread.start, self._thread.stop
        self.on_death = self._thread.on_death

    # --- the step -----------------------------------------------------------------------------

    def step(self) -> bool:
        """Gather, pack, forward, decide, commit. False when nobody waits."""
        limit = time.monotonic() + GATHER * self._pass_s
        self._thread.gather(lambda: self._batcher.expected_by(limit))
        batch = self._batcher.next_batch()
        if batch is None:
            return False
        try:
            began = time.monotonic()
            logits = self._model.forward(batch.chunks)
            forwarded = time.monotonic()
            self._pass_s = forwarded - began
            decisions = self._decide(batch, logits)
        except Exception as cause:
            self._fail(batch, cause)
            return True
        self._commit(batch, decisions, began, forwarded)
        return True

    def _decide(self, batch: Batch, logits: torch.Tensor) -> Decisions | None:
        if not batch.deciding:
            return None  # chunks of long prompts only
        return decide_greedy(logits, batch.draft_tokens(), batch.offsets(), self._real_ids)

    def _commit(
        self, batch: Batch, decisions: Decisions | None, began: float, forwarded: float
    ) -> None:
        for session, chunk in zip(batch.running, batch.chunks, strict=True):
            session.sequence.table.extend(len(chunk.tokens))
            session.ran(began, forwarded - began)
        if decisions is None:
            return
        accepted, following = decisions.accepted_lengths.tolist(), decisions.next_tokens.tolist()
        decided_s = time.monotonic() - forwarded
        size = (len(batch.running), batch.rows)
        for session, a, token in zip(batch.deciding, accepted, following, strict=True):
            session.commit(a, token, decided_s, size)

    def _fail(self, batch: Batch, cause: Exception) -> None:
        log.exception("a forward pass with %d rows failed", batch.rows)
        for session in batch.running:
            self._batcher.remove(session)
            session.mailbox.post(ModelFailed(f"the target model failed: {type(cause).__name__}"))

    # --- called on the event loop -------------------------------------------------------------

    def open(self, spec: OpenSession, draft: Sequence[int] = ()) -> Session:
        """Admit a session and begin its round 0: prefill, and `draft` checked with it.

        Raises OverCapacity, PromptTooLong or InvalidField; nothing is held then.
        """
        if self._open_sessions >= self.limits.max_sessions:
            raise OverCapacity("sessions", self.limits.max_sessions, RETRY_MS)
        if not spec.prompt:
            raise InvalidField("open.prompt_token_ids", "empty", "at least one token")
        if len(spec.prompt) >= self.limits.max_context_length:
            raise PromptTooLong(len(spec.prompt), self.limits.max_context_length - 1)
        self._check_length(draft, "draft_token_ids")
        mailbox: Mailbox[Verdict] = Mailbox()
        session = Session(spec, self.pool, self.eos_ids, self.limits.max_context_length, mailbox)
        self._open_sessions += 1
        now = time.monotonic()
        self._thread.call(lambda: self._begin(session, draft, now, first=True))
        return session

    def propose(self, session: Session, proposal: Proposal) -> None:
        """Have a proposal checked. Raises WrongRound, OutOfOrder or InvalidField."""
        session.expect(proposal)
        self._check_length(proposal.token_ids, "proposal.token_ids")
        now = time.monotonic()
        self._thread.call(lambda: self._begin(session, proposal.token_ids, now, first=False))

    def close(self, session: Session) -> None:
        """Free the session's pages before the next step. Must be called once per `open`."""
        self._open_sessions -= 1
        self._thread.call(lambda: self._batcher.remove(session))

    @property
    def open_sessions(self) -> int:
        return self._open_sessions

    def _begin(self, session: Session, draft: Sequence[int], asked_at: float, first: bool) -> None:
        if first:
            self._batcher.add(session)
        session.ask(draft, asked_at)
        self._batcher.wait(session)

    def _check_length(self, draft: Sequence[int], field: str) -> None:
        if len(draft) > self.limits.max_draft_tokens:
            raise InvalidField(
                field, f"{len(draft)} tokens long", f"at most {self.limits.max_draft_tokens}"
            )
