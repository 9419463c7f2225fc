"""One session at the drafter: its context, its draft, its stream to the verifier.

Knows how a proposal is made from the committed text. Refuses to know models and messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from common.types import BridgeMode, FinishReason, ModelInfo, OpenSession, Origin, Proposal, Verdict
from drafter.bridge import Bridge
from drafter.context import DraftContext
from drafter.engine import Draft, DraftEngine, DraftFailed
from drafter.proposer import AutoChooser, SessionStats, by_intersection, by_text
from drafter.statistics import StreamStatistics
from drafter.verifier_client import VerifierClient

log = logging.getLogger(__name__)

TAIL = 24  # committed target tokens whose text goes before drafted text when it is split


@dataclass(frozen=True)
class CommittedRun:
    """Tokens committed by one verdict, in order, each with who it came from."""

    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Pair:
    """What all sessions of a drafter share."""

    bridge: Bridge
    engine: DraftEngine
    verifier: VerifierClient
    info: ModelInfo  # of the target
    chooser: AutoChooser


class SpeculativeSession:
    """open, then propose and check until a run has a finish reason; close in any case."""

    def __init__(
        self,
        pair: Pair,
        spec: OpenSession,
        context: DraftContext,
        draft_steps: int,
        mode: BridgeMode,
    ) -> None:
        self._pair = pair
        self._spec = spec
        self._context = context
        self._draft_steps = draft_steps
        self._mode = mode
        self._mode_stats = SessionStats()
        self._draft = pair.engine.open()
        self._stream = pair.verifier.session(spec)
        self._committed_length = len(spec.prompt)
        self._round = 0
        self._steps_taken = 0
        self._round_mode: BridgeMode | None = None
        self._reading: asyncio.Task[Draft] | None = None
        self.drafting = draft_steps > 0
        self.statistics = StreamStatistics()

    @property
    def prompt_length(self) -> int:
        return len(self._spec.prompt)

    @property
    def output_length(self) -> int:
        return self._committed_length - len(self._spec.prompt)

    async def open(self) -> CommittedRun:
        """Prefill at the verifier, while the draft model reads the prompt."""
        ids = self._context.ids() if self.drafting else None
        if ids and len(ids) <= self._pair.engine.max_context_length:
            self._reading = asyncio.create_task(self._pair.engine.draft(self._draft, ids, 0))
        answer = await self._stream.open()
        self.statistics.first_token_at = time.monotonic()
        return self._commit((), answer.verdict)

    async def propose(self) -> Proposal:
        """Draft tokens in target ids; none if the draft model has nothing to say."""
        began, models = time.monotonic(), self._model_seconds()
        tokens = await self._draft_tokens()
        outside = time.monotonic() - began - (self._model_seconds() - models)
        self.statistics.room_s["bridge"] += outside
        return Proposal(self._round, self._committed_length, tuple(tokens))

    async def check(self, proposal: Proposal) -> CommittedRun:
        """One round at the verifier."""
        answer = await self._stream.verify(proposal)
        verdict, drafted = answer.verdict, len(proposal.token_ids)
        self.statistics.add_round(drafted, verdict, answer.elapsed_s)
        self.statistics.wire_bytes = self._stream.wire_bytes
        if self._round_mode is not None:
            self.statistics.rounds_by_mode[self._round_mode] += 1
            committed = verdict.accepted_length + 1
            self._pair.chooser.record(
                self._round_mode, committed, self._steps_taken, drafted, self._mode_stats
            )
        return self._commit(proposal.token_ids, verdict)

    def close(self) -> None:
        """Free what the session holds at both ends."""
        if self._reading is not None:
            self._reading.cancel()
        self._stream.close()
        self._pair.engine.close(self._draft)

    # --- making a proposal --------------------------------------------------------------------

    async def _draft_tokens(self) -> list[int]:
        self._round_mode = None
        info = self._pair.info
        produced = self._committed_length - len(self._spec.prompt)
        # The verifier adds one token itself, so that a longer proposal could never stand.
        room = min(
            self._spec.max_new_tokens - produced - 1,
            info.max_context_length - self._committed_length - 1,
            info.max_draft_tokens,
        )
        steps = min(self._draft_steps, room)
        if steps <= 0 or not self.drafting:
            return []
        mode = self._choose_mode()
        if mode is BridgeMode.TEXT:
            tokens = await self._by_text(steps)
        else:
            tokens = await self._by_intersection(steps)
        return tokens[:room]

    def _choose_mode(self) -> BridgeMode:
        if self._pair.bridge.identity:
            return BridgeMode.INTERSECTION
        if self._mode is BridgeMode.AUTO:
            return self._pair.chooser.choose(self._mode_stats)
        return self._mode

    async def _by_text(self, steps: int) -> list[int]:
        healed = self._context.healed()
        if healed is None:
            return []
        ids, held = healed
        first = self._pair.bridge.draft_spaced if held else None
        draft = await self._ask(ids, steps, None, first, heal=not held)
        if draft is None:
            return []
        if draft.replaced:
            held = self._pair.bridge.draft.token_bytes(ids[-1])
        self._round_mode = BridgeMode.TEXT
        return by_text(self._pair.bridge, self._context.tail_ids(TAIL), draft.ids, held)

    async def _by_intersection(self, steps: int) -> list[int]:
        ids, bridge = self._context.ids(), self._pair.bridge
        if ids is None:
            return []
        draft = await self._ask(ids, steps, None if bridge.identity else bridge.shared)
        if draft is None:
            return []
        self._round_mode = BridgeMode.INTERSECTION
        return by_intersection(bridge, draft.ids)

    async def _ask(
        self,
        ids: list[int],
        steps: int,
        allowed: Tensor | None = None,
        first: Tensor | None = None,
        heal: bool = False,
    ) -> Draft | None:
        engine = self._pair.engine
        if len(ids) + steps > engine.max_context_length:
            return None
        try:
            if self._reading is not None:
                reading, self._reading = self._reading, None
                self._count(await reading)
            draft = await engine.draft(self._draft, ids, steps, allowed, first, heal)
        except DraftFailed:
            self.drafting = False
            return None
        self._steps_taken = len(draft.ids)
        self._count(draft)
        return draft

    # --- keeping count ------------------------------------------------------------------------

    def _commit(self, draft: Sequence[int], verdict: Verdict) -> CommittedRun:
        tokens = list(draft[: verdict.accepted_length])
        origins = [Origin.DRAFT] * len(tokens)
        if verdict.next_token is not None:
            tokens.append(verdict.next_token)
            origins.append(Origin.VERIFIER)
        began = time.monotonic()
        self._context.extend(tokens)
        self.statistics.room_s["bridge"] += time.monotonic() - began
        self._committed_length = verdict.committed_length
        self._round = verdict.round + 1
        return CommittedRun(tuple(tokens), tuple(origins), verdict.finish_reason)

    def _count(self, draft: Draft) -> None:
        self.statistics.room_s["draft_model"] += draft.forward_s
        self.statistics.room_s["draft_queue"] += draft.queue_s

    def _model_seconds(self) -> float:
        rooms = self.statistics.room_s
        return rooms["draft_model"] + rooms["draft_queue"]
