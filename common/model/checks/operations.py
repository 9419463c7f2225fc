"""Whether what model code does between its linears computes each row as if alone: a proof by parts.

Rows and threads change only how ATen cuts a tensor. An elementwise function has two ways, by
vectors and, at the end of a chunk, element by element; if both give the same bits, no row count and
no number of threads can matter. So one pass over a few rows is watched: each elementwise operation
is computed both ways, and everything else must be known to keep rows apart. What isn't known says
no, by its name.

Knows ATen's operations. Does not know attention, which is ours, and packed linears, which are
probed shape by shape (common/model/cpu/linear.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from common.model.cpu.elementwise import GRAIN

ROWS = 7  # of the pass that is watched; few other sizes are seven
PIECE = 7  # elements: less than one step of vectors anywhere
COMPARED = 4096  # elements, which vectors compute as a whole

# They bring values to other places, or rows to an order of their own; the products are other names
# of exact ones.
_MOVES = frozenset({
    "alias", "arange", "broadcast_tensors", "broadcast_to", "cat", "chunk", "clone", "concat",
    "contiguous", "copy_", "detach", "detach_", "divide", "dropout", "embedding", "empty",
    "empty_like", "expand_copy", "flatten", "full", "full_like", "gather", "index", "index_put",
    "index_put_", "index_select", "lift_fresh", "multiply", "new_empty", "new_zeros", "ones_like",
    "pad", "repeat", "repeat_interleave", "reshape", "resolve_conj", "resolve_neg", "roll",
    "scatter", "scatter_", "sort", "split", "split_with_sizes", "stack", "tile", "to", "topk",
    "type_as", "unbind", "view_as", "where", "zeros", "zeros_like",
})  # fmt: skip
# Each row's own numbers in one order: threads share rows, and split one only from GRAIN elements.
_WITHIN_ROWS = frozenset({
    "amax", "amin", "argmax", "cumsum", "layer_norm", "linalg_vector_norm", "log_softmax",
    "logsumexp", "max", "mean", "min", "norm", "rms_norm", "softmax", "std", "sum", "var",
})  # fmt: skip
_PACKED_LINEARS = frozenset(("mkldnn::_linear_pointwise", "quantized::linear_dynamic_fp16"))
_PRODUCTS = frozenset(("mm", "bmm", "matmul"))


def watch(run: Callable[[int], object]) -> Watched:
    """Watch a pass. run: one over so many rows, without attention."""
    watched = Watched()
    with watched:
        run(ROWS)
    return watched


class Watched(TorchDispatchMode):
    """A pass, operation by operation.

    mixing: names of those that aren't known to keep rows apart. widest: elements of a row in the
    widest elementwise operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mixing: set[str] = set()
        self.widest = 1
        self._compared: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if torch.Tag.pointwise in func.tags:  # before an in-place one changes what it reads
            self._compare(func, args, keywords)
            result = func(*args, **keywords)
            if result.is_floating_point():
                self.widest = max(self.widest, result.numel() // ROWS)
            return result
        result = func(*args, **keywords)
        if not _keeps_rows_apart(func, args, result):
            self.mixing.add(func.name())
        return result

    def _compare(self, func: Any, args: Sequence[Any], keywords: dict[str, Any]) -> None:
        """An operation with the same numbers beside its tensors is computed both ways once."""
        others = [each for each in args if not isinstance(each, Tensor)]
        signature = f"{func.name()} {others} {keywords}"
        if signature in self._compared:
            return
        self._compared.add(signature)
        if not _same_both_ways(func, args, keywords):
            self.mixing.add(func.name())


def _same_both_ways(func: Any, args: Sequence[Any], keywords: dict[str, Any]) -> bool:
    if "out" in keywords:
        return False
    places = [i for i, each in enumerate(args) if isinstance(each, Tensor) and each.dim()]
    if not places:
        return True
    shape = torch.broadcast_shapes(*(args[i].shape for i in places))
    flat = {i: args[i].expand(shape).reshape(-1)[:COMPARED].clone() for i in places}

    def compute(begin: int, end: int) -> Tensor:
        cut = [flat[i][begin:end].clone() if i in flat else each for i, each in enumerate(args)]
        result: Tensor = func(*cut, **keywords)
        return result

    count = len(flat[places[0]])
    whole = compute(0, count)
    pieces = [compute(begin, begin + PIECE) for begin in range(0, count, PIECE)]
    return torch.equal(whole.nan_to_num(), torch.cat(pieces).nan_to_num())


def _keeps_rows_apart(func: Any, args: Sequence[Any], result: Any) -> bool:
    if not isinstance(result, Tensor) or not result.is_floating_point():
        results = result if isinstance(result, tuple | list) else ()
        floats = [each for each in results if isinstance(each, Tensor) and each.is_floating_point()]
        if not floats:
            return True  # whole numbers are exact, whatever their order
        result = floats[0]
    name = func.name().removeprefix("aten::").split(".")[0]
    if name == "index_put_" and True in args[3:]:
        return False  # it adds up
    if func.is_view or name in _MOVES or func.name().split(".")[0] in _PACKED_LINEARS:
        return True
    first = args[0]
    if name in _PRODUCTS:
        return bool(first.shape[-1] == 1)  # no sum, as in rotary frequencies
    if name in _WITHIN_ROWS:
        rows_stay = ROWS in result.shape or ROWS not in first.shape
        return rows_stay and first.numel() < GRAIN * max(result.numel(), 1)
    return False
