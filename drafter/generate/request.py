"""What a Generate request may say, and what a session is made of it.

Knows every field and its limits. Does not know streams, drafts and the verifier. Everything that
is refused is refused here, before anything is reserved, with the field, its value and its limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.errors import InvalidField, MissingMessage, PromptTooLong, UnfitRule
from common.pb import drafter_pb2 as pb
from common.sampling.acceptance_rule import AcceptanceRule, check_rule, default_rule
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, ModelIdentity, ModelInfo, OpenSession
from common.vocabulary.chat_template import MAX_TIME_US, FrozenClock, Turn
from common.wire.checks import check_features, check_ids, check_stop_count
from common.wire.enums import BRIDGES, RULES
from common.wire.identity import identity_from_pb
from common.wire.sampling import sampling_from_pb
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import DraftContext, contexts_by_mode
from drafter.config import DrafterConfig
from drafter.session import Pair

log = logging.getLogger(__name__)

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_CHAT_MESSAGES = 1024


@dataclass(frozen=True)
class ParsedRequest:
    """A request that can be served."""

    spec: OpenSession
    contexts: Mapping[BridgeMode, DraftContext]  # what the draft model reads; unused at k = 0
    draft_steps: int
    mode: BridgeMode
    stops: tuple[bytes, ...]  # stop strings
    resumed: tuple[int, ...] = ()  # output that the client has already; the end of spec.prompt
    rendered: bool = False  # whether the prompt came out of the target's chat template
    chat_time_us: int | None = None  # what a chat template took for now, if it read the clock


def read_request(request: pb.GenerateRequest, pair: Pair, config: DrafterConfig) -> ParsedRequest:
    """Raises what a request can be refused for; tokenises the prompt, which takes a while."""
    info = pair.info
    _check_sizes(request, info.max_context_length, config.max_prompt_bytes)
    check_features("required_features", request.required_features)
    if request.max_new_tokens < 1:
        raise InvalidField("max_new_tokens", request.max_new_tokens, "at least 1")
    steps = request.draft_steps if request.HasField("draft_steps") else config.draft_steps
    if steps > config.max_draft_steps:
        raise InvalidField("draft_steps", steps, f"at most {config.max_draft_steps}")
    mode = BRIDGES.from_pb(request.bridge_mode) or BridgeMode(config.bridge)
    check_ids("stop_token_ids", request.stop_token_ids, info.vocab_size)
    stops = _stops(request.stop)
    sampling = sampling_from_pb(request.sampling)
    sampling.check_ids(info.vocab_size)
    rule = _rule(RULES.from_pb(request.acceptance_rule), sampling, pair, mode)
    clock = _clock(request.chat)
    prompt, own_prompt = _prompt(request, pair, config, clock, drafted=steps > 0)
    if len(prompt) >= info.max_context_length:
        raise PromptTooLong(len(prompt), info.max_context_length - 1)
    resumed = _resumed(request, len(prompt), info)
    spec = OpenSession(
        prompt=(*prompt, *resumed),
        # 0 where all of it is there already: then no session is opened (drafter/generate/reply.py).
        max_new_tokens=request.max_new_tokens - len(resumed),
        tokenizer_sha256=pair.bridge.target.files.sha256,  # what the ids mean
        stop_ids=frozenset(request.stop_token_ids),
        rule=rule,
        ignore_eos=request.ignore_eos,
        sampling=sampling,
        resumed_output_tokens=len(resumed),
        identity=_resumed_target(request),
    )
    contexts: Mapping[BridgeMode, DraftContext] = {}
    if steps:
        contexts = contexts_by_mode(pair.bridge, prompt, config.context, own_prompt, mode)
        for context in {id(each): each for each in contexts.values()}.values():
            context.extend(resumed)
            context.ids()  # translated now: this is no event loop
    chat_time_us = clock.time_us if clock.read else None
    rendered = request.HasField("chat")
    return ParsedRequest(spec, contexts, steps, mode, stops, resumed, rendered, chat_time_us)


def _resumed(request: pb.GenerateRequest, prompt: int, info: ModelInfo) -> tuple[int, ...]:
    """The output so far; it can't be longer than the whole may become."""
    field, count = "resumed_token_ids", len(request.resumed_token_ids)
    limit = min(request.max_new_tokens, info.max_context_length - prompt)
    if count > limit:
        raise InvalidField(field, f"{count} ids long", f"at most {limit}")
    check_ids(field, request.resumed_token_ids, info.vocab_size)
    if not request.ignore_eos:
        ends = info.eos_ids.union(request.stop_token_ids)
    else:
        ends = frozenset(request.stop_token_ids)
    for index, token_id in enumerate(request.resumed_token_ids[:-1]):
        if token_id in ends:
            raise InvalidField(f"{field}[{index}]", token_id, "the last: the output ends there")
    return tuple(request.resumed_token_ids)


