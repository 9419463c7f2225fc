"""A pass waits a moment for sessions that are about to be back, and for nobody else."""

from __future__ import annotations

import threading
import time

from common.engine.thread import EngineThread
from common.kv.pages import PagePool
from common.types import OpenSession
from verifier.batcher import Batcher
from verifier.session import LATE, Session

FOREVER = 3600.0


class Ignored:
    def post(self, result: object) -> None:
        pass


def session(pool: PagePool, away_s: float | None = None) -> Session:
    """A session between two rounds, that was away for `away_s` before its last one."""
    spec = OpenSession((1, 2, 3), 3, "")
    made = Session(spec, pool, frozenset(), 100, Ignored())  # type: ignore[arg-type]
    asked_at = time.monotonic()
    for _ in range(1 if away_s is None else 2):
        made.ask((), asked_at)
        made.sequence.table.reserve(len(made.sequence.tokens))
        made.sequence.table.extend(made.sequence.pending)
        made.ran(0.0, 0.0)
        made.commit(0, 5, 0.0, (1, 1))
        assert made._answered_at is not None
        asked_at = made._answered_at + (away_s or 0.0)
    return made


def batcher(waiting: list[Session], away: list[Session]) -> Batcher:
    made = Batcher(64)
    for each in [*waiting, *away]:
        made.add(each)
    for each in waiting:
        made.wait(each)
    return made


def test_nobody_is_waited_for_before_their_ways_are_known() -> None:
    pool = PagePool(64, 4)
    assert batcher([session(pool)], [session(pool)]).expected_by(FOREVER + time.monotonic()) == 0.0


def test_a_session_is_expected_when_it_came_back_the_last_time_and_a_little_later() -> None:
    pool = PagePool(64, 4)
    away = session(pool, away_s=2.0)
    assert away._answered_at is not None
    expected = batcher([session(pool)], [away]).expected_by(FOREVER + time.monotonic())
    assert expected == away._answered_at + LATE * 2.0


def test_who_takes_longer_than_a_pass_may_wait_is_not_waited_for() -> None:
    pool = PagePool(64, 4)
    slow, quick = session(pool, away_s=500.0), session(pool, away_s=2.0)
    limit = time.monotonic() + 100.0
    assert batcher([session(pool)], [slow]).expected_by(limit) == 0.0
    assert batcher([session(pool)], [slow, quick]).expected_by(limit) == quick.due_at


def test_nothing_is_waited_for_while_nobody_waits() -> None:
    pool = PagePool(64, 4)
    assert batcher([], [session(pool, away_s=2.0)]).expected_by(FOREVER + time.monotonic()) == 0.0


def test_a_session_that_asked_or_ended_is_not_expected() -> None:
    pool = PagePool(64, 4)
    asked, ended = session(pool, away_s=2.0), session(pool, away_s=2.0)
    asked.ask((), time.monotonic())
    ended.ask((), time.monotonic())
    ended.sequence.table.reserve(len(ended.sequence.tokens))
    ended.ran(0.0, 0.0)
    ended.commit(0, 5, 0.0, (1, 1))
    assert ended.finish_reason is not None
    waiting = batcher([session(pool)], [asked, ended])
    assert waiting.expected_by(FOREVER + time.monotonic()) == 0.0


def test_waiting_ends_as_soon_as_the_last_expected_one_is_back() -> None:
    thread = EngineThread("test", lambda: False)
    back: list[int] = []
    for number in range(3):
        thread.call(lambda number=number: back.append(number))  # type: ignore[misc]
    thread.wait_for_more(lambda: 0.0 if len(back) == 2 else time.monotonic() + FOREVER)
    assert back == [0, 1]  # the third runs before the next step, as ever


def test_waiting_ends_with_its_time() -> None:
    EngineThread("test", lambda: False).wait_for_more(lambda: time.monotonic() - 1.0)


def test_a_thread_that_waits_can_be_stopped() -> None:
    gathering = threading.Event()

    def step() -> bool:
        gathering.set()
        thread.wait_for_more(lambda: time.monotonic() + FOREVER)
        return True

    thread = EngineThread("test", step)
    thread.call(lambda: None)
    thread.start()
    gathering.wait()
    thread.stop()
