"""Telemetry of a verifier's rounds: Prometheus counters, and events of the trace.

Knows verdicts. Does not know how they are made; called on the event loop, once per verdict, so
that the engine's thread has nothing to do with it.
"""

from __future__ import annotations

from opentelemetry import trace

from common.telemetry import metrics, tracing
from common.types import ModelInfo, OpenSession, Verdict
from verifier.engine import VerifierEngine


class VerifierTelemetry:
    """One service's; its registry is the engine's."""

    def __init__(self, engine: VerifierEngine, info: ModelInfo) -> None:
        registry = engine.telemetry.registry
        self._prefills = registry.counters(metrics.PREFILLS)
        self._prompt_tokens = registry.counter(metrics.PREFILL_TOKENS)
        self._rounds = registry.counters(metrics.ROUNDS)
        self._committed = registry.counters(metrics.COMMITTED)
        self._drafted = registry.counters(metrics.DRAFT_TOKENS)
        self._accepted = registry.counters(metrics.ACCEPTED)
        self._seconds = registry.histograms(metrics.VERIFIER_SECONDS)
        registry.read(metrics.SESSIONS, lambda: {(): engine.open_sessions})
        registry.read(metrics.SESSION_LIMIT, lambda: {(): info.max_sessions})
        registry.read(metrics.BUILD_INFO, lambda: {(info.version, info.model): 1})

    def verified(self, spec: OpenSession, drafted: int, verdict: Verdict) -> None:
        """A verdict on `drafted` proposed tokens, within the call that it is for."""
        key, cost = (spec.rule.label,), verdict.cost
        if verdict.round == 0:
            phase = "prefill"
            self._prefills[key].inc()
            self._prompt_tokens.inc(len(spec.prompt))
        else:
            phase = "round"
            self._rounds[key].inc()
            self._committed[key].inc(verdict.accepted_length + (verdict.next_token is not None))
            self._drafted[key].inc(drafted)
            self._accepted[key].inc(verdict.accepted_length)
        self._seconds["queue", phase].observe(cost.queue_us / 1e6)
        self._seconds["forward", phase].observe(cost.forward_us / 1e6)
        self._seconds["accept", phase].observe(cost.accept_us / 1e6)
        span = trace.get_current_span()
        if span.is_recording():
            facts = {
                "drafted": drafted,
                "accepted": verdict.accepted_length,
                "queue_us": cost.queue_us,
                "forward_us": cost.forward_us,
                "accept_us": cost.accept_us,
                "batch_sessions": cost.batch_sessions,
                "batch_rows": cost.batch_rows,
            }
            tracing.add_round(span, verdict.round, facts)
