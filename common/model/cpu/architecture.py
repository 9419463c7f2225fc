"""What the kernels' own pass needs to know of a model: sizes, and tensors by name.

Imports nothing of transformers, which takes seconds: a model that was read before starts without.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.native import structs


@dataclass(frozen=True)
class Architecture:
    """What the kernels need to know beside tensors. All of it is JSON."""

    family: str
    depth: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_width: int
    vocab: int
    activation: int
    epsilon: float
    scaling: float
    windows: list[int]  # of each layer, 0 for none
    angles: list[int]  # of each layer, which rotary frequencies
    angle_scales: list[float]
    embedding_scale: float


Weights = dict[str, Tensor]

ACTIVATIONS = (structs.SILU, structs.GELU)


def is_whole(sizes: Architecture, weights: Weights) -> bool:
    """Whether every tensor has the shape that the kernels will read, which check nothing."""
    counts = (sizes.depth, sizes.width, sizes.heads, sizes.kv_heads, sizes.head_size)
    if min(*counts, sizes.mlp_width, sizes.vocab) < 1:
        return False
    try:
        named = all(
            (found := weights[name]).dtype == dtype
            and tuple(found.shape) == shape
            and found.is_contiguous()
            for name, (dtype, shape) in _expected(sizes, weights).items()
        )
    except KeyError:
        return False
    return (
        named
        and sizes.activation in ACTIVATIONS
        and sizes.heads == sizes.kv_heads * (sizes.heads // sizes.kv_heads)
        and sizes.heads // sizes.kv_heads <= structs.MOST_HEADS
        and len(sizes.windows) == len(sizes.angles) == sizes.depth
        and 1 <= len(sizes.angle_scales) <= structs.MOST_ANGLES
        and all(0 <= each < len(sizes.angle_scales) for each in sizes.angles)
        and not any(each % 16 for each in (sizes.width, sizes.head_size, sizes.mlp_width))
        and weights["embedding"].shape[0] >= sizes.vocab
    )


Shape = tuple[torch.dtype, tuple[int, ...]]


def _expected(sizes: Architecture, weights: Weights) -> dict[str, Shape]:
    heads = sizes.heads * sizes.head_size
    qkv = heads + 2 * sizes.kv_heads * sizes.head_size
    found = {
        "last_norm": (torch.float32, (sizes.width,)),
        **_linear("head", sizes.width, sizes.vocab, weights),
    }
    rows = weights["embedding"].shape[0]
    found["embedding"] = (weights["embedding"].dtype, (rows, sizes.width))
    for kind in range(len(sizes.angle_scales)):
        found[f"angles.{kind}"] = (torch.float32, (sizes.head_size // 2,))
    for layer in range(sizes.depth):
        own = f"layers.{layer}"
        found |= _linear(f"{own}.qkv", sizes.width, qkv, weights)
        found |= _linear(f"{own}.out", heads, sizes.width, weights)
        found |= _linear(
            f"{own}.gates", sizes.width, 2 * structs.filled_up(sizes.mlp_width, 32), weights
        )
        found |= _linear(f"{own}.down", sizes.mlp_width, sizes.width, weights)
        for name in ("before_attention", "before_mlp"):
            found[f"{own}.{name}"] = (torch.float32, (sizes.width,))
        for name in ("after_attention", "after_mlp"):
            if f"{own}.{name}" in weights:
                found[f"{own}.{name}"] = (torch.float32, (sizes.width,))
        for name in ("query_norm", "key_norm"):
            if f"{own}.{name}" in weights:
                found[f"{own}.{name}"] = (torch.float32, (sizes.head_size,))
    return found


def _linear(name: str, width: int, out: int, weights: Weights) -> dict[str, Shape]:
    outer, blocks = (
        structs.filled_up(out, 2 * structs.PANEL),
        structs.filled_up(width, structs.DEPTH) // structs.DEPTH,
    )
    groups = -(-blocks * structs.DEPTH // structs.SHARED)
    panel = (structs.PANEL, structs.PANEL, 4)
    found: dict[str, Shape] = {
        f"{name}.panels": (torch.int8, (outer // structs.PANEL, blocks, *panel)),
        f"{name}.scales": (torch.float32, (groups, outer)),
        f"{name}.sums": (torch.int32, (groups, outer)),
    }
    if f"{name}.bias" in weights:
        found[f"{name}.bias"] = (torch.float32, (outer,))
    return found
