"""Waiting for the other end of a stream, and for how long.

Knows time. Does not know messages. A peer that is gone is noticed by keepalive; this is for one
that is there and does nothing, and would hold a place for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Generic, TypeVar

from common.errors import IdleTooLong
from common.rpc.timeouts import ReusableTimeout

T = TypeVar("T")


class EachWithin(Generic[T]):
    """Messages as they come. Raises IdleTooLong, saying `what`, once none comes in time."""

    def __init__(self, messages: AsyncIterator[T], timeout: ReusableTimeout, what: str) -> None:
        """timeout: of each message; the caller closes it."""
        self._messages = messages
        self._timeout = timeout
        self._what = what

    def __aiter__(self) -> EachWithin[T]:
        return self

    async def __anext__(self) -> T:
        return await within(self._timeout, anext(self._messages), self._what)


async def within(limit: ReusableTimeout, doing: Awaitable[T], what: str) -> T:
    """Its result. Raises IdleTooLong, saying `what`, if it isn't there in time."""
    try:
        return await limit.wait(doing)
    except TimeoutError as cause:
        assert limit.limit_s is not None
        raise IdleTooLong(what, limit.limit_s) from cause
