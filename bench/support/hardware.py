"""What a benchmark ran on, and how its process uses the cores.

Knows the processor's name, memory, versions. Does not know what is measured.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil


def describe() -> dict[str, Any]:
    """For the head of every result."""
    memory = psutil.virtual_memory()
    return {
        "cpu": _cpu_name(),
        "cores": len(psutil.Process().cpu_affinity() or []) or os.cpu_count(),
        "memory_gib": round(memory.total / 2**30, 1),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def caption(hardware: dict[str, Any]) -> str:
    """One line under a table."""
    return (
        f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB; "
        f"torch {hardware['torch']}, transformers {hardware['transformers']}"
    )


def _cpu_name() -> str:
    """Name, and family and model numbers where the name says little."""
    found: dict[str, str] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in found and "model" in found:
        name += f" (family {found['cpu family']}, model {found['model']})"
    best = next(
        (flag for flag in ("avx512f", "avx2") if flag in found.get("flags", "").split()), ""
    )
    return f"{name}, {best}" if best else name
