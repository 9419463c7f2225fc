"""Acceptance without the target model: replayed rounds, and why proposals fell."""

from __future__ import annotations

import pytest

from bench.acceptance.rejections import Cause, causes, classify, examples
from bench.acceptance.replay import Recording, Round, acceptance, mean_acceptance_length, replay
from bench.acceptance.string_bridge import StringBridge, vocabulary_strings
from bench.acceptance.unk_context import UnkContext, unknown_id
from common.types import BridgeMode, Origin
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import contexts_by_mode
from tests.support.fake_pairs import PROMPTS, serving_pair
from tests.support.fake_tokenizers import family

TEXT, INTERSECTION = BridgeMode.TEXT, BridgeMode.INTERSECTION


# Why first tokens fell.


@pytest.fixture(scope="module")
def bridge() -> Bridge:
    return Bridge(family("sentencepiece"), family("byte-level"))


def ids_of(bridge: Bridge, *deltas: str) -> tuple[int, ...]:
    found = [bridge.target.id_of(delta.encode()) for delta in deltas]
    assert None not in found
    return tuple(id_ for id_ in found if id_ is not None)


def output(bridge: Bridge, written: tuple[int, ...], proposed: tuple[int, ...]) -> Round:
    recording = Recording("a", (1,), written)
    accepted = 0
    while accepted < len(proposed) and proposed[accepted] == written[accepted]:
        accepted += 1
    return Round(recording, 0, proposed, accepted)


def test_every_cause(bridge: Bridge) -> None:
    end = bridge.target.special_ids & bridge.target.eos_ids
    one, two, other, both = (ids_of(bridge, delta)[0] for delta in ("e", "f", "d", "ef"))
    lone = next(
        id_
        for id_ in range(bridge.target.width)
        if bridge.to_draft(id_) is None and not bridge.target.is_special(id_)
    )
    cases = [
        ((both, other), (two, other), TEXT, Cause.DISAGREES),
        ((both, other), (one, two), TEXT, Cause.SPLIT),  # the target wrote all of it, in one token
        (
            (one, two, other),
            (both, one),
            TEXT,
            Cause.SPLIT,
        ),  # the proposal starts with the target's token
        ((lone, two), (two,), INTERSECTION, Cause.OUTSIDE),
        ((lone, two), (two,), TEXT, Cause.OUTSIDE),
        ((min(end),), (two,), TEXT, Cause.MARKUP),
        ((both, other), (), TEXT, Cause.NOTHING),
        ((both,), (), TEXT, None),  # no space for a draft
        ((both, other), (both, two), TEXT, None),  # the first token was accepted
        ((one, two), (min(end), one), TEXT, Cause.DISAGREES),  # an end where text goes on
    ]
    for written, proposed, mode, cause in cases:
        assert classify(output(bridge, written, proposed), bridge, mode) is cause
    rounds = [output(bridge, written, proposed) for written, proposed, *_ in cases]
    counts = causes(rounds, bridge, TEXT)
    assert counts[Cause.SPLIT] == 2
    (first, _) = examples(rounds, bridge, TEXT)[Cause.SPLIT]
    assert (first.proposed, first.written) == (("e", "f"), ("ef", "d"))


# The ablation.


def test_unk_replaces_what_is_not_mapped(bridge: Bridge) -> None:
    target, unknown = bridge.target, unknown_id(bridge.draft)
    assert bridge.draft.is_special(unknown)  # end of text: this tokenizer has no unk
    prompt = target.encode_prompt("def add 똻")
    context = UnkContext(bridge, prompt)
    context.extend(target.encode_bytes(b"\n") or [])
    read = context.ids()
    assert len(read) == len(prompt) + 1
    assert read.count(unknown) == sum(bridge.to_draft(id_) is None for id_ in prompt)
    assert unknown_id(family("sentencepiece")) == 3  # <unk>
    assert unknown_id(family("unigram")) == 2


def test_vocabulary_strings_match_words_and_neither_newlines_nor_accents(bridge: Bridge) -> None:
    target, draft = bridge.target, bridge.draft  # "▁the" and "\n" against "Ġthe" and "Ċ"
    by_string = StringBridge(target, draft)
    for data in (b"e", b"def", b" the"):
        mapped_id = target.id_of(data)
        if mapped_id is not None and (ours := draft.id_of(data)) is not None:
            assert by_string.to_draft(mapped_id) == ours and by_string.mapped_id(ours) == mapped_id
    newline = target.id_of(b"\n")
    assert newline is not None and bridge.to_draft(newline) is not None
    assert by_string.to_draft(newline) is None
    assert by_string.shared.sum() == by_string.shared_count < bridge.shared_count


def test_the_lowest_of_the_ids_with_equal_strings_is_taken() -> None:
    found = vocabulary_strings(family("sentencepiece").files)
    assert len(set(found.values())) == len(found)
    assert not any(by_string.startswith("▁") for by_string in found)


# Replay.


@pytest.mark.parametrize("mode", [TEXT, INTERSECTION])
async def test_replayed_rounds_are_the_live_ones(mode: BridgeMode) -> None:
    async with serving_pair(lookup=False) as running:
        pair = running.drafter.pair
        for prompt in PROMPTS[:3]:
            live = await running.generate(prompt, bridge=mode, draft_steps=3)
            ids = tuple(pair.bridge.target.encode_prompt(prompt))
            recording = Recording(prompt, ids, live.token_ids)
            rounds, _ = await replay(
                pair,
                [recording],
                lambda each: contexts_by_mode(pair.bridge, each.prompt, "auto", None),
                3,
                mode,
            )
            statistics = live.statistics
            assert len(rounds) == statistics.rounds
            assert sum(each.accepted for each in rounds) == live.origins.count(Origin.DRAFT)
            assert mean_acceptance_length(rounds) == pytest.approx(
                statistics.mean_acceptance_length
            )
            assert acceptance(rounds) == pytest.approx(statistics.acceptance_by_position)
