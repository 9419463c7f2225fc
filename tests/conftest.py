"""Settings of all tests: no timing is asserted, and CI repeats what passed before.

Kernels run in Triton's interpreter, which must be chosen before triton is imported.
"""

from __future__ import annotations

import os

from common.kernels.interpreter import interpret

interpret()

from hypothesis import settings  # noqa: E402

settings.register_profile(
    "crossdraft", deadline=None, max_examples=50, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("crossdraft")
