"""Where a model runs and in which numbers, from what a setting asks for and what is there.

Knows names, and which numbers each kind of device can do. Does not know models, and CUDA itself
(common/device/runtime.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from common.device.runtime import Card, visible_cards
from common.errors import ConfigError

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_CUDA = re.compile(r"cuda(?::(\d{1,3}))?")
_MINIMUM = (8, 0)  # compute capability: for older GPUs no kernel is compiled in any test


# Rows in one forward pass, where nobody says. On a GPU 64 sessions with seven drafts each fit into
# one, and it is what CUDA graphs are captured for; on the CPU a long pass makes rounds wait.
BATCH_ROWS = {"cpu": 128, "cuda": 512}


@dataclass(frozen=True)
class Device:
    """What was chosen."""

    place: torch.device
    dtype: torch.dtype
    name: str  # of the hardware, for the log

    @property
    def dtype_name(self) -> str:
        """As settings and messages write it."""
        return str(self.dtype).removeprefix("torch.")

    def batch_rows(self, asked: int | None, minimum: int = 1) -> int:
        """What a setting asks for, or else what is usual here, but not less than `minimum`."""
        return max(BATCH_ROWS[self.place.type], minimum) if asked is None else asked

    def __str__(self) -> str:
        return f"{self.place} ({self.name}) in {self.dtype_name}"


def choose_device(device: str, dtype: str, cards: Sequence[Card] | None = None) -> Device:
    """device: auto, cpu, cuda or cuda:N; dtype: auto or a name of DTYPES.

    auto is a GPU, in bfloat16, where torch can use one. cards: the GPUs that are there; None asks
    torch. Raises ConfigError for what isn't there or can't be done.
    """
    if device == "cpu":
        return _cpu(dtype)
    asked = _CUDA.fullmatch(device)
    if asked is None and device != "auto":
        raise ConfigError(f"device is {device!r}; it must be auto, cpu, cuda or cuda:N")
    cards = visible_cards() if cards is None else cards
    if asked is None and not cards:
        return _cpu(dtype)
    index = int(asked[1] or 0) if asked else 0
    if index >= len(cards):
        there = f"cuda:0 to cuda:{len(cards) - 1}" if len(cards) > 1 else "cuda:0 alone"
        there = f"there is {there}" if cards else "torch finds no CUDA device on this machine"
        raise ConfigError(f"device is {device!r}; {there}")
    card = cards[index]
    if card.capability < _MINIMUM:
        raise ConfigError(
            f"device is {device!r}, {card.name} of compute capability {_dotted(card.capability)}; "
            f"it must be at least {_dotted(_MINIMUM)}"
        )
    dtype = "bfloat16" if dtype == "auto" else dtype
    return Device(torch.device("cuda", index), _known(dtype), card.name)


def _cpu(dtype: str) -> Device:
    if _known("float32" if dtype == "auto" else dtype) is not torch.float32:
        raise ConfigError(f"dtype is {dtype!r}; on the CPU it must be auto or float32")
    return Device(torch.device("cpu"), torch.float32, "every row as if it were alone")


def _known(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
