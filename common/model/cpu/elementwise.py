"""Elementwise functions whose bits depend on the element alone, however a tensor is cut.

ATen computes a tensor in one chunk per thread, each in steps of two vectors, and what is left at a
chunk's end element by element. For functions that go through exp or tanh the two ways differ in the
last bit, so an element's bits depend on where chunks end: on the number of threads, and on the rows
beside its own. Here every chunk ends with a whole step; a rest is computed in a tensor that is
filled up. Threads still share the work, and whole tensors go through ATen as they are.

Knows ATen's way to cut. Does not know models. Functions that are exact, as sums and products are,
or that ATen computes by vectors throughout (exp, tanh, sin), are left alone; which need this is
measured at start (common/model/checks/operations.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# at::internal::GRAIN_SIZE, elements: smaller tensors are one chunk, larger ones have at most one
# chunk for each so many.
GRAIN = 32_768
# GELU_MIN_ELEMENTS_FOR_MULTI_THREADING: larger tensors have as many chunks as there are threads.
GELU_GRAIN = 16_384
STEP = 64  # elements: a whole number of steps of two vectors, up to 1,024 bits wide

Chunks = Callable[[int, int], int]  # elements, threads -> into how many chunks ATen cuts


def _usual_chunks(count: int, threads: int) -> int:
    return max(1, min(threads, -(-count // GRAIN)))


def _gelu_chunks(count: int, threads: int) -> int:
    return threads if count > GELU_GRAIN else 1


CHUNKS: dict[str, Chunks] = {
    "sigmoid": _usual_chunks,
    "silu": _usual_chunks,
    "gelu": _gelu_chunks,
    "softplus": _usual_chunks,
    "elu": _usual_chunks,
    "mish": _usual_chunks,
}


def install() -> None:
    """From now on, and for the whole process, the functions in CHUNKS are computed so on the CPU.

    Model code calls them in many ways (modules, functions, methods), which all end at ATen's own
    operation; that is what is replaced, for some 4 us a call.
    """
    if _installed:
        return
    library = torch.library.Library("aten", "IMPL")
    for name, chunks in CHUNKS.items():
        functional = _by_steps(getattr(torch.ops.aten, name).out, chunks)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl(name, functional, "CPU")
            if hasattr(torch.ops.aten, f"{name}_"):
                library.impl(f"{name}_", _in_place(functional), "CPU")
    _installed.append(library)


def uninstall() -> None:
    """ATen's own functions again: to measure what ours cost."""
    while _installed:
        _installed.pop()._destroy()


_installed: list[torch.library.Library] = []  # what it replaces stays while it lives


def _by_steps(evaluate: Callable[..., Tensor], chunks: Chunks) -> Callable[..., Tensor]:
    """evaluate: ATen's function with an `out`, which is never replaced."""

    def compute(x: Tensor, *args: Any, **keywords: Any) -> Tensor:
        x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        x = x.contiguous()
        result = torch.empty_like(x)
        count = x.numel()
        whole = _in_whole_steps(count, torch.get_num_threads(), chunks)
        if whole == count:
            return evaluate(x, *args, **keywords, out=result)
        flat, flat_result = x.view(-1), result.view(-1)
        if whole:
            evaluate(flat[:whole], *args, **keywords, out=flat_result[:whole])
        for begin in range(
            whole, count, GELU_GRAIN
        ):  # in one chunk, of which few threads leave one
            rest = flat[begin : begin + GELU_GRAIN]
            filled = x.new_zeros(-(-len(rest) // STEP) * STEP)
            filled[: len(rest)] = rest
            computed = evaluate(filled, *args, **keywords, out=torch.empty_like(filled))
            flat_result[begin : begin + GELU_GRAIN] = computed[: len(rest)]
        return result

    return compute


def _in_place(functional: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def compute(x: Tensor, *args: Any, **keywords: Any) -> Tensor:
        return x.copy_(functional(x, *args, **keywords))

    return compute


def _in_whole_steps(count: int, threads: int, chunks: Chunks) -> int:
    """How many of `count` elements, from the first on, ATen cuts between whole steps only."""
    while rest := count % (STEP * chunks(count, threads)):
        count -= rest
    return count
