"""Loads a model from a folder, in the parts that a process holds, and checks its tensors.

Knows transformers' loading. Does not know what runs the model.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from common.causes import refusing
from common.errors import WeightsError
from common.model import discovery
from common.weights.tensors import check_tensors


def load_checked(folder: Path, dtype: torch.dtype | None, **spread: Any) -> PreTrainedModel:
    """Read safetensors in `folder`, never code and never pickles; dtype: None is as stored.

    spread: keywords of from_pretrained that say which process holds which part.
    Raises WeightsError: over files that aren't a model's, and see check_tensors.
    """
    disable_progress_bar()  # a log is no terminal
    with loading_from(folder):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype or "auto",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused by name below
            **spread,
        )
        model: PreTrainedModel
        model, loading = loaded
        check_tensors(model, loading)
        discovery.restore_buffers(model)
    return model


def loading_from(folder: Path) -> AbstractContextManager[None]:
    """What transformers raises over a model's files becomes WeightsError."""
    return refusing(WeightsError, f"{folder} holds no model that transformers can load")
