"""What this verifier's tokens depend on, so that nobody goes on elsewhere in other words.

Knows which parts there are. Does not know who compares them (verifier/service.py at open, the
drafter at a first verdict).
"""

from __future__ import annotations

from pathlib import Path

import torch

from common.device.choice import Device
from common.model.language_model import LanguageModel
from common.types import ModelIdentity
from common.vocabulary.files import TokenizerFiles
from common.weights.fingerprint import weights_sha256

NUMERICS = 1  # raise it when our own arithmetic changes a bit: attention, kernels, acceptance


def identity_of(
    folder: Path, files: TokenizerFiles, model: LanguageModel, device: Device, ranks: int
) -> ModelIdentity:
    """Of a target that is loaded. Reads all its weights if nobody has before."""
    return ModelIdentity(
        weights=weights_sha256(folder),
        numerics=numerics_of(model, device, ranks),
        tokenizer=files.whole_sha256,
        chat_template=files.chat_template_sha256,
    )


def numerics_of(model: LanguageModel, device: Device, ranks: int) -> str:
    """Threads aren't in it: they change no bit where rows are invariant."""
    where = device.name
    if device.place.type == "cpu":
        where = f"cpu {torch.backends.cpu.get_cpu_capability()}"
    parts = [
        where,
        device.dtype_name,
        f"linear {model.arithmetic}",
        f"ranks {ranks}",
        f"torch {torch.__version__}",
        f"numerics {NUMERICS}",
    ]
    if not model.row_invariant:
        parts.append("not row-invariant")
    return ", ".join(parts)
