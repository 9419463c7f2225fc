"""What another library raises over a model's files, as an error of ours in one line.

Knows exceptions. Does not know what is read, and which error it becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.errors import CrossdraftError

SHOWN = 300  # characters of a cause's own text; transformers lists all models that it knows


def one_line(cause: BaseException) -> str:
    """The kind and the beginning of its text."""
    text = " ".join(str(cause).split())
    cut = text[:SHOWN] + "…" * (len(text) > SHOWN)
    return f"{type(cause).__name__}: {cut}" if text else type(cause).__name__


@contextmanager
def refusing(kind: Callable[[str], CrossdraftError], what: str) -> Iterator[None]:
    """Whatever is raised within becomes `kind`, "WHAT: CAUSE"; what is ours or no memory stays.

    Broad, since libraries that read files which are not as they should be raise what they like:
    KeyError, AssertionError, a bare Exception.
    """
    try:
        yield
    except (CrossdraftError, MemoryError):
        raise
    except Exception as cause:
        if type(cause).__name__ == "OutOfMemoryError":  # torch's
            raise
        raise kind(f"{what}: {one_line(cause)}") from cause
