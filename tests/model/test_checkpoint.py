"""A checkpoint is served whole or not at all: what is missing, unknown, misshapen or not finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.errors import WeightsError
from common.model.paged_model import PagedModel
from tests.support.fake_models import random_model

Tensors = dict[str, Tensor]


def changed(folder: Path, change: Callable[[Tensors], object], tied: bool = False) -> Path:
    """A tiny model's files, with `change` made to its tensors."""
    model = random_model("llama", 64)
    model.config.tie_word_embeddings = tied
    if tied:
        model.tie_weights()
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
CASES: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no output layer": (lambda t: t.pop("lm_head.weight"), r"lacks lm_head\.weight"),
    "no projection": (lambda t: t.pop(Q_PROJ), r"lacks model\.layers\.0\.self_attn\.q_proj"),
    "one too many": (
        lambda t: t.update({"model.layers.0.extra.weight": torch.zeros(3)}),
        r"doesn't know: model\.layers\.0\.extra\.weight",
    ),
    "another shape": (
        lambda t: t.update({Q_PROJ: torch.zeros(3, 5)}),
        r"another shape: model\.layers\.0\.self_attn\.q_proj\.weight \[3, 5\] instead of",
    ),
    "NaN": (lambda t: t[Q_PROJ].view(-1)[7:8].fill_(float("nan")), r"NaN or infinity: .*q_proj"),
    "infinity": (
        lambda t: t["model.norm.weight"][-1:].fill_(float("-inf")),
        r"NaN or infinity: model\.norm\.weight",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tensor_that_is_not_as_it_must_be_is_an_error_that_names_it(
    name: str, tmp_path: Path
) -> None:
    change, words = CASES[name]
    with pytest.raises(WeightsError, match=words):
        PagedModel.load(changed(tmp_path, change))


def test_a_whole_checkpoint_is_loaded_with_its_own_tensors(tmp_path: Path) -> None:
    folder = changed(tmp_path, lambda tensors: None)
    first = PagedModel.load(folder).code.state_dict()
    second = PagedModel.load(folder).code.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first if "weight" in name)


def test_a_tied_output_layer_is_not_missing(tmp_path: Path) -> None:
    PagedModel.load(changed(tmp_path, lambda tensors: tensors.pop("lm_head.weight", None), True))


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    def without_layers(tensors: Tensors) -> None:
        for name in [name for name in tensors if "layers" in name]:
            del tensors[name]

    with pytest.raises(WeightsError, match=r"lacks model\.layers.* and \d+ more"):
        PagedModel.load(changed(tmp_path, without_layers))
