"""A repair of Triton 3.6's interpreter: loop bounds that a kernel computed, under NumPy 2.4 and later.

The interpreter keeps a scalar as an array of one element, and NumPy no longer takes such an array
for an int. Compiled kernels are not concerned.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter


def repair() -> None:
    """Let interpreted scalars be loop bounds; harmless where they are already."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
