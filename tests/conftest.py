"""Settings of all tests: no timing is asserted, and CI repeats what passed before."""

from __future__ import annotations

import os

from common.kernels.interpreter import interpret

interpret()  # before anything imports triton: kernels run without a GPU

from hypothesis import settings  # noqa: E402

settings.register_profile(
    "crossdraft", deadline=None, max_examples=50, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("crossdraft")
