"""Which build of the kernels this machine runs, and its functions.

All builds compute the same bits: sums of integers are exact, and floats go through operations that
IEEE 754 defines. They differ in speed. Does not know tensors and models.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from functools import cache
from pathlib import Path
from typing import Any

from common.native.structs import INTERFACE_VERSION, Activations, Batch, Linear, Model

log = logging.getLogger(__name__)

# What a build needs, as /proc/cpuinfo names it; the best comes first.
_AVX512 = frozenset({"fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"})
LEVELS: dict[str, frozenset[str]] = {
    "amx": _AVX512 | {"amx_tile", "amx_int8"},
    "vnni": _AVX512,
    "avx2": frozenset({"avx2", "fma"}),
    "plain": frozenset(),
}


class Kernels:
    """One build."""

    def __init__(self, level: str, library: Any) -> None:
        self.level = level
        self._library = library
        library.pool_create.restype = ctypes.c_void_p
        library.pool_destroy.argtypes = library.pool_threads.argtypes = [ctypes.c_void_p]
        library.step.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(Model),
            ctypes.POINTER(Batch),
        ]
        library.product.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(Linear),
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            Activations,
            ctypes.c_void_p,
            ctypes.c_int64,
        ]
        library.step.restype = library.product.restype = library.pool_destroy.restype = None

    def pool(self, threads: int) -> Pool:
        return Pool(self._library, threads)

    def step(self, pool: Pool, model: Model, batch: Batch) -> None:
        """See src/step.h. The interpreter's lock is free meanwhile."""
        self._library.step(pool.address, model, batch)

    def product(
        self,
        pool: Pool,
        by: Linear,
        rows: int,
        count: int,
        width: int,
        scratch: Activations,
        out: int,
        outer: int,
    ) -> None:
        """rows: address of float32 [count, width]; out: of float32 [count, outer]."""
        self._library.product(pool.address, by, rows, width, count, scratch, out, outer)


class Pool:
    """Threads that compute together. One caller at a time."""

    def __init__(self, library: Any, threads: int) -> None:
        self.address = library.pool_create(threads)
        if not self.address:
            raise MemoryError(f"no memory for {threads} threads")
        if (given := library.pool_threads(self.address)) < threads:
            log.warning("the system gives %d threads, not %d", given, threads)
        weakref.finalize(self, library.pool_destroy, self.address)


@cache
def kernels(level: str | None = None) -> Kernels | None:
    """The best build that is there and runs here, or the one of that level; None: there is none."""
    here = _instructions()
    for name, needed in LEVELS.items():
        if level in (None, name) and needed <= here and (library := _load(name)) is not None:
            return Kernels(name, library)
    return None


def _load(level: str) -> Any | None:
    for path in Path(__file__).parent.glob(f"kernels_{level}.*"):
        try:
            library = ctypes.CDLL(str(path))
            library.interface_version.restype = ctypes.c_int64
            found = library.interface_version()
        except (OSError, AttributeError) as cause:
            log.warning("%s can't be loaded: %s", path, cause)
            continue
        if found != INTERFACE_VERSION:
            log.warning("%s is of another version: install crossdraft again", path)
        elif library.product_ready():
            return library
    return None


def _instructions() -> frozenset[str]:
    """What this processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
