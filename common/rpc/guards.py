"""What every call passes before its handler: its token, and its peer's share.

Health needs no token, and what it is asked once is never refused: probes come from anywhere. Those
who watch it stay, so that they have a share of their own, beside that of calls. Knows which guards
a service's settings ask for. Does not know how they judge
(common/rpc/security/bearer_tokens.py, common/rpc/security/peer_limit.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import grpc

from common.rpc.security.bearer_tokens import BearerTokens
from common.rpc.security.peer_limit import PeerLimit
from common.rpc.statuses import Guard

HEALTH = "/grpc.health."
WATCH = "/grpc.health.v1.Health/Watch"


def guards(bearer_tokens: str | None, streams_per_peer: int | None) -> list[Guard]:
    """bearer_tokens: their file. streams_per_peer: also so many watches of health."""
    made: list[Guard] = []
    if bearer_tokens is not None:
        tokens = BearerTokens(bearer_tokens)

        def authenticated(
            method: str, context: grpc.aio.ServicerContext
        ) -> AbstractContextManager[object]:
            if not method.startswith(HEALTH):
                tokens.check(context)
            return nullcontext()

        made.append(authenticated)
    if streams_per_peer is not None:
        calls = PeerLimit(streams_per_peer)
        watches = PeerLimit(streams_per_peer, "watches of health")

        def counted(
            method: str, context: grpc.aio.ServicerContext
        ) -> AbstractContextManager[object]:
            if method == WATCH:
                return watches.taking(context.peer())
            return nullcontext() if method.startswith(HEALTH) else calls.taking(context.peer())

        made.append(counted)
    return made
