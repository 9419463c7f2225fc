"""What the kernels' own pass needs to know of a model: sizes, and tensors by name.

Imports nothing of transformers, which takes seconds: a model that was read before starts without.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
