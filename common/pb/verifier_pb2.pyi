from common.pb import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model", "tokenizer_sha256", "vocab_size", "eos_token_ids", "max_context_length", "max_draft_tokens", "max_sessions", "max_message_bytes", "row_invariant", "version", "max_q_entries", "device", "dtype", "features", "identity")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROW_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_Q_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokenizer_sha256: str
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_context_length: int
    max_draft_tokens: int
    max_sessions: int
    max_message_bytes: int
    row_invariant: bool
    version: str
    max_q_entries: int
    device: str
    dtype: str
    features: _containers.RepeatedScalarFieldContainer[str]
    identity: ModelIdentity
    def __init__(self, model: _Optional[str] = ..., tokenizer_sha256: _Optional[str] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., max_context_length: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., max_sessions: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., row_invariant: _Optional[bool] = ..., version: _Optional[str] = ..., max_q_entries: _Optional[int] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., identity: _Optional[_Union[ModelIdentity, _Mapping]] = ...) -> None: ...

class ModelIdentity(_message.Message):
    __slots__ = ("weights_sha256", "numerics", "tokenizer_sha256", "chat_template_sha256")
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    weights_sha256: str
    numerics: str
    tokenizer_sha256: str
    chat_template_sha256: str
    def __init__(self, weights_sha256: _Optional[str] = ..., numerics: _Optional[str] = ..., tokenizer_sha256: _Optional[str] = ..., chat_template_sha256: _Optional[str] = ...) -> None: ...

class SessionLimits(_message.Message):
    __slots__ = ("max_context_length", "max_draft_tokens", "max_q_entries")
    MAX_CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_Q_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    max_context_length: int
    max_draft_tokens: int
    max_q_entries: int
    def __init__(self, max_context_length: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., max_q_entries: _Optional[int] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("filename", "chunk", "file_bytes")
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    filename: str
    chunk: bytes
    file_bytes: int
    def __init__(self, filename: _Optional[str] = ..., chunk: _Optional[bytes] = ..., file_bytes: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("open", "proposal")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    open: Open
    proposal: Proposal
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("prompt_token_ids", "max_new_tokens", "stop_token_ids", "tokenizer_sha256", "acceptance_rule", "ignore_eos", "sampling", "resumed_output_tokens", "required_features", "identity", "resume_on")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RULE_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RESUMED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    RESUME_ON_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    tokenizer_sha256: str
    acceptance_rule: _sampling_pb2.AcceptanceRule
    ignore_eos: bool
    sampling: _sampling_pb2.Sampling
    resumed_output_tokens: int
    required_features: _containers.RepeatedScalarFieldContainer[str]
    identity: ModelIdentity
    resume_on: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., max_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., tokenizer_sha256: _Optional[str] = ..., acceptance_rule: _Optional[_Union[_sampling_pb2.AcceptanceRule, str]] = ..., ignore_eos: _Optional[bool] = ..., sampling: _Optional[_Union[_sampling_pb2.Sampling, _Mapping]] = ..., resumed_output_tokens: _Optional[int] = ..., required_features: _Optional[_Iterable[str]] = ..., identity: _Optional[_Union[ModelIdentity, _Mapping]] = ..., resume_on: _Optional[_Iterable[str]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("round", "base_length", "token_ids", "q", "required_features")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    round: int
    base_length: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    q: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.SparseDistribution]
    required_features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., base_length: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., q: _Optional[_Iterable[_Union[_sampling_pb2.SparseDistribution, _Mapping]]] = ..., required_features: _Optional[_Iterable[str]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    def __init__(self, verdict: _Optional[_Union[Verdict, _Mapping]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("round", "accepted_length", "next_token_id", "committed_length", "finish_reason", "cost", "logprobs", "identity", "limits")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    round: int
    accepted_length: int
    next_token_id: int
    committed_length: int
    finish_reason: _sampling_pb2.FinishReason
    cost: RoundCost
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    identity: ModelIdentity
    limits: SessionLimits
    def __init__(self, round: _Optional[int] = ..., accepted_length: _Optional[int] = ..., next_token_id: _Optional[int] = ..., committed_length: _Optional[int] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., cost: _Optional[_Union[RoundCost, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ..., identity: _Optional[_Union[ModelIdentity, _Mapping]] = ..., limits: _Optional[_Union[SessionLimits, _Mapping]] = ...) -> None: ...

class RoundCost(_message.Message):
    __slots__ = ("queue_us", "forward_us", "accept_us", "batch_sessions", "batch_rows")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    forward_us: int
    accept_us: int
    batch_sessions: int
    batch_rows: int
    def __init__(self, queue_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., accept_us: _Optional[int] = ..., batch_sessions: _Optional[int] = ..., batch_rows: _Optional[int] = ...) -> None: ...

class VerifyOnceRequest(_message.Message):
    __slots__ = ("open", "draft_token_ids", "q")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    open: Open
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    q: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.SparseDistribution]
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., q: _Optional[_Iterable[_Union[_sampling_pb2.SparseDistribution, _Mapping]]] = ...) -> None: ...

class VerifyOnceResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    def __init__(self, verdict: _Optional[_Union[Verdict, _Mapping]] = ...) -> None: ...
