"""How one session's proposals are made: context, draft model, bridge, lookup.

Knows which context each bridge mode reads, what to ask of the draft engine, and when there is
nothing to say (k = 0). Does not know rounds, the verifier and messages.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.rpc.timeouts import ReusableTimeout
from common.types import BridgeMode, SparseDistribution
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import DraftContext
from drafter.bridge.prompt_lookup import PromptLookup
from drafter.bridge.proposer import AutoChooser, SessionStats, by_intersection, by_text
from drafter.engine.engine import DraftEngine
from drafter.engine.sampling import DraftSampling, in_target_ids, one_hot
from drafter.engine.session import Draft, DraftFailed, DraftRequest
from drafter.statistics import StreamStatistics

TAIL = 24  # committed target tokens whose text goes before drafted text when it is split


@dataclass(frozen=True)
class Drafted:
    """A proposal's tokens in target ids, and what they came from."""

    token_ids: list[int]
    mode: BridgeMode | None  # None: nothing was drafted
    steps: int  # draft steps taken
    bridged: list[int]  # what the draft model and the bridge gave, before lookup's word
    q: list[SparseDistribution] = field(
        default_factory=list
    )  # of the first tokens: what they came from


NOTHING = Drafted([], None, 0, [])


class Drafting:
    """One session's end of the draft engine."""

    def __init__(
        self,
        bridge: Bridge,
        engine: DraftEngine,
        chooser: AutoChooser,
        contexts: Mapping[BridgeMode, DraftContext],  # for TEXT and INTERSECTION; may be one object
        mode: BridgeMode,
        sampling: DraftSampling,
        lookup: PromptLookup | None,
        statistics: StreamStatistics,
        timeout_s: float | None = None,
    ) -> None:
        """timeout_s: for one draft, with what it has to wait for; None: any."""
        self._bridge = bridge
        self._engine = engine
        self._chooser = chooser if sampling.greedy else chooser.sampled
        self._sampling = sampling
        self._contexts = contexts
        self._mode = BridgeMode.INTERSECTION if bridge.identity else mode
        self._lookup = lookup
        self._statistics = statistics
        self._timeout = ReusableTimeout(timeout_s)
        self._mode_stats = SessionStats()
        self._session = engine.open()
        self._reading: asyncio.Task[Draft] | None = None
        self._asked_at = 0.0  # for the draft in progress, or when reading had ended
        self.failed = False  # the draft model raised or timed out, or the text is over its context

    def limit_q(self, entries: int) -> None:
        """From the next draft on, a distribution that goes along has at most so many ids."""
        self._sampling.limit_q(entries)

    def read_ahead(self) -> None:
        """Begin to read the prompt, while the verifier reads it too."""
        mode = BridgeMode.TEXT if self._mode is BridgeMode.AUTO else self._mode
        ids = self._contexts[mode].ids()
        if ids and len(ids) <= self._engine.max_context_length:
            self._reading = asyncio.create_task(
                self._engine.draft(self._session, ids, DraftRequest(0))
            )
            # Whoever drafts first awaits it. If nobody does, its failure is of no interest.
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def draft(self, steps: int) -> Drafted:
        """At most `steps` draft steps, and what the text itself repeats.

        Nothing from then on where the draft model failed, took too long, or the text outgrew its
        context. q has a row for each token if the session's rule asks for one, otherwise none.
        """
        if self.failed:
            return NOTHING
        began, models = time.monotonic(), self._model_seconds()
        mode = self._mode
        if mode is BridgeMode.AUTO:
            mode = self._chooser.choose(self._mode_stats)
        by = self._by_text if mode is BridgeMode.TEXT else self._by_intersection
        drafted = await by(steps)
        if self._lookup is not None and not self.failed:
            drafted = replace(drafted, token_ids=self._looked_up(drafted.token_ids))
        if self._sampling.with_q:
            rest = drafted.token_ids[len(drafted.q) :]
            drafted = replace(drafted, q=[*drafted.q, *map(one_hot, rest)])
        outside = time.monotonic() - began - (self._model_seconds() - models)
        self._statistics.stage_s["bridge"] += outside
        return drafted

    def _looked_up(self, proposal: list[int]) -> list[int]:
        """The proposal with what the text repeats.

        In front of a sample, what is repeated would replace some sampling and not others: then no q
        would be the distribution of what is proposed. A repetition is also less sure at a
        temperature.
        """
        assert self._lookup is not None
        lookup = self._lookup.improve if self._sampling.greedy else self._lookup.lengthen
        return lookup(proposal)

    def committed(self, token_ids: Sequence[int], drafted: Drafted) -> None:
        """A verdict on what `draft` gave (NOTHING for a prefill)."""
        began = time.monotonic()
        for context in {id(each): each for each in self._contexts.values()}.values():
            context.extend(token_ids)
        self._sampling.commit(token_ids)
        if self._lookup is not None:
            self._lookup.extend(token_ids)
        if drafted.mode is not None:
            self._statistics.rounds_by_mode[drafted.mode] += 1
            # A mode is judged by what the draft model and the bridge gave, never by lookup's part.
            own = drafted.bridged
            gained = min(len(token_ids), 1 + _agreeing(own, token_ids))
            self._chooser.record(
                drafted.mode,
                gained,
                drafted.steps,
                len(own),
                self._mode_stats,
                shared=self._sampling.outcomes_are_its_own,
            )
        self._statistics.stage_s["bridge"] += time.monotonic() - began

    def expect(self) -> None:
        """A verdict is here, and the session goes on: `draft` will follow."""
        if not self.failed:
            self._engine.expect(self._session)

    def close(self) -> None:
        """Free what the draft engine holds for the session."""
        if self._reading is not None:
            self._reading.cancel()
        self._timeout.close()
        self._engine.close(self._session)

    async def _by_text(self, steps: int) -> Drafted:
        context, bridge = self._contexts[BridgeMode.TEXT], self._bridge
        healed = context.healed()
        if healed is None:
            return NOTHING
        ids, prefix = healed
        first = bridge.draft_spaced if prefix else None
        sampling = self._sampling.params(BridgeMode.TEXT, after_space=bool(prefix))
        draft = await self._ask(ids, DraftRequest(steps, None, first, not prefix, sampling))
        if draft is None:
            return NOTHING
        if draft.healed:
            prefix = bridge.draft.token_bytes(ids[-1])
        tokens = by_text(bridge, context.tail_ids(TAIL), draft.ids, prefix)
        return Drafted(tokens, BridgeMode.TEXT, len(draft.ids), tokens)

    async def _by_intersection(self, steps: int) -> Drafted:
        bridge = self._bridge
        ids = self._contexts[BridgeMode.INTERSECTION].ids()
        if ids is None:
            return NOTHING
        sampling = self._sampling.params(BridgeMode.INTERSECTION)
        # A distribution has only ids that are mapped, and none that the target's tokenizer pads.
        allowed = None if bridge.identity and sampling is None else bridge.shared
        draft = await self._ask(ids, DraftRequest(steps, allowed, sampling=sampling))
        if draft is None:
            return NOTHING
        tokens = by_intersection(bridge, draft.ids)
        q = [in_target_ids(bridge, distribution) for distribution in draft.distributions]
        return Drafted(tokens, BridgeMode.INTERSECTION, len(draft.ids), tokens, q)

    async def _ask(self, ids: list[int], request: DraftRequest) -> Draft | None:
        """request: but for logits processors, and with as many steps as the round has."""
        free = self._engine.max_context_length - len(ids)
        if not ids:
            return None
        if free < 1:  # committed text only grows
            self.failed = True
            return None
        steps, processors = min(request.steps, free), self._sampling.processors
        self._asked_at = time.monotonic()
        try:
            if self._engine.busy_s() > (self._timeout.limit_s or math.inf):
                raise TimeoutError  # one step has taken so long already
            draft = await self._timeout.wait(
                self._draft(ids, replace(request, steps=steps, processors=processors))
            )
        except DraftFailed:
            self.failed = True
            return None
        except TimeoutError:
            # Never used again, so that a late draft is nobody's.
            self.failed = True
            self._engine.give_up(self._session)
            self._statistics.stage_s["draft_queue"] += time.monotonic() - self._asked_at
            return None
        self._count(draft)
        return draft

    async def _draft(self, ids: list[int], request: DraftRequest) -> Draft:
        if self._reading is not None:
            reading, self._reading = self._reading, None
            await reading
            before, self._asked_at = self._asked_at, time.monotonic()
            self._statistics.stage_s["draft_queue"] += self._asked_at - before
        return await self._engine.draft(self._session, ids, request)

    def _count(self, draft: Draft) -> None:
        self._statistics.stage_s["draft_model"] += draft.forward_s
        self._statistics.stage_s["draft_queue"] += draft.queue_s

    def _model_seconds(self) -> float:
        stages = self._statistics.stage_s
        return stages["draft_model"] + stages["draft_queue"]


def _agreeing(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens the two have in common from the start."""
    for count, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return count
    return min(len(first), len(second))
