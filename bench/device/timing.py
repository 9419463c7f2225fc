"""Time on a device over rotating inputs, and the rate of its matrix units.

On a GPU: calls are captured into one CUDA graph and its replays timed by events, median over
replays. On the CPU: the wall clock, which says that something runs and nothing more.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from bench.device.clock import event_seconds

COLD = 192 << 20  # bytes of inputs to rotate through: some three times an H200's L2 cache


def sets_for(bytes_each: int, at_most: int = 160) -> int:
    """How many input sets make a replay read from memory, not from the cache."""
    return max(1, min(at_most, -(-COLD // max(bytes_each, 1))))


def microseconds(
    calls: Sequence[Callable[[], object]], device: torch.device, budget: float = 0.15
) -> float:
    """Median time per call. budget: seconds to spend on replays, after one of warming up."""
    if device.type != "cuda":
        calls[0]()
        start = time.perf_counter()
        calls[0]()
        return (time.perf_counter() - start) * 1e6
    calls[0]()  # compiles; allocates handles
    torch.cuda.synchronize()
    replay = _captured(calls)
    replay()
    torch.cuda.synchronize()
    first = event_seconds(replay)
    times = [event_seconds(replay) for _ in range(max(3, min(30, int(budget / max(first, 1e-6)))))]
    return statistics.median(times) * 1e6 / len(calls)


def _captured(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """One graph of all calls; the calls themselves, and a word, where torch can't capture them."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except RuntimeError as error:
        print(f"not captured: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
        return lambda: [call() for call in calls]
    return graph.replay


def matmul_rate(device: torch.device) -> float:
    """Operations per second of a large bfloat16 product of random matrices."""
    n = 8192 if device.type == "cuda" else 64
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / microseconds([lambda: a @ b] * 4, device) * 1e6
