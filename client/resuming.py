"""A generation that outlives its drafter: asked again where it broke off, of whoever answers.

Knows which failures another attempt may mend, and that a request with the ids so far, and the time
that its chat was given, goes on where they end. Does not know the protocol (client/client.py) and
how anything is shown.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable

import grpc

from client.client import Client, Request, output_of
from client.results import Output, TokenDelta
from common.errors import IncompleteStream
from common.rpc.error_details import received
from common.rpc.statuses import broken_off

PAUSE_S = 0.2  # before the next attempt, where nobody said how long to wait


async def generate_resuming(
    client: Client,
    request: Request,
    retry_s: float,
    on_delta: Callable[[TokenDelta], None] = lambda delta: None,
    timeout_s: float | None = None,
    on_pause: Callable[[grpc.aio.AioRpcError | IncompleteStream], None] = lambda error: None,
) -> Output:
    """As Client.generate; what breaks off is taken up again, for `retry_s` after each loss.

    timeout_s is for all attempts together, and the pauses between them.
    Greedily or with a seed, the output is that of one undisturbed stream.
    """
    so_far: list[TokenDelta] = []
    ends = math.inf if timeout_s is None else time.monotonic() + timeout_s
    lost_at: float | None = None  # when it broke off, until something comes again

    def receive(delta: TokenDelta) -> None:
        nonlocal lost_at
        lost_at = None
        if so_far and so_far[-1].token_id is None:
            return  # the text left over at the end; it came before the stream was lost, too
        so_far.append(delta)
        on_delta(delta)

    while True:
        tokens = [delta.token_id for delta in so_far if delta.token_id is not None]
        known = (*request.resumed_ids, *tokens)
        times = [delta.chat_time_us for delta in so_far if delta.chat_time_us is not None]
        time_us = times[0] if times else request.chat_time_us
        targets = [delta.target for delta in so_far if delta.target is not None]
        resumed = dataclasses.replace(
            request,
            resumed_ids=known,
            chat_time_us=time_us,
            resumed_target=targets[0] if targets else request.resumed_target,
        )
        left_s = None if timeout_s is None else max(0.0, ends - time.monotonic())
        try:
            output = await client.generate(resumed, receive, left_s)
        except (grpc.aio.AioRpcError, IncompleteStream) as error:
            now, pause_s = time.monotonic(), pause(error)
            lost_at = now if lost_at is None else lost_at
            if pause_s is None or not now + pause_s <= min(lost_at + retry_s, ends):  # NaN: neither
                raise
            on_pause(error)
            await asyncio.sleep(pause_s)
        else:
            return output_of(so_far, output.statistics)


def pause(error: grpc.aio.AioRpcError | IncompleteStream) -> float | None:
    """Seconds after which another attempt may do better; None: none will."""
    if isinstance(error, IncompleteStream):
        return PAUSE_S
    details = received(error.trailing_metadata())
    if details is not None and details.retry_ms is not None:
        return details.retry_ms / 1000
    return PAUSE_S if broken_off(error) else None
