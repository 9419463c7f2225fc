"""Draft steps of all sessions, batched: each step advances every session that wants tokens by one.

    step = pack, forward, choose, hand out

No barrier: sessions are at different rounds, and a draft leaves as soon as it is whole. Knows draft
ids only. Refuses to know target ids and the verifier (drafter/bridge.py, drafter/speculation.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from common.engine_telemetry import EngineTelemetry
from common.engine_thread import EngineThread, Mailbox
from common.kv_cache import PagePool
from common.model import PagedModel
from common.sequence import Packed, Sequence, pack
from drafter.arrivals import Arrivals
from drafter.bridge import Bridge
from drafter.draft_adjustments import DraftAdjustments
from drafter.draft_choice import Choice, Choices, HostChoices, Question
from drafter.draft_tokens import Draws, Law

log = logging.getLogger(__name__)


class DraftFailed(Exception):
    """The draft model raised; the session goes on with k = 0. Never leaves the drafter."""


@dataclass(frozen=True)
class Draft:
    """Draft ids, newest last, and where their time went (seconds).

    `replaced`: the first of them stands in place of the context's last id, whose bytes it begins
    with ("token healing"), rather than after it. `laws`: what each was drawn from, where that goes
    along with it.
    """

    ids: list[int]
    laws: list[Law]
    replaced: bool
    forward_s: float
    queue_s: float


class DraftSession:
    """One session's place in the draft engine. Written on the engine's thread only."""

    def __init__(self, pool: PagePool) -> None:
        self.sequence = Sequence(pool, [])
        self.mailbox: Mailbox[Draft] = Mailbox()
        self.steps_left = 0
        self.allowed: torch.Tensor | None = None  # bool [draft vocab]; None until it drafts
        self.allowed_first: torch.Tensor | None = None  # instead, in the first step
        self.draws: Draws | None = None  # None: it takes the likeliest
        self.adjustments: DraftAdjustments | None = None
        self.drafted: list[int] = []
        self.laws: list[Law] = []
        self.replaced = False
        self.asked_at = 0.0
        self.forward_s = 0.0

    def asks(self, real: torch.Tensor) -> Question:
        """What the next step is to choose. real: bool [draft vocab], ids that exist."""
        allowed = real if self.allowed is None else self.allowed
        if not self.drafted and self.allowed_first is not None:
            allowed = self.allowed_first
        wanted, last = self.sequence.wanted, self.sequence.tokens[-1]
        return Question(wanted, last, self.drafted, allowed, self.draws, self.adjustments)


class DraftEngine:
    """The draft model on its own thread."""

    def __init__(
        self,
        model: PagedModel,
        pool: PagePool,
        bridge: Bridge,
        max_batch_tokens: int,
        max_context_length: int,
        threads: int = 0,
        choices: Choices | None = None,  # None: on the CPU
    ) -> None:
        self.max_context_length = min(max_context_length, pool.capacity_tokens)
        self.healthy = True
        self.pool = pool
        self._model = model
        self._bridge = bridge
        self._stops = bridge.draft.eos_ids
        self._max_rows = max_batch_tokens
        self._sessions: dict[DraftSession, None] = {}  # an ordered set
        self._waiting: dict[DraftSession, None] = {}
        self._arrivals = Arrivals()
        self._pass_s = 0.0  # the last forward pass
        self._steps = 0
        self._choices = HostChoices(bridge) if choices is None else choices
        self.telemetry = EngineTelemetry(
            "draft", pool, lambda: len(self._waiting), lambda: model.unrecorded_passes
        )
        self._thread = EngineThread("draft-engine", self.step, threads, enter=self._choices.enter)
        self.start, self.stop = self._thread.start, self._thread.stop
        self.on_death, self.busy_s = self._thread.on_death, self._thread.busy_s

    # --- the step -----------------------------------------------------------------------------

    def step(self) -> bool:
        """Gather, pack, forward, choose, hand out. False when nobody wants draft tokens."""
        if not self._waiting:
            return False
        now = time.monotonic()
        self._thread.gather(lambda: self._arrivals.until(now, self._pass_s))
        if not self._waiting:  # whoever waited has ended
            return False
        batch = self._pack()
        sessions = {session.sequence: session for session in self._waiting}
        running = [sessions[part.sequence] for part in batch]
        try:
            began = time.monotonic()
            logits = self._model.forward([part.chunk for part in batch])
            forward_s = self._pass_s = time.monotonic() - began
            asking = [s for s, p in zip(running, batch, strict=True) if p.complete]
            real = self._bridge.draft_real
            chosen = self._choices.choose(logits, [session.asks(real) for session in asking])
            forward_s += self._choices.lag_s
            self.telemetry.passed(forward_s, [len(part.chunk.tokens) for part in batch])
        except Exception as cause:
            self._fail(running, cause)
            return True
        self.healthy = True
        for session, part in zip(running, batch, strict=True):
            session.sequence.table.extend(len(part.chunk.tokens))
            session.forward_s += forward_s
            if part.complete:
                self._advance(session, chosen.pop(0))
        return True

    def _pack(self) -> list[Packed]:
        self._steps += 1
        waiting = [session.sequence for session in self._waiting]
        everyone = [session.sequence for session in self._sessions]
        batch = pack(waiting, everyone, self._max_rows, self._steps)
        assert batch, "the pool holds at least one whole context, so the first in line always runs"
        return batch

    def _advance(self, session: DraftSession, chosen: Choice) -> None:
        """One draft token more, or none; hand the draft out when it is whole."""
        token = chosen.token
        if chosen.law is not None:
            session.laws.append(chosen.law)
        session.replaced |= chosen.replaced
        if token is None:
            session.steps_left = 0
        elif session.steps_left > 0:
            if session.replaced and not session.drafted:
                del session.sequence.tokens[-1]
                session.sequence.table.truncate(len(session.sequence.tokens))
            session.drafted.append(token)
            session.sequence.tokens.append(token)
            session.sequence.wanted = 1
            session.steps_left -= 1
        if session.steps_left == 0 or token in self._stops:
            del self._waiting[session]
            queue_s = time.monotonic() - session.asked_at - session.forward_s
            drafted, laws, replaced = session.drafted, session.laws, session.replaced
            session.mailbox.post(Draft(drafted, laws, replaced, session.forward_s, queue_s))

    def _fail(self, sessions: list[DraftSession], cause: Exception) -> None:
        log.exception("the draft model failed with %d sessions", len(sessions))
        self.healthy = False
        self.telemetry.failed()
        for session in sessions:
            self._waiting.pop(session, None)
            session.sequence.table.release()
            session.mailbox.post(DraftFailed(f"the draft model failed: {type(cause).__name__}"))

    # --- called on the event loop -------------------------------------------------------------

    def open(self) -> DraftSession:
        session = DraftSession(self.pool)
        self._thread.call(lambda: self._sessions.setdefault(session))
        return session

    def expect(self, session: DraftSession) -> None:
        """The session is about to ask for a draft: its verdict is here."""
        self._arrivals.expect(session)

    async def draft(
        self,
        session: DraftSession,
        context: Seq[int],
        steps: int,
        allowed: torch.Tensor | None = None,
        allowed_first: torch.Tensor | None = None,
        heal: bool = False,
        draws: Draws | None = None,
        adjustments: DraftAdjustments | None = None,
    ) -> Draft:
        """Read `context` (draft ids; what of it is known already isn't read again), then draft.

        At most `steps` >= 0 ids come back, fewer after an end of sequence; with 0 steps the context
        is read and nothing drafted. Only ids in `allowed` (bool [draft vocab]; None: all real ones)
        are drafted, in the first step only those in `allowed_first`, if given. `heal`: see
        Draft.replaced. `draws`: how; None takes the likeliest. Raises DraftFailed.
        """
        assert context and len(context) + steps <= self.max_context_length

        now = time.monotonic()
        self._arrivals.forget(session)

        def begin() -> None:
            session.asked_at, session.forward_s = now, 0.0
            session.allowed, session.allowed_first = allowed, allowed_first
            session.draws, session.adjustments = draws, adjustments
            self._begin(session, context, steps, 2 if heal and len(context) > 1 else 1)

        self._thread.call(begin)
        return await session.mailbox.take()

    def give_up(self, session: DraftSession) -> None:
        """Its draft took too long, and nobody waits for it. Unhealthy until a step is done."""
        log.warning("a draft took too long; the step in progress takes %.1f s", self.busy_s())
        self.healthy = False
        self.close(session)

    def close(self, session: DraftSession) -> None:
        """Free the session's pages before the next step."""
        self._arrivals.forget(session)
        self._thread.call(lambda: self._end(session))

    def _begin(self, session: DraftSession, context: Seq[int], steps: int, wanted: int) -> None:
        session.sequence.rewrite(context, wanted)
        session.steps_left, session.replaced = steps, False
        session.drafted, session.laws = [], []
        if session in self._sessions:
            self._waiting[session] = None

    def _end(self, session: DraftSession) -> None:
        self._sessions.pop(session, None)
        self._waiting.pop(session, None)
        session.sequence.table.release()
