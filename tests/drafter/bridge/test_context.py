"""The draft model reads exactly the committed bytes, whatever the tokenizers and the order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.types import BridgeMode
from common.vocabulary.vocabulary import Role, Vocabulary
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import LIVE_FORCED, LIVE_LIMIT, DraftContext, Encoding, contexts_by_mode
from tests.support.fake_tokenizers import FAMILIES, WHOLE_FAMILIES, blobs, family

PAIRS = [(target, draft) for target in FAMILIES for draft in FAMILIES]
ENCODINGS: tuple[Encoding, ...] = ("canonical", "token")


def committed_ids(data: st.DataObject, target: Vocabulary) -> list[int]:
    """Text as the target splits it, in between any ids at all, special or split characters."""
    real = [int(i) for i in target.real.nonzero()[0]]
    parts = data.draw(
        st.lists(
            st.one_of(
                blobs().map(lambda blob: target.encode_bytes(blob) or []),
                st.lists(st.sampled_from(real), max_size=8),
                st.sampled_from(sorted(target.special_ids)).map(lambda id_: [id_]),
            ),
            max_size=6,
        )
    )
    return [token_id for part in parts for token_id in part]


def expected(bridge: Bridge, target_ids: list[int]) -> list[bytes | int]:
    """Bytes and role-mapped specials (in draft ids) of the committed ids; BOS aside."""
    walk: list[bytes | int] = []
    for token_id in target_ids:
        mapped_id = bridge.to_draft(token_id)
        if token_id in bridge.target.roles[Role.BOS]:
            continue
        if bridge.target.is_special(token_id) and mapped_id is not None:
            walk.append(mapped_id)
        else:
            walk.append(bridge.target.token_bytes(token_id))
    return joined(walk)


def actual(bridge: Bridge, draft_ids: list[int]) -> list[bytes | int]:
    draft = bridge.draft
    return joined([i if draft.is_special(i) else draft.token_bytes(i) for i in draft_ids])


def joined(walk: list[bytes | int]) -> list[bytes | int]:
    out: list[bytes | int] = []
    for part in walk:
        if isinstance(part, bytes) and out and isinstance(out[-1], bytes):
            out[-1] += part
        elif part != b"":
            out.append(part)
    return out


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("target_name", "draft_name"), PAIRS)
@given(data=st.data())
def test_draft_context_bytes_are_the_committed_bytes_whatever_order_tokens_arrive_in(
    target_name: str, draft_name: str, encoding: Encoding, data: st.DataObject
) -> None:
    target, draft = family(target_name), family(draft_name)
    bridge = Bridge(target, draft)
    ids = committed_ids(data, target)
    at = data.draw(st.integers(0, len(ids)))
    context = DraftContext(bridge, ids[:at], encoding)
    if data.draw(st.booleans()):
        context = DraftContext(bridge, ids[:at], "canonical").branch(encoding)
    while at < len(ids):
        step = data.draw(st.integers(1, 9))
        context.extend(ids[at : at + step])
        at += step
        if data.draw(st.booleans()):
            context.ids()
    read = context.ids()
    if bridge.identity:
        assert read == ids
    elif read is None:
        assert draft_name not in WHOLE_FAMILIES
    else:
        if draft.prompt_bos is not None:
            assert read.pop(0) == draft.prompt_bos
        assert actual(bridge, read) == expected(bridge, ids)
    assert context.tail_ids(5) == ids[-5:] and context.tail_ids(0) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_split_character_waits_for_its_bytes(encoding: Encoding) -> None:
    target, draft = family("byte-level"), family("byte-level, bytes missing")
    whole = "中".encode()
    assert draft.encode_bytes(whole) is not None
    context = DraftContext(Bridge(target, draft), target.encode_bytes(b"x ") or [], encoding)
    for byte in whole:
        context.extend([target.id_of(bytes([byte])) or 0])
        read = context.ids()
    assert read is not None and draft.bytes_of(read) == b"x " + whole


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_byte_the_draft_lacks_stops_drafting_for_good(encoding: Encoding) -> None:
    target, draft = family("byte-level"), family("byte-level, bytes missing")
    context = DraftContext(Bridge(target, draft), target.encode_bytes(b"a\x00b") or [], encoding)
    for _ in range(60):
        assert context.ids() is None
        context.extend(target.encode_bytes(b" the fox jumps") or [])
    assert context.ids() is None


def test_an_own_prompt_replaces_the_targets() -> None:
    target, draft = family("byte-level"), family("sentencepiece")
    context = DraftContext(
        Bridge(target, draft), target.encode_prompt("hi"), "canonical", own_prompt=[2, 4, 9]
    )
    context.extend(target.encode_bytes(b"the fox") or [])
    read = context.ids()
    assert read is not None and read[:3] == [2, 4, 9]
    assert draft.bytes_of(read[3:]) == b"the fox"


@given(text=st.lists(st.sampled_from(["the fox", " jumps", "\n    ", "中", " "]), max_size=80))
def test_canonical_context_is_split_as_if_read_at_once(text: list[str]) -> None:
    target, draft = family("sentencepiece"), family("byte-level")
    bridge = Bridge(target, draft)
    ids = target.encode_bytes("".join(text).encode()) or []
    context, late = DraftContext(bridge, []), DraftContext(bridge, [])
    for token_id in ids:
        for each in (context, late):
            each.extend([token_id])
        context.ids()
    assert context.ids() == late.ids() == draft.encode_bytes("".join(text).encode())


def encoded_sizes(draft: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The work of a context: how many bytes each of its encodings reads, from now on."""
    sizes: list[int] = []
    encode = draft.encode_bytes

    def measured(data: bytes) -> list[int] | None:
        sizes.append(len(data))
        return encode(data)

    monkeypatch.setattr(draft, "encode_bytes", measured)
    return sizes


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_rounds_cost_does_not_grow_with_the_context(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = family("sentencepiece"), family("byte-level")
    sizes = encoded_sizes(draft, monkeypatch)
    context = DraftContext(Bridge(target, draft), [], encoding)
    rounds = 0
    for text in (b" the fox jumps over\n", b"no_place_to_split_here", "中".encode() * 5):
        ids = target.encode_bytes(text) or []
        for _ in range(200):
            context.extend(ids)
            context.ids()
            rounds += 1
    assert max(sizes) < LIVE_FORCED + LIVE_LIMIT and len(sizes) <= rounds * (1 + len(ids))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_context_that_is_not_asked_for_costs_nothing(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In auto there are two, and most rounds read one of them."""
    target, draft = family("sentencepiece"), family("byte-level")
    context = DraftContext(Bridge(target, draft), [], encoding)
    sizes = encoded_sizes(draft, monkeypatch)
    ids = target.encode_bytes(b" the fox jumps over") or []
    for _ in range(20):
        context.extend(ids)
    assert not sizes
    reported = context.ids() or []
    assert draft.bytes_of(reported) == target.bytes_of(ids) * 20


def test_where_a_session_may_change_its_mode_either_reads_the_same_prompt() -> None:
    """Else a round in the other mode would read all of it again, and the next one once more."""
    target, draft = family("sentencepiece"), family("byte-level")
    bridge = Bridge(target, draft)
    deltas = [target.encode_bytes(delta) or [] for delta in (b" the f", b"ox ju", b"mps over")]
    prompt = [token_id for delta in deltas for token_id in delta]
    by_mode = contexts_by_mode(bridge, prompt, "auto", None)
    text, tokens = by_mode[BridgeMode.TEXT], by_mode[BridgeMode.INTERSECTION]
    read = tokens.ids() or []
    assert text.ids() == read
    for context in (text, tokens):
        context.extend(deltas[0])
        after = context.ids() or []
        assert after[: len(read)] == read
        assert draft.bytes_of(after) == target.bytes_of([*prompt, *deltas[0]])
    assert (tokens.ids() or [])[-1] == bridge.to_draft(deltas[0][-1])


def test_a_session_that_keeps_its_mode_has_one_context() -> None:
    bridge = Bridge(family("sentencepiece"), family("byte-level"))
    for mode in (BridgeMode.TEXT, BridgeMode.INTERSECTION):
        by_mode = contexts_by_mode(bridge, [5], "auto", None, mode)
        assert len({id(context) for context in by_mode.values()}) == 1


@pytest.mark.parametrize(("target_name", "draft_name"), PAIRS)
@given(data=st.data())
def test_healed_context_and_held_bytes_are_the_committed_bytes(
    target_name: str, draft_name: str, data: st.DataObject
) -> None:
    bridge = Bridge(family(target_name), family(draft_name))
    words = data.draw(st.lists(st.sampled_from(["a", " ", "    ", "\n", "the ", "é", "x  "])))
    ids = bridge.target.encode_bytes("".join(words).encode())
    assert ids is not None
    context = DraftContext(bridge, ids)
    healed = context.healed()
    assert healed is not None
    read, held = healed
    bos = bridge.draft.prompt_bos
    text = [id_ for id_ in read if id_ != bos]
    assert bridge.draft.bytes_of(text) + held == bridge.target.bytes_of(ids)
    assert held in (b"", b" ")
