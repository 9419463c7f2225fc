"""Many small host tensors to the device in one copy, without waiting and without new memory.

Knows bytes and where each tensor lies among them. Does not know what they mean. A copy from
ordinary host memory waits for the device; from pinned memory it queues behind what runs already,
and one copy of all costs what one of the smallest costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from common.device.runtime import Runtime

ALIGNED = 64  # bytes: kernels are compiled for addresses that are multiples of 16


class Staging:
    """One engine's. What `send` gave is valid until the next `send`."""

    def __init__(self, device: torch.device, runtime: Runtime, size: int = 1 << 20) -> None:
        """size: bytes; it doubles where a step needs more, which is a step that waits."""
        self._place, self._runtime = device, runtime
        self._left = runtime.event()
        self._make(size)

    def _make(self, size: int) -> None:
        self._host = torch.empty(size, dtype=torch.uint8, pin_memory=self._runtime.pinned)
        self._device = torch.empty(size, dtype=torch.uint8, device=self._place)

    def send(self, parts: Sequence[Any]) -> list[Any]:
        """The same parts on the device; each is a dataclass of tensors, a tensor, or None."""
        sent = iter(self._send([tensor for part in parts for tensor in _tensors(part)]))
        there: list[Any] = []
        for part in parts:
            if part is None or isinstance(part, Tensor):
                there.append(None if part is None else next(sent))
            else:
                there.append(type(part)(**{name: next(sent) for name in vars(part)}))
        return there

    def _send(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        places = []
        end = 0
        for tensor in tensors:
            places.append(end)
            end += -(-tensor.nbytes // ALIGNED) * ALIGNED
        self._left.wait()  # the last copy has left the host's side
        if end > len(self._host):
            self._make(1 << (end - 1).bit_length())
        for tensor, place in zip(tensors, places, strict=True):
            if tensor.nbytes:
                _view(self._host, place, tensor).copy_(tensor)
        self._device[:end].copy_(self._host[:end], non_blocking=True)
        self._left.record()
        return [
            _view(self._device, place, tensor)
            for tensor, place in zip(tensors, places, strict=True)
        ]


class HostBuffer:
    """A buffer on the host for what comes back: one copy, then one wait, whose end is `landed`."""

    def __init__(self, size: int, dtype: torch.dtype, runtime: Runtime) -> None:
        self._host = torch.empty(size, dtype=dtype, pin_memory=runtime.pinned)
        self.landed = runtime.event()

    def fetch(self, values: Tensor) -> Tensor:
        """values: contiguous, of this dtype. A host tensor that the next `fetch` overwrites."""
        host = self._host[: values.numel()].view(values.shape)
        host.copy_(values, non_blocking=True)
        self.landed.record()
        self.landed.wait()
        return host


def _tensors(part: Any) -> list[Tensor]:
    if part is None or isinstance(part, Tensor):
        return [] if part is None else [part]
    return list(vars(part).values())


def _view(buffer: Tensor, offset: int, like: Tensor) -> Tensor:
    return buffer[offset : offset + like.nbytes].view(like.dtype).view(like.shape)
