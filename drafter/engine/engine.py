"""Draft steps of all sessions, batched: each step advances every session that wants tokens by one.

    step = pack, forward, choose, hand out

No barrier: sessions are at different rounds, and a draft leaves as soon as it is whole. A session
whose draft has left goes on ahead of the verdict in the rows that the others leave. Knows draft ids
only. Does not know target ids and the verifier (drafter/bridge/bridge.py,
drafter/speculation.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Seq

from common.engine.scheduler import Packed, add_decode, pack
from common.engine.sequence import Sequence
from common.engine.telemetry import EngineTelemetry
from common.engine.thread import EngineThread
from common.kv.pages import PagePool
from common.model.language_model import LanguageModel
from common.telemetry import metrics
from drafter.bridge.bridge import Bridge
from drafter.engine.batching_delay import BatchingDelay
from drafter.engine.sampler import HostSampler, SampledToken, Sampler
from drafter.engine.session import Draft, DraftFailed, DraftRequest, DraftSession, RunAheadResult

log = logging.getLogger(__name__)

PAGES_S = 0.05  # between two looks whether pages have come free by time alone


class DraftEngine:
    """The draft model on its own thread."""

    def __init__(
        self,
        model: LanguageModel,
        pool: PagePool,
        bridge: Bridge,
        max_batch_tokens: int,
        max_context_length: int,
        threads: int = 0,
        sampler: Sampler | None = None,  # None: on the CPU
        run_ahead: bool = False,
    ) -> None:
        """run_ahead: whether sessions draft while their verdicts are on the way."""
        self.max_context_length = min(max_context_length, pool.capacity_tokens)
        self.healthy = True
        self.pool = pool
        self.model = model
        self._bridge = bridge
        self._stops = bridge.draft.eos_ids
        self._max_rows = max_batch_tokens
        self._sessions: dict[Sequence, DraftSession] = {}
        self._waiting: dict[DraftSession, None] = {}  # an ordered set
        self._ahead: dict[DraftSession, None] = {}  # those that may draft ahead of their verdicts
        self._run_ahead = run_ahead
        self._batching_delay = BatchingDelay()
        self._pass_s = 0.0  # the last forward pass
        self._steps = 0
        self._sampler = HostSampler(bridge) if sampler is None else sampler
        self.telemetry = EngineTelemetry(
            "draft", pool, lambda: len(self._waiting), lambda: model.eager_passes
        )
        self._run_ahead_results = self.telemetry.registry.counters(metrics.RUN_AHEAD)
        self._thread = EngineThread("draft-engine", self.step, threads, enter=self._sampler.enter)
        self.start, self.stop = self._thread.start, self._thread.stop
        self.on_death, self.busy_s = self._thread.on_death, self._thread.busy_s

    # --- the step -----------------------------------------------------------------------------

    def step(self) -> bool:
        """Pack, forward, sample, hand out. False when nobody wants draft tokens."""
        if not self._waiting and not self._ahead:
            return False
        now = time.monotonic()
        self._thread.wait_for_more(lambda: self._batching_delay.until(now, self._pass_s))
        batch = self._pack()
        if not batch:  # whoever waited has ended, or waits for others' pages
            if self._waiting:
                self._thread.wait_for_one(PAGES_S)
            return bool(self._waiting or self._ahead)
        self.healthy = self._run(batch)
        return True

    def _run(self, batch: list[Packed]) -> bool:
        """Whether any of it ran: where that raises, each half by itself, to find whose fault."""
        running = [self._sessions[part.sequence] for part in batch]
        try:
            began = time.monotonic()
            logits = self.model.forward([part.chunk for part in batch])
            forward_s = self._pass_s = time.monotonic() - began
            wanting = [s for s, p in zip(running, batch, strict=True) if p.complete]
            real = self._bridge.draft_real
            chosen = self._sampler.choose(
                logits, [session.sampler_input(real) for session in wanting]
            )
            forward_s += self._sampler.lag_s
            self.telemetry.passed(forward_s, [len(part.chunk.tokens) for part in batch])
        except Exception as cause:
            log.exception("a pass of the draft model failed with %d sessions", len(batch))
            self.telemetry.failed()
            if len(batch) == 1:
                self._fail(running[0], cause)
                return False
            middle = len(batch) // 2
            ran = [self._run(half) for half in (batch[:middle], batch[middle:])]
            return any(ran)
        for session, part in zip(running, batch, strict=True):
            session.sequence.ran(len(part.chunk.tokens))
            session.forward_s += forward_s
            if part.complete:
                self._advance(session, chosen.pop(0))
        return True

    def _pack(self) -> list[Packed]:
        self._steps += 1
        batch: list[Packed] = []
        if self._waiting:
            waiting = [session.sequence for session in self._waiting]
            batch = pack(waiting, list(self._sessions), self._max_rows, self._steps)
        free = self._max_rows - sum(len(part.chunk.tokens) for part in batch)
        for session in list(self._ahead)[:free]:
            if not session.may_run_ahead(self.max_context_length) or not (
                add_decode(batch, session.sequence, self._steps)
            ):
                del self._ahead[session]
        return batch

    def _advance(self, session: DraftSession, chosen: SampledToken) -> None:
        """One draft token more, or none; hand the draft out when it is whole."""
        session.take(chosen, self._stops)
        if session in self._waiting and session.owed == 0:
            self._hand_out(session)

    def _hand_out(self, session: DraftSession) -> None:
        self._waiting.pop(session, None)
        queue_s = time.monotonic() - session.asked_at - session.forward_s
        session.mailbox.post(session.draft(queue_s))
        if self._run_ahead:
            self._ahead[session] = None

    def _fail(self, session: DraftSession, cause: Exception) -> None:
        session.sequence.table.release()
        if session in self._ahead:  # nobody waits for it
            del self._ahead[session]
            session.forget_ahead()
            return
        self._waiting.pop(session, None)
        session.mailbox.post(DraftFailed(f"the draft model failed: {type(cause).__name__}"))

    # --- called on the event loop -------------------------------------------------------------

    def use(self, bridge: Bridge, sampler: Sampler) -> None:
        """Another bridge of the same draft model, and its sampler, from the next step on.

        On the CPU sessions of an earlier bridge go on; on a device, where a sampler has its
        bridge's masks, they lose their drafts.
        """

        def swap() -> None:
            self._bridge, self._sampler = bridge, sampler

        self._thread.call(swap)

    def open(self) -> DraftSession:
        session = DraftSession(self.pool)
        self._thread.call(lambda: self._sessions.update({session.sequence: session}))
        return session

    def expect(self, session: DraftSession) -> None:
        """The session is about to ask for a draft: its verdict is here."""
        self._batching_delay.expect(session)

    async def draft(self, session: DraftSession, context: Seq[int], request: DraftRequest) -> Draft:
        """Read `context` (draft ids; what of it is known already isn't read again), then draft.

        Fewer than the steps wished for come back after an end of sequence; with 0 steps the context
        is read and nothing drafted. Raises DraftFailed.
        """
        assert context and len(context) + request.steps <= self.max_context_length
        now = time.monotonic()
        self._batching_delay.forget(session)
        self._thread.call(lambda: self._begin(session, context, request, now))
        return await session.mailbox.take()

    def give_up(self, session: DraftSession) -> None:
        """Its draft took too long, and nobody waits for it. Unhealthy until a step is done."""
        log.warning("a draft took too long; the step in progress takes %.1f s", self.busy_s())
        self.healthy = False
        self.close(session)

    def close(self, session: DraftSession) -> None:
        """Free the session's pages before the next step."""
        self._batching_delay.forget(session)
        self._thread.call(lambda: self._end(session))

    def _begin(
        self, session: DraftSession, context: Seq[int], request: DraftRequest, asked_at: float
    ) -> None:
        if session.sequence not in self._sessions:
            return
        self._ahead.pop(session, None)
        session.asked_at, session.forward_s = asked_at, 0.0
        result = session.begin(context, request)
        if result is not None:
            self._run_ahead_results[result.value,].inc()
        if result is RunAheadResult.HIT:
            self._hand_out(session)
        else:
            self._waiting[session] = None

    def _end(self, session: DraftSession) -> None:
        self._sessions.pop(session.sequence, None)
        self._waiting.pop(session, None)
        self._ahead.pop(session, None)
        session.sequence.table.release()
