"""Added tokens that aren't special are text: their bytes are what they match in a text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer

from common.vocabulary.vocabulary import Vocabulary
from drafter.bridge.bridge import Bridge
from tests.support.fake_tokenizers import (
    byte_level_tokenizer,
    family,
    files_of,
    sentencepiece_tokenizer,
    unigram_tokenizer,
    vocabulary,
)

MAKERS = (byte_level_tokenizer, sentencepiece_tokenizer, unigram_tokenizer)


def with_added(make: Callable[[], Tokenizer], content: str, normalized: bool = False) -> Vocabulary:
    """A vocabulary with one more added token, which is the last id unless the model has it."""
    tokenizer = make()
    tokenizer.add_tokens([AddedToken(content, special=False, normalized=normalized)])
    return vocabulary(files_of(tokenizer))


def id_of_added(voc: Vocabulary, content: str) -> int:
    added = json.loads(voc.files.files["tokenizer.json"])["added_tokens"]
    return next(int(token["id"]) for token in added if token["content"] == content)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("content", ["đò", "Ġfoo", "Ä", "<tool>", "€5", "<0xZZ>"])
def test_an_added_token_has_the_bytes_of_its_text(
    content: str, make: Callable[[], Tokenizer], normalized: bool
) -> None:
    """ "đò" and "Ġfoo" consist of characters that stand for bytes in a byte-level vocabulary."""
    voc = with_added(make, content, normalized)
    token_id = id_of_added(voc, content)
    assert voc.encode_prompt(content)[-1] == token_id
    assert voc.token_bytes(token_id) == content.encode()
    assert voc.id_of(content.encode()) == token_id
    assert voc.encode_bytes(f"fox{content}fox".encode()) is not None or make is unigram_tokenizer
    assert voc.encode_bytes(content.encode()) == [token_id]


@pytest.mark.parametrize("normalized", [False, True])
def test_a_space_of_sentencepiece_is_one_in_an_added_token_too(normalized: bool) -> None:
    """As its own decoder has it: "▁" and " " are one to such a tokenizer."""
    voc = with_added(sentencepiece_tokenizer, "fox▁trot", normalized)
    token_id = id_of_added(voc, "fox▁trot")
    tokenizer = Tokenizer.from_str(voc.files.files["tokenizer.json"].decode())
    assert voc.token_bytes(token_id) == b"fox trot" == tokenizer.decode([token_id]).encode()
    for text in ("fox trot", "fox▁trot"):
        ids = voc.encode_bytes(text.encode())
        assert ids is not None and voc.bytes_of(ids) == text.encode()


def test_a_byte_of_the_model_that_is_listed_as_added_stays_a_byte() -> None:
    """Byte fallback makes it of a byte; some converters list all of the vocabulary as added."""
    voc = with_added(sentencepiece_tokenizer, "<0xC3>")
    token_id = id_of_added(voc, "<0xC3>")
    assert voc.token_bytes(token_id) == b"\xc3" and token_id in voc.byte_fallback_ids
    assert voc.missing_bytes == ()
    plain = family("sentencepiece")
    for text in ("똻Ã", "the <0xC3> fox"):  # in bytes; in letters
        assert voc.encode_bytes(text.encode()) == plain.encode_bytes(text.encode())


def test_what_looks_like_a_byte_is_text_where_the_model_has_no_such_byte() -> None:
    voc = with_added(byte_level_tokenizer, "<0x41>")
    assert voc.token_bytes(id_of_added(voc, "<0x41>")) == b"<0x41>"
    parsed = json.loads(sentencepiece_tokenizer().to_str())
    del parsed["model"]["vocab"]["<0x41>"]
    voc = with_added(lambda: Tokenizer.from_str(json.dumps(parsed)), "<0x41>")
    token_id = id_of_added(voc, "<0x41>")
    assert voc.token_bytes(token_id) == b"<0x41>" and token_id not in voc.byte_fallback_ids


def test_an_added_token_crosses_the_bridge_by_its_text() -> None:
    target = with_added(byte_level_tokenizer, "đò")
    draft = with_added(sentencepiece_tokenizer, "đò")
    bridge = Bridge(target, draft)
    assert bridge.to_draft(id_of_added(target, "đò")) == id_of_added(draft, "đò")
