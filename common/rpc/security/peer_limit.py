"""How many calls one address may have in progress, so that no client takes all of a service.

Knows calls by the address they come from, ports left out. Does not know what they ask. Clients
behind one proxy are one peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import OverCapacity

RETRY_MS = 1000


class PeerLimit:
    """Counts; used on the event loop only."""

    def __init__(self, limit: int, what: str = "streams") -> None:
        """what: is counted, as a refusal names it."""
        self._limit = limit
        self._what = what
        self.calls: Counter[str] = Counter()  # address -> calls in progress

    @contextmanager
    def taking(self, peer: str) -> Iterator[None]:
        """One call of `peer` (as gRPC writes it). Raises OverCapacity if it has enough."""
        address = peer.rpartition(":")[0] or peer
        if self.calls[address] >= self._limit:
            raise OverCapacity(f"{self._what} of one peer", self._limit, RETRY_MS)
        self.calls[address] += 1
        try:
            yield
        finally:
            self.calls[address] -= 1
            if not self.calls[address]:
                del self.calls[address]
