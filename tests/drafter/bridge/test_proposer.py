"""Proposals have the bytes of what was drafted; the chooser keeps the better mode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.types import BridgeMode
from drafter.bridge.bridge import Bridge
from drafter.bridge.proposer import AutoChooser, SessionStats, by_intersection, by_text
from tests.support.fake_tokenizers import FAMILIES, WHOLE_FAMILIES, blobs, family, texts

PAIRS = [(target, draft) for target in FAMILIES for draft in FAMILIES if target != draft]
TEXT, INTERSECTION = BridgeMode.TEXT, BridgeMode.INTERSECTION


@pytest.mark.parametrize(("target_name", "draft_name"), PAIRS)
@given(data=st.data())
def test_both_ways_propose_only_what_was_drafted(
    target_name: str, draft_name: str, data: st.DataObject
) -> None:
    target, draft = family(target_name), family(draft_name)
    bridge = Bridge(target, draft)
    plain = [int(i) for i in draft.real.nonzero()[0] if not draft.is_special(int(i))]
    drafted = data.draw(st.lists(st.sampled_from(plain), max_size=8))
    tail = target.encode_bytes(data.draw(texts()).encode()) or []
    text = draft.bytes_of(drafted)
    for proposed in (by_intersection(bridge, drafted), by_text(bridge, tail, drafted)):
        assert text.startswith(target.bytes_of(proposed))
        assert all(target.real[i] and not target.is_special(i) for i in proposed)


@settings(max_examples=200)
@given(pair=st.sampled_from(PAIRS), data=st.data())
def test_held_bytes_and_the_proposal_are_what_was_drafted(
    pair: tuple[str, str], data: st.DataObject
) -> None:
    """`held` ends the committed text and begins the drafted one; it is never proposed again."""
    target, draft = map(family, pair)
    bridge = Bridge(target, draft)
    plain = [int(i) for i in draft.real.nonzero()[0] if not draft.is_special(int(i))]
    drafted = data.draw(st.lists(st.sampled_from(plain), min_size=1, max_size=8))
    text = draft.bytes_of(drafted)
    held = text[: data.draw(st.integers(0, len(text)))]
    tail = target.encode_bytes(data.draw(texts()).encode() + held) or []
    proposed = target.bytes_of(by_text(bridge, tail, drafted, held))
    assert text.startswith(held + proposed)
    if pair[0] in WHOLE_FAMILIES and text[-1] < 0x80:  # it ends in no open character
        assert held + proposed == text


@given(pair=st.sampled_from(PAIRS), held=blobs(), data=st.data())
def test_a_draft_that_does_not_begin_with_what_is_held_proposes_nothing(
    pair: tuple[str, str], held: bytes, data: st.DataObject
) -> None:
    target, draft = map(family, pair)
    plain = [int(i) for i in draft.real.nonzero()[0] if not draft.is_special(int(i))]
    drafted = data.draw(st.lists(st.sampled_from(plain), max_size=8))
    if not draft.bytes_of(drafted).startswith(held):
        assert by_text(Bridge(target, draft), [], drafted, held) == []


def test_a_space_that_is_held_is_not_proposed_again() -> None:
    target, draft = family("sentencepiece"), family("byte-level")
    bridge = Bridge(target, draft)
    tail = target.encode_bytes(b"x =  ") or []
    drafted = draft.encode_bytes(b" fox.") or []
    assert target.bytes_of(by_text(bridge, tail, drafted, b" ")) == b"fox."
    assert by_text(bridge, tail, drafted, b"\n") == by_text(bridge, tail, [], b" ") == []
    assert by_text(bridge, tail, [0], b" ") == []  # an end, where a space had to come


def test_intersection_stops_before_the_first_token_that_is_not_mapped() -> None:
    bridge = Bridge(family("unigram"), family("byte-level"))
    draft = family("byte-level")
    shared, lost = draft.id_of(b"a"), draft.id_of(b"\x00")
    assert shared is not None and lost is not None
    assert by_intersection(bridge, [shared, lost, shared]) == [bridge.mapped_id(shared)]
    assert by_intersection(bridge, [0]) == [1]  # the end crosses by role


def test_text_is_split_as_the_target_would_split_it() -> None:
    target, draft = family("byte-level"), family("sentencepiece")
    bridge = Bridge(target, draft)
    drafted = [draft.id_of(bytes([byte])) or 0 for byte in b" jumps over"]
    tail = target.encode_bytes(b"The quick brown fox") or []
    assert by_text(bridge, tail, drafted) == target.encode_bytes(b" jumps over")
    assert len(by_text(bridge, tail, drafted)) < len(drafted)
    # No boundary at the tail's end in the canonical split: "jum" + "ps" is one word.
    cut = target.encode_bytes(b" jum") or []
    assert target.bytes_of(by_text(bridge, cut, drafted[4:6])) == b"ps"


def test_text_ends_at_a_special_token_and_keeps_it_by_role() -> None:
    target, draft = family("byte-level"), family("sentencepiece")
    bridge = Bridge(target, draft)
    text = draft.encode_bytes(b" fox") or []
    assert by_text(bridge, [], [*text, 5, *text]) == [*(target.encode_bytes(b" fox") or []), 2]
    assert by_text(bridge, [], [5]) == [2]
    assert by_text(bridge, [], [*text, 2]) == target.encode_bytes(b" fox")  # <bos> has no mapped_id


def test_the_tail_stops_at_a_special_token() -> None:
    target, draft = family("byte-level"), family("sentencepiece")
    bridge = Bridge(target, draft)
    text = draft.encode_bytes(b"jumps") or []
    assert by_text(bridge, [*(target.encode_bytes(b"the ") or []), 2], text) == (
        target.encode_bytes(b"jumps")
    )


def test_an_unfinished_character_goes_as_bytes_only_where_the_target_has_no_whole_token() -> None:
    target, draft = family("sentencepiece"), family("byte-level")
    bridge = Bridge(target, draft)

    def drafted(data: bytes) -> list[int]:
        return [draft.id_of(bytes([byte])) or 0 for byte in data]

    known, foreign = "中".encode(), "똻".encode()
    assert target.id_of(known) is not None and target.id_of(foreign) is None
    assert by_text(bridge, [], drafted(b"a" + known[:2])) == [target.id_of(b"a")]
    assert target.bytes_of(by_text(bridge, [], drafted(b"a" + foreign[:2]))) == b"a" + foreign[:2]
    begun = [target.id_of(foreign[:1]) or 0]  # the target itself is in mid-character
    assert target.bytes_of(by_text(bridge, begun, drafted(foreign[1:]))) == foreign[1:]


def test_identity_proposes_the_ids_themselves() -> None:
    bridge = Bridge(family("byte-level"), family("byte-level"))
    assert by_text(bridge, [], [5, 2, 7]) == by_intersection(bridge, [5, 2, 7]) == [5, 2, 7]


def play(chooser: AutoChooser, worth: dict[BridgeMode, int], rounds: int) -> list[BridgeMode]:
    session = SessionStats()
    chosen = []
    for _ in range(rounds):
        mode = chooser.choose(session)
        chooser.record(mode, worth[mode], draft_steps=3, rows=3, session=session)
        chosen.append(mode)
    return chosen


@pytest.mark.parametrize("better", [TEXT, INTERSECTION])
def test_auto_keeps_the_better_mode_and_a_known_pair_loses_at_most_one_round(
    better: BridgeMode,
) -> None:
    worth = {TEXT: 2, INTERSECTION: 2} | {better: 3}
    chooser = AutoChooser(step_cost=0.1, row_cost=0.02)
    first = play(chooser, worth, 60)
    assert {TEXT, INTERSECTION} == set(first[:4])
    assert set(first[20:]) == {better}
    assert set(play(chooser, worth, 60)) == {better}
    close = AutoChooser(step_cost=0.1, row_cost=0.02)
    near = {TEXT: 20, INTERSECTION: 20} | {better: 21}
    play(close, near, 60)
    assert sum(mode is not better for mode in play(close, near, 60)) == 1


def test_auto_weighs_tokens_against_their_cost() -> None:
    chooser = AutoChooser(step_cost=0.3, row_cost=0.0)
    for _ in range(12):
        chooser.record(TEXT, committed=3, draft_steps=8, rows=3)
        chooser.record(INTERSECTION, committed=2, draft_steps=2, rows=2)
    assert chooser.choose(SessionStats()) is INTERSECTION


def test_auto_lets_one_session_differ_from_the_pair() -> None:
    chooser = AutoChooser(step_cost=0.1, row_cost=0.02)
    play(chooser, {TEXT: 4, INTERSECTION: 4}, 40)
    session = SessionStats()
    for _ in range(20):
        session.modes[TEXT].add(1, 1.3)
        session.modes[INTERSECTION].add(4, 1.3)
    assert chooser.choose(session) is INTERSECTION


def test_auto_learns_apart_where_tokens_are_sampled() -> None:
    chooser = AutoChooser(step_cost=0.1, row_cost=0.02)
    play(chooser, {TEXT: 4, INTERSECTION: 1}, 40)
    assert chooser.sampled is chooser.sampled is not chooser
    assert chooser.sampled.pair[TEXT].rounds == 0
    play(chooser.sampled, {TEXT: 1, INTERSECTION: 4}, 40)
    assert chooser.choose(SessionStats()) is TEXT
    assert chooser.sampled.choose(SessionStats()) is INTERSECTION


def test_auto_is_deterministic() -> None:
    worth = {TEXT: 3, INTERSECTION: 3}
    runs = [play(AutoChooser(0.1, 0.02), worth, 50) for _ in range(2)]
    assert runs[0] == runs[1]
