"""How weights multiply on this device: one Linear, several packings, one promise each.

exact   oneDNN, float32, prepacked. A row's value doesn't depend on the rows beside it (measured at
        load, per shape; see `row_invariant`), and nine rows cost little more than one.
fp16    FBGEMM, weights packed as float16, float32 sums. Half the memory traffic; rows are invariant
        where measured so, but the weights are rounded unless they were float16 already.
int8    our own kernels: weights of 8 bits, integer sums (common/model/cpu/int8.py). Row-invariant
        by construction and a quarter of the memory traffic; weights are rounded: another model.
plain   torch.nn.functional.linear. Neither fast for few rows nor row-invariant.

The ops behind the first two are private to torch, so they are looked for, and nothing else in the
repository names them. Does not know which layer is which.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from common.model.cpu.int8 import Int8Linear
from common.model.language_model import Packing
from common.native.library import kernels

log = logging.getLogger(__name__)

Multiply = Callable[[Tensor], Tensor]  # [rows, in] float32 -> [rows, out] float32

# Row counts that the probe compares. 1 against 2 is where blocking over the inner dimension starts
# to differ on AVX-512; the others straddle the kernels' row tiles.
_PROBE_ROWS = (1, 2, 3, 5, 9, 16, 17, 33, 64, 65, 129)


class PackedLinear(nn.Module):
    """A frozen float32 linear layer, [..., in] -> [..., out], with prepacked weights.

    `row_invariant` says whether the probe found every row count to give the same bits.
    """

    def __init__(self, linear: nn.Linear, packing: Packing) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._multiply = _pack(linear, packing)
        self.smallest_batch, self.row_invariant = _probe(
            self._multiply, self.in_features, (packing, self.in_features, self.out_features)
        )

    @property
    def weight(self) -> Tensor:
        """An empty tensor with the dtype and device that model code reads from a layer."""
        return torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)  # [rows, in]
        count = rows.shape[0]
        if count < self.smallest_batch:
            rows = rows.expand(self.smallest_batch, -1) if count == 1 else rows
            rows = rows.contiguous()
        return self._multiply(rows)[:count].view(*x.shape[:-1], self.out_features)


def pack_linears(model: nn.Module, packing: Packing) -> bool:
    """Replace every linear in `model` by a PackedLinear, freeing the plain weights one by one.

    Returns whether all of them are row-invariant. `plain` leaves the model as it is.
    """
    if packing == "plain":
        return False
    if not available(packing):
        log.warning(
            "packing %r isn't available in this torch; falling back to plain, inexact", packing
        )
        return False
    invariant = True
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            linear = _as_linear(child)
            if linear is not None:
                packed = Int8Linear(linear) if packing == "int8" else PackedLinear(linear, packing)
                invariant &= packed.row_invariant
                setattr(parent, name, packed)
    return invariant


def _as_linear(module: nn.Module) -> nn.Linear | None:
    if type(module) is nn.Linear:
        return module
    if type(module) is not Conv1D:
        return None
    width, out = module.weight.shape  # GPT-2's layer: stored as [in, out]
    linear = nn.Linear(width, out, device="meta")
    linear.weight, linear.bias = nn.Parameter(module.weight.T.contiguous()), module.bias
    return linear


def available(packing: Packing) -> bool:
    """Whether this torch build has the ops that `packing` needs."""
    if packing == "exact":
        return torch.backends.mkldnn.is_available() and hasattr(
            torch.ops.mkldnn, "_reorder_linear_weight"
        )
    if packing == "int8":
        return kernels() is not None
    if packing == "fp16":
        return "fbgemm" in torch.backends.quantized.supported_engines
    return True


def _pack(linear: nn.Linear, packing: Packing) -> Multiply:
    weight = linear.weight.detach().float()  # [out, in]
    bias = None if linear.bias is None else linear.bias.detach().float()
    if packing == "exact":
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        # The overload itself: finding it takes longer than a small product.
        pointwise = torch.ops.mkldnn._linear_pointwise.default
        return lambda rows: pointwise(rows, packed, bias, "none", [], "")
    handle = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    dynamic = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda rows: dynamic(rows, handle)


_probed: dict[tuple[str, int, int], tuple[int, bool]] = {}


def _probe(multiply: Multiply, width: int, shape: tuple[str, int, int]) -> tuple[int, bool]:
    """(smallest row count to multiply with, whether all counts from there give the same bits).

    oneDNN's AVX-512 kernel sums the inner dimension in another order for one row than for two or
    more, where that dimension is over 1,024. Two rows cost what one costs, so one is padded to two.
    """
    if shape in _probed:
        return _probed[shape]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(max(_PROBE_ROWS), width, generator=generator)
    values = {count: multiply(rows[:count].contiguous()) for count in _PROBE_ROWS}
    whole = values[_PROBE_ROWS[-1]]
    same = {count: torch.equal(values[count], whole[:count]) for count in _PROBE_ROWS}
    # A row's place in the batch must not matter either.
    pairs = (multiply(rows[at : at + 2].contiguous()) for at in range(0, 64, 7))
    placed = all(torch.equal(p, whole[7 * i : 7 * i + 2]) for i, p in enumerate(pairs))
    found = (1 if same[1] else 2, placed and all(same[count] for count in _PROBE_ROWS if count > 1))
    _probed[shape] = found
    if not found[1]:
        log.warning("linear %s is not row-invariant on this machine", shape)
    return found
