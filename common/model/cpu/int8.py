"""Linear layers in int8: weights rounded once, activations as two int8 rows, integer sums.

A weight is `scale * n` with n from -127 to 127 and a scale for each 512 inputs of an output
channel. An activation row is rounded in two steps, which keeps some 15 bits of it
(common/native/src/product.h). The sums are exact, so a row's product is the same beside any other
rows and on any number of threads; it isn't the float32 model's, whose weights these no longer are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from common.native.library import Kernels, Pool, kernels
from common.native.structs import DEPTH, GROUP, PANEL, SHARED, Activations, Linear, filled_up

PAIR = 2 * PANEL  # channels that are multiplied together
_ROWS_AT_ONCE = 4096  # of a weight, in float32 meanwhile


@dataclass(frozen=True)
class Int8Weights:
    """Of one linear layer, or of several side by side."""

    panels: Tensor  # int8 [outer / 16, inner / 64, 16, 16, 4], see common/native/src/product.h
    scales: Tensor  # float32 [inner / 512, rounded up; outer]
    sums: Tensor  # int32, likewise: of the weights that share a scale
    bias: Tensor | None  # float32 [outer]

    @property
    def inner(self) -> int:
        return self.panels.shape[1] * DEPTH

    @property
    def outer(self) -> int:
        return self.panels.shape[0] * PANEL

    def described(self) -> Linear:
        """For the kernels, as long as the tensors live."""
        assert self.panels.data_ptr() % 64 == 0
        bias = None if self.bias is None else self.bias.data_ptr()
        pointers = (each.data_ptr() for each in (self.panels, self.scales, self.sums))
        return Linear(*pointers, bias, self.inner, self.outer)


def quantise(weight: Tensor, bias: Tensor | None) -> Int8Weights:
    """weight: [out, in], bias: [out], of any floating dtype; channels are filled up to pairs."""
    out, width = weight.shape
    outer, inner = filled_up(out, PAIR), filled_up(width, DEPTH)
    blocks, groups = inner // DEPTH, -(-inner // SHARED)
    panels = torch.zeros((outer // PANEL, blocks, PANEL, PANEL, 4), dtype=torch.int8)
    scales, sums = torch.zeros(groups, outer), torch.zeros((groups, outer), dtype=torch.int32)
    for begin in range(0, out, _ROWS_AT_ONCE):
        rows = weight[begin : begin + _ROWS_AT_ONCE].detach().float()
        count, places = len(rows), slice(begin, begin + len(rows))
        grouped = pad(rows, (0, groups * SHARED - width)).view(count, groups, SHARED)
        scale = grouped.abs().amax(2) / 127  # [rows, groups]
        whole = (grouped / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, :, None]).round()
        scales[:, places], sums[:, places] = scale.T, whole.sum(2, dtype=torch.int32).T
        flat = pad(whole.view(count, -1)[:, :inner], (0, 0, 0, filled_up(count, PANEL) - count))
        cut = flat.to(torch.int8).view(-1, PANEL, blocks, DEPTH // 4, 4)
        panels[begin // PANEL : begin // PANEL + len(cut)] = cut.permute(0, 2, 3, 1, 4)
    return Int8Weights(panels, scales, sums, None if bias is None else _filled(bias, outer))


def side_by_side(parts: Sequence[Int8Weights]) -> Int8Weights:
    """Their channels one after another; each must have whole panels of its own."""
    return Int8Weights(
        torch.cat([part.panels for part in parts]),
        torch.cat([part.scales for part in parts], 1),
        torch.cat([part.sums for part in parts], 1),
        _biases(parts, lambda biases: torch.cat(list(biases))),
    )


def interleaved(gate: Int8Weights, up: Int8Weights) -> Int8Weights:
    """Panels of both in turn, as the kernels read gated products."""

    def in_turn(tensors: Sequence[Tensor]) -> Tensor:
        """Of [..., outer]."""
        cut = [each.unflatten(-1, (-1, PANEL)) for each in tensors]
        return torch.stack(cut, -2).flatten(-3)

    parts = (gate, up)
    return Int8Weights(
        torch.stack([part.panels for part in parts], 1).flatten(0, 1),
        in_turn([part.scales for part in parts]),
        in_turn([part.sums for part in parts]),
        _biases(parts, in_turn),
    )


def _biases(
    parts: Sequence[Int8Weights], join: Callable[[Sequence[Tensor]], Tensor]
) -> Tensor | None:
    if all(part.bias is None for part in parts):
        return None
    return join([torch.zeros(p.outer) if p.bias is None else p.bias for p in parts])


def _filled(values: Tensor, count: int) -> Tensor:
    return pad(values.detach().float(), (0, count - len(values)))


class Scratch:
    """Where activations lie while they are multiplied."""

    def __init__(self) -> None:
        self._parts, self._scales = torch.empty(0, dtype=torch.int8), torch.empty(0)

    def for_rows(self, rows: int, inner: int) -> Activations:
        count = filled_up(rows, GROUP)
        if len(self._scales) < count or len(self._parts) < 2 * count * inner:
            self._scales = torch.empty(max(count, len(self._scales)))
            self._parts = torch.empty(max(2 * count * inner, len(self._parts)), dtype=torch.int8)
        return Activations(self._parts.data_ptr(), self._scales.data_ptr())


class _Own(threading.local):
    """Of each thread that runs a model."""

    def __init__(self) -> None:
        self.pools: dict[int, Pool] = {}
        self.scratch = Scratch()


_own = _Own()


class Int8Linear(nn.Module):
    """A frozen linear layer, float32 [..., in] -> float32 [..., out]."""

    row_invariant = True

    def __init__(self, linear: nn.Linear, build: Kernels | None = None) -> None:
        """build: None is the best that runs here."""
        super().__init__()
        found = build or kernels()
        assert found is not None
        self._kernels = found
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = quantise(linear.weight, linear.bias)
        self._described = self.packed.described()

    @property
    def weight(self) -> Tensor:
        """An empty tensor with the dtype and device that model code reads from a layer."""
        return torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        width = filled_up(self.in_features, PANEL)
        rows = rows if width == self.in_features else pad(rows, (0, width - self.in_features))
        rows = rows.contiguous()
        count = len(rows)
        out = torch.empty((count, self.out_features))
        threads = torch.get_num_threads()
        pool = _own.pools.get(threads) or self._kernels.pool(threads)
        _own.pools[threads] = pool
        scratch = _own.scratch.for_rows(count, self.packed.inner)
        self._kernels.product(
            pool, self._described, rows.data_ptr(), count, width, scratch, out.data_ptr(),
            self.out_features,
        )  # fmt: skip
        return out.view(*x.shape[:-1], self.out_features)
