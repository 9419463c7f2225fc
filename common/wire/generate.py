"""Between client and drafter: our values and the messages of drafter.proto, both ways.

Knows the fields that both ends read or write. Does not know how a stream is made
(drafter/generate/reply.py) and shown (client/).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.pb import drafter_pb2

# Stages of a round, as metrics name them (common/telemetry).
_MOST = 2**64 - 1
_STAGES = tuple(each.name.removesuffix("_us") for each in drafter_pb2.StageTimes.DESCRIPTOR.fields)


def stage_times_to_pb(stage_s: Mapping[str, float]) -> drafter_pb2.StageTimes:
    """stage_s: seconds by stage."""
    return drafter_pb2.StageTimes(
        **{f"{stage}_us": microseconds(stage_s[stage]) for stage in _STAGES}
    )


def stage_times_from_pb(message: drafter_pb2.StageTimes) -> dict[str, float]:
    return {stage: getattr(message, f"{stage}_us") / 1e6 for stage in _STAGES}


def microseconds(seconds: float) -> int:
    """In a uint64, whatever a peer's own numbers add up to."""
    return min(max(0, round(seconds * 1e6)), _MOST)


def deltas_response(
    deltas: Iterable[drafter_pb2.TokenDelta], chat_time_us: int | None = None
) -> drafter_pb2.GenerateResponse:
    """chat_time_us: for the first deltas of a chat whose template read the clock."""
    return drafter_pb2.GenerateResponse(
        deltas=drafter_pb2.TokenDeltas(deltas=deltas), chat_time_us=chat_time_us
    )
