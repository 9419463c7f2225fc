"""Log lines: which request each concerns, at both services, for people and for machines."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from opentelemetry import trace

from common.pb import drafter_pb2, drafter_pb2_grpc
from common.rpc.error_details import received
from common.telemetry import request_id
from common.telemetry.logs import FIELDS, JsonLines, PlainLines, configure
from drafter.verifier_client.selection import REFUSALS
from tests.support.fake_pairs import RunningPair, serving_pair
from tests.support.lost_verifiers import lose_once

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Lines(logging.Handler):
    """Formats each record where it is logged, as a handler of the command does."""

    def __init__(self) -> None:
        super().__init__()
        self.json, self.plain = JsonLines(), PlainLines()
        self.lines: list[dict[str, Any]] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.json.format(record)))
        self.texts.append(self.plain.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.setLevel(level)
    root.removeHandler(handler)


async def generate(
    pair: RunningPair, metadata: dict[str, str], **asked: Any
) -> tuple[grpc.StatusCode, dict[str, str]]:
    """Status and trailing metadata of a Generate."""
    async with grpc.aio.insecure_channel(pair.drafter.address) as channel:
        request = drafter_pb2.GenerateRequest(prompt="x", **{"max_new_tokens": 6, **asked})
        call = drafter_pb2_grpc.DrafterServiceStub(channel).Generate(
            request, metadata=tuple(metadata.items())
        )
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await call.code(), dict(await call.trailing_metadata())


async def test_a_clients_id_is_in_the_lines_of_both_services_and_comes_back(lines: Lines) -> None:
    async with serving_pair(verifier={"max_sessions": 1}) as pair:
        sent = {request_id.KEY: "order-7", "traceparent": PARENT}
        status, reported = await generate(pair, sent)
        assert status is grpc.StatusCode.OK and reported[request_id.KEY] == "order-7"
        held = pair.verifier.engine.open(pair.verifier.open((5, 6)))
        status, reported = await generate(pair, {**sent, request_id.KEY: "order-8"})
        pair.verifier.engine.close(held)
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        details = received(reported.items())
        assert reported[request_id.KEY] == "order-8"
        assert details is not None and details.reason == "OVER_CAPACITY"
    (answered,) = (line for line in lines.lines if line.get("request_id") == "order-7")
    assert answered["message"].startswith("answered: ") and answered["trace_id"] == TRACE
    assert answered["output_tokens"] == 6 and answered["logger"] == "drafter.telemetry"
    refused = [line for line in lines.lines if "RESOURCE_EXHAUSTED" in line["message"]]
    verifiers, drafter = "crossdraft.v1.VerifierService", "crossdraft.v1.DrafterService"
    by = [line["message"].split("/")[1] for line in refused]
    assert by == [*[verifiers] * REFUSALS, drafter]  # one verifier, asked as if there were others
    assert all(line["request_id"] == "order-8" and line["trace_id"] == TRACE for line in refused)
    texts = [text for text in lines.texts if "RESOURCE_EXHAUSTED" in text]
    assert all(text.endswith(f"[request_id=order-8 trace_id={TRACE}]") for text in texts)


async def test_requests_at_once_keep_their_ids_apart(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_once(monkeypatch)
    async with serving_pair() as pair:
        ids = [f"r{number}" for number in range(8)]
        reported = await asyncio.gather(*(generate(pair, {request_id.KEY: each}) for each in ids))
        assert [metadata[request_id.KEY] for _, metadata in reported] == ids
    answered = [line for line in lines.lines if line["message"].startswith("answered")]
    assert [sum(line["request_id"] == each for line in answered) for each in ids] == [1] * 8
    (lost,) = (line for line in lines.lines if "lost the verifier" in line["message"])
    assert lost["request_id"] in ids and lost["level"] == "warning"


@pytest.mark.parametrize("sent", [{}, {request_id.KEY: "two words"}, {request_id.KEY: "x" * 65}])
async def test_a_request_without_an_id_that_may_be_one_gets_one(sent: dict[str, str]) -> None:
    async with serving_pair() as pair:
        found = [(await generate(pair, sent))[1][request_id.KEY] for _ in range(2)]
        assert len(set(found)) == 2 and all(len(each) == 16 for each in found)


async def test_lines_outside_of_a_request_name_none(lines: Lines) -> None:
    logging.getLogger("test").info("alone")
    assert set(lines.lines[-1]) == {"time", "level", "logger", "message"}
    assert lines.texts[-1].endswith("INFO test: alone")
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_exception_and_fields_go_into_one_line(lines: Lines) -> None:
    try:
        raise ZeroDivisionError("two\nlines")
    except ZeroDivisionError:
        logging.getLogger("test").exception("it\nfailed", extra={FIELDS: {"rounds": 3}})
    line = lines.lines[-1]
    assert line["rounds"] == 3 and line["message"] == "it\nfailed"
    assert "ZeroDivisionError: two\nlines" in line["exception"]


def test_an_object_is_whole_whatever_encoding_it_is_written_in() -> None:
    record = logging.makeLogRecord({"msg": "café \udcff", "levelname": "INFO"})
    line = JsonLines().format(record)
    assert line.isascii() and json.loads(line)["message"] == "café \udcff"


@pytest.mark.parametrize("form", ["plain", "json"])
def test_the_setting_chooses_how_lines_look(form, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers = []
    try:
        configure("warning", form)
        logging.getLogger("test").info("not this")
        logging.getLogger("test").warning("this")
    finally:
        root.handlers = before
        root.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    assert (json.loads(line)["message"] if form == "json" else line.split("test: ")[1]) == "this"
