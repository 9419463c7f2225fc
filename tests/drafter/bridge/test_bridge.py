"""The map between two vocabularies: by bytes, by role, and nothing else."""

from __future__ import annotations

import json

import pytest
import torch

from common.vocabulary.vocabulary import Role, TokenizerFiles, Vocabulary
from common.weights.resolve import resolve
from drafter.bridge.bridge import Bridge
from tests.support.fake_tokenizers import (
    FAMILIES,
    byte_level_tokenizer,
    family,
    files_of,
    vocabulary,
)


@pytest.mark.parametrize("target_name", FAMILIES)
@pytest.mark.parametrize("draft_name", FAMILIES)
def test_shared_tokens_have_equal_bytes_and_specials_equal_roles(
    target_name: str, draft_name: str
) -> None:
    target, draft = family(target_name), family(draft_name)
    bridge = Bridge(target, draft)
    assert bridge.identity == (target_name == draft_name)
    assert bridge.to_target.shape == bridge.shared.shape == (draft.width,)
    assert bridge.shared_count == int(bridge.shared.sum()) > 20
    assert (bridge.to_target[~bridge.shared] == 0).all()
    assert (bridge.draft_real | ~bridge.shared).all()
    for draft_id in bridge.shared.nonzero().flatten().tolist():
        target_id = int(bridge.to_target[draft_id])
        assert bridge.mapped_id(draft_id) == target_id
        assert target.is_special(target_id) == draft.is_special(draft_id)
        if not draft.is_special(draft_id):
            assert target.token_bytes(target_id) == draft.token_bytes(draft_id)
        elif not bridge.identity:
            assert target_id in target.eos_ids | set(target.roles[Role.START_OF_TURN])


def test_ends_are_mapped_by_role_not_by_text() -> None:
    bridge = Bridge(family("byte-level"), family("sentencepiece"))
    eos, end_of_turn, start = (1, 5, 4)
    assert [bridge.mapped_id(i) for i in (eos, end_of_turn, start)] == [0, 2, 1]
    assert [bridge.to_draft(i) for i in (0, 2, 1)] == [eos, end_of_turn, start]
    assert bridge.mapped_id(2) is None  # <bos> is nobody's proposal


def test_a_target_without_end_of_turn_takes_it_as_end_of_text() -> None:
    bridge = Bridge(family("unigram"), family("byte-level"))
    assert bridge.mapped_id(0) == bridge.mapped_id(2) == 1
    assert bridge.to_draft(1) == 0
    assert bridge.mapped_id(1) is None


def test_special_never_matches_plain_text_with_the_same_text() -> None:
    plain = json.loads(byte_level_tokenizer().to_str())
    for token in plain["added_tokens"]:
        token["special"] = False  # "<|im_end|>" as ordinary text
    bridge = Bridge(family("byte-level"), vocabulary(files_of(plain)))
    assert not bridge.identity
    assert not bridge.shared[:3].any()
    assert bridge.to_draft(2) is None


def test_tokenizers_that_differ_though_widths_are_equal() -> None:
    plain = json.loads(byte_level_tokenizer().to_str())
    vocab = plain["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    target, draft = family("byte-level"), vocabulary(files_of(plain))
    bridge = Bridge(target, draft)
    assert target.width == draft.width and not bridge.identity
    assert bridge.mapped_id(vocab["a"]) == vocab["b"]


def test_tokenizers_that_are_equal_though_widths_differ() -> None:
    files = files_of(byte_level_tokenizer())
    narrow, wide = vocabulary(files), vocabulary(files, pad=128)
    bridge = Bridge(narrow, wide)
    assert bridge.identity
    assert torch.equal(bridge.shared, bridge.draft_real)
    assert bridge.shared_count == narrow.width
    assert Bridge(wide, narrow).identity
    # Other files over one vocabulary (a re-saved tokenizer.json) are the same tokenizer too.
    resaved = json.loads(files.files["tokenizer.json"]) | {"version": "1.0", "padding": None}
    other = TokenizerFiles({"tokenizer.json": json.dumps(resaved, indent=1).encode()})
    assert other.sha256 != files.sha256
    assert Bridge(narrow, vocabulary(other, pad=3)).identity


@pytest.mark.parametrize("draft_name", FAMILIES)
def test_extensions_are_the_longer_plain_tokens(draft_name: str) -> None:
    draft = family(draft_name)
    bridge = Bridge(family("byte-level"), draft)
    plain = [int(i) for i in draft.real.nonzero()[0] if not draft.is_special(int(i))]
    for draft_id in range(draft.width):
        data = draft.token_bytes(draft_id)
        extensions = bridge.draft_extensions(draft_id).tolist()
        assert len(set(extensions)) == len(extensions)
        if draft.is_special(draft_id) or not data:
            assert extensions == []
            continue
        assert {draft.token_bytes(i) for i in extensions} == {
            draft.token_bytes(i)
            for i in plain
            if draft.token_bytes(i).startswith(data) and draft.token_bytes(i) != data
        }
        assert not any(draft.is_special(i) for i in extensions)


def test_padded_ids_and_markup_have_no_extensions() -> None:
    files = family("byte-level").files
    bridge = Bridge(family("sentencepiece"), vocabulary(files, pad=5))
    width = bridge.draft.width
    assert all(len(bridge.draft_extensions(i)) == 0 for i in (0, 1, 2, *range(width - 5, width)))


def test_the_maps_hash_is_stable() -> None:
    first = Bridge(family("byte-level"), family("sentencepiece"))
    again = Bridge(family("byte-level"), family("sentencepiece"))
    assert first.sha256 == again.sha256 and len(first.sha256) == 64
    padded = vocabulary(family("sentencepiece").files, pad=9)
    assert Bridge(family("byte-level"), padded).sha256 == first.sha256
    assert Bridge(family("unigram"), family("sentencepiece")).sha256 != first.sha256


def real(name: str, width: int) -> Vocabulary:
    return Vocabulary(TokenizerFiles.from_directory(resolve(name)), width, ())


@pytest.mark.models
def test_real_vocabularies_share_what_the_design_measured() -> None:
    smollm2 = real("smollm2-135m", 49152)
    qwen = real("qwen2.5-coder-1.5b", 151936)
    text_only = {
        name: sum(
            1 for id_ in bridge.shared.nonzero().flatten().tolist() if not smollm2.is_special(id_)
        )
        for name, bridge in (
            ("qwen", Bridge(qwen, smollm2)),
            ("gemma", Bridge(real("gemma-3-270m", 262144), smollm2)),
        )
    }
    assert text_only == {"qwen": 39_234, "gemma": 46_145}
    assert Bridge(qwen, real("qwen2.5-coder-0.5b", 151936)).identity
    assert Bridge(qwen, real("qwen2.5-coder-0.5b", 152064)).identity
