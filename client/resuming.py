"""A generation that outlives its drafter: asked again where it broke off, of whoever answers.

Knows: which failures another attempt may mend, and that a request with the ids so far goes on where
they end. Refuses to know the protocol (client/client.py) and how anything is shown.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

import grpc

from client.client import Client, Request
from client.results import Output, TokenDelta
from common.errors import IncompleteStream
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

    timeout_s is for all attempts together.
    Greedily or with a seed, the output is that of one undisturbed stream.
    """
    so_far: list[TokenDelta] = []
    began = time.monotonic()
    lost_at: float | None = None  # when it broke off, until something comes again

    def receive(delta: TokenDelta) -> None:
        nonlocal lost_at
        lost_at = None
        so_far.append(delta)
        on_delta(delta)

    while True:
        begun = len(so_far)
        known = (*request.resumed_ids, *(delta.token_id for delta in so_far))
        resumed = dataclasses.replace(request, resumed_ids=known)
        left_s = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
        try:
            output = await client.generate(resumed, receive, left_s)
        except (grpc.aio.AioRpcError, IncompleteStream) as error:
            now, pause_s = time.monotonic(), pause(error)
            lost_at = now if lost_at is None else lost_at
            if pause_s is None or now - lost_at + pause_s > retry_s:
                raise
            on_pause(error)
            await asyncio.sleep(pause_s)
        else:
            return _joined(so_far[:begun], output)


def pause(error: grpc.aio.AioRpcError | IncompleteStream) -> float | None:
    """Seconds after which another attempt may do better; None: none will."""
    if isinstance(error, IncompleteStream):
        return PAUSE_S
    details = dict(error.trailing_metadata() or ())
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "retry_ms" in details:
        return int(details["retry_ms"]) / 1000
    return PAUSE_S if broken_off(error) else None


def _joined(before: list[TokenDelta], output: Output) -> Output:
    return dataclasses.replace(
        output,
        text="".join(delta.text for delta in before) + output.text,
        token_ids=(*(delta.token_id for delta in before), *output.token_ids),
        origins=(*(delta.origin for delta in before), *output.origins),
        logprobs=(*(each.logprobs for each in before if each.logprobs), *output.logprobs),
    )
