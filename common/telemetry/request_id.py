"""The id under which one request is found in both services' logs.

A client may send its own as metadata; otherwise whoever is asked first makes one. It goes along to
the verifier, and back to the client in the trailing metadata. Knows where the id is kept while a
call runs, and what one may look like. Does not know logs (common/telemetry/logs.py) and traces.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

KEY = "x-request-id"  # of the metadata
_ALLOWED = re.compile(r"[A-Za-z0-9._:/+=-]{1,64}")  # nothing that could break a line of a log

current: ContextVar[str] = ContextVar("request_id", default="")  # of the call that runs


def taken(sent: str | bytes | None) -> str:
    """The id for a call that came with `sent`: that, if it may be one, otherwise a new one."""
    if isinstance(sent, str) and _ALLOWED.fullmatch(sent):
        return sent
    return secrets.token_hex(8)


def outgoing() -> tuple[tuple[str, str], ...]:
    """Metadata for a call that is made for the one that runs; empty where none runs."""
    found = current.get()
    return ((KEY, found),) if found else ()
