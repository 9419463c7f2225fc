"""Exact bytes of every id; text to ids and back; roles; prompts as transformers gives them."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from common.errors import InvalidField, UnsupportedTokenizer
from common.vocabulary.vocabulary import Role, TokenizerFiles, Vocabulary
from common.weights.resolve import resolve
from tests.support.fake_tokenizers import (
    FAMILIES,
    WHOLE_FAMILIES,
    blobs,
    byte_level_tokenizer,
    family,
    files_of,
    sentencepiece_tokenizer,
    texts,
    vocabulary,
    wordpiece_tokenizer,
)

REAL = {
    "smollm2-135m": 49152,
    "qwen2.5-coder-0.5b": 151936,
    "qwen2.5-coder-1.5b": 151936,
    "gemma-3-270m": 262144,
}
CHAT = [("system", "Be brief."), ("user", "Write 'e\u0301 中 🙂' <|im_end|>\n  twice.")]


@given(name=st.sampled_from(FAMILIES), data=st.data())
def test_what_starts_with_a_prefix_is_what_a_scan_finds(name: str, data: st.DataObject) -> None:
    known = family(name)
    plain = [i for i in range(known.width) if known.id_of(known.token_bytes(i)) == i]
    whole = st.sampled_from([known.token_bytes(i) for i in plain])
    cut = st.tuples(whole, st.integers(1, 4)).map(lambda cut: cut[0][: cut[1]])
    prefix = data.draw(cut | st.binary(min_size=1, max_size=3))
    scanned = [i for i in plain if known.token_bytes(i).startswith(prefix)]
    assert known.starting_with(prefix).tolist() == sorted(scanned, key=known.token_bytes)


@pytest.mark.parametrize("name", FAMILIES)
@given(data=blobs())
def test_encoded_bytes_are_the_bytes(name: str, data: bytes) -> None:
    ids = family(name).encode_bytes(data)
    if ids is None:
        assert name not in WHOLE_FAMILIES
    else:
        assert family(name).bytes_of(ids) == data
        assert not any(family(name).is_special(token_id) for token_id in ids)


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
def test_token_bytes_are_what_the_decoder_gives(name: str, data: st.DataObject) -> None:
    """Several tokens at once, so that Metaspace's stripped first space doesn't count."""
    voc = family(name)
    plain = [int(i) for i in voc.real.nonzero()[0] if not voc.is_special(int(i))]
    first = voc.id_of(b"a")
    assert first is not None
    ids = [first, *data.draw(st.lists(st.sampled_from(plain), max_size=6))]
    tokenizer = Tokenizer.from_str(voc.files.files["tokenizer.json"].decode())
    text = voc.bytes_of(ids).decode("utf-8", "replace")
    if "\ufffd" not in text:
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", FAMILIES)
def test_missing_bytes_give_none(name: str) -> None:
    voc = family(name)
    assert bool(voc.missing_bytes) == (name not in WHOLE_FAMILIES)
    for byte in voc.missing_bytes:
        assert voc.encode_bytes(b"a" + bytes([byte])) is None or byte >= 0x80


@pytest.mark.parametrize("text", ["<|im_end|>", "<|endoftext|>", "x<|im_start|>y"])
def test_special_never_matches_plain_text_with_the_same_text(text: str) -> None:
    voc = family("byte-level")
    ids = voc.encode_bytes(text.encode())
    assert ids is not None and not set(ids) & voc.special_ids
    assert set(voc.encode_prompt(text)) & voc.special_ids  # a user's prompt does match


@given(text=texts().filter(lambda text: "<|" not in text))
def test_plain_split_is_the_tokenizers_own_where_nothing_is_added(text: str) -> None:
    """Canonical, not merely right."""
    voc = family("byte-level")
    assert voc.encode_bytes(text.encode()) == voc.encode_prompt(text)


def test_ties_take_the_lowest_id_that_is_no_byte_fallback() -> None:
    voc = family("sentencepiece")
    newline = voc.id_of(b"\n")
    assert newline is not None and newline not in voc.byte_fallback_ids
    assert min(voc.byte_fallback_ids) + 10 < newline  # though <0x0A> comes first
    assert voc.id_of(b"\xff") in voc.byte_fallback_ids  # the only one with that byte
    tokenizer = json.loads(byte_level_tokenizer().to_str())
    size = max(tokenizer["model"]["vocab"].values()) + 1
    extra = AddedToken("a", special=False, normalized=False)
    token = {"id": size, "content": extra.content, "special": False, "normalized": False}
    tokenizer["added_tokens"].append(
        token | {"single_word": False, "lstrip": False, "rstrip": False}
    )
    tied = Vocabulary(files_of(tokenizer), size + 1, ())
    assert tied.token_bytes(size) == b"a"
    assert tied.id_of(b"a") == family("byte-level").id_of(b"a")


def test_wordpiece_is_refused_by_its_decoders_name() -> None:
    with pytest.raises(UnsupportedTokenizer, match="WordPiece"):
        vocabulary(files_of(wordpiece_tokenizer()))
    bare = json.loads(byte_level_tokenizer().to_str()) | {"decoder": None}
    with pytest.raises(UnsupportedTokenizer, match="no decoder"):
        vocabulary(files_of(bare))


def test_broken_files_are_refused() -> None:
    with pytest.raises(UnsupportedTokenizer, match=r"no tokenizer\.json"):
        TokenizerFiles({"tokenizer_config.json": b"{}"})
    with pytest.raises(UnsupportedTokenizer, match="unknown"):
        TokenizerFiles({"tokenizer.json": b"{}", "../evil": b""})
    with pytest.raises(UnsupportedTokenizer, match="isn't JSON"):
        Vocabulary(TokenizerFiles({"tokenizer.json": b"{"}), 10, ())
    with pytest.raises(UnsupportedTokenizer, match="no model"):
        Vocabulary(TokenizerFiles({"tokenizer.json": b"{}"}), 10, ())


def test_padded_ids_are_not_real() -> None:
    tokenizer = json.loads(byte_level_tokenizer().to_str())
    size = max(tokenizer["model"]["vocab"].values()) + 1
    tokenizer["model"]["vocab"][f"[PAD{size}]"] = size  # as GGUF converters fill unused rows
    voc = Vocabulary(files_of(tokenizer), size + 7, ())
    assert voc.real.shape == (size + 7,)
    assert voc.real.sum() == size
    assert voc.token_bytes(size) == b"" == voc.token_bytes(size + 6)


def test_roles_and_eos_ids() -> None:
    voc = family("byte-level")
    assert voc.roles[Role.END_OF_TEXT] == (0,)
    assert voc.roles[Role.START_OF_TURN] == (1,)
    assert voc.roles[Role.END_OF_TURN] == (2,)
    assert voc.eos_ids == {0, 2}
    assert family("sentencepiece").roles[Role.BOS] == (2,)
    assert family("sentencepiece").prompt_bos == 2
    assert voc.prompt_bos is None
    assert family("unigram").eos_ids == {1}


def test_a_known_text_that_is_plain_has_no_role() -> None:
    """Gemma's "</s>" is an HTML tag; only a special flag or a configuration makes a role."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["</s>"])
    voc = vocabulary(files_of(tokenizer))
    assert voc.roles[Role.END_OF_TEXT] == (0,)
    named = Vocabulary(files_of(tokenizer, eos_token="</s>"), voc.width, ())
    assert voc.width - 1 in named.eos_ids and named.is_special(voc.width - 1)


