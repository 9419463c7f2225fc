"""Packing: who runs, in how many rows, who gives way, and that everybody is served in the end."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from common.engine.scheduler import CATCH_UP, HOLD_S, IDLE_S, Packed, pack
from common.engine.sequence import Sequence
from common.kv.pages import PagePool

PAGE = 4


def sequence(pool: PagePool, tokens: int, kept: int = 0, wanted: int = 1) -> Sequence:
    """One with `tokens` tokens, of which `kept` have keys and values."""
    made = Sequence(pool, range(tokens))
    made.wanted = wanted
    made.table.reserve(kept)
    made.table.extend(kept)
    return made


def run(batch: list[Packed], now: float = -math.inf) -> None:
    """What an engine does after the forward pass."""
    for part in batch:
        part.sequence.table.extend(len(part.chunk.tokens))
        part.sequence.ran_at = now


def sizes(batch: list[Packed]) -> dict[Sequence, int]:
    return {part.sequence: len(part.chunk.tokens) for part in batch}


def test_decodes_run_before_prefills_that_came_first() -> None:
    pool = PagePool(100, PAGE)
    prompt, decode = sequence(pool, 100), sequence(pool, 30, kept=26, wanted=4)
    batch = pack([prompt, decode], [prompt, decode], 32, 1)
    assert [part.sequence for part in batch] == [decode, prompt]
    assert sizes(batch) == {decode: 4, prompt: 28}
    assert [part.complete for part in batch] == [True, False]
    assert [part.chunk.logit_rows for part in batch] == [4, 0]


def test_a_few_tokens_to_catch_up_with_do_not_queue_behind_a_prompt() -> None:
    pool = PagePool(100, PAGE)
    prompt, behind = sequence(pool, 200), sequence(pool, 40, kept=40 - 1 - CATCH_UP)
    batch = pack([prompt, behind], [prompt, behind], 32, 1)
    assert batch[0].sequence is behind and batch[0].complete


def test_decodes_leave_prefills_a_share_of_the_rows() -> None:
    pool = PagePool(200, PAGE)
    decodes = [sequence(pool, 30, kept=26, wanted=4) for _ in range(20)]
    prompt = sequence(pool, 100)
    batch = pack([*decodes, prompt], [*decodes, prompt], 32, 1)
    assert sizes(batch) == {**dict.fromkeys(decodes[:7], 4), prompt: 4}
    everything = pack(decodes, decodes, 32, 2)
    assert len(everything) == 8


def test_wanted_rows_run_together_or_later() -> None:
    pool = PagePool(100, PAGE)
    prompt = sequence(pool, 34, wanted=6)
    first = pack([prompt], [prompt], 32, 1)
    assert sizes(first) == {prompt: 28} and not first[0].complete
    run(first)
    second = pack([prompt], [prompt], 32, 2)
    assert sizes(second) == {prompt: 6} and second[0].chunk.logit_rows == 6
    decodes = [sequence(pool, 30, kept=20, wanted=10) for _ in range(4)]
    assert sizes(pack(decodes, decodes, 32, 3)) == dict.fromkeys(decodes[:3], 10)


def test_under_pressure_the_longest_idle_is_preempted_and_keeps_its_tokens() -> None:
    pool = PagePool(6, PAGE)
    old, older, prompt = (sequence(pool, 8, 7), sequence(pool, 8, 7), sequence(pool, 12))
    old.last_step, older.last_step = 5, 2
    batch = pack([prompt], [old, older, prompt], 32, 9)
    assert sizes(batch) == {prompt: 12}
    assert (older.table.pages, older.table.length, older.tokens) == ([], 0, list(range(8)))
    assert old.table.length == 7
    pool.check()


def test_nobody_is_preempted_in_vain() -> None:
    pool = PagePool(8, PAGE)
    running = sequence(pool, 21, kept=20)
    idle = sequence(pool, 8, kept=7)
    prompt = sequence(pool, 30)
    batch = pack([running, prompt], [idle, running, prompt], 64, 1)
    assert sizes(batch) == {running: 1}
    assert idle.table.length == 7


def test_who_waits_gives_way_only_to_who_came_before_it() -> None:
    pool = PagePool(8, PAGE)
    first = sequence(pool, 18, kept=16, wanted=2)  # needs a page and finds none
    second = sequence(pool, 18, kept=16, wanted=2)
    batch = pack([first, second], [first, second], 64, 1)
    assert sizes(batch) == {first: 2}
    assert first.table.length == 16
    assert second.table.pages == []


def test_no_prefill_overtakes_one_that_waits_for_pages() -> None:
    pool = PagePool(9, PAGE)
    running = sequence(pool, 25, kept=24)
    long, short = sequence(pool, 30), sequence(pool, 20)
    batch = pack([running, long, short], [running, long, short], 64, 1)
    assert sizes(batch) == {running: 1}


def taking_turns(pool: PagePool, rounds: int, round_s: float) -> int:
    """Two of 0.6 of the pool propose in turn; how often one was preempted for the other."""
    both = [sequence(pool, 60), sequence(pool, 60)]
    left = dict.fromkeys(both, rounds)
    preempted, now, step = 0, 0.0, 0
    waiting = dict.fromkeys(both)
    while waiting:
        now, step = now + round_s, step + 1
        assert step < 100 * rounds, "somebody starves"
        had = {each: bool(each.table.pages) for each in both}
        batch = pack(list(waiting), both, 64, step, now)
        preempted += sum(had[each] and not each.table.pages for each in both)
        run(batch, now)
        idle = [each for each in both if each not in waiting and left[each]]
        for part in batch:
            del waiting[part.sequence]
            left[part.sequence] -= 1
            if not left[part.sequence]:
                part.sequence.table.release()
        for each in idle:  # a round later its next proposal is here
            each.rewrite([*each.tokens, 7])
            waiting[each] = None
    return preempted


def test_two_that_do_not_fit_together_never_preempt_each_other_in_turn() -> None:
    assert taking_turns(PagePool(25, PAGE), rounds=20, round_s=0.1) == 0


def test_who_has_had_pages_for_long_gives_way_and_then_waits_as_long() -> None:
    pool = PagePool(25, PAGE)
    first, second = sequence(pool, 60), sequence(pool, 60)
    run(pack([first], [first, second], 64, 1, 0.0), 0.0)
    first.ran_at = HOLD_S  # a moment ago
    assert not pack([second], [first, second], 64, 2, HOLD_S)
    assert sizes(pack([second], [first, second], 64, 3, HOLD_S + 1)) == {second: 60}
    second.ran_at = HOLD_S + 1
    first.rewrite([*first.tokens, 7])
    assert not pack([first], [first, second], 64, 4, HOLD_S + 2)  # came later, from now on
    assert second.table.pages


def test_who_is_idle_for_long_gives_way_to_who_came_later() -> None:
    pool = PagePool(25, PAGE)
    first, second = sequence(pool, 60), sequence(pool, 60)
    run(pack([first], [first, second], 64, 1, 10.0), 10.0)
    assert not pack([second], [first, second], 64, 2, 10.0 + IDLE_S)
    assert sizes(pack([second], [first, second], 64, 3, 10.1 + IDLE_S)) == {second: 60}


def test_an_earlier_prefill_runs_though_a_later_decode_waits_for_its_pages() -> None:
    pool = PagePool(25, PAGE)
    early, late = sequence(pool, 90, kept=48), sequence(pool, 53, kept=52)
    assert pool.free_pages == 0
    early.ran_at = late.ran_at = 1.0
    assert sizes(pack([late, early], [early, late], 64, 1, 1.0)) == {early: 42}
    assert not late.table.pages


shapes = st.tuples(st.integers(1, 30), st.integers(0, 30), st.integers(1, 5))


@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(shapes, min_size=1, max_size=8),
    extra_pages=st.integers(0, 8),
    step_s=st.sampled_from([0.01, 0.5, 3.0]),
    data=st.data(),
)
def test_everybody_is_served_and_nothing_is_lost(
    shapes: list[tuple[int, int, int]], extra_pages: int, step_s: float, data: st.DataObject
) -> None:
    """Sessions ask again at any time while others run; each round ends, over the right tokens."""
    pool = PagePool(-(-80 // PAGE) + extra_pages, PAGE)  # one whole context, and a little
    sequences = []
    for length, _, wanted in shapes:
        sequences.append(sequence(pool, length + wanted, wanted=wanted))
    rounds = dict.fromkeys(sequences, 3)
    waiting = dict.fromkeys(sequences)
    step = 0
    while waiting:
        step += 1
        assert step < 2000, "somebody starves"
        before = {s: list(s.tokens) for s in sequences}
        batch = pack(list(waiting), sequences, 16, step, step * step_s)
        assert batch or any(s.table.pages for s in sequences if s not in waiting)
        assert sum(sizes(batch).values()) <= 16
        pool.check()
        for part in batch:
            table = part.chunk.table
            assert (
                part.chunk.tokens == part.sequence.tokens[table.length :][: len(part.chunk.tokens)]
            )
            assert pool.pages_for(table.length + len(part.chunk.tokens)) <= len(table.pages)
        run(batch, step * step_s)
        assert before == {s: s.tokens for s in sequences}
        for part in batch:
            if not part.complete:
                continue
            ended = part.sequence
            assert part.chunk.logit_rows == ended.wanted and ended.pending == 0
            del waiting[ended]
            rounds[ended] -= 1
            if rounds[ended]:
                ended.rewrite([*ended.tokens, *range(data.draw(st.integers(1, 5)))])
                waiting[ended] = None
            else:
                ended.table.release()
    assert not any(rounds.values())
    assert pool.used_pages == 0


@given(
    old=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    new=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    kept=st.integers(0, 12),
    wanted=st.integers(1, 3),
)
def test_rewriting_keeps_what_the_texts_share(
    old: list[int], new: list[int], kept: int, wanted: int
) -> None:
    wanted, kept = min(wanted, len(new)), min(kept, len(old))
    made = Sequence(PagePool(10, PAGE), old)
    made.table.reserve(kept)
    made.table.extend(kept)
    made.rewrite(new, wanted)
    length = made.table.length
    assert made.tokens == new and made.pending >= wanted
    assert old[:length] == new[:length]
    longer = length + 1
    assert longer > kept or longer > len(new) - wanted or old[:longer] != new[:longer]
