"""DrafterService: a prompt or a conversation in, pieces of text out.

Knows the Generate protocol and its limits. Refuses to know how drafts are made and checked
(drafter/speculation.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing

import grpc

from common import wire_generate
from common.engine_server import serve_engine
from common.errors import Draining, InvalidField, MissingMessage, OverCapacity, PromptTooLong
from common.grpc_channel import ClientTls, open_channel
from common.grpc_server import Service
from common.pb import drafter_pb2 as pb
from common.pb import drafter_pb2_grpc
from common.types import BridgeMode, OpenSession
from common.version import VERSION
from common.wire import check_ids, refuse_unknown_fields
from drafter.config import DrafterConfig
from drafter.context import DraftContext, contexts_by_mode
from drafter.detokenize import StreamingText
from drafter.session import CommittedRun, Pair, SpeculativeSession
from drafter.speculation import speculate
from drafter.startup import build

log = logging.getLogger(__name__)

RETRY_MS = 1000


class DrafterService(drafter_pb2_grpc.DrafterServiceServicer):
    """The handlers. A Generate stream that ends, for any reason, frees its session at both ends."""

    def __init__(self, pair: Pair, config: DrafterConfig) -> None:
        self._pair = pair
        self._config = config
        self._streams = 0
        self._draining = False

    async def drain(self) -> None:
        """Take no new streams; those that run may finish."""
        self._draining = True

    async def GetPair(
        self, request: pb.GetPairRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetPairResponse:
        bridge, info = self._pair.bridge, self._pair.info
        return pb.GetPairResponse(
            target_model=info.model,
            draft_model=self._config.model,
            bridge="identity" if bridge.identity else self._config.bridge,
            bridge_sha256=bridge.sha256,
            shared_tokens=bridge.shared_count,
            max_context_length=info.max_context_length,
            max_draft_steps=self._config.max_draft_steps,
            max_sessions=self._config.max_sessions,
            max_message_bytes=self._config.max_message_bytes,
            version=VERSION,
            drafting=self._pair.engine.healthy,
        )

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        began = time.monotonic()
        if self._draining:
            raise Draining("this drafter is shutting down; send the request to another")
        if self._streams >= self._config.max_sessions:
            raise OverCapacity("streams", self._config.max_sessions, RETRY_MS)
        self._streams += 1
        try:
            # Tokenising a long prompt takes a while; other streams' rounds don't wait for it.
            asked = await asyncio.to_thread(self._asked, request)
            session = SpeculativeSession(self._pair, *asked, began)
            text = StreamingText()
            async with aclosing(speculate(session)) as runs:
                async for run in runs:
                    pieces = self._pieces(run, text, session)
                    if run.finish_reason is None:
                        yield pb.GenerateResponse(pieces=pieces)
                    else:
                        summary = self._summary(run, text, session)
                        yield pb.GenerateResponse(pieces=pieces, summary=summary)
        finally:
            self._streams -= 1

    def _asked(
        self, request: pb.GenerateRequest
    ) -> tuple[OpenSession, Mapping[BridgeMode, DraftContext], int, BridgeMode]:
        """What a session is made of. Raises what a request can be refused for."""
        _refuse_unknown(request)
        info, config = self._pair.info, self._config
        if request.max_new_tokens < 1:
            raise InvalidField("max_new_tokens", request.max_new_tokens, "at least 1")
        steps = request.draft_steps if request.HasField("draft_steps") else config.draft_steps
        if steps > config.max_draft_steps:
            raise InvalidField("draft_steps", steps, f"at most {config.max_draft_steps}")
        mode = wire_generate.bridge_from_pb(request.bridge_mode) or BridgeMode(config.bridge)
        check_ids("stop_token_ids", request.stop_token_ids, info.vocab_size)
        prompt, own_prompt = self._prompt(request, drafted=steps > 0)
        if len(prompt) >= info.max_context_length:
            raise PromptTooLong(len(prompt), info.max_context_length - 1)
        spec = OpenSession(
            prompt=tuple(prompt),
            max_new_tokens=request.max_new_tokens,
            tokenizer_sha256=self._pair.bridge.target.files.sha256,  # what the ids stand for
            stop_ids=frozenset(request.stop_token_ids),
            ignore_eos=request.ignore_eos,
        )
        contexts: Mapping[BridgeMode, DraftContext] = {}
        if steps:
            contexts = contexts_by_mode(self._pair.bridge, prompt, config.context, own_prompt)
        return spec, contexts, steps, mode

    def _prompt(
        self, request: pb.GenerateRequest, drafted: bool
    ) -> tuple[list[int], list[int] | None]:
        """Target ids, and the draft model's own rendering of a conversation, if it reads that."""
        target = self._pair.bridge.target
        kind = request.WhichOneof("input")
        if kind == "prompt":
            ids = target.encode_prompt(request.prompt)
        elif kind == "prompt_token_ids":
            ids = list(request.prompt_token_ids.ids)
            check_ids("prompt_token_ids.ids", ids, self._pair.info.vocab_size)
        elif kind == "chat":
            if not request.chat.messages:
                raise InvalidField("chat.messages", "empty", "at least one message")
            messages = [(message.role, message.content) for message in request.chat.messages]
            return target.render_chat(messages), self._own(messages) if drafted else None
        else:
            raise MissingMessage("the request holds none of prompt, chat, prompt_token_ids")
        if not ids:
            raise InvalidField(kind, "empty", "at least one token")
        return ids, None

    def _own(self, messages: Sequence[tuple[str, str]]) -> list[int] | None:
        """A conversation by the draft model's own template; None: it reads the target's."""
        draft = self._pair.bridge.draft
        if self._config.chat_template != "own" or self._pair.bridge.identity:
            return None
        if not draft.has_chat_template:
            return None
        try:
            return draft.render_chat(messages)
        except InvalidField as cause:  # what the draft model can't read is no reason to refuse
            log.info("the draft model reads the target's rendering: %s", cause)
            return None

    def _pieces(
        self, run: CommittedRun, text: StreamingText, session: SpeculativeSession
    ) -> list[pb.Piece]:
        began = time.monotonic()
        target = self._pair.bridge.target
        pieces = []
        for token_id, origin in zip(run.token_ids, run.origins, strict=True):
            data = b"" if target.is_special(token_id) else target.token_bytes(token_id)
            piece = pb.Piece(token_id=token_id, text=text.push(data))
            piece.origin = wire_generate.origin_to_pb(origin)
            pieces.append(piece)
        session.statistics.room_s["detokenize"] += time.monotonic() - began
        return pieces

    def _summary(
        self, run: CommittedRun, text: StreamingText, session: SpeculativeSession
    ) -> pb.Summary:
        statistics = session.statistics
        first = statistics.first_token_at or statistics.began
        return pb.Summary(
            stop_reason=wire_generate.stop_reason_to_pb(run.finish_reason),
            prompt_tokens=session.prompt_length,
            output_tokens=session.output_length,
            rounds=statistics.rounds,
            mean_acceptance_length=statistics.mean_acceptance_length,
            drafted_by_position=statistics.drafted_by_position,
            accepted_by_position=statistics.accepted_by_position,
            time_to_first_token_s=first - statistics.began,
            total_s=time.monotonic() - statistics.began,
            room_s=statistics.room_s,
            wire_bytes=statistics.wire_bytes,
            intersection_rounds=statistics.rounds_by_mode[BridgeMode.INTERSECTION],
            text_rounds=statistics.rounds_by_mode[BridgeMode.TEXT],
            tail_text=text.flush(),
            drafting=session.drafting,
        )


def _refuse_unknown(request: pb.GenerateRequest) -> None:
    refuse_unknown_fields("request", request)
    refuse_unknown_fields("prompt_token_ids", request.prompt_token_ids)
    refuse_unknown_fields("chat", request.chat)
    for index, message in enumerate(request.chat.messages):
        refuse_unknown_fields(f"chat.messages[{index}]", message)


async def serve(config: DrafterConfig, on_ready: Callable[[int], None] | None = None) -> None:
    """Load, find the verifier, serve until a signal, drain. `on_ready` gets the bound port."""
    tls = None
    if config.verifier_tls_ca:
        tls = ClientTls(config.verifier_tls_ca, config.tls_certificate, config.tls_key)
    channel = open_channel(config.verifier, config.max_message_bytes, tls)
    try:
        pair = await build(config, channel)
        service = DrafterService(pair, config)
        name = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name
        register = drafter_pb2_grpc.add_DrafterServiceServicer_to_server
        shell = Service(name, register, service)
        await serve_engine(config, shell, pair.engine, service.drain, on_ready)
    finally:
        await channel.close()
