"""A lean model's tensors in one file beside the model, read by memory map.

The format is safetensors (https://huggingface.co/docs/safetensors), with every tensor at a multiple
of 64 bytes, which its own writer doesn't promise. The file names the weights that it was made from.
Does not know what tensors mean.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

log = logging.getLogger(__name__)

NAME = ".crossdraft-int8"  # not *.safetensors, which are the model's own
FORMAT = "2"  # raise it when tensors mean something else
ALIGNMENT = 64
_FILLER = ".filler"  # of a name: bytes between tensors
_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int8: "I8",
}


def read(places: list[Path], sha256: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """(what was written with them, tensors), of the first file made from weights of this hash."""
    for folder in places:
        with (
            suppress(OSError, SafetensorError, ValueError, KeyError),
            safe_open(folder / NAME, framework="pt", device="cpu") as file,
        ):
            said = file.metadata() or {}
            if said.get("format") == FORMAT and said.get("sha256") == sha256:
                about: dict[str, Any] = json.loads(said["about"])
                names = [name for name in file.keys() if not name.endswith(_FILLER)]  # noqa: SIM118
                return about, {name: file.get_tensor(name) for name in names}
    return None


def write(
    places: list[Path], sha256: str, about: dict[str, Any], tensors: dict[str, Tensor]
) -> Path | None:
    """Into the first of these folders that can be written, whole or not at all; None: into none."""
    metadata = {"format": FORMAT, "sha256": sha256, "about": json.dumps(about)}
    for folder in places:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                try:
                    for block in _blocks(metadata, tensors):
                        file.write(block)
                    file.flush()
                    os.fchmod(file.fileno(), 0o644)
                    os.replace(file.name, folder / NAME)
                except BaseException:
                    os.unlink(file.name)
                    raise
            return folder / NAME
        except OSError as cause:
            log.info("int8 weights aren't kept in %s: %s", folder, cause)
    return None


def _blocks(metadata: dict[str, str], tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    filled: list[tuple[Tensor, int]] = []
    for name, tensor in tensors.items():
        flat = tensor.detach().contiguous()
        size = flat.numel() * flat.itemsize
        header[name] = {
            "dtype": _DTYPES[flat.dtype],
            "shape": list(flat.shape),
            "data_offsets": [at, at + size],
        }
        filler = -size % ALIGNMENT
        filled.append((flat, filler))
        at += size
        if filler:  # the format allows no holes
            header[name + _FILLER] = {
                "dtype": "U8",
                "shape": [filler],
                "data_offsets": [at, at + filler],
            }
            at += filler
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    for flat, filler in filled:
        yield flat.view(-1).view(torch.uint8).numpy().data
        if filler:
            yield bytes(filler)
