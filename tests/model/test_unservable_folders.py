"""A model folder that can't be served is refused in one line, whatever library finds out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drafter.startup
import verifier.startup
from common.causes import SHOWN, one_line, refusing
from common.errors import CrossdraftError, InvalidField, UnsupportedTokenizer, WeightsError
from common.vocabulary.vocabulary import Vocabulary
from drafter.bridge.bridge import Bridge
from drafter.config import DrafterConfig
from tests.cli.command_line import run
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import files, known
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of
from verifier.config import VerifierConfig

CONFIG, TOKENIZER, ITS_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
WEIGHTS = "model.safetensors"

Change = Callable[[Path], object]


def written(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def changed(name: str, **members: Any) -> Change:
    """Members of a JSON file; None takes one out."""

    def change(folder: Path) -> None:
        parsed = json.loads((folder / name).read_text()) | members
        kept = {key: value for key, value in parsed.items() if value is not None}
        (folder / name).write_text(json.dumps(kept))

    return change


MODELS: dict[str, tuple[Change, str]] = {
    "no config": (lambda folder: (folder / CONFIG).unlink(), "Unrecognized model"),
    "config isn't JSON": (written(CONFIG, b"{"), "not a valid JSON file"),
    "config is null": (written(CONFIG, b"null"), "TypeError"),
    "config is deep": (written(CONFIG, b'{"a":' * 100_000), "RecursionError"),
    "no model_type": (changed(CONFIG, model_type=None), "`model_type` key"),
    "unknown model_type": (changed(CONFIG, model_type="odd"), "model type `odd`"),
    "no decoder": (changed(CONFIG, model_type="t5"), "T5Config"),
    "code of its own": (
        changed(CONFIG, model_type="own", auto_map={"AutoConfig": "own.Own"}),
        "custom code",
    ),
    "a size is a text": (changed(CONFIG, hidden_size="big"), "expected int, got str"),
    "no heads": (changed(CONFIG, num_attention_heads=0), "ZeroDivisionError"),
    "unknown activation": (changed(CONFIG, hidden_act="odd"), "KeyError: 'odd'"),
    "padding is no id": (changed(CONFIG, pad_token_id=10**9), "AssertionError: Padding_idx"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "no file named model.safetensors"),
    "weights are empty": (written(WEIGHTS, b""), "header too small"),
    "weights are cut": (
        lambda folder: written(WEIGHTS, (folder / WEIGHTS).read_bytes()[:-9])(folder),
        "SafetensorError",
    ),
}
NOT_WHAT = "tokenizer.json isn't what a tokenizer is made of"
CANT_LOAD = "transformers can't load the tokenizer"
TOKENIZERS: dict[str, tuple[Change, str]] = {
    "tokenizer isn't JSON": (written(TOKENIZER, b"{"), "isn't JSON"),
    "tokenizer is deep": (written(TOKENIZER, b"[" * 100_000), "isn't JSON: maximum recursion"),
    "decoder is a text": (changed(TOKENIZER, decoder="ByteLevel"), f"{NOT_WHAT}: TypeError"),
    "decoder without a type": (changed(TOKENIZER, decoder={}), f"{NOT_WHAT}: KeyError: 'type'"),
    "decoder of nothing": (changed(TOKENIZER, decoder={"type": "Sequence"}), NOT_WHAT),
    "unknown decoder": (changed(TOKENIZER, decoder={"type": "Odd"}), "the decoder Odd"),
    "tokens without ids": (changed(TOKENIZER, added_tokens=[{"content": "x"}]), NOT_WHAT),
    "unknown normalizer": (changed(TOKENIZER, normalizer={"type": "Odd"}), CANT_LOAD),
    "unknown post-processor": (changed(TOKENIZER, post_processor={"type": "Odd"}), CANT_LOAD),
    "class is a number": (changed(ITS_CONFIG, tokenizer_class=5), CANT_LOAD),
    "class of another kind": (changed(ITS_CONFIG, tokenizer_class="T5Tokenizer"), CANT_LOAD),
    "class that can't encode": (changed(ITS_CONFIG, tokenizer_class="BertTokenizer"), "[UNK]"),
    "token is a number": (changed(ITS_CONFIG, eos_token=5), CANT_LOAD),
    "template isn't text": (written("chat_template.jinja", b"\xff"), CANT_LOAD),
}
CASES = MODELS | TOKENIZERS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "whole"
    knowing_model(known("narrow"), seed=1).save_pretrained(folder)
    for name, data in files("narrow").files.items():
        (folder / name).write_bytes(data)
    return folder


def build_verifier(folder: Path) -> None:
    config = VerifierConfig(model=str(folder), max_sessions=2, kv_memory_mib=32, threads=1)
    verifier.startup.build(config)


def build_drafter(folder: Path) -> None:
    _, vocabulary = drafter.startup._load_draft(DrafterConfig(model=str(folder), threads=1))
    Bridge(known("wide"), vocabulary)


@pytest.mark.parametrize("build", [build_verifier, build_drafter])
@pytest.mark.parametrize("name", CASES)
def test_a_folder_that_cannot_be_served_is_refused_with_the_cause(
    name: str, build: Callable[[Path], None], whole: Path, tmp_path: Path
) -> None:
    change, words = CASES[name]
    kind = WeightsError if name in MODELS else UnsupportedTokenizer
    folder = shutil.copytree(whole, tmp_path / "model")
    change(folder)
    with pytest.raises(CrossdraftError) as caught:
        build(folder)
    assert type(caught.value) is kind and words in str(caught.value)
    assert len(str(caught.value)) < SHOWN + 300


@pytest.mark.parametrize("service", ["verifier", "drafter"])
@pytest.mark.parametrize("name", ["no model_type", "decoder without a type"])
def test_the_command_line_says_it_in_one_line(
    name: str, service: str, whole: Path, tmp_path: Path
) -> None:
    change, words = CASES[name]
    folder = shutil.copytree(whole, tmp_path / "model")
    change(folder)
    result = run(service, "--model", str(folder), "--listen", "127.0.0.1:0", "--threads", "1")
    assert result.exit_code == 1 and "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("crossdraft: ") and words in last


def test_a_class_that_is_not_known_is_read_as_tokenizer_json_says(
    whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    changed(ITS_CONFIG, tokenizer_class="OddTokenizer")(folder)
    build_verifier(folder)


def test_a_prompt_that_a_tokenizer_refuses_is_the_prompts_fault() -> None:
    parsed = json.loads(byte_level_tokenizer().to_str())
    parsed["model"] = {"type": "Unigram", "unk_id": None, "byte_fallback": False}
    parsed["model"]["vocab"] = [[chr(code), -1.0] for code in range(0x21, 0x7F)] + [["Ġ", -1.0]]
    parsed |= {"added_tokens": [], "post_processor": None}
    vocabulary = Vocabulary(files_of(parsed), 100, ())
    assert vocabulary.encode_prompt("abc")
    with pytest.raises(InvalidField, match="prompt is refused by the tokenizer: "):
        vocabulary.encode_prompt("é")


def test_causes_are_one_line_and_our_own_errors_stay() -> None:
    assert one_line(KeyError("a")) == "KeyError: 'a'" and one_line(OSError()) == "OSError"
    assert one_line(ValueError("a\n  b" + "c" * 500)).endswith("c…")
    for stays in (InvalidField("a", 1, "2"), MemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(stays)), refusing(WeightsError, "here"):
            raise stays
