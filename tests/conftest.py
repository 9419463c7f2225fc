"""Settings of all tests: no timing is asserted, and CI repeats what passed before.

Without a GPU, kernels run in Triton's interpreter, which must be chosen before triton is imported.
"""

from __future__ import annotations

import os

import torch
from hypothesis import settings

from common.kernels.interpreter import interpret

settings.register_profile(
    "crossdraft", deadline=None, max_examples=50, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("crossdraft")

if not torch.cuda.is_available():
    interpret()
