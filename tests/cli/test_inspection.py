"""The report on a pair: numbers, roles, and what would be refused and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.inspect_pair import inspect_pair as command
from cli.inspection.report import inspect_pair
from common.errors import WeightsError
from common.vocabulary.vocabulary import Role, TokenizerFiles
from common.weights.resolve import resolve
from tests.support.fake_tokenizers import family, files_of, wordpiece_tokenizer


def model_folder(folder: Path, files: TokenizerFiles, width: int) -> Path:
    folder.mkdir()
    for name, data in files.files.items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_text(json.dumps({"vocab_size": width, "eos_token_id": 1}))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    made = {
        name: model_folder(tmp_path / name, family(name).files, family(name).width + 8)
        for name in ("byte-level", "byte-level, bytes missing", "sentencepiece")
    }
    made["wordpiece"] = model_folder(tmp_path / "wordpiece", files_of(wordpiece_tokenizer()), 99)
    return made


def test_a_pair_is_reported_in_numbers(folders: dict[str, Path]) -> None:
    report = inspect_pair(folders["sentencepiece"], folders["byte-level, bytes missing"])
    assert report.map is not None and report.target is not None and report.draft is not None
    assert not report.map.identity and report.bridge.startswith("auto")
    assert report.target.width == report.target.tokens + 8
    assert report.target.bos == "<bos> (2)"
    assert report.target.roles[Role.END_OF_TURN] == ("<end_of_turn> (5)",)
    assert 0 < report.map.of_target < report.map.of_draft < 1
    assert 0 < report.map.of_sample < 1
    assert report.map.shared == report.map.shared_plain + 3
    assert any("k = 0" in refusal for refusal in report.refusals)


def test_one_tokenizer_is_identity(folders: dict[str, Path]) -> None:
    report = inspect_pair(folders["byte-level"], folders["byte-level"])
    assert report.map is not None
    assert report.map.identity and report.map.of_sample == report.map.of_draft == 1
    assert report.bridge.startswith("identity") and report.refusals == ()


def test_what_transformers_refuses_is_refused_with_its_reason(folders: dict[str, Path]) -> None:
    file = folders["byte-level"] / "tokenizer_config.json"
    file.write_text(json.dumps({"tokenizer_class": 5}))
    report = inspect_pair(folders["byte-level"], folders["sentencepiece"])
    assert report.target is None and "transformers can't load the tokenizer" in report.refusals[0]


@pytest.mark.parametrize("text", ["{", '{"a":' * 100_000, '{"text_config": "x"}'])
def test_a_config_that_is_none_is_no_models(folders: dict[str, Path], text: str) -> None:
    (folders["byte-level"] / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=r"isn't JSON|no vocab_size"):
        inspect_pair(folders["byte-level"], folders["sentencepiece"])


def test_wordpiece_is_refused_with_its_reason(folders: dict[str, Path]) -> None:
    report = inspect_pair(folders["wordpiece"], folders["byte-level"])
    assert report.target is None and report.map is None
    assert any("WordPiece" in refusal for refusal in report.refusals)
    shown = CliRunner().invoke(command, [str(folders["wordpiece"]), str(folders["byte-level"])])
    assert shown.exit_code == 1 and "WordPiece" in shown.output


def test_no_model_is_an_error(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match="no model"):
        inspect_pair(tmp_path / "empty", folders["byte-level"])


def test_the_command_shows_it(folders: dict[str, Path]) -> None:
    shown = CliRunner().invoke(command, [str(folders["sentencepiece"]), str(folders["byte-level"])])
    assert shown.exit_code == 0, shown.output
    for word in ("end of turn", "<end_of_turn>", "of English and code", "bridge: auto"):
        assert word in shown.output


@pytest.mark.models
def test_the_demo_pair() -> None:
    report = inspect_pair(resolve("qwen2.5-coder-1.5b"), resolve("smollm2-135m"))
    assert report.map is not None and report.draft is not None
    assert report.map.shared_plain == 39_234 and report.map.shared == 39_237
    assert 0.80 < report.map.of_sample < 0.87  # of this page's tokens; 0.834 when measured
    assert report.draft.missing_bytes == 21
