"""A client of the drafter: one request in, pieces of text and statistics out.

Knows: the drafter's protocol, as the one place in cli that reads protobuf. Refuses to know: how
anything is shown; generate, demo and the benchmarks all come through here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType

from client.results import Output, Statistics, TokenDelta
from common.errors import IncompleteStream
from common.pb import drafter_pb2, drafter_pb2_grpc
from common.rpc.channel import ClientTls, open_channel
from common.sampling.parameters import SamplingParams
from common.sampling.rules import AcceptanceRule
from common.types import BridgeMode, Origin, TokenLogprobs
from common.wire.generate import (
    bridge_to_pb,
    origin_from_pb,
    rule_from_pb,
    rule_to_pb,
    stop_reason_from_pb,
)
from common.wire.sampling import sampling_to_pb

MAX_MESSAGE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Request:
    """What is asked: exactly one of prompt, messages, prompt_ids."""

    max_new_tokens: int
    prompt: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None  # (role, content)
    prompt_ids: tuple[int, ...] | None = None
    draft_steps: int | None = None  # None: the drafter's setting; 0: the target alone
    bridge: BridgeMode | None = None  # None: the drafter's setting
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()  # the output ends before the first of these
    ignore_eos: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)  # greedy
    rule: AcceptanceRule | None = None  # None: what suits the sampling and the pair
    resumed_ids: tuple[int, ...] = ()  # output of an earlier stream of this request


@dataclass(frozen=True)
class Pair:
    """Which models a drafter pairs, and how."""

    target_model: str
    draft_model: str
    bridge: str
    shared_tokens: int
    max_context_length: int
    max_draft_steps: int
    drafting: bool


@dataclass
class _Gathered:
    deltas: list[TokenDelta] = field(default_factory=list)
    summary: drafter_pb2.Summary | None = None


class Client:
    """A connection to a drafter; an async context manager. Raises grpc.aio.AioRpcError, or

    IncompleteStream.
    """

    def __init__(
        self,
        address: str,
        tls: ClientTls | None = None,
        limit: int = MAX_MESSAGE_BYTES,
        token: str | None = None,
    ) -> None:
        """token: for a drafter that asks for one."""
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = open_channel(address, limit, tls)
        self._stub = drafter_pb2_grpc.DrafterServiceStub(self._channel)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def pair(self) -> Pair:
        answer = await self._stub.GetPair(drafter_pb2.GetPairRequest(), metadata=self._metadata)
        return Pair(
            target_model=answer.target_model,
            draft_model=answer.draft_model,
            bridge=answer.bridge,
            shared_tokens=answer.shared_tokens,
            max_context_length=answer.max_context_length,
            max_draft_steps=answer.max_draft_steps,
            drafting=answer.drafting,
        )

    async def generate(
        self,
        request: Request,
        on_delta: Callable[[TokenDelta], None] = lambda delta: None,
        timeout_s: float | None = None,
    ) -> Output:
        """Run one request, calling `on_delta` as text comes; a tail is a piece of its own."""
        gathered = _Gathered()
        message = _request_to_pb(request)
        call = self._stub.Generate(message, timeout=timeout_s, metadata=self._metadata)
        async for response in call:
            for each in response.deltas:
                delta = _delta_from_pb(each)
                gathered.deltas.append(delta)
                on_delta(delta)
            if response.HasField("summary"):
                gathered.summary = response.summary
        if gathered.summary is None:
            raise IncompleteStream("the drafter's stream ended without a summary")
        tail = gathered.summary.tail_text
        if tail:
            on_delta(_tail_delta(tail, gathered.deltas, request))
        return Output(
            text="".join(delta.text for delta in gathered.deltas) + tail,
            token_ids=tuple(delta.token_id for delta in gathered.deltas),
            origins=tuple(delta.origin for delta in gathered.deltas),
            statistics=_statistics_from_pb(gathered.summary),
            logprobs=tuple(delta.logprobs for delta in gathered.deltas if delta.logprobs),
        )


def _tail_delta(tail: str, deltas: list[TokenDelta], request: Request) -> TokenDelta:
    if deltas:
        return replace(deltas[-1], text=tail)
    return TokenDelta(request.resumed_ids[-1], tail, Origin.VERIFIER)


def _delta_from_pb(message: drafter_pb2.TokenDelta) -> TokenDelta:
    logprobs = None
    if message.HasField("logprob"):
        top_ids, top_logprobs = tuple(message.top_token_ids), tuple(message.top_logprobs)
        logprobs = TokenLogprobs(message.logprob, top_ids, top_logprobs)
    return TokenDelta(message.token_id, message.text, origin_from_pb(message.origin), logprobs)


def _request_to_pb(request: Request) -> drafter_pb2.GenerateRequest:
    message = drafter_pb2.GenerateRequest(
        max_new_tokens=request.max_new_tokens,
        stop_token_ids=request.stop_ids,
        draft_steps=request.draft_steps,
        bridge_mode=bridge_to_pb(request.bridge),
        ignore_eos=request.ignore_eos,
        stop=request.stop,
        resumed_token_ids=request.resumed_ids,
        rule=rule_to_pb(request.rule),
        sampling=sampling_to_pb(request.sampling, drafter_pb2.GenerateRequest.Sampling()),
    )
    if request.prompt is not None:
        message.prompt = request.prompt
    elif request.messages is not None:
        message.chat.SetInParent()
        for role, content in request.messages:
            message.chat.messages.add(role=role, content=content)
    elif request.prompt_ids is not None:
        message.prompt_token_ids.SetInParent()
        message.prompt_token_ids.ids.extend(request.prompt_ids)
    return message


def _statistics_from_pb(summary: drafter_pb2.Summary) -> Statistics:
    return Statistics(
        stop_reason=stop_reason_from_pb(summary.stop_reason),
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        rounds=summary.rounds,
        mean_acceptance_length=summary.mean_acceptance_length,
        drafted_by_position=tuple(summary.drafted_by_position),
        accepted_by_position=tuple(summary.accepted_by_position),
        time_to_first_token_s=summary.time_to_first_token_s,
        total_s=summary.total_s,
        stage_s=dict(summary.stage_s),
        wire_bytes=summary.wire_bytes,
        intersection_rounds=summary.intersection_rounds,
        text_rounds=summary.text_rounds,
        drafting=summary.drafting,
        rule=rule_from_pb(summary.rule),
        stop_string=summary.stop_string,
        outside_us=tuple(summary.outside_us),
        queue_us=tuple(summary.queue_us),
    )
