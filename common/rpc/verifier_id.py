"""Which verifier has a stream: a word that each process makes up, in Verify's metadata.

It leaves as soon as the stream is there, so that it also says that the process answers. Knows: the
key and how ids are made. Refuses to know what a drafter makes of them
(drafter/verifier_client/selection.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

KEY = "x-verifier-id"


def new() -> str:
    """Another one in each process: after a restart it isn't the same verifier."""
    return secrets.token_hex(8)


def told(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """The id in a stream's initial metadata; "" if its verifier tells none."""
    return str(dict(metadata or ()).get(KEY, ""))
