"""Telemetry of a drafter's streams: Prometheus counters, and attributes of the trace's span.

Knows what a stream's own statistics count, and counts the same over all streams, round by
round. Does not know how rounds are made; called on the event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from opentelemetry import trace
from prometheus_client import Counter

from common.telemetry import metrics
from common.telemetry.logs import FIELDS
from common.telemetry.metrics import BRIDGE, NONE, OTHER, POSITION
from common.telemetry.registry import Registry
from common.types import BridgeMode, Verdict
from common.version import VERSION
from drafter.config import DrafterConfig
from drafter.generate.reply import Completion
from drafter.pairing import Pairing
from drafter.session import SpeculativeSession

log = logging.getLogger(__name__)

ByPosition = dict[str, list[Counter]]  # bridge -> counters of the first positions, and of the rest


class DrafterTelemetry:
    """One service's; its registry is the draft engine's."""

    def __init__(self, pairing: Pairing, config: DrafterConfig, streams: Callable[[], int]) -> None:
        """streams: how many Generate streams are in progress."""
        pair = pairing.last
        registry = pair.engine.telemetry.registry
        self.answers = registry.counters(metrics.ANSWERS)
        self.empty = registry.counter(metrics.EMPTY_ANSWERS)
        self.undrafted = registry.counter(metrics.UNDRAFTED_ANSWERS)
        self.prompt_tokens = registry.counter(metrics.PROMPT_TOKENS)
        self.output_tokens = registry.counter(metrics.OUTPUT_TOKENS)
        self.rounds = registry.counters(metrics.DRAFTED_ROUNDS)
        self.committed = registry.counters(metrics.DRAFTED_COMMITTED)
        self.drafted = _by_position(registry, metrics.DRAFTED_BY_POSITION)
        self.accepted = _by_position(registry, metrics.ACCEPTED_BY_POSITION)
        self.stage_s = registry.counters(metrics.DRAFTER_SECONDS)
        self.wire_bytes = registry.counter(metrics.WIRE_BYTES)
        self.first_token_s = registry.histogram(metrics.FIRST_TOKEN_SECONDS)
        self.round_s = registry.histogram(metrics.ROUND_SECONDS)
        self.resumed_on = registry.counters(metrics.RESUMED_ON)
        registry.read(metrics.TARGET_CHANGES, lambda: {(): pairing.changes})
        self.pause_s = registry.histogram(metrics.PAUSE_SECONDS)
        registry.read(metrics.STREAMS, lambda: {(): streams()})
        registry.read(metrics.STREAM_LIMIT, lambda: {(): config.max_sessions})
        registry.read(metrics.DRAFT_HEALTHY, lambda: {(): pair.engine.healthy})
        registry.read(metrics.BUILD_INFO, lambda: {(VERSION, config.model): 1})

    def watch(self, session: SpeculativeSession) -> StreamTelemetry:
        """Watch one stream until its session closes."""
        session.statistics.watcher = watcher = StreamTelemetry(self, session)
        return watcher


class StreamTelemetry:
    """One stream's. Counts what its statistics gather, as they grow."""

    def __init__(self, whole: DrafterTelemetry, session: SpeculativeSession) -> None:
        self._whole = whole
        self._session = session
        self._statistics = session.statistics
        self._verdict_at: float | None = None  # the last one
        self._reported_stage_s = dict.fromkeys(self._statistics.stage_s, 0.0)
        self._reported_bytes = 0

    def round(self, drafted: int, verdict: Verdict, mode: BridgeMode | None) -> None:
        """A round was counted."""
        whole, bridge = self._whole, mode.value if mode is not None else NONE
        whole.rounds[bridge,].inc()
        whole.committed[bridge,].inc(verdict.accepted_length + (verdict.next_token is not None))
        _count(whole.drafted[bridge], drafted)
        _count(whole.accepted[bridge], verdict.accepted_length)
        self._catch_up()
        now, before = time.monotonic(), self._verdict_at
        whole.round_s.observe(now - (before or self._statistics.first_token_at or now))
        self._verdict_at = now

    def pause(self, elapsed_s: float) -> None:
        """A verifier was lost, and another took over."""
        self._whole.pause_s.observe(elapsed_s)
        self._verdict_at = time.monotonic()

    def closed(self) -> None:
        """Nothing more will be counted."""
        self._catch_up()

    def answered(self, ending: Completion, asked_for_drafts: bool) -> None:
        """The stream came to its summary."""
        whole, statistics = self._whole, self._statistics
        whole.answers[ending.reason.value,].inc()
        whole.prompt_tokens.inc(self._session.prompt_length)
        whole.output_tokens.inc(ending.output_tokens)
        if not ending.any_text:
            whole.empty.inc()
        if asked_for_drafts and not self._session.drafting:
            whole.undrafted.inc()
        for part in statistics.resumed_on:
            whole.resumed_on[part,].inc()
        facts = {
            "finish_reason": ending.reason.value,
            "rule": self._session.rule.label,
            "prompt_tokens": self._session.prompt_length,
            "output_tokens": ending.output_tokens,
            "rounds": statistics.rounds,
            "mean_acceptance_length": round(statistics.mean_acceptance_length, 3),
        }
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attributes({f"crossdraft.{key}": value for key, value in facts.items()})
        words = ", ".join(f"{key} {value}" for key, value in facts.items())
        log.info("answered: %s", words, extra={FIELDS: facts})

    def _catch_up(self) -> None:
        """Count what the statistics have gathered since the last time."""
        whole, statistics = self._whole, self._statistics
        for stage, seconds in statistics.stage_s.items():
            if seconds > self._reported_stage_s[stage]:
                whole.stage_s[stage,].inc(seconds - self._reported_stage_s[stage])
                self._reported_stage_s[stage] = seconds
        if statistics.wire_bytes > self._reported_bytes:
            if not self._reported_bytes and statistics.first_token_at is not None:
                whole.first_token_s.observe(statistics.first_token_at - statistics.began)
            whole.wire_bytes.inc(statistics.wire_bytes - self._reported_bytes)
            self._reported_bytes = statistics.wire_bytes


def _by_position(registry: Registry, metric: metrics.Metric) -> ByPosition:
    made = registry.counters(metric)
    return {bridge: [made[bridge, position] for position in POSITION] for bridge in BRIDGE}


def _count(counters: list[Counter], tokens: int) -> None:
    """The first `tokens` positions; those past the last that has a counter of its own together."""
    assert POSITION[-1] == OTHER
    own = len(counters) - 1
    for counter in counters[: min(tokens, own)]:
        counter.inc()
    if tokens > own:
        counters[own].inc(tokens - own)
