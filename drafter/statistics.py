"""One stream's statistics: rounds, acceptance by position, and seconds by stage.

Knows counting. Does not know where the numbers come from.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from common.telemetry.metrics import DRAFTER_STAGE
from common.types import BridgeMode, Verdict
from common.wire.generate import microseconds


class RoundWatcher(Protocol):
    """Receives what is counted, as it is counted."""

    def round(self, drafted: int, verdict: Verdict, mode: BridgeMode | None) -> None: ...
    def pause(self, elapsed_s: float) -> None: ...
    def closed(self) -> None: ...


@dataclass
class StreamStatistics:
    """Of one Generate stream; rounds and stages leave the prefill out."""

    began: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    rounds: int = 0
    committed: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    rounds_by_mode: Counter[BridgeMode] = field(default_factory=Counter)
    stage_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(DRAFTER_STAGE, 0.0))
    wire_bytes: int = 0
    watcher: RoundWatcher | None = None
    outside_us: list[int] = field(default_factory=list)  # by round: in neither model's passes
    queue_us: list[int] = field(default_factory=list)  # so much of it in the queues
    resumed_on: list[str] = field(default_factory=list)  # parts of the verifier's identity
    _marked: tuple[float, float, float] | None = None  # at the last round's end

    @property
    def mean_acceptance_length(self) -> float:
        """Committed tokens per round, next token included, prefill excluded."""
        return self.committed / self.rounds if self.rounds else 0.0

    def close(self) -> None:
        """The session is over, however it ended."""
        if self.watcher is not None:
            self.watcher.closed()

    def add_pause(self, elapsed_s: float) -> None:
        """The verifier was lost, and another took over `elapsed_s` after the last request to it."""
        if self.watcher is not None:
            self.watcher.pause(elapsed_s)

    def add_round(
        self, drafted: int, verdict: Verdict, elapsed_s: float, mode: BridgeMode | None = None
    ) -> None:
        """A verdict that came `elapsed_s` after its proposal of `drafted` tokens left.

        mode: how what the draft model gave has crossed, if it gave something.
        """
        self.rounds += 1
        self.committed += verdict.accepted_length + (verdict.next_token is not None)
        for counts, length in (
            (self.drafted_by_position, drafted),
            (self.accepted_by_position, verdict.accepted_length),
        ):
            counts.extend([0] * (length - len(counts)))
            for position in range(length):
                counts[position] += 1
        missing = len(self.drafted_by_position) - len(self.accepted_by_position)
        self.accepted_by_position.extend([0] * missing)
        cost = verdict.cost
        self.stage_s["verifier_queue"] += cost.queue_us / 1e6
        self.stage_s["verifier_forward"] += cost.forward_us / 1e6
        self.stage_s["verifier_accept"] += cost.accept_us / 1e6
        inside = (cost.queue_us + cost.forward_us + cost.accept_us) / 1e6
        self.stage_s["network"] += max(0.0, elapsed_s - inside)
        if self.watcher is not None:
            self.watcher.round(drafted, verdict, mode)

    def end_round(self) -> None:
        """A verdict's tokens are ready to leave. Called after prefill, too, where rounds begin."""
        stage = self.stage_s
        now, models, queues = (
            time.monotonic(),
            stage["draft_model"] + stage["verifier_forward"],
            stage["draft_queue"] + stage["verifier_queue"],
        )
        if self._marked is not None and self.rounds > len(self.outside_us):
            began, models_before, queues_before = self._marked
            outside = now - began - (models - models_before)
            self.outside_us.append(microseconds(outside))
            self.queue_us.append(microseconds(queues - queues_before))
        self._marked = now, models, queues
