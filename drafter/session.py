"""One session at the drafter: its drafting, its stream to the verifier, its count of rounds.

Knows what a proposal may hold and what a verdict committed. Does not know models and messages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.sampling.acceptance_rule import AcceptanceRule
from common.types import (
    BridgeMode,
    FinishReason,
    ModelIdentity,
    ModelInfo,
    OpenSession,
    Origin,
    Proposal,
    SessionLimits,
    TokenLogprobs,
    Verdict,
)
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import DraftContext
from drafter.bridge.prompt_lookup import PromptLookup
from drafter.bridge.proposer import AutoChooser
from drafter.drafting import NOTHING, Drafting
from drafter.engine.engine import DraftEngine
from drafter.engine.sampling import DraftSampling
from drafter.statistics import StreamStatistics
from drafter.verifier_client.client import VerifierClient


@dataclass(frozen=True)
class CommittedRun:
    """Tokens committed by one verdict, in order, each with who it came from."""

    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()  # as many, if the session requested them


@dataclass(frozen=True)
class Pair:
    """What all sessions of a drafter share."""

    bridge: Bridge
    engine: DraftEngine
    verifier: VerifierClient
    info: ModelInfo  # of the target
    chooser: AutoChooser
    lookup: bool  # whether proposals also come out of the text itself
    q_entries: int = 64  # (id, probability) pairs at most in what goes with a draft token
    device: str = "cpu"  # of the draft model, as torch writes it
    dtype: str = "float32"
    draft_timeout_s: float | None = None  # for one draft; None: any


class SpeculativeSession:
    """open, then propose and check until a run has a finish reason; close in any case."""

    def __init__(
        self,
        pair: Pair,
        spec: OpenSession,
        contexts: Mapping[BridgeMode, DraftContext],
        draft_steps: int,
        mode: BridgeMode,
        began: float | None = None,
    ) -> None:
        """contexts: what the draft model reads in the modes TEXT and INTERSECTION; unused at k = 0.

        began: when the request came (time.monotonic), if that isn't now.
        """
        self._info = pair.info
        self._spec = spec
        self._draft_steps = draft_steps
        self.statistics = StreamStatistics()
        if began is not None:
            self.statistics.began = began
        self._limits = pair.info.limits  # until the verifier that has the session says its own
        self._q_entries = pair.q_entries
        self._stream = pair.verifier.session(spec)
        self._history = pair.verifier.history
        self._committed_length = len(spec.prompt)
        self._round = 0
        self._closed = False
        self._drafted = NOTHING
        self._drafting: Drafting | None = None
        if draft_steps:  # last: it opens a session at the draft engine
            self._drafting = Drafting(
                pair.bridge,
                pair.engine,
                pair.chooser,
                contexts,
                mode,
                DraftSampling(pair.bridge, spec, pair.info.eos_ids, pair.q_entries),
                PromptLookup(spec.prompt) if pair.lookup else None,
                self.statistics,
                pair.draft_timeout_s,
            )

    @property
    def drafting(self) -> bool:
        """Whether the draft model takes part."""
        return self._drafting is not None and not self._drafting.failed

    @property
    def rule(self) -> AcceptanceRule:
        return self._spec.rule

    @property
    def limits(self) -> SessionLimits:
        """Of the verifier that has the session."""
        return self._limits

    @property
    def identity(self) -> ModelIdentity | None:
        """Of the verifier that has the session; None if it says none."""
        return self._stream.identity

    @property
    def prompt_length(self) -> int:
        return len(self._spec.prompt) - self._spec.resumed_output_tokens

    @property
    def output_length(self) -> int:
        return self._committed_length - len(self._spec.prompt)

    @property
    def ended(self) -> FinishReason | None:
        """Why there is nothing left to do, before anything was done: a resumed output was whole."""
        spec = self._spec
        output = spec.prompt[self.prompt_length :]
        if output and output[-1] in spec.ends(self._info.eos_ids):
            return FinishReason.STOP
        if spec.max_new_tokens == 0:
            return FinishReason.LENGTH
        full = len(spec.prompt) >= self._info.max_context_length
        return FinishReason.CONTEXT if full else None

    async def open(self) -> CommittedRun:
        """Prefill at the verifier, while the draft model reads the prompt."""
        # Where sessions are refused, reading their prompts would take time from those that run.
        if self._drafting is not None and not self._history.full:
            self._drafting.read_ahead()
        answer = await self._stream.open()
        self.statistics.first_token_at = time.monotonic()
        self.statistics.wire_bytes = self._stream.wire_bytes
        self._meet()
        return self._commit((), answer.verdict)

    async def propose(self) -> Proposal:
        """Draft tokens in target ids; none if there is nothing to say."""
        # The verifier adds one token itself, so a longer proposal is never accepted whole.
        free = min(
            self._spec.max_new_tokens - self.output_length - 1,
            self._limits.max_context_length - self._committed_length - 1,
            self._limits.max_draft_tokens,
        )
        if self._spec.rule is AcceptanceRule.REJECTION and self._limits.max_q_entries < 1:
            free = 0  # each draft token would need its q
        steps = min(self._draft_steps, free)
        self._drafted = NOTHING
        if self._drafting is not None and steps > 0:
            self._drafted = await self._drafting.draft(steps)
        tokens, q = tuple(self._drafted.token_ids[:free]), tuple(self._drafted.q[:free])
        return Proposal(self._round, self._committed_length, tokens, q)

    async def verify(self, proposal: Proposal) -> CommittedRun:
        """One round at the verifier."""
        answer = await self._stream.verify(proposal)
        self.statistics.wire_bytes = self._stream.wire_bytes
        if answer.reopened:  # a prefill: nobody has judged the proposal
            self.statistics.add_pause(answer.elapsed_s)
            self._drafted = NOTHING
            self._meet()
            return self._commit((), answer.verdict)
        drafted, mode = len(proposal.token_ids), self._drafted.mode
        self.statistics.add_round(drafted, answer.verdict, answer.elapsed_s, mode)
        return self._commit(proposal.token_ids, answer.verdict)

    def _meet(self) -> None:
        """A verifier has the session: what it takes counts, whatever another one takes."""
        self._limits = self._stream.limits or self._limits
        self.statistics.resumed_on = sorted(self._stream.resumed_on)
        if self._drafting is not None:
            self._drafting.limit_q(min(self._q_entries, self._limits.max_q_entries))

    def close(self) -> None:
        """Free what the session holds at both ends. Twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._stream.close()
        if self._drafting is not None:
            self._drafting.close()
        self.statistics.close()

    def _commit(self, draft: Sequence[int], verdict: Verdict) -> CommittedRun:
        tokens = list(draft[: verdict.accepted_length])
        origins = [Origin.DRAFT] * len(tokens)
        if verdict.next_token is not None:
            tokens.append(verdict.next_token)
            origins.append(Origin.VERIFIER)
        if self._drafting is not None:
            if verdict.finish_reason is None:
                self._drafting.expect()
            self._drafting.committed(tokens, self._drafted)
        self._committed_length = verdict.committed_length
        self._round = verdict.round + 1
        return CommittedRun(tuple(tokens), tuple(origins), verdict.finish_reason, verdict.logprobs)
