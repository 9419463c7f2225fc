"""One timer for many waits: each has its limit, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from common.rpc.timeouts import ReusableTimeout

LIMIT_S = 0.05


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[asyncio.TimerHandle]]:
    """Those that were set on this loop so far."""
    made: list[asyncio.TimerHandle] = []
    set_timer = asyncio.BaseEventLoop.call_at

    def call_at(loop: Any, *arguments: Any, **more: Any) -> asyncio.TimerHandle:
        made.append(set_timer(loop, *arguments, **more))
        return made[-1]

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_at", call_at)
    return lambda: made


async def soon(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def test_a_wait_that_is_too_long_is_cancelled() -> None:
    cancelled = False

    async def never() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    with closing(ReusableTimeout(LIMIT_S)) as timeout:
        with pytest.raises(TimeoutError):
            await timeout.wait(never())
        assert cancelled and await timeout.wait(soon(3)) == 3
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_each_wait_has_the_whole_limit() -> None:
    """Though the timer was set for an earlier one: two thirds of it, three times."""
    with closing(ReusableTimeout(LIMIT_S)) as timeout:
        for _ in range(3):
            await timeout.wait(asyncio.sleep(LIMIT_S * 2 / 3))
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await timeout.wait(asyncio.Event().wait())
        assert asyncio.get_running_loop().time() - began >= LIMIT_S


async def test_many_waits_set_one_timer_and_leave_none(
    timers: Callable[[], list[asyncio.TimerHandle]],
) -> None:
    with closing(ReusableTimeout(60.0)) as timeout:
        for number in range(100):
            assert await timeout.wait(soon(number)) == number
        assert len(timers()) == 1
    assert all(timer.cancelled() for timer in timers())


async def test_without_a_limit_there_is_no_timer(
    timers: Callable[[], list[asyncio.TimerHandle]],
) -> None:
    with closing(ReusableTimeout(None)) as timeout:
        assert await timeout.wait(soon(1)) == 1
    assert not timers()


async def test_an_error_of_what_is_waited_for_is_its_own() -> None:
    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("its own")

    with closing(ReusableTimeout(LIMIT_S)) as timeout:
        with pytest.raises(ValueError, match="its own"):
            await timeout.wait(failing())
        assert await timeout.wait(soon(1)) == 1


async def test_a_result_that_comes_in_spite_of_all_leaves_no_cancellation_behind() -> None:
    async def stubborn() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        return 0

    with closing(ReusableTimeout(LIMIT_S)) as timeout:
        assert await timeout.wait(stubborn()) == 7
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_who_cancels_the_task_cancels_it() -> None:
    async def waits() -> None:
        with closing(ReusableTimeout(60.0)) as timeout:
            await timeout.wait(asyncio.Event().wait())

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_is_cancelled_as_its_time_ends_stays_cancelled() -> None:
    async def waits(limit: ReusableTimeout) -> None:
        await limit.wait(asyncio.Event().wait())

    timeout = ReusableTimeout(LIMIT_S)
    task = asyncio.create_task(waits(timeout))
    await asyncio.sleep(0)
    timeout._until = 0.0
    timeout._due()  # its time is over, and before it hears of that,
    task.cancel()  # somebody else cancels it
    with pytest.raises(asyncio.CancelledError):
        await task
    timeout.close()
