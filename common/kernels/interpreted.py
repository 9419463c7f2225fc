"""A repair of Triton 3.6's interpreter, for machines without a GPU.

The interpreter keeps a scalar as an array of one element, and NumPy 2.4 no longer takes such an
array for an int, so a loop bound that a kernel computed fails. Compiled kernels are not concerned.
"""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Let interpreted scalars be loop bounds; harmless where they are already."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
