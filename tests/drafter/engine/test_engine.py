"""The draft engine step by step: token healing, rollback, and sessions that differ in one batch."""

from __future__ import annotations

from drafter.bridge.bridge import Bridge
from drafter.engine.session import DraftSession
from tests.support.fake_drafts import DrivenEngine
from tests.support.fake_tokenizers import family

BRIDGE = Bridge(family("sentencepiece"), family("byte-level"))


def token(text: str) -> int:
    found = BRIDGE.draft.id_of(text.encode())
    assert found is not None
    return found


THE, SPACE, FOX, DOT, JUMPS, CUT = map(token, ("the", " ", " fox", ".", " jumps", " ju"))
START = (THE, DOT, THE, DOT, THE)


def story(context: tuple[int, ...]) -> dict[int, float]:
    """After `the` comes ` fox`; after a lone space nothing in particular; then it goes on."""
    return {
        THE: {FOX: 9.0, SPACE: 3.0, CUT: 2.0},
        SPACE: {DOT: 0.5},
        FOX: {JUMPS: 9.0},
        JUMPS: {DOT: 9.0},
        DOT: {THE: 9.0, DOT: 8.0},
    }.get(context[-1], {})


def holds(session: DraftSession, tokens: tuple[int, ...]) -> bool:
    """The session's text, all of it read but the newest token."""
    return session.sequence.tokens == list(tokens) and session.sequence.table.length == (
        len(tokens) - 1
    )


async def test_a_healed_token_replaces_the_last_one_and_drafting_goes_on_from_it() -> None:
    driven = DrivenEngine(BRIDGE, story)
    session = driven.open()
    task = await driven.ask(session, (*START, SPACE), 3, heal=True)
    assert driven.run() == 3
    draft = await task
    assert (draft.ids, draft.healed) == ([FOX, JUMPS, DOT], True)
    assert holds(session, (*START, FOX, JUMPS, DOT))
    # One row in each later step: the space's keys were written over, nothing was read twice.
    assert driven.model.read == [[(*START, SPACE)], [(FOX,)], [(JUMPS,)]]

    # The target wrote what was drafted: what follows is read, two rows for the next healing.
    task = await driven.ask(session, (*START, FOX, JUMPS), 2, heal=True)
    assert driven.run() == 2
    again = await task
    assert (again.ids, again.healed) == ([DOT, THE], False)
    assert driven.model.read[3:] == [[(FOX, JUMPS)], [(DOT,)]]
    assert holds(session, (*START, FOX, JUMPS, DOT, THE))
    driven.close(session)
    driven.obey()
    assert driven.pool.used_pages == 0


async def test_a_rejected_healing_is_rolled_back_to_the_committed_text() -> None:
    driven = DrivenEngine(BRIDGE, story)
    session = driven.open()
    task = await driven.ask(session, (*START, SPACE), 3, heal=True)
    driven.run()
    assert (await task).healed
    committed = (*START, SPACE, DOT)  # the target wrote a full stop after its space
    task = await driven.ask(session, committed, 1, heal=True)
    assert driven.run() == 1
    assert ((await task).ids, (await task).healed) == ([THE], False)
    assert driven.model.read[-1] == [(SPACE, DOT)]
    assert holds(session, (*committed, THE))


async def test_one_step_may_be_all_that_is_drafted() -> None:
    driven = DrivenEngine(BRIDGE, story)
    session = driven.open()
    task = await driven.ask(session, (*START, SPACE), 1, heal=True)
    assert driven.run() == 1
    assert ((await task).ids, (await task).healed) == ([FOX], True)
    assert holds(session, (*START, FOX))


async def test_sessions_that_heal_and_that_do_not_share_their_steps() -> None:
    driven = DrivenEngine(BRIDGE, story)
    healing, whole, plain, alone = (driven.open() for _ in range(4))
    tasks = [
        await driven.ask(healing, (*START, SPACE), 3, heal=True),
        await driven.ask(whole, START, 2, heal=True),  # nothing likelier begins with `the`
        await driven.ask(plain, (*START, SPACE), 1),
        await driven.ask(alone, (SPACE,), 1, heal=True),  # no row before the only token
    ]
    assert driven.run() == 3
    drafts = [await task for task in tasks]
    assert [draft.ids for draft in drafts] == [[FOX, JUMPS, DOT], [FOX, JUMPS], [DOT], [DOT]]
    assert [draft.healed for draft in drafts] == [True, False, False, False]
    assert holds(healing, (*START, FOX, JUMPS, DOT)) and holds(whole, (*START, FOX, JUMPS))
    assert holds(plain, (*START, SPACE, DOT)) and holds(alone, (SPACE, DOT))
    assert [len(step) for step in driven.model.read] == [4, 2, 1]
