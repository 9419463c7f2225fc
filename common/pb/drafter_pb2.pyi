from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BridgeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BRIDGE_MODE_UNSPECIFIED: _ClassVar[BridgeMode]
    BRIDGE_MODE_INTERSECTION: _ClassVar[BridgeMode]
    BRIDGE_MODE_TEXT: _ClassVar[BridgeMode]
    BRIDGE_MODE_AUTO: _ClassVar[BridgeMode]

class TokenOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_ORIGIN_UNSPECIFIED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_DRAFT: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_VERIFIER: _ClassVar[TokenOrigin]

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_STOP: _ClassVar[StopReason]
    STOP_REASON_LENGTH: _ClassVar[StopReason]
    STOP_REASON_CONTEXT: _ClassVar[StopReason]
BRIDGE_MODE_UNSPECIFIED: BridgeMode
BRIDGE_MODE_INTERSECTION: BridgeMode
BRIDGE_MODE_TEXT: BridgeMode
BRIDGE_MODE_AUTO: BridgeMode
TOKEN_ORIGIN_UNSPECIFIED: TokenOrigin
TOKEN_ORIGIN_DRAFT: TokenOrigin
TOKEN_ORIGIN_VERIFIER: TokenOrigin
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_STOP: StopReason
STOP_REASON_LENGTH: StopReason
STOP_REASON_CONTEXT: StopReason

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "chat", "prompt_token_ids", "max_new_tokens", "stop_token_ids", "draft_steps", "bridge_mode", "ignore_eos", "sampling", "rule", "stop", "resumed_token_ids")
    class Rule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RULE_UNSPECIFIED: _ClassVar[GenerateRequest.Rule]
        RULE_GREEDY: _ClassVar[GenerateRequest.Rule]
        RULE_TARGET_ONLY: _ClassVar[GenerateRequest.Rule]
        RULE_REJECTION: _ClassVar[GenerateRequest.Rule]
        RULE_COUPLED: _ClassVar[GenerateRequest.Rule]
    RULE_UNSPECIFIED: GenerateRequest.Rule
    RULE_GREEDY: GenerateRequest.Rule
    RULE_TARGET_ONLY: GenerateRequest.Rule
    RULE_REJECTION: GenerateRequest.Rule
    RULE_COUPLED: GenerateRequest.Rule
    class Sampling(_message.Message):
        __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "min_new_tokens", "logprobs")
        class LogitBiasEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: int
            value: float
            def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
        TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
        TOP_K_FIELD_NUMBER: _ClassVar[int]
        TOP_P_FIELD_NUMBER: _ClassVar[int]
        MIN_P_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
        PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
        FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
        LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
        MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
        LOGPROBS_FIELD_NUMBER: _ClassVar[int]
        temperature: float
        top_k: int
        top_p: float
        min_p: float
        seed: int
        repetition_penalty: float
        presence_penalty: float
        frequency_penalty: float
        logit_bias: _containers.ScalarMap[int, float]
        min_new_tokens: int
        logprobs: int
        def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., min_new_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ...) -> None: ...
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_STEPS_FIELD_NUMBER: _ClassVar[int]
    BRIDGE_MODE_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    chat: Chat
    prompt_token_ids: TokenIds
    max_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    draft_steps: int
    bridge_mode: BridgeMode
    ignore_eos: bool
    sampling: GenerateRequest.Sampling
    rule: GenerateRequest.Rule
    stop: _containers.RepeatedScalarFieldContainer[str]
    resumed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, prompt: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., prompt_token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., draft_steps: _Optional[int] = ..., bridge_mode: _Optional[_Union[BridgeMode, str]] = ..., ignore_eos: _Optional[bool] = ..., sampling: _Optional[_Union[GenerateRequest.Sampling, _Mapping]] = ..., rule: _Optional[_Union[GenerateRequest.Rule, str]] = ..., stop: _Optional[_Iterable[str]] = ..., resumed_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("deltas", "summary")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[TokenDelta]
    summary: Summary
    def __init__(self, deltas: _Optional[_Iterable[_Union[TokenDelta, _Mapping]]] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("token_id", "text", "origin", "logprob", "top_token_ids", "top_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    origin: TokenOrigin
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., origin: _Optional[_Union[TokenOrigin, str]] = ..., logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("stop_reason", "prompt_tokens", "output_tokens", "rounds", "mean_acceptance_length", "drafted_by_position", "accepted_by_position", "time_to_first_token_s", "total_s", "stage_s", "wire_bytes", "intersection_rounds", "text_rounds", "tail_text", "drafting", "rule", "stop_string", "outside_us", "queue_us")
    class StageSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTANCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    STAGE_S_FIELD_NUMBER: _ClassVar[int]
    WIRE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INTERSECTION_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    TAIL_TEXT_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    stop_reason: StopReason
    prompt_tokens: int
    output_tokens: int
    rounds: int
    mean_acceptance_length: float
    drafted_by_position: _containers.RepeatedScalarFieldContainer[int]
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    time_to_first_token_s: float
    total_s: float
    stage_s: _containers.ScalarMap[str, float]
    wire_bytes: int
    intersection_rounds: int
    text_rounds: int
    tail_text: str
    drafting: bool
    rule: GenerateRequest.Rule
    stop_string: str
    outside_us: _containers.RepeatedScalarFieldContainer[int]
    queue_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stop_reason: _Optional[_Union[StopReason, str]] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., mean_acceptance_length: _Optional[float] = ..., drafted_by_position: _Optional[_Iterable[int]] = ..., accepted_by_position: _Optional[_Iterable[int]] = ..., time_to_first_token_s: _Optional[float] = ..., total_s: _Optional[float] = ..., stage_s: _Optional[_Mapping[str, float]] = ..., wire_bytes: _Optional[int] = ..., intersection_rounds: _Optional[int] = ..., text_rounds: _Optional[int] = ..., tail_text: _Optional[str] = ..., drafting: _Optional[bool] = ..., rule: _Optional[_Union[GenerateRequest.Rule, str]] = ..., stop_string: _Optional[str] = ..., outside_us: _Optional[_Iterable[int]] = ..., queue_us: _Optional[_Iterable[int]] = ...) -> None: ...

class GetPairRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPairResponse(_message.Message):
    __slots__ = ("target_model", "draft_model", "bridge", "bridge_sha256", "shared_tokens", "max_context_length", "max_draft_steps", "max_sessions", "max_message_bytes", "version", "drafting", "device", "dtype")
    TARGET_MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    BRIDGE_FIELD_NUMBER: _ClassVar[int]
    BRIDGE_SHA256_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    target_model: str
    draft_model: str
    bridge: str
    bridge_sha256: str
    shared_tokens: int
    max_context_length: int
    max_draft_steps: int
    max_sessions: int
    max_message_bytes: int
    version: str
    drafting: bool
    device: str
    dtype: str
    def __init__(self, target_model: _Optional[str] = ..., draft_model: _Optional[str] = ..., bridge: _Optional[str] = ..., bridge_sha256: _Optional[str] = ..., shared_tokens: _Optional[int] = ..., max_context_length: _Optional[int] = ..., max_draft_steps: _Optional[int] = ..., max_sessions: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., version: _Optional[str] = ..., drafting: _Optional[bool] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ...) -> None: ...
