"""deploy/ghz/: what ghz would send parses as the call's message, and the services answer it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from common.pb import drafter_pb2, drafter_pb2_grpc, sampling_pb2, verifier_pb2
from common.rpc.channel import open_channel
from tests.support.fake_models import paged, random_model
from tests.support.fake_services import (
    MESSAGE_BYTES,
    RunningVerifier,
    serving_drafter,
    serving_verifier,
)
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of, sentencepiece_tokenizer

FOLDER = Path(__file__).parents[2] / "deploy" / "ghz"
MESSAGES: dict[str, Any] = {
    "crossdraft.v1.DrafterService.Generate": drafter_pb2.GenerateRequest,
    "crossdraft.v1.VerifierService.Verify": verifier_pb2.VerifyRequest,
    "crossdraft.v1.VerifierService.VerifyOnce": verifier_pb2.VerifyOnceRequest,
}
# The names in ghz's own configuration; it ignores others without a word.
NAMES = """
proto protoset call cacert cert key skipTLS skipFirst cname authority insecure total async
concurrency concurrency-schedule concurrency-start concurrency-end concurrency-step
concurrency-step-duration concurrency-max-duration connections rps duration duration-stop
max-duration timeout data data-file binary-file metadata metadata-file stream-interval output
format connect-timeout keepalive cpus import-paths name tags reflect-metadata debug host
enable-compression load-schedule load-start load-end load-step load-step-duration load-max-duration
"""
KEYS = frozenset(NAMES.split())
CONFIGS = sorted(path.name for path in FOLDER.glob("*.json"))
CONTEXT = 512


def config(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return loaded


def messages(name: str, fingerprint: str | None = None) -> list[Any]:
    """A config's messages. fingerprint: of the tokenizer served here, instead of its own."""
    asked = config(name)
    found = [json_format.ParseDict(each, MESSAGES[asked["call"]]()) for each in asked["data"]]
    for message in found:
        if fingerprint and message.HasField("open"):
            message.open.tokenizer_sha256 = fingerprint
    return found


def test_there_is_a_config_for_each_call_by_file_and_by_reflection() -> None:
    calls = [config(name)["call"] for name in CONFIGS]
    assert sorted(calls) == sorted([*MESSAGES, *MESSAGES])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_only_what_ghz_reads(name: str) -> None:
    asked = config(name)
    assert set(asked) <= KEYS
    assert asked["total"] >= asked["concurrency"]
    assert asked["duration-stop"] == "wait"
    assert "{{" not in json.dumps(asked["data"])  # ghz would take it for a template
    assert ("proto" in asked) == ("-reflection" not in name)
    assert "proto" not in asked or (FOLDER.parent.parent / asked["proto"]).is_file()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_data_parses_as_the_calls_message(name: str) -> None:
    assert messages(name)


@pytest.mark.parametrize("name", [name for name in CONFIGS if "-reflection" in name])
def test_by_reflection_the_same_is_sent(name: str) -> None:
    by_file = config(name.replace("-reflection", ""))
    del by_file["proto"]
    assert config(name) == by_file


@pytest.fixture
async def verifier() -> AsyncIterator[RunningVerifier]:
    files = files_of(byte_level_tokenizer())
    model = paged(random_model("llama", 400))
    async with serving_verifier(model, files, pages=512, context=CONTEXT) as running:
        yield running


async def test_the_recorded_session_fits_a_target_that_it_was_not_recorded_with(
    verifier: RunningVerifier,
) -> None:
    # ghz sends everything at once, and reads what comes.
    sent = messages("verify.json", verifier.info.tokenizer_sha256)
    verdicts = [answer.verdict async for answer in verifier.stub.Verify(iter(sent))]
    assert [verdict.round for verdict in verdicts] == list(range(len(sent)))
    assert verdicts[-1].finish_reason == sampling_pb2.FINISH_REASON_LENGTH
    # Some rounds accept all, some a part, some nothing: as a real session's do.
    kinds = {
        (bool(verdict.accepted_length), verdict.accepted_length == len(each.proposal.token_ids))
        for each, verdict in zip(sent[1:], verdicts[1:], strict=True)
    }
    assert kinds == {(True, True), (True, False), (False, False), (False, True)}
    await verifier.idle()
    verifier.assert_nothing_held()


async def test_single_rounds_are_answered(verifier: RunningVerifier) -> None:
    for request in messages("verify-once.json", verifier.info.tokenizer_sha256):
        answer = await verifier.stub.VerifyOnce(request)
        assert answer.verdict.committed_length > len(request.open.prompt_token_ids)


@pytest.mark.long
async def test_every_generation_is_answered_to_its_end(verifier: RunningVerifier) -> None:
    files = files_of(sentencepiece_tokenizer())
    draft = paged(random_model("llama", 600, seed=1))
    async with (
        serving_drafter(draft, files, verifier.port, pages=512, context=CONTEXT) as drafter,
        open_channel(drafter.address, MESSAGE_BYTES) as channel,
    ):
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        for request in messages("generate.json"):
            answers = [answer async for answer in stub.Generate(request)]
            summary = answers[-1].summary
            assert summary.output_tokens == request.max_new_tokens
            assert len(summary.outside_us) == len(summary.queue_us) == summary.rounds