def test_added_tokens_outside_the_model_keep_their_ids() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens(["<|pad|>", "<|one|>"])
    tokenizer.add_tokens(["<tool_call>"])
    voc = vocabulary(files_of(tokenizer))
    assert voc.encode_bytes(b"<tool_call>") == [voc.width - 1]


@cache
def llama_like() -> Vocabulary:
    """The same pieces under Llama's way of text: ▁ put before texts, merges as strings."""
    parsed = json.loads(sentencepiece_tokenizer().to_str())
    parsed["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    parsed["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    parsed["model"]["merges"] = [" ".join(pair) for pair in parsed["model"]["merges"]]
    return vocabulary(files_of(parsed))


@given(data=blobs())
def test_what_a_tokenizer_puts_before_texts_is_not_added_to_bytes(data: bytes) -> None:
    voc = family("sentencepiece")
    assert llama_like().encode_bytes(data) == voc.encode_bytes(data)
    assert llama_like().bytes_of(llama_like().encode_prompt("the fox")) == b"<bos> the fox"


def test_a_whole_word_that_reads_like_a_special_token_is_still_text() -> None:
    """ignore_merges (Llama 3) looks whole words up before it merges anything."""
    parsed = json.loads(byte_level_tokenizer().to_str())
    parsed["model"]["ignore_merges"] = True
    parsed["pre_tokenizer"]["use_regex"] = False
    voc = vocabulary(files_of(parsed))
    ids = voc.encode_bytes(b"<|im_end|>")
    assert ids is not None and not set(ids) & voc.special_ids


def test_a_tokenizer_class_with_code_of_its_own_is_not_run() -> None:
    config = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": [None, "evil.Evil"]}}
    voc = vocabulary(files_of(byte_level_tokenizer(), **config))
    assert voc.encode_prompt("the fox") == family("byte-level").encode_prompt("the fox")


def test_chat_templates() -> None:
    voc = family("byte-level")
    ids = voc.render_chat([("user", "add")])
    assert voc.bytes_of(ids) == b"<|im_start|>user\nadd<|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(1) == 2 and ids.count(2) == 1
    none = vocabulary(files_of(sentencepiece_tokenizer()))
    assert not none.has_chat_template
    with pytest.raises(InvalidField, match="no chat template"):
        none.render_chat([("user", "add")])
    refusing = "{{ raise_exception('System role not supported') }}"
    raising = vocabulary(files_of(byte_level_tokenizer(), chat_template=refusing))
    with pytest.raises(InvalidField, match="System role not supported"):
        raising.render_chat([("system", "add")])


@pytest.mark.models
@pytest.mark.parametrize("name", REAL)
def test_real_tokenizers_agree_with_transformers(name: str) -> None:
    path = resolve(name)
    voc = Vocabulary(TokenizerFiles.from_directory(path), REAL[name], ())
    theirs = AutoTokenizer.from_pretrained(path)
    for text in ("", "Hello", "  def f(x):\n\treturn 'e\u0301 é 中 🙂' <|im_end|>\n\n\n", " a  b"):
        assert voc.encode_prompt(text) == theirs(text)["input_ids"]
        ids = voc.encode_bytes(text.encode())
        assert ids is not None and voc.bytes_of(ids) == text.encode()
    if voc.has_chat_template:
        turns = [{"role": role, "content": content} for role, content in CHAT]
        expected = theirs.apply_chat_template(
            turns, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        assert voc.render_chat(CHAT, trusted=True) == list(expected)
    else:
        with pytest.raises(InvalidField, match="no chat template"):
            voc.render_chat(CHAT)