def _resumed_target(request: pb.GenerateRequest) -> ModelIdentity | None:
    """What the output so far came from, if the client says so."""
    if not (request.resumed_token_ids and request.HasField("resumed_target")):
        return None
    return identity_from_pb(request.resumed_target)


def _stops(strings: Sequence[str]) -> tuple[bytes, ...]:
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidField("stop", f"{len(strings)} strings", f"at most {MAX_STOP_STRINGS}")
    stops = tuple(string.encode() for string in strings)
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= MAX_STOP_BYTES:
            limit = f"from 1 to {MAX_STOP_BYTES} bytes"
            raise InvalidField(f"stop[{index}]", f"{len(stop)} bytes long", limit)
    return stops


def _rule(
    requested: AcceptanceRule | None, sampling: SamplingParams, pair: Pair, mode: BridgeMode
) -> AcceptanceRule:
    """The requested rule, or the one that accepts most of what this pair can do."""
    without_q = _without_q(pair, mode)
    if requested is None:
        rule = default_rule(sampling)
        unbound = rule is AcceptanceRule.TARGET_ONLY and without_q is None
        # Of one token q says nothing: rejection is target-only then.
        return AcceptanceRule.REJECTION if unbound and not sampling.one_token else rule
    check_rule("acceptance_rule", requested, sampling)
    if requested is AcceptanceRule.REJECTION and without_q is not None:
        raise UnfitRule("acceptance_rule", requested.label, f"target_only or coupled: {without_q}")
    return requested


def _without_q(pair: Pair, mode: BridgeMode) -> str | None:
    """Why no draft token could go with its distribution; None if some can."""
    if mode is BridgeMode.TEXT and not pair.bridge.identity:
        return "text that crosses the bridge (bridge_mode text) carries no q"
    if pair.bridge.shared_count == 0:
        return "the two vocabularies share no token, so that there is no q"
    if pair.q_entries < 1:
        return "the verifier takes no q"
    return None


def _clock(chat: pb.Chat) -> FrozenClock:
    """One time for both models' templates; a stream that is resumed has that of its first part."""
    if not chat.HasField("time_us"):
        return FrozenClock(time.time_ns() // 1000)
    if chat.time_us > MAX_TIME_US:
        raise InvalidField("chat.time_us", chat.time_us, f"at most {MAX_TIME_US}")
    return FrozenClock(chat.time_us)


def _prompt(
    request: pb.GenerateRequest,
    pair: Pair,
    config: DrafterConfig,
    clock: FrozenClock,
    drafted: bool,
) -> tuple[list[int], list[int] | None]:
    """Target ids, and the draft model's own rendering of a conversation, if it reads that."""
    target = pair.bridge.target
    kind = request.WhichOneof("input")
    if kind == "prompt":
        ids = target.encode_prompt(request.prompt)
    elif kind == "prompt_token_ids":
        ids = list(request.prompt_token_ids.ids)
        check_ids("prompt_token_ids.ids", ids, pair.info.vocab_size)
    elif kind == "chat":
        if not request.chat.messages:
            raise InvalidField("chat.messages", "empty", "at least one message")
        messages = [(message.role, message.content) for message in request.chat.messages]
        own = _own(messages, pair.bridge, config, clock) if drafted else None
        return target.render_chat(messages, clock, config.markup_in_messages), own
    else:
        raise MissingMessage("the request holds none of prompt, chat, prompt_token_ids")
    if not ids:
        raise InvalidField(kind, "empty", "at least one token")
    return ids, None


def _own(
    messages: Sequence[Turn], bridge: Bridge, config: DrafterConfig, clock: FrozenClock
) -> list[int] | None:
    """A conversation by the draft model's own template; None: it reads the target's."""
    if config.chat_template != "own" or bridge.identity or not bridge.draft.has_chat_template:
        return None
    try:
        return bridge.draft.render_chat(messages, clock, config.markup_in_messages)
    except InvalidField as cause:  # what the draft model can't read is no reason to refuse
        log.info("the draft model reads the target's rendering: %s", cause)
        return None


def _check_sizes(request: pb.GenerateRequest, context: int, max_bytes: int) -> None:
    """Before anything goes through all of it: tokenising text takes a while per megabyte."""
    check_stop_count("stop_token_ids", len(request.stop_token_ids))
    ids = len(request.prompt_token_ids.ids)
    if ids >= context:
        raise PromptTooLong(ids, context - 1)
    if len(request.chat.messages) > MAX_CHAT_MESSAGES:
        count = f"{len(request.chat.messages)} messages long"
        raise InvalidField("chat.messages", count, f"at most {MAX_CHAT_MESSAGES}")
    for field, size in (
        ("prompt", len(request.prompt.encode())),
        ("chat", request.chat.ByteSize()),
    ):
        if size > max_bytes:
            raise InvalidField(field, f"{size} bytes long", f"at most {max_bytes}")
