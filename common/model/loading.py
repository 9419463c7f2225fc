"""A folder's model as engines run it: by transformers' code, or in int8 by the kernels' own pass.

Knows which of the two, and that the second is made from the first, once. Does not know how either
computes.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from common.model.checks import eager_check
from common.model.checks.row_invariance import rows_are_invariant
from common.model.cpu import lean_file
from common.model.cpu.lean_model import About, LeanModel
from common.model.language_model import LanguageModel, Packing
from common.native.library import kernels
from common.weights.fingerprint import weights_sha256
from common.weights.resolve import cache_folder

log = logging.getLogger(__name__)


def load_model(
    folder: Path,
    packing: Packing = "exact",
    threads: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> LanguageModel:
    """Load from safetensors in `folder`; never code, never pickles. See PagedModel.load.

    Raises WeightsError and UnsupportedModel.
    """
    if packing == "int8" and torch.device(device).type == "cpu":
        if (build := kernels()) is not None:
            log.info("int8 products by %s instructions", build.level)
            return _int8(folder, threads)
        log.warning("int8 needs compiled kernels, which this installation lacks: exact instead")
        packing = "exact"
    from common.model.paged_model import PagedModel  # and transformers with it, which takes seconds

    return PagedModel.load(folder, packing, threads, device, dtype)


def _int8(folder: Path, threads: int) -> LanguageModel:
    sha256 = weights_sha256(folder)
    places = [folder, cache_folder() / f"int8-{sha256[:16]}"]
    model = _kept(places, sha256, threads)
    if model is None:
        log.info("rounding the weights of %s to int8, once", folder)
        made = _make(folder, threads)
        if not isinstance(made, LeanModel):
            return made
        about = {
            "architecture": asdict(made.architecture),
            "eos_ids": sorted(made.eos_ids),
            "max_context_length": made.max_context_length,
        }
        file = lean_file.write(places, sha256, about, made.weights)
        kept = _kept(places, sha256, threads) if file is not None else None
        model = kept or made  # from the file, so that memory holds it once
    model.row_invariant = rows_are_invariant(model)
    return model


def _kept(places: list[Path], sha256: str, threads: int) -> LeanModel | None:
    found = lean_file.read(places, sha256)
    if found is None:
        return None
    about, weights = found
    with suppress(KeyError, TypeError):  # of a file that says what it is and isn't
        return LeanModel.of_file(about, weights, threads)
    return None


def _make(folder: Path, threads: int) -> LanguageModel:
    """The kernels' pass, if they know the layers and give the logits of transformers' code."""
    from common.model.cpu import lean_weights
    from common.model.paged_model import PagedModel

    paged = PagedModel.load(folder, "int8", threads)
    prompt = paged.check_prompt
    expected = eager_check.paged_logits(paged, prompt)
    found = lean_weights.read(paged.code, paged.calls)
    if found is None:
        log.info("%s runs by transformers' code, its linears in int8", folder)
        return paged
    about = About(paged.eos_ids, paged.max_context_length)
    del paged
    model = LeanModel(*found, about, threads)
    eager_check.check(model, model.architecture.family, prompt, expected, "int8")
    return model
