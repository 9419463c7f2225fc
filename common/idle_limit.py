"""Waiting for the other end of a stream, and for how long.

Knows: time. Refuses to know messages. A peer that is gone is noticed by keepalive; this is for one
that is there and does nothing, and would hold a place for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Generic, TypeVar

from common.errors import IdleTooLong

T = TypeVar("T")


class EachWithin(Generic[T]):
    """Messages as they come. Raises IdleTooLong, saying `what`, once none comes in time."""

    def __init__(self, messages: AsyncIterator[T], limit_s: float, what: str) -> None:
        self._messages = messages
        self._limit_s = limit_s
        self._what = what

    def __aiter__(self) -> EachWithin[T]:
        return self

    async def __anext__(self) -> T:
        return await within(anext(self._messages), self._limit_s, self._what)


async def within(doing: Awaitable[T], limit_s: float | None, what: str) -> T:
    """Its result. Raises IdleTooLong, saying `what`, if it isn't there in time (None: any)."""
    if limit_s is None:
        return await doing
    try:
        async with asyncio.timeout(limit_s):
            return await doing
    except TimeoutError as cause:
        raise IdleTooLong(what, limit_s) from cause
