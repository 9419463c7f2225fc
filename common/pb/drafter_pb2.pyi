from common.pb import sampling_pb2 as _sampling_pb2
from common.pb import verifier_pb2 as _verifier_pb2
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
BRIDGE_MODE_UNSPECIFIED: BridgeMode
BRIDGE_MODE_INTERSECTION: BridgeMode
BRIDGE_MODE_TEXT: BridgeMode
BRIDGE_MODE_AUTO: BridgeMode
TOKEN_ORIGIN_UNSPECIFIED: TokenOrigin
TOKEN_ORIGIN_DRAFT: TokenOrigin
TOKEN_ORIGIN_VERIFIER: TokenOrigin

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages", "time_us")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    time_us: int
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., time_us: _Optional[int] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "chat", "prompt_token_ids", "max_new_tokens", "stop_token_ids", "draft_steps", "bridge_mode", "ignore_eos", "sampling", "acceptance_rule", "stop", "resumed_token_ids", "required_features", "resumed_target")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_STEPS_FIELD_NUMBER: _ClassVar[int]
    BRIDGE_MODE_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RULE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TARGET_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    chat: Chat
    prompt_token_ids: TokenIds
    max_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    draft_steps: int
    bridge_mode: BridgeMode
    ignore_eos: bool
    sampling: _sampling_pb2.Sampling
    acceptance_rule: _sampling_pb2.AcceptanceRule
    stop: _containers.RepeatedScalarFieldContainer[str]
    resumed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    required_features: _containers.RepeatedScalarFieldContainer[str]
    resumed_target: _verifier_pb2.ModelIdentity
    def __init__(self, prompt: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., prompt_token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., draft_steps: _Optional[int] = ..., bridge_mode: _Optional[_Union[BridgeMode, str]] = ..., ignore_eos: _Optional[bool] = ..., sampling: _Optional[_Union[_sampling_pb2.Sampling, _Mapping]] = ..., acceptance_rule: _Optional[_Union[_sampling_pb2.AcceptanceRule, str]] = ..., stop: _Optional[_Iterable[str]] = ..., resumed_token_ids: _Optional[_Iterable[int]] = ..., required_features: _Optional[_Iterable[str]] = ..., resumed_target: _Optional[_Union[_verifier_pb2.ModelIdentity, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("deltas", "summary", "chat_time_us", "target")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    CHAT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    deltas: TokenDeltas
    summary: Summary
    chat_time_us: int
    target: _verifier_pb2.ModelIdentity
    def __init__(self, deltas: _Optional[_Union[TokenDeltas, _Mapping]] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ..., chat_time_us: _Optional[int] = ..., target: _Optional[_Union[_verifier_pb2.ModelIdentity, _Mapping]] = ...) -> None: ...

class TokenDeltas(_message.Message):
    __slots__ = ("deltas",)
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[TokenDelta]
    def __init__(self, deltas: _Optional[_Iterable[_Union[TokenDelta, _Mapping]]] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("token_id", "text", "origin", "logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    origin: TokenOrigin
    logprobs: _sampling_pb2.TokenLogprobs
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., origin: _Optional[_Union[TokenOrigin, str]] = ..., logprobs: _Optional[_Union[_sampling_pb2.TokenLogprobs, _Mapping]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("finish_reason", "prompt_tokens", "output_tokens", "rounds", "mean_acceptance_length", "drafted_by_position", "accepted_by_position", "time_to_first_token_us", "total_us", "stage_times", "wire_bytes", "intersection_rounds", "text_rounds", "drafting", "acceptance_rule", "stop_string", "outside_us", "queue_us", "target", "resumed_on")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTANCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    STAGE_TIMES_FIELD_NUMBER: _ClassVar[int]
    WIRE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INTERSECTION_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RULE_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    RESUMED_ON_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _sampling_pb2.FinishReason
    prompt_tokens: int
    output_tokens: int
    rounds: int
    mean_acceptance_length: float
    drafted_by_position: _containers.RepeatedScalarFieldContainer[int]
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    time_to_first_token_us: int
    total_us: int
    stage_times: StageTimes
    wire_bytes: int
    intersection_rounds: int
    text_rounds: int
    drafting: bool
    acceptance_rule: _sampling_pb2.AcceptanceRule
    stop_string: str
    outside_us: _containers.RepeatedScalarFieldContainer[int]
    queue_us: _containers.RepeatedScalarFieldContainer[int]
    target: _verifier_pb2.ModelIdentity
    resumed_on: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., mean_acceptance_length: _Optional[float] = ..., drafted_by_position: _Optional[_Iterable[int]] = ..., accepted_by_position: _Optional[_Iterable[int]] = ..., time_to_first_token_us: _Optional[int] = ..., total_us: _Optional[int] = ..., stage_times: _Optional[_Union[StageTimes, _Mapping]] = ..., wire_bytes: _Optional[int] = ..., intersection_rounds: _Optional[int] = ..., text_rounds: _Optional[int] = ..., drafting: _Optional[bool] = ..., acceptance_rule: _Optional[_Union[_sampling_pb2.AcceptanceRule, str]] = ..., stop_string: _Optional[str] = ..., outside_us: _Optional[_Iterable[int]] = ..., queue_us: _Optional[_Iterable[int]] = ..., target: _Optional[_Union[_verifier_pb2.ModelIdentity, _Mapping]] = ..., resumed_on: _Optional[_Iterable[str]] = ...) -> None: ...

class StageTimes(_message.Message):
    __slots__ = ("draft_model_us", "draft_queue_us", "bridge_us", "verifier_queue_us", "verifier_forward_us", "verifier_accept_us", "network_us", "detokenize_us")
    DRAFT_MODEL_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    BRIDGE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_ACCEPT_US_FIELD_NUMBER: _ClassVar[int]
    NETWORK_US_FIELD_NUMBER: _ClassVar[int]
    DETOKENIZE_US_FIELD_NUMBER: _ClassVar[int]
    draft_model_us: int
    draft_queue_us: int
    bridge_us: int
    verifier_queue_us: int
    verifier_forward_us: int
    verifier_accept_us: int
    network_us: int
    detokenize_us: int
    def __init__(self, draft_model_us: _Optional[int] = ..., draft_queue_us: _Optional[int] = ..., bridge_us: _Optional[int] = ..., verifier_queue_us: _Optional[int] = ..., verifier_forward_us: _Optional[int] = ..., verifier_accept_us: _Optional[int] = ..., network_us: _Optional[int] = ..., detokenize_us: _Optional[int] = ...) -> None: ...

class GetPairRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPairResponse(_message.Message):
    __slots__ = ("target_model", "draft_model", "bridge", "bridge_sha256", "shared_tokens", "max_context_length", "max_draft_steps", "max_sessions", "max_message_bytes", "version", "drafting", "device", "dtype", "features")
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
    FEATURES_FIELD_NUMBER: _ClassVar[int]
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
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, target_model: _Optional[str] = ..., draft_model: _Optional[str] = ..., bridge: _Optional[str] = ..., bridge_sha256: _Optional[str] = ..., shared_tokens: _Optional[int] = ..., max_context_length: _Optional[int] = ..., max_draft_steps: _Optional[int] = ..., max_sessions: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., version: _Optional[str] = ..., drafting: _Optional[bool] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...
