"""Every error a caller can cause: one class per cause, each with its gRPC status.

Knows which cause has which status, and that a message names field, value and limit. Does not know
how an error travels (common/rpc/error_details.py). Our own mistakes are asserts, never one of
these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import grpc

_VALUE_SHOWN = 160  # characters of a part of an identity
_NAME_SHOWN = 100  # characters of a name that somebody without a token may have sent


class CrossdraftError(Exception):
    """Base of all errors with a gRPC status.

    field: the request's field at fault, if it is one. retry_ms: after how long another attempt may
    succeed. metadata: further facts for machines, short.
    """

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason = "CROSSDRAFT_ERROR"  # the cause for machines: the class's name in upper snake case

    def __init__(
        self, message: str, *, field: str = "", retry_ms: int | None = None, **metadata: str | int
    ) -> None:
        super().__init__(message)
        self.field = field
        self.retry_ms = retry_ms
        self.metadata = {key: str(value) for key, value in metadata.items()}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.reason = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()


class InvalidField(CrossdraftError):
    """A request field has a value that it can't have."""

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(f"{field} is {value}; it must be {limit}", field=field)


class UnknownHealthName(InvalidField):
    """Health is asked of what isn't here. The status is the one that health's protocol wants."""

    status = grpc.StatusCode.NOT_FOUND

    def __init__(self, name: str, known: Iterable[str]) -> None:
        shown = repr(name[:_NAME_SHOWN]) + "…" * (len(name) > _NAME_SHOWN)  # it goes into the log
        super().__init__("service", shown, f"one of {', '.join(map(repr, known))}")


class UnfitRule(InvalidField):
    """An acceptance rule that doesn't go with the request's sampling parameters, or the pair."""


class InvalidDistribution(InvalidField):
    """A row of q that is no distribution, or has no probability for its draft token."""


class MissingMessage(CrossdraftError):
    """A message came without its content."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class UnknownFeature(CrossdraftError):
    """A message requires a feature that this version doesn't have."""

    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, field: str, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"{field} is {name!r}; it must be one of {', '.join(sorted(known)) or 'none'}",
            field=field,
            feature=name,
        )


class MalformedMessage(CrossdraftError):
    """Bytes that are no message of the type that the method takes."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class PromptTooLong(CrossdraftError):
    """The prompt leaves no space for one more token in the model's context."""

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {length} tokens; the limit is {limit}", field="prompt", limit=limit
        )


class WrongRound(CrossdraftError):
    """A proposal extends a base that isn't the session's. Carries the verifier's own length."""

    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, field: str, got: int, expected: int, committed_length: int) -> None:
        super().__init__(
            f"proposal.{field} is {got}; this session is at {expected} "
            f"(committed length {committed_length})",
            field=f"proposal.{field}",
            expected=expected,
            committed_length=committed_length,
        )


class OutOfOrder(CrossdraftError):
    """A stream's messages came in an order that the protocol doesn't have."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class TokenizerMismatch(CrossdraftError):
    """The session was built on another tokenizer than the one this verifier serves."""

    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, got: str, expected: str) -> None:
        super().__init__(
            f"open.tokenizer_sha256 is {got or '(empty)'}; this verifier serves {expected}",
            field="open.tokenizer_sha256",
        )


class IdentityMismatch(CrossdraftError):
    """A session began at a verifier with another identity: here it would go on in other words."""

    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, parts: Mapping[str, tuple[str, str]]) -> None:
        """parts: name -> (of the session, of this verifier), where they differ."""
        shown = "; ".join(
            f"open.identity.{part} is {got[:_VALUE_SHOWN]}, and this verifier's is "
            f"{own[:_VALUE_SHOWN]}"
            for part, (got, own) in parts.items()
        )
        super().__init__(shown, field="open.identity", parts=",".join(parts))


class OverCapacity(CrossdraftError):
    """No capacity for one more session now. Carries a retry hint in milliseconds."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, what: str, limit: int, retry_ms: int) -> None:
        super().__init__(
            f"all {limit} {what} are in use; try again in {retry_ms} ms",
            retry_ms=retry_ms,
            limit=limit,
        )


class Unauthenticated(CrossdraftError):
    """The call carries no token, or none that is known. Never shows the token."""

    status = grpc.StatusCode.UNAUTHENTICATED

    def __init__(self, message: str) -> None:
        super().__init__(message, field="authorization")


class IdleTooLong(CrossdraftError):
    """The other end neither sent nor read for so long that what it holds is freed."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED

    def __init__(self, what: str, limit_s: float) -> None:
        super().__init__(f"{what} for {limit_s:g} s, which is the limit", limit_s=f"{limit_s:g}")


class Draining(CrossdraftError):
    """The service is shutting down and takes no new sessions."""

    status = grpc.StatusCode.UNAVAILABLE


class VerifierUnavailable(CrossdraftError):
    """The drafter can't reach a verifier."""

    status = grpc.StatusCode.UNAVAILABLE


class IncompleteStream(CrossdraftError):
    """A drafter's stream ended without its summary; nobody can say whether the text is whole."""

    status = grpc.StatusCode.INTERNAL


class ModelFailed(CrossdraftError):
    """The model's forward pass raised or gave invalid logits; the session can't go on."""

    status = grpc.StatusCode.INTERNAL


class EngineDied(CrossdraftError):
    """The thread that runs the model ended by a mistake of ours; so does its service."""

    status = grpc.StatusCode.INTERNAL


class RankLost(CrossdraftError):
    """One of the processes that hold a model together is gone, so that nothing can be computed."""

    status = grpc.StatusCode.INTERNAL

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is lost, and this process ends with it")


class UnsupportedTokenizer(CrossdraftError):
    """A tokenizer whose tokens have no exact bytes (WordPiece, say). Names the decoder."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class UnsupportedModel(CrossdraftError):
    """A model that can't run on variable-length batches through the attention interface."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class WeightsError(CrossdraftError):
    """A model name can't be resolved to local files, or the files fail their checksum."""

    status = grpc.StatusCode.NOT_FOUND


class ConfigError(CrossdraftError):
    """A setting is unknown or has a value that it can't have."""

    status = grpc.StatusCode.INVALID_ARGUMENT
