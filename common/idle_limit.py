"""Waiting for the other end of a stream, and for how long.

Knows: time. Refuses to know messages. A peer that is gone is noticed by keepalive; this is for one
that is there and does nothing, and would hold a place for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from common.errors import IdleTooLong

T = TypeVar("T")


async def each_within(messages: AsyncIterator[T], limit_s: float, what: str) -> AsyncIterator[T]:
    """The messages as they come. Raises IdleTooLong, saying `what`, once none comes in time."""
    while True:
        try:
            async with asyncio.timeout(limit_s):
                message = await anext(messages)
        except StopAsyncIteration:
            return
        except TimeoutError as cause:
            raise IdleTooLong(what, limit_s) from cause
        yield message


async def within(doing: Awaitable[T], limit_s: float | None, what: str) -> T:
    """Its result. Raises IdleTooLong, saying `what`, if it isn't there in time (None: any)."""
    if limit_s is None:
        return await doing
    try:
        async with asyncio.timeout(limit_s):
            return await doing
    except TimeoutError as cause:
        raise IdleTooLong(what, limit_s) from cause
