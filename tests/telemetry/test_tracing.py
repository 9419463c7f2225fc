"""One request, one trace through both services; rounds on it in bounded number."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from common.errors import ConfigError
from common.pb import drafter_pb2, drafter_pb2_grpc
from common.telemetry import tracing
from tests.support.fake_pairs import RunningPair, serving_pair
from tests.support.lost_verifiers import lose_once

GENERATE = "crossdraft.v1.DrafterService/Generate"
VERIFY = "crossdraft.v1.VerifierService/Verify"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = ("traceparent", f"00-{TRACE}-{PARENT}-01")


class Traced:
    """A pair of services that keep their spans, each its own."""

    def __init__(self, pair: RunningPair, exporters: Sequence[InMemorySpanExporter]) -> None:
        self.pair = pair
        self._exporters = exporters

    async def spans(self) -> list[ReadableSpan]:
        """Of the requests so far, by their beginning; those of either service."""
        await self.pair.drafter.idle()
        await self.pair.verifier.idle()
        found = [span for each in self._exporters for span in each.get_finished_spans()]
        for exporter in self._exporters:
            exporter.clear()
        calls = [span for span in found if span.name in (GENERATE, VERIFY)]
        return sorted(calls, key=lambda span: span.start_time or 0)


@asynccontextmanager
async def traced() -> AsyncIterator[Traced]:
    exporters = [InMemorySpanExporter(), InMemorySpanExporter()]
    tracers: list[Tracer] = []
    for exporter in exporters:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracers.append(provider.get_tracer("test"))
    async with serving_pair(verifier={"tracer": tracers[0]}, tracer=tracers[1]) as pair:
        traced = Traced(pair, exporters)
        await traced.spans()  # without those of the drafter's start
        yield traced


def attributes(span: ReadableSpan, *names: str) -> list[object]:
    return [(span.attributes or {})[f"crossdraft.{name}"] for name in names]


def rounds(span: ReadableSpan) -> list[object]:
    return [(e.attributes or {})["crossdraft.round"] for e in span.events if e.name == "round"]


async def test_one_trace_follows_a_request_through_both_services() -> None:
    async with traced() as services:
        output = await services.pair.generate("The quick", 14, ignore_eos=True)
        statistics = output.statistics
        generate, asking, checking = await services.spans()
    assert [span.name for span in (generate, asking, checking)] == [GENERATE, VERIFY, VERIFY]
    kinds = [span.kind for span in (generate, asking, checking)]
    assert kinds == [SpanKind.SERVER, SpanKind.CLIENT, SpanKind.SERVER]
    assert generate.parent is None
    assert asking.parent is not None and generate.context is not None
    assert asking.parent.span_id == generate.context.span_id
    assert checking.parent is not None and asking.context is not None
    assert checking.parent.span_id == asking.context.span_id and checking.parent.is_remote
    assert (
        len({span.context.trace_id for span in (generate, asking, checking) if span.context}) == 1
    )
    assert attributes(generate, "rounds", "output_tokens") == [statistics.rounds, 14]
    assert rounds(asking) == rounds(checking) == list(range(1, statistics.rounds + 1))
    accepted: list[Any] = [(e.attributes or {})["crossdraft.accepted"] for e in checking.events]
    assert sum(map(int, accepted)) == sum(statistics.accepted_by_position)
    assert checking.events[0].name == "prefill"
    assert {"crossdraft.queue_us", "crossdraft.forward_us", "crossdraft.accept_us"} <= set(
        checking.events[1].attributes or {}
    )


async def test_a_callers_trace_goes_on_and_a_broken_one_begins_anew() -> None:
    async with traced() as services:
        for sent, parent in ((TRACEPARENT, PARENT), (("traceparent", "00-nonsense"), None)):
            await generate_with(services.pair, sent)
            spans = await services.spans()
            first = spans[0]
            assert (f"{first.parent.span_id:016x}" if first.parent else None) == parent
            (trace_id,) = {span.context.trace_id for span in spans if span.context}
            assert (f"{trace_id:032x}" == TRACE) == (parent is not None)


async def generate_with(pair: RunningPair, *metadata: tuple[str, str]) -> None:
    async with grpc.aio.insecure_channel(pair.drafter.address) as channel:
        request = drafter_pb2.GenerateRequest(prompt="x", max_new_tokens=3)
        async for _ in drafter_pb2_grpc.DrafterServiceStub(channel).Generate(
            request, metadata=metadata
        ):
            pass


async def test_without_a_tracer_a_callers_trace_goes_along_to_the_verifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, object]] = []
    serving = tracing.serving

    def watched(tracer: Tracer, method: str, metadata: dict[str, object]):
        seen.append(metadata)
        return serving(tracer, method, metadata)

    monkeypatch.setattr(tracing, "serving", watched)
    async with serving_pair() as pair:
        seen.clear()
        await generate_with(pair, TRACEPARENT, ("baggage", "secret=1"))
        at_drafter, at_verifier = seen
    assert at_drafter["baggage"] == "secret=1"
    assert at_verifier["traceparent"] == TRACEPARENT[1]
    assert "baggage" not in at_verifier
    assert at_verifier["x-request-id"]


async def test_long_sessions_have_few_events_and_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_ROUND_EVENTS", 5)
    async with traced() as services:
        await services.pair.generate("x", 30, draft_steps=0, ignore_eos=True)
        _, asking, checking = await services.spans()
    for span in (asking, checking):
        assert rounds(span) == [1, 2, 3, 4, 5]
        assert attributes(span, "rounds") == [29]


async def test_a_lost_verifier_is_one_span_more_on_the_same_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lose_once(monkeypatch)
    async with traced() as services:
        await services.pair.generate("x", 12, draft_steps=0, ignore_eos=True)
        spans = await services.spans()
    asking = [span for span in spans if span.kind is SpanKind.CLIENT]
    assert [span.status.status_code for span in asking] == [StatusCode.ERROR, StatusCode.UNSET]
    assert "cut off" in (asking[0].status.description or "")
    assert rounds(asking[0]) == [1, 2] and len(rounds(asking[1])) == 8
    assert len({span.parent.span_id for span in asking if span.parent}) == 1
    assert len([span for span in spans if span.name == VERIFY]) == 4


async def test_how_a_call_ended_is_on_its_span() -> None:
    async with traced() as services:
        with pytest.raises(grpc.aio.AioRpcError):
            await services.pair.generate("x", 0)
        (refused,) = await services.spans()
        assert (refused.attributes or {})["rpc.grpc.status_code"] == 3
        assert refused.status.status_code is StatusCode.UNSET  # the caller's fault, not ours

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        engine = services.pair.verifier.engine
        engine.open, opened = fail, engine.open  # type: ignore[assignment, method-assign]
        with pytest.raises(grpc.aio.AioRpcError):
            await services.pair.generate("x", 1)
        engine.open = opened  # type: ignore[method-assign]
        spans = await services.spans()
        assert [(span.attributes or {}).get("rpc.grpc.status_code") for span in spans] == [
            grpc.StatusCode.INTERNAL.value[0]
        ] * 3
        assert {span.status.status_code for span in spans} == {StatusCode.ERROR}


async def test_a_verifier_that_refuses_is_an_error_to_who_asked_it() -> None:
    async with traced() as services:
        engine = services.pair.verifier.engine
        engine.limits = replace(engine.limits, max_sessions=0)
        with pytest.raises(grpc.aio.AioRpcError):
            await services.pair.generate("x", 1)
        engine.limits = replace(engine.limits, max_sessions=16)
        asking = [s for s in await services.spans() if s.kind is SpanKind.CLIENT]
    assert [span.status.status_code for span in asking] == [StatusCode.ERROR]
    assert "RESOURCE_EXHAUSTED: all 0 sessions" in (asking[0].status.description or "")
    assert (asking[0].attributes or {})["rpc.grpc.status_code"] == 8


def test_without_a_collector_nothing_of_the_sdk_is_loaded_or_sent() -> None:
    with tracing.exporting("drafter", None, 1.0) as tracer:
        assert tracer is tracing.NO_TRACER
        assert not tracer.start_span("x").is_recording()


def test_without_the_extra_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with (
        pytest.raises(ConfigError, match=r"needs the extra: pip install"),
        tracing.exporting("drafter", "http://127.0.0.1:1", 1.0),
    ):
        pass


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "ftp://host:1"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with (
        pytest.raises(ConfigError, match=r"trace_endpoint is .*; it must be http\(s\)://host:port"),
        tracing.exporting("drafter", endpoint, 1.0),
    ):
        pass


@pytest.mark.parametrize(("ratio", "recording"), [(1.0, True), (0.0, False)])
def test_a_collector_that_is_away_is_no_error(ratio: float, recording: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            tracing.exporting("drafter", endpoint, ratio) as tracer,
            tracing.serving(tracer, GENERATE, {}) as span,
        ):
            assert span.is_recording() is recording
