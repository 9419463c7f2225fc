"""Running kernels without a GPU, through Triton's interpreter: for tests and small trials.

Must be asked for before anything imports triton, since kernels become interpreted where they are
defined.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def interpret() -> None:
    """Let every kernel defined from now on run in numpy."""
    assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1"
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if getattr(patch, "takes_new_numpy", False):
        return

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        # Triton 3.6 keeps scalars as arrays of one element, which numpy >= 2.5 won't call integers.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch_lang_tensor.takes_new_numpy = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch_lang_tensor
