"""What telemetry costs: processor time per forward pass, per round and per call, in microseconds.

    python -m bench.load.telemetry

Knows the hooks that the services call. Does not know models: the hooks get what a round of the
given size would give them. Processor time of this thread, so that a busy machine measures the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click
from opentelemetry import trace
from opentelemetry.trace import Tracer

from common.engine.telemetry import EngineTelemetry
from common.kv.pages import PagePool
from common.rpc.calls import CallTelemetry
from common.telemetry import tracing
from common.telemetry.registry import Registry
from common.types import BridgeMode, ModelInfo, OpenSession, RoundCost, Verdict
from drafter.config import DrafterConfig
from drafter.statistics import StreamStatistics
from drafter.telemetry import DrafterTelemetry, StreamTelemetry
from verifier.telemetry import VerifierTelemetry

DRAFTED, ACCEPTED, SESSIONS = 4, 3, 16
INFO = ModelInfo("m", "", 1, frozenset(), 1, 1, 1, 1, 1, True, "0")
SPEC = OpenSession((1, 2, 3), 100, "")
VERDICT = Verdict(3, ACCEPTED, 7, 30, None, RoundCost(1000, 50_000, 800, SESSIONS, 80))


def per_call_us(what: Callable[[], object], repeats: int) -> float:
    """The smallest of five measurements."""
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        for _ in range(repeats):
            what()
        best = min(best, (time.thread_time() - began) / repeats)
    return best * 1e6


def engine_hook() -> tuple[EngineTelemetry, Callable[[], object]]:
    telemetry = EngineTelemetry("target", PagePool(8, 16), lambda: 0)
    chunks = [[0] * 5] * SESSIONS
    return telemetry, lambda: telemetry.passed(0.05, [len(chunk) for chunk in chunks])


def verifier_hook() -> Callable[[], object]:
    engine: Any = SimpleNamespace(telemetry=engine_hook()[0], open_sessions=0)
    telemetry = VerifierTelemetry(engine, INFO)
    return lambda: telemetry.verified(SPEC, DRAFTED, VERDICT)


def drafter_hook() -> Callable[[], object]:
    engine = SimpleNamespace(telemetry=SimpleNamespace(registry=Registry("draft")), healthy=True)
    pair: Any = SimpleNamespace(engine=engine)
    statistics = StreamStatistics()
    session: Any = SimpleNamespace(statistics=statistics)
    pairing: Any = SimpleNamespace(last=pair, changes=0)
    reported = StreamTelemetry(DrafterTelemetry(pairing, DrafterConfig(), lambda: 0), session)

    def hook() -> None:
        for stage in statistics.stage_s:
            statistics.stage_s[stage] += 0.001
        statistics.wire_bytes += 60
        reported.round(DRAFTED, VERDICT, BridgeMode.TEXT)

    return hook


def call_hook(tracer: Tracer, repeats: int) -> float:
    """A whole call around a handler that does nothing, less that handler."""
    calls = CallTelemetry(Registry("draft"), tracer)

    class Context:
        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return (("user-agent", "x"), ("x-request-id", "abc"))

        def peer(self) -> str:
            return "ipv4:127.0.0.1:5000"

        def set_trailing_metadata(self, _: object) -> None: ...

    async def nothing(request: object, context: object) -> None: ...

    reported, context = calls._counted(nothing, "crossdraft.v1.DrafterService/Generate"), Context()

    async def many(what: Callable[..., Any]) -> float:
        began = time.thread_time()
        for _ in range(repeats):
            await what(None, context)
        return (time.thread_time() - began) / repeats * 1e6

    return min(asyncio.run(many(reported)) - asyncio.run(many(nothing)) for _ in range(5))


@click.command()
@click.option("--repeats", default=20_000, show_default=True)
def main(repeats: int) -> None:
    """Print a table of microseconds."""
    rows = [
        (
            f"pass, on an engine's thread ({SESSIONS} sessions)",
            per_call_us(engine_hook()[1], repeats),
        ),
        (
            f"round, on the verifier's event loop (k = {DRAFTED})",
            per_call_us(verifier_hook(), repeats),
        ),
        (
            f"round, on the drafter's event loop (k = {DRAFTED})",
            per_call_us(drafter_hook(), repeats),
        ),
        ("call, at either", call_hook(tracing.NO_TRACER, repeats)),
    ]
    try:
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        click.echo("the extra `tracing` isn't installed: without the rows about traces")
    else:
        tracer = TracerProvider(shutdown_on_exit=False).get_tracer("bench")
        rows.append(("call with a recorded span", call_hook(tracer, repeats // 4)))
        with trace.use_span(tracer.start_span("x")):
            traced = per_call_us(verifier_hook(), repeats // 4)
        rows.append(("round with an event on its span, at the verifier", traced))
    click.echo("| what is reported | µs |\n|---|---|")
    for name, microseconds in rows:
        click.echo(f"| {name} | {microseconds:.1f} |")


if __name__ == "__main__":
    main()
