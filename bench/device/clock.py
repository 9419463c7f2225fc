"""Times on a device: graph replays between events, and the ceiling that copies give.

Knows clocks. Does not know what is timed. On a machine without CUDA everything runs once, so that
a small form can be tried; its times mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def event_seconds(call: Callable[[], object]) -> float:
    """Seconds on a CUDA device from before `call` to after what it launched."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def seconds_of(call: Callable[[], object], repeats: int = 10, inside: int = 5) -> float:
    """Median seconds of one `call` on the device, recorded `inside` times and replayed."""
    if not torch.cuda.is_available():
        return wall_seconds(call, 1)
    for _ in range(3):
        call()
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inside):
            call()
    graph.replay()
    return median(event_seconds(graph.replay) for _ in range(repeats)) / inside


def wall_seconds(call: Callable[[], object], repeats: int = 10) -> float:
    """Median seconds until `call` and all it started have ended, by the host's clock."""
    if torch.cuda.is_available():
        for _ in range(2):
            call()
    else:
        repeats = 1
    found = []
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        call()
        wait()
        found.append(time.perf_counter() - begin)
    return median(found)


def copy_bytes_per_second(size: int = 4 << 30) -> float:
    """Bytes read plus bytes written in a copy of `size` bytes between two buffers.

    Called, not replayed: in a graph a copy becomes a node of another kind, and slower.
    """
    source = torch.empty(size, dtype=torch.uint8, device=device()).random_()
    target = torch.empty_like(source)
    target.copy_(source)
    if not torch.cuda.is_available():
        return 2 * size / wall_seconds(lambda: target.copy_(source))
    return 2 * size / median(event_seconds(lambda: target.copy_(source)) for _ in range(10))
