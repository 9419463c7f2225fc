"""Draft passes wait a moment for sessions that are about to ask, and for nobody else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from common.engine.thread import EngineThread, Mailbox
from drafter.bridge.bridge import Bridge
from drafter.engine.batching_delay import BATCHING_DELAY, BatchingDelay
from tests.support.fake_drafts import DrivenEngine
from tests.support.fake_tokenizers import family

PASS_S = 1000.0  # so long that a clock's progress in a test doesn't matter


def test_nobody_is_waited_for_while_nobody_is_expected() -> None:
    batching_delay = BatchingDelay()
    assert batching_delay.until(time.monotonic(), PASS_S) == 0.0
    batching_delay.expect("a")
    batching_delay.forget("a")
    batching_delay.forget("a")
    assert batching_delay.until(time.monotonic(), PASS_S) == 0.0


def test_the_wait_is_a_share_of_the_last_pass_from_where_it_began() -> None:
    batching_delay = BatchingDelay()
    begun = time.monotonic()
    batching_delay.expect("a")
    assert batching_delay.until(begun, PASS_S) == begun + BATCHING_DELAY * PASS_S
    batching_delay.expect("b")  # a burst that goes on doesn't prolong it
    assert batching_delay.until(begun, PASS_S) == begun + BATCHING_DELAY * PASS_S


def test_who_does_not_come_is_waited_for_once() -> None:
    batching_delay = BatchingDelay()
    batching_delay.expect("slow reader")
    later = time.monotonic() + PASS_S
    assert batching_delay.until(later, PASS_S) < later + BATCHING_DELAY * PASS_S
    assert batching_delay.until(later + PASS_S, PASS_S) < later + PASS_S  # over before it began


async def test_asking_and_ending_both_end_the_expectation() -> None:
    bridge = Bridge(family("sentencepiece"), family("byte-level"))
    driven = DrivenEngine(bridge, lambda context: {})
    asking, ending = driven.open(), driven.open()
    for session in (asking, ending):
        driven.engine.expect(session)
    assert driven.engine._batching_delay.until(0.0, PASS_S) > 0.0
    task = await driven.ask(asking, (5, 6), 1)
    driven.close(ending)
    assert driven.engine._batching_delay.until(0.0, PASS_S) == 0.0
    driven.run()
    await task
    driven.close(asking)
    driven.obey()


async def test_a_steps_results_wake_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, woken = asyncio.get_running_loop(), 0
    wake = loop.call_soon_threadsafe

    def counted(*arguments: Any, **context: Any) -> asyncio.Handle:
        nonlocal woken
        woken += 1
        return wake(*arguments, **context)

    boxes: list[Mailbox[int]] = [Mailbox() for _ in range(5)]

    def step() -> bool:
        for number, box in enumerate(boxes):
            box.post(number)
        return False

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    thread = EngineThread("test", step)
    thread.call(lambda: None)
    thread.start()
    assert [await box.take() for box in boxes] == [0, 1, 2, 3, 4]
    thread.stop()
    assert woken == 1


async def test_what_is_posted_outside_a_step_leaves_at_once() -> None:
    box: Mailbox[int] = Mailbox()
    box.post(7)
    assert await box.take() == 7
