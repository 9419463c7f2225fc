"""The seam between client and drafter: the choices and reasons of drafter.proto.

Knows: what each enum value means. Refuses to know: how a stream is made (drafter/service.py) and
shown (cli/).
"""

from __future__ import annotations

from common.pb import drafter_pb2
from common.sampling.rules import AcceptanceRule
from common.types import BridgeMode, FinishReason, Origin
from common.wire.checks import enum_from_pb

_STOP = {
    FinishReason.STOP: drafter_pb2.STOP_REASON_STOP,
    FinishReason.LENGTH: drafter_pb2.STOP_REASON_LENGTH,
    FinishReason.CONTEXT: drafter_pb2.STOP_REASON_CONTEXT,
}
_BRIDGES = {
    BridgeMode.INTERSECTION: drafter_pb2.BRIDGE_MODE_INTERSECTION,
    BridgeMode.TEXT: drafter_pb2.BRIDGE_MODE_TEXT,
    BridgeMode.AUTO: drafter_pb2.BRIDGE_MODE_AUTO,
}
_RULES = {
    AcceptanceRule.GREEDY: drafter_pb2.GenerateRequest.RULE_GREEDY,
    AcceptanceRule.TARGET_ONLY: drafter_pb2.GenerateRequest.RULE_TARGET_ONLY,
    AcceptanceRule.REJECTION: drafter_pb2.GenerateRequest.RULE_REJECTION,
    AcceptanceRule.COUPLED: drafter_pb2.GenerateRequest.RULE_COUPLED,
}
_ORIGINS = {
    Origin.DRAFT: drafter_pb2.TOKEN_ORIGIN_DRAFT,
    Origin.VERIFIER: drafter_pb2.TOKEN_ORIGIN_VERIFIER,
}


def stop_reason_from_pb(value: int, field: str = "summary.stop_reason") -> FinishReason | None:
    return enum_from_pb(field, value, _STOP, unspecified=True)


def stop_reason_to_pb(reason: FinishReason | None) -> drafter_pb2.StopReason:
    return _STOP[reason] if reason else drafter_pb2.STOP_REASON_UNSPECIFIED


def bridge_from_pb(value: int, field: str = "bridge_mode") -> BridgeMode | None:
    """None leaves the choice to the drafter's setting."""
    return enum_from_pb(field, value, _BRIDGES, unspecified=True)


def bridge_to_pb(mode: BridgeMode | None) -> drafter_pb2.BridgeMode:
    return _BRIDGES[mode] if mode else drafter_pb2.BRIDGE_MODE_UNSPECIFIED


def rule_from_pb(value: int, field: str = "rule") -> AcceptanceRule | None:
    """None leaves the choice to the drafter."""
    return enum_from_pb(field, value, _RULES, unspecified=True)


def rule_to_pb(rule: AcceptanceRule | None) -> drafter_pb2.GenerateRequest.Rule:
    return _RULES[rule] if rule else drafter_pb2.GenerateRequest.RULE_UNSPECIFIED


def origin_from_pb(value: int, field: str = "piece.origin") -> Origin:
    origin = enum_from_pb(field, value, _ORIGINS, unspecified=False)
    assert origin is not None
    return origin


def origin_to_pb(origin: Origin) -> drafter_pb2.TokenOrigin:
    return _ORIGINS[origin]
