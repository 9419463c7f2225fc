"""What a verifier serves and takes: the messages that say it on a stream's first verdict.

Knows their fields. Does not know who compares them.
"""

from __future__ import annotations

from common.pb import verifier_pb2
from common.types import ModelIdentity, SessionLimits


def identity_to_pb(identity: ModelIdentity) -> verifier_pb2.ModelIdentity:
    return verifier_pb2.ModelIdentity(
        weights_sha256=identity.weights,
        numerics=identity.numerics,
        tokenizer_sha256=identity.tokenizer,
        chat_template_sha256=identity.chat_template,
    )


def identity_from_pb(message: verifier_pb2.ModelIdentity) -> ModelIdentity:
    return ModelIdentity(
        weights=message.weights_sha256,
        numerics=message.numerics,
        tokenizer=message.tokenizer_sha256,
        chat_template=message.chat_template_sha256,
    )


def limits_to_pb(limits: SessionLimits) -> verifier_pb2.SessionLimits:
    return verifier_pb2.SessionLimits(
        max_context_length=limits.max_context_length,
        max_draft_tokens=limits.max_draft_tokens,
        max_q_entries=limits.max_q_entries,
    )


def limits_from_pb(message: verifier_pb2.SessionLimits) -> SessionLimits:
    return SessionLimits(
        message.max_context_length, message.max_draft_tokens, message.max_q_entries
    )
