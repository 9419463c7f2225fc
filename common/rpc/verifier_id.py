"""Which verifier has a stream: an id that each process makes for itself, in Verify's metadata.

It is sent as soon as the stream is open, so that it also shows that the process answers. Knows the
key and how ids are made. Does not know what a drafter does with them
(drafter/verifier_client/selection.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

KEY = "x-verifier-id"


def new() -> str:
    """A new one for each process: after a restart it isn't the same verifier."""
    return secrets.token_hex(8)


def received(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """The id in a stream's initial metadata; "" if its verifier sends none."""
    return str(dict(metadata or ()).get(KEY, ""))
