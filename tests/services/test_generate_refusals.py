"""What a request can't ask for: refused by field, value and limit, before anything is held."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from common.pb import drafter_pb2 as pb
from common.pb import drafter_pb2_grpc
from common.pb.sampling_pb2 import Sampling
from common.sampling.acceptance_rule import AcceptanceRule
from common.wire.enums import RULES
from tests.support.fake_pairs import serving_pair

GREEDY, TARGET_ONLY, REJECTION, COUPLED = map(RULES.to_pb, AcceptanceRule)
WARM = Sampling(temperature=0.7)

CASES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"sampling": Sampling(temperature=-1)}, "sampling.temperature is -1.0; it must be 0 (greedy)"),
    ({"sampling": Sampling(temperature=math.nan)}, "sampling.temperature is nan"),
    ({"sampling": Sampling(temperature=1e-9)}, "sampling.temperature is 1e-09"),
    ({"sampling": Sampling(top_k=0)}, "sampling.top_k is 0; it must be from 1"),
    ({"sampling": Sampling(top_p=1.5)}, "sampling.top_p is 1.5; it must be from 0 to 1"),
    ({"sampling": Sampling(min_p=-0.1)}, "sampling.min_p is -0.1"),
    ({"sampling": Sampling(repetition_penalty=0)}, "sampling.repetition_penalty is 0.0"),
    ({"sampling": Sampling(presence_penalty=2.1)}, "sampling.presence_penalty is 2.1"),
    ({"sampling": Sampling(frequency_penalty=math.inf)}, "sampling.frequency_penalty is inf"),
    ({"sampling": Sampling(logit_bias={400: 1.0})}, "sampling.logit_bias is for id 400"),
    ({"sampling": Sampling(logit_bias={5: 101.0})}, "sampling.logit_bias is 101.0 for id 5"),
    (
        {"sampling": Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))},
        "sampling.logit_bias is 1025 entries long; it must be at most 1024",
    ),
    ({"sampling": Sampling(logprobs=21)}, "sampling.logprobs is 21; it must be from 0 to 20"),
    ({"sampling": Sampling(logprobs=2**32 - 1)}, "sampling.logprobs is 4294967295"),
    ({"sampling": Sampling(top_k=2**31)}, "sampling.top_k is 2147483648"),
    ({"sampling": Sampling(min_new_tokens=2**31)}, "sampling.min_new_tokens is 2147483648"),
    ({"sampling": Sampling(repetition_penalty=1e-300)}, "sampling.repetition_penalty is 1e-300"),
    ({"sampling": Sampling(logit_bias={5: math.nan})}, "sampling.logit_bias is nan for id 5"),
    ({"sampling": Sampling(top_p=math.nan)}, "sampling.top_p is nan; it must be"),
    ({"sampling": Sampling(min_p=math.nan)}, "sampling.min_p is nan; it must be"),
    ({"sampling": Sampling(repetition_penalty=math.nan)}, "sampling.repetition_penalty is nan"),
    ({"sampling": Sampling(presence_penalty=math.nan)}, "sampling.presence_penalty is nan"),
    ({"sampling": Sampling(frequency_penalty=math.nan)}, "sampling.frequency_penalty is nan"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids is 1025 ids long; it must be at most 1024"),
    (
        {"acceptance_rule": TARGET_ONLY},
        "acceptance_rule is target_only; it must be greedy at temperature 0",
    ),
    (
        {"acceptance_rule": GREEDY, "sampling": WARM},
        "acceptance_rule is greedy; it must be target_only, rejection or coupled at "
        "temperature 0.7",
    ),
    (
        {"acceptance_rule": COUPLED, "sampling": WARM},
        "acceptance_rule is coupled; it must be target_only or rejection without",
    ),
    (
        {"acceptance_rule": REJECTION, "sampling": WARM, "bridge_mode": pb.BRIDGE_MODE_TEXT},
        "acceptance_rule is rejection; it must be target_only or coupled: text that crosses the "
        "bridge (bridge_mode "
        "text) carries no q",
    ),
    ({"stop": ["x"] * 17}, "stop is 17 strings; it must be at most 16"),
    ({"stop": [str(n) for n in range(10_000)]}, "stop is 10000 strings; it must be at most 16"),
    ({"stop": ["x", ""]}, "stop[1] is 0 bytes long; it must be from 1 to 256 bytes"),
    ({"stop": ["é" * 129]}, "stop[0] is 258 bytes long"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids is 1025 ids long; it must be at most 1024"),
    (
        {"sampling": Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))},
        "sampling.logit_bias is 1025 entries long; it must be at most 1024",
    ),
    ({"prompt": "x" * 1001}, "prompt is 1001 bytes long; it must be at most 1000"),
    ({"prompt": "é" * 501}, "prompt is 1002 bytes long; it must be at most 1000"),
    (
        {"chat": pb.Chat(messages=[pb.ChatMessage(role="user", content="x" * 1001)])},
        "chat is 1013 bytes long; it must be at most 1000",
    ),
    (
        {"chat": pb.Chat(messages=[pb.ChatMessage()] * 1025)},
        "chat.messages is 1025 messages long; it must be at most 1024",
    ),
    (
        {"prompt_token_ids": pb.TokenIds(ids=[1] * 400_000)},
        "the prompt has 400000 tokens; the limit is 119",
    ),
)


async def test_what_cannot_be_asked_for_is_refused_by_name() -> None:
    async with (
        serving_pair(max_prompt_bytes=1000) as pair,
        grpc.aio.insecure_channel(pair.drafter.address) as channel,
    ):
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        for fields, words in CASES:
            request = pb.GenerateRequest(**{"prompt": "x", "max_new_tokens": 2, **fields})
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Generate(request):
                    pass
            assert caught.value.code() is StatusCode.INVALID_ARGUMENT, words
            assert words in (caught.value.details() or "")
            pair.verifier.assert_nothing_held()


@pytest.mark.parametrize(
    ("kind", "mode", "seed", "verifier", "rule"),
    [
        ("two byte-level tokenizers", pb.BRIDGE_MODE_AUTO, None, {}, REJECTION),
        ("two byte-level tokenizers", pb.BRIDGE_MODE_INTERSECTION, None, {}, REJECTION),
        ("two byte-level tokenizers", pb.BRIDGE_MODE_TEXT, None, {}, TARGET_ONLY),
        ("same tokenizer", pb.BRIDGE_MODE_TEXT, None, {}, REJECTION),  # no bridge, so always a q
        ("two byte-level tokenizers", pb.BRIDGE_MODE_AUTO, 0, {}, COUPLED),
        ("same tokenizer", pb.BRIDGE_MODE_AUTO, None, {"max_q_entries": 0}, TARGET_ONLY),
    ],
)
async def test_a_request_that_names_no_rule_gets_what_the_pair_does_best(
    kind: str,
    mode: Any,
    seed: int | None,
    verifier: dict[str, Any],
    rule: Any,
) -> None:
    async with (
        serving_pair(kind, verifier) as pair,
        grpc.aio.insecure_channel(pair.drafter.address) as channel,
    ):
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        request = pb.GenerateRequest(prompt="x", max_new_tokens=6, bridge_mode=mode)
        for temperature, expected in ((None, GREEDY), (0.0, GREEDY), (0.9, rule)):
            sampling = Sampling(temperature=temperature, seed=seed)
            request.sampling.CopyFrom(sampling)
            responses = [response async for response in stub.Generate(request)]
            assert responses[-1].summary.acceptance_rule == expected
