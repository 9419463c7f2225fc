"""A limit on each of many waits, one after the other, with one timer for all of them.

asyncio.timeout makes a timer for each wait and takes it away again, which at a thousand rounds a
second was 7% of what both services do. Knows: time. Refuses to know what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Patience:
    """Of one task at a time. Leave it (`with`, or `close`) when no more waits are to come."""

    def __init__(self, limit_s: float | None) -> None:
        """limit_s: for each wait; None: any."""
        self.limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[object] | None = None
        self._until = 0.0  # of the wait in progress, on the loop's clock
        self._over = False  # its time is, and its task was told

    async def wait(self, doing: Awaitable[T]) -> T:
        """Its result. Raises TimeoutError, with the wait cancelled, if it isn't there in time."""
        if self.limit_s is None:
            return await doing
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None and self._waiting is None
        cancelling = task.cancelling()
        self._waiting, self._until, self._over = task, loop.time() + self.limit_s, False
        if self._timer is None or self._timer.when() > self._until:
            self._set(self._until)
        try:
            result = await doing
        except BaseException as cause:
            # As asyncio.timeout has it: others may have cancelled the task as well.
            ours = self._over and task.uncancel() <= cancelling
            if ours and isinstance(cause, asyncio.CancelledError):
                raise TimeoutError from cause
            raise
        finally:
            self._waiting = None
        if self._over:  # it was told, and brought its result nevertheless
            task.uncancel()
        return result

    def close(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> Patience:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        cause: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _set(self, when: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_at(when, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._waiting is None:  # the next wait sets another
            return
        if asyncio.get_running_loop().time() < self._until:  # a later wait than it was set for
            self._set(self._until)
            return
        self._over = True
        self._waiting.cancel()
