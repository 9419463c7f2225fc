"""All that is CUDA's own: graph capture, waiting, clocks, memory, behind the Runtime protocol.

Knows torch.cuda. Does not know models, sessions, and why somebody waits. Without a GPU a step is
run eagerly where it would be replayed, and the same code runs around it, in tests and small trials.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import torch


@dataclass(frozen=True)
class Card:
    """One GPU as torch sees it."""

    name: str
    capability: tuple[int, int]
    total_bytes: int


@dataclass(frozen=True)
class Memory:
    """Bytes of the device: free for anybody, in all, and used by this process's own tensors."""

    free: int
    total: int
    own: int


class Event(Protocol):
    """A place in the device's work."""

    def record(self) -> None:
        """Put it behind everything that was asked of the device so far."""

    def wait(self) -> None:
        """Wait until the device has come to it; not at all if the event was never recorded."""

    def seconds_since(self, earlier: Event) -> float:
        """On the device, between two marks that it has passed."""


class Runtime(Protocol):
    """What a device offers beside tensors. Used by one thread at a time."""

    pinned: bool  # whether host memory that is copied from without waiting must be pinned

    def enter(self) -> None:
        """Make this thread's launches go to the device. Once in every thread that launches."""

    def check(self) -> None:
        """Raise if the device can do nothing more: after some errors a process has lost it."""

    def event(self) -> Event: ...

    def capture_graph(self, step: Callable[[], None]) -> Callable[[], None]:
        """What does `step`'s work again, over the same memory."""

    def memory(self) -> Memory: ...

    def limit(self, fraction: float) -> None:
        """Refuse this process more than that share of the device's memory."""

    def settle(self) -> None:
        """Wait for everything and give back what nobody holds any more."""


class CudaEvent:
    """An event of the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, CudaEvent)
        return earlier._event.elapsed_time(self._event) / 1e3


class Cuda:
    """One GPU."""

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = torch.device("cuda", device.index or 0)
        self._pool: Any = None  # torch's handle of it

    def enter(self) -> None:
        torch.cuda.set_device(self._device)

    def check(self) -> None:
        torch.cuda.synchronize(self._device)

    def event(self) -> CudaEvent:
        return CudaEvent()

    def capture_graph(self, step: Callable[[], None]) -> Callable[[], None]:
        """All CUDA graphs share one pool of memory: they never run at once.

        The step runs once before, since kernels and workspaces are made on first use.
        """
        step()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        self._pool = graph.pool()
        return graph.replay

    def memory(self) -> Memory:
        free, total = torch.cuda.mem_get_info(self._device)
        return Memory(free, total, torch.cuda.memory_reserved(self._device))

    def limit(self, fraction: float) -> None:
        torch.cuda.set_per_process_memory_fraction(fraction, self._device)

    def settle(self) -> None:
        self._pool = None  # of steps that are gone: a pool ends with its last graph
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


class EagerEvent:
    """The host's clock: a call's work is done when it returns."""

    def __init__(self) -> None:
        self._at = 0.0

    def record(self) -> None:
        self._at = time.perf_counter()

    def wait(self) -> None: ...

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, EagerEvent)
        return self._at - earlier._at


class EagerRuntime:
    """No GPU: tensors in the host's memory, eager steps instead of replayed ones."""

    pinned = False

    def enter(self) -> None: ...

    def check(self) -> None: ...

    def event(self) -> EagerEvent:
        return EagerEvent()

    def capture_graph(self, step: Callable[[], None]) -> Callable[[], None]:
        return step

    def memory(self) -> Memory:
        memory = psutil.virtual_memory()
        return Memory(memory.available, memory.total, 0)

    def limit(self, fraction: float) -> None: ...

    def settle(self) -> None: ...


def runtime_of(device: torch.device) -> Runtime:
    """The device's runtime; one for each model, since its CUDA graphs share memory."""
    return Cuda(device) if device.type == "cuda" else EagerRuntime()


def visible_cards() -> list[Card]:
    """The GPUs that torch can use, in its order."""
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        each = torch.cuda.get_device_properties(index)
        found.append(Card(each.name, (each.major, each.minor), each.total_memory))
    return found
