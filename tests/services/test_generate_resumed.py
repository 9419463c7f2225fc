"""A request that goes on where an earlier stream of it broke off: the same text, ids and usage."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest
from grpc import StatusCode

from client import resuming
from client.client import Client, Output, Request
from client.results import TokenDelta
from client.resuming import generate_resuming
from common.errors import IncompleteStream
from common.pb import drafter_pb2 as pb
from common.pb import drafter_pb2_grpc
from common.rpc.error_details import ErrorDetails, encoded
from common.sampling.parameters import SamplingParams
from common.types import Origin
from drafter.verifier_client.lost import VerifierRefused, raise_unless_lost
from tests.support.fake_pairs import (
    CONTEXT,
    PROMPTS,
    draft_model,
    files,
    serving_pair,
    target_model,
)
from tests.support.fake_services import serving_drafter, serving_verifier

SEEDED = SamplingParams(
    1.0, seed=3, presence_penalty=1.5, frequency_penalty=-1.0, repetition_penalty=1.2
)
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": PROMPTS[0]},
    "the target alone": {"prompt": PROMPTS[0], "draft_steps": 0},
    "seeded, with penalties": {"prompt": PROMPTS[1], "sampling": SEEDED},
    "no end before so many": {
        "prompt": PROMPTS[1],
        "sampling": replace(SEEDED, min_new_tokens=8),
        "ignore_eos": False,
    },
    "split characters": {"prompt": PROMPTS[-1], "sampling": replace(SEEDED, temperature=3.0)},
    "a stop string": {"prompt": PROMPTS[1], "sampling": SEEDED},
    "ids": {"prompt_ids": (20, 50, 80)},
}


async def deltas_of(client: Client, request: Request) -> tuple[Output, list[TokenDelta]]:
    deltas = list[TokenDelta]()
    output = await client.generate(request, deltas.append)
    return output, deltas[: len(output.token_ids)]  # a tail would be one more


@pytest.mark.parametrize("case", CASES)
async def test_wherever_it_broke_off_the_rest_is_the_same(case: str) -> None:
    async with serving_pair() as pair:
        request = Request(**{"max_new_tokens": 14, "ignore_eos": True, **CASES[case]})
        whole, deltas = await deltas_of(pair.client, request)
        if case == "a stop string":
            request = replace(request, stop=(whole.text[-6:-2],))  # of several tokens
            whole, deltas = await deltas_of(pair.client, request)
            assert whole.statistics.stop_string == request.stop[0]
        assert len(whole.token_ids) > 3
        length = len(deltas)
        for count in sorted({0, 1, length // 2, length // 2 + 1, length - 2, length - 1, length}):
            asked = replace(request, resumed_ids=whole.token_ids[:count])
            rest, later = await deltas_of(pair.client, asked)
            assert rest.token_ids == whole.token_ids[count:]
            assert [each.text for each in later] == [each.text for each in deltas[count:]]
            assert "".join(each.text for each in deltas[:count]) + rest.text == whole.text
            for reported in ("prompt_tokens", "output_tokens", "finish_reason", "stop_string"):
                assert getattr(rest.statistics, reported) == getattr(whole.statistics, reported)


async def test_a_session_that_had_ended_ends_its_stream_without_another_round() -> None:
    async with serving_pair() as pair:
        request = Request(8, prompt=PROMPTS[0], ignore_eos=True)
        whole = await pair.client.generate(request)
        stopped = replace(request, stop_ids=(whole.token_ids[3],))
        for asked in (request, stopped):
            ids = (await pair.client.generate(asked)).token_ids
            rest = await pair.client.generate(replace(asked, resumed_ids=ids))
            assert rest.token_ids == () and rest.statistics.rounds == 0
            assert rest.statistics.output_tokens == len(ids)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1] * 9, "resumed_token_ids is 9 ids long; it must be at most 8"),
        ([1, 4000], "resumed_token_ids[1] is 4000; it must be in [0, {width})"),
        ([5, 9, 5], "resumed_token_ids[1] is 9; it must be the last: the output ends there"),
    ],
)
async def test_output_that_cannot_have_been_is_refused(ids: list[int], words: str) -> None:
    async with (
        serving_pair() as pair,
        grpc.aio.insecure_channel(pair.drafter.address) as channel,
    ):
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        request = pb.GenerateRequest(
            prompt="x", max_new_tokens=8, resumed_token_ids=ids, stop_token_ids=[9]
        )
        call = stub.Generate(request)
        assert await call.code() is StatusCode.INVALID_ARGUMENT
        assert await call.details() == words.format(width=pair.verifier.info.vocab_size)


@pytest.mark.parametrize("sampling", [SamplingParams(), SEEDED], ids=["greedy", "seeded"])
async def test_a_client_whose_drafter_is_lost_gets_the_rest_from_another(
    sampling: SamplingParams,
) -> None:
    async with AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(
            serving_verifier(target_model("wide"), files("wide"), context=CONTEXT)
        )
        drafters = [
            await stack.enter_async_context(
                serving_drafter(draft_model(name), files(name), verifier.port)
            )
            for name in ("narrow", "sentencepiece")
        ]
        address = f"ipv4:{','.join(each.address for each in drafters)}"
        client = await stack.enter_async_context(Client(address))
        request = Request(30, prompt=PROMPTS[0], ignore_eos=True, sampling=sampling)
        expected = await client.generate(request)
        heard, lost, stops = 0, list[Exception](), list[asyncio.Task[None]]()

        def hear(_: TokenDelta) -> None:
            nonlocal heard
            heard += 1
            if heard == 10:  # whichever of them it came from
                (busy,) = [each for each in drafters if any(each.server._errors.calls.values())]
                stops.append(asyncio.create_task(busy.server.stop()))

        output = await generate_resuming(client, request, 20.0, hear, on_pause=lost.append)
        await asyncio.gather(*stops)
        assert (output.text, output.token_ids) == (expected.text, expected.token_ids)
        assert lost and len(output.origins) == 30
        assert output.statistics.output_tokens == 30


async def test_what_no_other_attempt_would_mend_is_not_tried_again() -> None:
    async with serving_pair() as pair:
        lost = list[Exception]()
        bad = Request(8, prompt="x", sampling=SamplingParams(logit_bias=((400, 1.0),)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate_resuming(pair.client, bad, 20.0, on_pause=lost.append)
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT and not lost


async def test_all_attempts_together_have_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[float]()

    class Breaking:
        async def generate(self, request: Request, hear: Any, timeout_s: float) -> Output:
            given.append(timeout_s)
            raise IncompleteStream("broken off")

    monkeypatch.setattr(resuming, "PAUSE_S", 0.001)
    with pytest.raises(IncompleteStream):
        await generate_resuming(cast(Client, Breaking()), Request(4), 60.0, timeout_s=0.05)
    assert given[0] <= 0.05 and given == sorted(given, reverse=True) and given[-1] < 0.04


class Losing:
    """Says nothing for `stall_s` on the test's clock and breaks off, `times` times; then ends."""

    def __init__(self, clock: Clock, stall_s: float, times: int = 1) -> None:
        self.clock, self.stall_s, self.left = clock, stall_s, times
        self.asked = 0

    async def generate(self, request: Request, hear: Any, timeout_s: float | None) -> Output:
        self.asked += 1
        self.clock.now += self.stall_s
        if self.left:
            self.left -= 1
            raise IncompleteStream("broken off")
        return Output("", (), (), cast(Any, None))


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("stall_s", [0.0, 500.0])
async def test_timeout_counts_from_the_loss_however_long_nothing_came_before_it(
    stall_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(resuming, "time", clock)
    monkeypatch.setattr(resuming, "PAUSE_S", 0.001)
    losing = Losing(clock, stall_s)
    await generate_resuming(cast(Client, losing), Request(4), 60.0)
    assert losing.asked == 2
    losing = Losing(clock, 25.0, times=9)
    with pytest.raises(IncompleteStream):
        await generate_resuming(cast(Client, losing), Request(4), 60.0)
    assert losing.asked == 4  # at 0, 25 and 50 s from the loss; after 75 s no more


@pytest.mark.parametrize("code", list(StatusCode))
@pytest.mark.parametrize("name", [None, "MODEL_FAILED"], ids=["nobody's", "the service's own"])
def test_what_counts_as_lost_is_one_rule_at_both_ends(code: StatusCode, name: str | None) -> None:
    own = [encoded(code, "", ErrorDetails(name))] if name else []
    trailing = grpc.aio.Metadata(*own)
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing)
    transport = code in (StatusCode.CANCELLED, StatusCode.INTERNAL, StatusCode.UNKNOWN)
    lost = code is StatusCode.UNAVAILABLE or (transport and name is None)
    assert (resuming.pause(error) is not None) == lost
    if lost:
        raise_unless_lost(error)
    else:
        with pytest.raises(VerifierRefused):
            raise_unless_lost(error)


async def test_text_left_over_at_the_end_comes_once_though_the_summary_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream breaks off between its last delta, which has no token, and its summary."""
    token, left_over = TokenDelta(5, "a", Origin.DRAFT), TokenDelta(None, "\ufffd", Origin.DRAFT)
    asked = list[tuple[int, ...]]()

    class Breaking:
        async def generate(self, request: Request, hear: Any, timeout_s: float | None) -> Output:
            asked.append(request.resumed_ids)
            for delta in [left_over] if request.resumed_ids else [token, left_over]:
                hear(delta)
            if len(asked) == 1:
                raise IncompleteStream("broken off")
            return Output("\ufffd", (), (), cast(Any, None))

    monkeypatch.setattr(resuming, "PAUSE_S", 0.001)
    heard = list[TokenDelta]()
    output = await generate_resuming(cast(Client, Breaking()), Request(4), 60.0, heard.append)
    assert asked == [(), (5,)]
    assert heard == [token, left_over]
    assert (output.text, output.token_ids) == ("a\ufffd", (5,))
