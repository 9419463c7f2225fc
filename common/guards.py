"""What every call passes before its handler, but for health: its token, and its peer's share.

Knows: which guards a service's settings ask for. Refuses to know how they judge
(common/bearer_tokens.py, common/peer_limit.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import grpc

from common.bearer_tokens import BearerTokens
from common.grpc_errors import Guard
from common.peer_limit import PeerLimit

HEALTH = "/grpc.health."


def guards(bearer_tokens: str | None, streams_per_peer: int | None) -> list[Guard]:
    """bearer_tokens: their file. Health stays open to whoever probes it."""
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
        limit = PeerLimit(streams_per_peer)

        def counted(
            method: str, context: grpc.aio.ServicerContext
        ) -> AbstractContextManager[object]:
            return nullcontext() if method.startswith(HEALTH) else limit.taking(context.peer())

        made.append(counted)
    return made
