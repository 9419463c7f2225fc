"""A client of the drafter: one request in, token deltas and statistics out.

Knows the drafter's protocol; nothing else on the client's side reads protobuf. Does not know how
anything is shown: the command line, the benchmarks and programs of others all come through here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from client.results import Output, Statistics, TokenDelta
from common.errors import IncompleteStream
from common.pb import drafter_pb2, drafter_pb2_grpc
from common.rpc.channel import ClientTls, open_channel
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, ModelIdentity
from common.wire.enums import BRIDGES, FINISH_REASONS, ORIGINS, RULES
from common.wire.generate import stage_times_from_pb
from common.wire.identity import identity_from_pb, identity_to_pb
from common.wire.sampling import logprobs_from_pb, sampling_to_pb

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
    chat_time_us: int | None = None  # from that stream's deltas; None: now
    resumed_target: ModelIdentity | None = None  # from that stream's deltas


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
        """Run one request, calling `on_delta` as text comes."""
        deltas: list[TokenDelta] = []
        summary: drafter_pb2.Summary | None = None
        message = _request_to_pb(request)
        call = self._stub.Generate(message, timeout=timeout_s, metadata=self._metadata)
        async for response in call:
            for each in response.deltas.deltas:
                delta = _delta_from_pb(each, response)
                deltas.append(delta)
                on_delta(delta)
            if response.HasField("summary"):
                summary = response.summary
        if summary is None:
            raise IncompleteStream("the drafter's stream ended without a summary")
        return output_of(deltas, _statistics_from_pb(summary))


def output_of(deltas: Sequence[TokenDelta], statistics: Statistics) -> Output:
    """All deltas of one answer, in order, and its statistics."""
    tokens = [delta for delta in deltas if delta.token_id is not None]
    return Output(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(delta.token_id for delta in tokens if delta.token_id is not None),
        origins=tuple(delta.origin for delta in tokens),
        statistics=statistics,
        logprobs=tuple(delta.logprobs for delta in tokens if delta.logprobs),
    )


def _delta_from_pb(
    message: drafter_pb2.TokenDelta, response: drafter_pb2.GenerateResponse
) -> TokenDelta:
    return TokenDelta(
        message.token_id if message.HasField("token_id") else None,
        message.text,
        ORIGINS.from_pb(message.origin),
        logprobs_from_pb(message.logprobs) if message.HasField("logprobs") else None,
        response.chat_time_us if response.HasField("chat_time_us") else None,
        identity_from_pb(response.target) if response.HasField("target") else None,
    )


def _request_to_pb(request: Request) -> drafter_pb2.GenerateRequest:
    message = drafter_pb2.GenerateRequest(
        max_new_tokens=request.max_new_tokens,
        stop_token_ids=request.stop_ids,
        draft_steps=request.draft_steps,
        bridge_mode=BRIDGES.to_pb(request.bridge),
        ignore_eos=request.ignore_eos,
        stop=request.stop,
        resumed_token_ids=request.resumed_ids,
        acceptance_rule=RULES.to_pb(request.rule),
        sampling=sampling_to_pb(request.sampling),
    )
    if request.resumed_target is not None:
        message.resumed_target.CopyFrom(identity_to_pb(request.resumed_target))
        message.required_features.append("identity")  # else another model might go on
    if request.prompt is not None:
        message.prompt = request.prompt
    elif request.messages is not None:
        message.chat.SetInParent()
        for role, content in request.messages:
            message.chat.messages.add(role=role, content=content)
        if request.chat_time_us is not None:
            message.chat.time_us = request.chat_time_us
            message.required_features.append("chat_time")  # another time would be another prompt
    elif request.prompt_ids is not None:
        message.prompt_token_ids.SetInParent()
        message.prompt_token_ids.ids.extend(request.prompt_ids)
    return message


def _statistics_from_pb(summary: drafter_pb2.Summary) -> Statistics:
    return Statistics(
        finish_reason=FINISH_REASONS.from_pb(summary.finish_reason),
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        rounds=summary.rounds,
        mean_acceptance_length=summary.mean_acceptance_length,
        drafted_by_position=tuple(summary.drafted_by_position),
        accepted_by_position=tuple(summary.accepted_by_position),
        time_to_first_token_s=summary.time_to_first_token_us / 1e6,
        total_s=summary.total_us / 1e6,
        stage_s=stage_times_from_pb(summary.stage_times),
        wire_bytes=summary.wire_bytes,
        intersection_rounds=summary.intersection_rounds,
        text_rounds=summary.text_rounds,
        drafting=summary.drafting,
        rule=RULES.from_pb(summary.acceptance_rule),
        stop_string=summary.stop_string,
        outside_us=tuple(summary.outside_us),
        queue_us=tuple(summary.queue_us),
        target=identity_from_pb(summary.target) if summary.HasField("target") else None,
        resumed_on=tuple(summary.resumed_on),
    )
