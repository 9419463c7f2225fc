"""Every kernel becomes machine code for the GPUs that are meant, with its values in registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernels

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile_without_spills(capability: int) -> None:
    """In a process of its own: here kernels are interpreted."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compilation", str(capability)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert made
    assert [one["kernel"] for one in made if one["spilled"]] == []
    anew = {one["kernel"]: one["compiled_anew_for"] for one in made if one["compiled_anew_for"]}
    assert not anew, "a batch's sizes would stop a service for a compilation"

    scans = [one for one in made if one["kernel"].startswith("scan")]
    assert scans and all(one["wide_loads"] >= 4 for one in scans)  # 16 bytes at a time
    assert all(one["nan_maxima"] for one in scans), "a NaN shows in its row's maximum"
