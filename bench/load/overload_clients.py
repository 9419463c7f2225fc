"""Clients that ask again and again, refused or not, and how each attempt went.

A closed loop: each client has one request at a time, and after a refusal waits as long as it was
their hints. Knows requests, times, statuses, hints. Does not know what they come to
(bench/load/overload_report.py).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from client.client import Client, Request
from client.results import TokenDelta
from common.errors import IncompleteStream
from common.rpc.error_details import received

WITHOUT_HINT_S = 0.2  # what a client without a hint waits
LEFT_OVER_S = 120.0  # that a stream may take once no new ones begin
OK, REFUSED = "OK", grpc.StatusCode.RESOURCE_EXHAUSTED.name


@dataclass
class Attempt:
    """One call, in seconds of the monotonic clock."""

    began_s: float
    ended_s: float = 0.0
    status: str = OK
    hint_s: float | None = None  # of a refusal: when to come again
    token_s: list[float] = field(default_factory=list)  # when each came
    changed: bool = False  # the output isn't the undisturbed run's

    @property
    def refused(self) -> bool:
        """Over capacity, before anything came; otherwise the stream was admitted."""
        return self.status == REFUSED and not self.token_s

    @property
    def failed(self) -> bool:
        return self.status != OK and not self.refused

    @property
    def tokens_per_s(self) -> float | None:
        """The stream's pace after its first token; of a stream that came to its end."""
        if self.status != OK or len(self.token_s) < 2:
            return None
        elapsed = self.token_s[-1] - self.token_s[0]
        return (len(self.token_s) - 1) / elapsed if elapsed > 0 else None


async def attempt(client: Client, request: Request, expected: tuple[int, ...]) -> Attempt:
    """expected: the ids that the request gives when nobody disturbs it."""
    made = Attempt(time.monotonic())

    def came(delta: TokenDelta) -> None:
        if delta.token_id is not None:
            made.token_s.append(time.monotonic())

    try:
        output = await client.generate(request, came, LEFT_OVER_S)
    except grpc.aio.AioRpcError as error:
        made.status = error.code().name
        details = received(error.trailing_metadata())
        if details is not None and details.retry_ms is not None:
            made.hint_s = details.retry_ms / 1000
    except IncompleteStream:
        made.status = "INCOMPLETE"
    else:
        made.changed = output.token_ids != expected
    made.ended_s = time.monotonic()
    return made


async def undisturbed(client: Client, requests: Sequence[Request]) -> list[tuple[int, ...]]:
    """What each request gives, one after the other."""
    return [(await client.generate(each)).token_ids for each in requests]


async def asking(
    client: Client,
    requests: Sequence[Request],
    expected: Sequence[tuple[int, ...]],
    clients: int,
    duration_s: float,
) -> list[Attempt]:
    """So many clients for so long; returns when what they began has ended."""
    attempts: list[Attempt] = []
    until = time.monotonic() + duration_s
    turns = itertools.cycle(range(len(requests)))

    async def one() -> None:
        while time.monotonic() < until:
            which = next(turns)
            made = await attempt(client, requests[which], expected[which])
            attempts.append(made)
            if made.status != OK:
                pause_s = WITHOUT_HINT_S if made.hint_s is None else made.hint_s
                await asyncio.sleep(min(pause_s, max(0.0, until - time.monotonic())))

    await asyncio.gather(*(one() for _ in range(clients)))
    return attempts
