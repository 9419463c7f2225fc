"""The protos' enums and ours, both ways.

An enum value of a newer version is no error: in a request it counts as unspecified, so that the
service selects (what may not be ignored is named in `required_features`); in an answer it is None,
or a member for all others. Knows nothing else of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar, cast

from common.pb import drafter_pb2, sampling_pb2
from common.sampling.acceptance_rule import AcceptanceRule
from common.types import BridgeMode, FinishReason, Origin

E = TypeVar("E", bound=Enum)
N = TypeVar("N", bound=int)  # the proto's enum
UNSPECIFIED = 0


class WireEnum(Generic[E, N]):
    """One enum's mapping."""

    def __init__(self, numbers: Mapping[E, N], unknown: E | None = None) -> None:
        """unknown: the member for a number that isn't here; None: nothing does."""
        self._numbers = dict(numbers)
        self._members = {int(number): member for member, number in numbers.items()}
        self._unknown = unknown

    def from_pb(self, number: int) -> E | None:
        """None: unspecified."""
        if number == UNSPECIFIED:
            return None
        return self._members.get(number, self._unknown)

    def to_pb(self, member: E | None) -> N:
        return cast(N, UNSPECIFIED) if member is None else self._numbers[member]


RULES = WireEnum(
    {
        AcceptanceRule.GREEDY: sampling_pb2.ACCEPTANCE_RULE_GREEDY,
        AcceptanceRule.TARGET_ONLY: sampling_pb2.ACCEPTANCE_RULE_TARGET_ONLY,
        AcceptanceRule.REJECTION: sampling_pb2.ACCEPTANCE_RULE_REJECTION,
        AcceptanceRule.COUPLED: sampling_pb2.ACCEPTANCE_RULE_COUPLED,
    }
)
FINISH_REASONS = WireEnum(
    {
        FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
        FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
        FinishReason.CONTEXT: sampling_pb2.FINISH_REASON_CONTEXT,
        FinishReason.OTHER: sampling_pb2.FINISH_REASON_OTHER,
    },
    unknown=FinishReason.OTHER,  # whatever it is, the session has ended
)
BRIDGES = WireEnum(
    {
        BridgeMode.INTERSECTION: drafter_pb2.BRIDGE_MODE_INTERSECTION,
        BridgeMode.TEXT: drafter_pb2.BRIDGE_MODE_TEXT,
        BridgeMode.AUTO: drafter_pb2.BRIDGE_MODE_AUTO,
    }
)
ORIGINS = WireEnum(
    {
        Origin.DRAFT: drafter_pb2.TOKEN_ORIGIN_DRAFT,
        Origin.VERIFIER: drafter_pb2.TOKEN_ORIGIN_VERIFIER,
    }
)
