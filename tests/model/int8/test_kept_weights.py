"""Rounded weights that are kept beside a model: made once, checked, never run if they don't fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from common.model import loading
from common.model.cpu import lean_file
from common.model.cpu.lean_model import LeanModel
from common.model.loading import load_model
from common.weights.fingerprint import weights_sha256
from tests.model.int8.lean_models import tiny
from tests.model.int8.test_lean import of_chunks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CROSSDRAFT_CACHE", str(tmp_path / "cache"))
    tiny("qwen3").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_weights_are_rounded_once_and_mapped_from_then_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_model(folder, "int8")
    assert (folder / lean_file.NAME).is_file()
    expected = of_chunks(first, 17)
    monkeypatch.setattr(loading, "_make", None)  # would raise
    again = load_model(folder, "int8")
    assert isinstance(again, LeanModel) and again.row_invariant
    assert torch.equal(of_chunks(again, 17), expected)
    assert (again.eos_ids, again.max_context_length) == (first.eos_ids, first.max_context_length)
    assert all(each.data_ptr() % 64 == 0 for each in again.weights.values())


def test_other_weights_or_a_broken_file_are_rounded_again(folder: Path) -> None:
    expected = of_chunks(load_model(folder, "int8"), 17)
    kept = (folder / lean_file.NAME).read_bytes()
    (folder / lean_file.NAME).write_bytes(kept[:1000])
    assert torch.equal(of_chunks(load_model(folder, "int8"), 17), expected)
    assert (folder / lean_file.NAME).read_bytes() == kept
    other = tiny("qwen3")
    other.model.norm.weight.data *= 2
    other.save_pretrained(folder)
    assert not torch.equal(of_chunks(load_model(folder, "int8"), 17), expected)


@pytest.mark.parametrize("name", ["layers.1.gates.panels", "layers.0.down.scales", "last_norm"])
def test_a_kept_file_of_other_shapes_is_rounded_again_and_never_run(
    folder: Path, name: str
) -> None:
    """Kernels read what they are asked to: nothing that a folder holds may be out of bounds."""
    first = load_model(folder, "int8")
    assert isinstance(first, LeanModel)
    expected = of_chunks(first, 17)
    kept = lean_file.read([folder], weights_sha256(folder))
    assert kept is not None
    about, weights = kept
    cut = {each: weights[each].clone() for each in weights}
    cut[name] = cut[name][: len(cut[name]) // 2] if len(cut[name]) > 1 else cut[name][:, :32]
    assert lean_file.write([folder], weights_sha256(folder), about, cut)
    assert torch.equal(of_chunks(load_model(folder, "int8"), 17), expected)
    again = lean_file.read([folder], weights_sha256(folder))
    assert again is not None and again[1][name].shape == weights[name].shape


@pytest.mark.parametrize("name", ["kv_heads", "depth", "head_size"])
def test_a_kept_file_of_other_sizes_is_rounded_again(folder: Path, name: str) -> None:
    expected = of_chunks(load_model(folder, "int8"), 17)
    sha256 = weights_sha256(folder)
    kept = lean_file.read([folder], sha256)
    assert kept is not None
    about, weights = kept
    about["architecture"][name] = 0
    assert lean_file.write(
        [folder], sha256, about, {each: weights[each].clone() for each in weights}
    )
    assert torch.equal(of_chunks(load_model(folder, "int8"), 17), expected)


def test_a_folder_that_is_only_read_keeps_its_file_in_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = lean_file._blocks

    def refusing(*arguments: Any) -> Any:
        if not list(tmp_path.glob("cache/int8-*")):
            raise PermissionError("read-only")
        return write(*arguments)

    monkeypatch.setattr(lean_file, "_blocks", refusing)
    load_model(folder, "int8")
    monkeypatch.setattr(loading, "_make", None)
    assert isinstance(load_model(folder, "int8"), LeanModel)
    assert not (folder / lean_file.NAME).exists()
    assert not list(folder.glob("tmp*"))


def test_without_kernels_exact_is_taken_and_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "kernels", lambda: None)
    model = load_model(folder, "int8")
    assert model.arithmetic == "exact"
    assert (
        "int8 needs compiled kernels, which this installation lacks: exact instead" in caplog.text
    )
