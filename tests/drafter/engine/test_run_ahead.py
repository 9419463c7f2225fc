"""Drafting ahead of the verdict: what is confirmed is as if it were drafted afterwards."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.sampling.parameters import SamplingParams
from common.sampling.rng import Purpose
from drafter.bridge.bridge import Bridge
from drafter.engine.logits_processors import DraftLogitsProcessors
from drafter.engine.session import Draft, DraftFailed, DraftRequest
from drafter.engine.tokens import DraftSamplingParams
from tests.support.fake_drafts import DrivenEngine
from tests.support.fake_tokenizers import family

BRIDGE = Bridge(family("sentencepiece"), family("byte-level"))
IDS = [int(id_) for id_ in BRIDGE.draft_ids_of(torch.arange(BRIDGE.target.width))[:40]]
IDS = [id_ for id_ in IDS if id_ not in BRIDGE.draft.eos_ids][:12]
START = tuple(IDS[:3])
ALLOWED = torch.zeros(BRIDGE.draft.width, dtype=torch.bool).index_fill(0, torch.tensor(IDS), True)


def following(context: tuple[int, ...]) -> dict[int, float]:
    """A text without end: each id is followed by the next but one, and less surely by the next."""
    place = IDS.index(context[-1])
    return {IDS[(place + 2) % len(IDS)]: 9.0, IDS[(place + 1) % len(IDS)]: 8.0}


def written(count: int, after: int) -> list[int]:
    """What the draft model writes behind the id `after`."""
    place = IDS.index(after)
    return [IDS[(place + 2 * step) % len(IDS)] for step in range(1, count + 1)]


def outputs(driven: DrivenEngine) -> dict[str, int]:
    counted = {name: driven.engine._run_ahead_results[name,] for name in ("hit", "part", "miss")}
    return {name: int(each._value.get()) for name, each in counted.items() if each._value.get()}


async def test_a_confirmed_draft_leaves_without_a_step() -> None:
    driven = DrivenEngine(BRIDGE, following, run_ahead=True)
    session = driven.open()
    task = await driven.ask(session, START, 3)
    # Three, then the guess of the target's own token and the three after it.
    assert driven.run() == 3 + 1 + 3
    first = await task
    assert first.ids == written(3, START[-1])
    guess = written(4, START[-1])[-1]
    task = await driven.ask(session, (*START, *first.ids, guess), 3)
    again = await task  # no step was taken
    assert again.ids == written(3, guess) and again.forward_s == 0.0
    assert outputs(driven) == {"hit": 1}
    # It is as far ahead again after four steps more, each of which read one token.
    assert driven.run() == 4
    assert all(len(tokens) == 1 for chunks in driven.model.read[1:] for tokens in chunks)


@pytest.mark.parametrize("begun", [0, 1], ids=["the guess was right", "and one token is there"])
async def test_a_draft_that_is_begun_is_finished(begun: int) -> None:
    driven = DrivenEngine(BRIDGE, following, run_ahead=True)
    session = driven.open()
    task = await driven.ask(session, START, 3)
    for _ in range(3 + 1 + begun):
        driven.engine.step()
    guess = written(4, START[-1])[-1]
    task = await driven.ask(session, (*START, *(await task).ids, guess), 3)
    for _ in range(3 - begun):
        driven.engine.step()
    assert (await task).ids == written(3, guess) and outputs(driven) == {"part": 1}
    assert all(len(tokens) == 1 for chunks in driven.model.read[1:] for tokens in chunks)


async def test_a_draft_that_is_ready_leaves_before_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where its question comes while a pass waits for others."""
    driven = DrivenEngine(BRIDGE, following, run_ahead=True)
    ready, other = driven.open(), driven.open()
    first = await driven.ask(ready, START, 1)
    driven.run()
    drafted = (await first).ids
    slow = await driven.ask(other, START, 1)
    guess = written(2, START[-1])[-1]
    sent: list[Any] = []
    monkeypatch.setattr("common.engine.thread._send", lambda mail: sent.append(list(mail)))
    forward = driven.model.forward

    def passing(chunks: Any) -> torch.Tensor:
        assert [mailbox for mail in sent for mailbox, _ in mail] == [ready.mailbox]
        return forward(chunks)

    monkeypatch.setattr(driven.model, "forward", passing)
    asking = asyncio.create_task(
        driven.engine.draft(ready, (*START, *drafted, guess), DraftRequest(1))
    )
    driven.engine.expect(ready)
    driven.engine._pass_s = 60.0
    stopped = iter([time.monotonic() + 60.0, 0.0])
    monkeypatch.setattr(driven.engine._batching_delay, "until", lambda *_: next(stopped))
    await asyncio.sleep(0)
    driven.engine._thread._step_and_send()
    for task in (asking, slow):
        task.cancel()


async def test_drafts_with_a_seed_of_their_own_are_not_made_ahead() -> None:
    """Under rejection a seed makes drafts repeat themselves; how far ahead one gets never does."""
    driven = DrivenEngine(BRIDGE, following, run_ahead=True)
    session = driven.open()
    ids = BRIDGE.draft_ids
    params = SamplingParams(temperature=1.0, seed=5)
    sampling = DraftSamplingParams(
        params, Purpose.PROPOSE, 5, len(START), 64, ids, ids, ahead=False
    )
    task = await driven.ask(session, START, 3, allowed=ALLOWED, sampling=sampling)
    assert driven.run() == 3 and len((await task).ids) == 3


