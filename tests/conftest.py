"""Settings of all tests: no timing is asserted, and CI repeats what passed before."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

from hypothesis import settings

settings.register_profile(
    "crossdraft", deadline=None, max_examples=50, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("crossdraft")