async def test_what_the_target_did_not_write_is_rolled_back() -> None:
    driven = DrivenEngine(BRIDGE, following, run_ahead=True)
    session = driven.open()
    task = await driven.ask(session, START, 3)
    driven.run()
    await task
    other = IDS[(IDS.index(START[-1]) + 1) % len(IDS)]
    task = await driven.ask(session, (*START, other), 3)
    driven.run()
    assert (await task).ids == written(3, other) and outputs(driven) == {"miss": 1}


async def test_without_it_no_step_is_taken_that_nobody_asked_for() -> None:
    driven = DrivenEngine(BRIDGE, following)
    session = driven.open()
    task = await driven.ask(session, START, 3)
    assert driven.run() == 3 and (await task).ids == written(3, START[-1])
    assert not outputs(driven)


async def test_nobody_is_preempted_for_drafts_ahead() -> None:
    driven = DrivenEngine(BRIDGE, following, pages=4, run_ahead=True)  # of four tokens each
    first, second = driven.open(), driven.open()
    tasks = [
        await driven.ask(first, START, 5),
        await driven.ask(second, START, 5),
    ]
    driven.run()
    # Each has its five tokens, on two pages, and no third page for what comes after the eighth.
    assert [len(session.sequence.tokens) for session in (first, second)] == [9, 9]
    assert driven.pool.preemptions == 0 and driven.pool.free_pages == 0
    assert [(await task).ids for task in tasks] == [written(5, START[-1])] * 2
    # Who asks takes what others have ahead.
    longer = (*START, *written(8, START[-1]))
    task = await driven.ask(first, longer, 1)
    while first in driven.engine._waiting:
        driven.engine.step()
    assert (await task).ids == written(1, longer[-1]) and driven.pool.preemptions == 1


async def test_drafts_ahead_end_where_the_context_does() -> None:
    driven = DrivenEngine(BRIDGE, following, run_ahead=True)
    session = driven.open()
    context = tuple(IDS[step % len(IDS)] for step in range(60))  # of 64
    task = await driven.ask(session, context, 2)
    driven.run()
    assert len((await task).ids) == 2 and len(session.sequence.tokens) == 64


async def test_a_pass_that_fails_ahead_is_nobodys_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = DrivenEngine(BRIDGE, following, run_ahead=True)
    session = driven.open()
    task = await driven.ask(session, START, 2)
    for _ in range(3):
        driven.engine.step()
    first = await task

    def broken(chunks: Any) -> torch.Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(driven.model, "forward", broken)
        driven.run()
    assert not driven.engine.healthy and driven.pool.used_pages == 0
    committed = (*START, *first.ids, written(3, START[-1])[-1])
    task = await driven.ask(session, committed, 2)
    driven.run()
    assert (await task).ids == written(2, committed[-1])
    task = await driven.ask(session, (*committed, IDS[0]), 2)
    monkeypatch.setattr(driven.model, "forward", broken)
    driven.run()
    with pytest.raises(DraftFailed):
        await task


async def test_penalties_change_under_drafts_so_that_none_is_made_ahead() -> None:
    driven = DrivenEngine(BRIDGE, following, run_ahead=True)
    session = driven.open()
    params = SamplingParams(temperature=0.0, presence_penalty=1.0)
    how = DraftLogitsProcessors(BRIDGE, params, (), ())
    task = await driven.ask(session, START, 3, processors=how)
    assert driven.run() == 3
    await task


@given(st.data())
def test_drafts_are_those_of_an_engine_that_waits(data: st.DataObject) -> None:
    """Greedy and coupled: whatever the target writes, and however far ahead the engine has got."""
    asyncio.run(drafting_side_by_side(data))


async def drafting_side_by_side(data: st.DataObject) -> None:
    seeded = data.draw(st.booleans(), "seeded")
    engines = [DrivenEngine(BRIDGE, following, run_ahead=ahead) for ahead in (False, True)]
    sessions = [each.open() for each in engines]
    context = list(START)
    for _ in range(data.draw(st.integers(1, 5), "rounds")):
        steps = data.draw(st.integers(1, 3), "steps")
        sampling = None
        if seeded:
            params = SamplingParams(temperature=1.0, seed=5)
            noise = BRIDGE.noise_ids
            sampling = DraftSamplingParams(
                params, Purpose.COUPLED, 5, len(context), 1024, noise, noise
            )
        drafts: list[Draft] = []
        for driven, session in zip(engines, sessions, strict=True):
            task = await driven.ask(session, context, steps, allowed=ALLOWED, sampling=sampling)
            while session in driven.engine._waiting:
                driven.engine.step()
            drafts.append(await task)
            for _ in range(data.draw(st.integers(0, 8), "steps ahead")):
                driven.engine.step()
            driven.pool.check()
        assert drafts[0].ids == drafts[1].ids
        kept = data.draw(st.integers(0, len(drafts[0].ids)), "accepted")
        context += drafts[0].ids[:kept]
        likely = written(1, context[-1])[0]
        context.append(data.draw(st.sampled_from([likely, likely, *IDS]), "next"))
    for driven, session in zip(engines, sessions, strict=True):
        driven.close(session)
        driven.obey()
        assert driven.pool.used_pages == 0
