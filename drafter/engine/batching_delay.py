"""Which sessions are about to ask for a draft, and how long a draft pass waits for them.

Verdicts come in bursts, one for each session of a verifier's pass. Without waiting, the first of
them to ask would have a pass of its own, and the others' first step would come after it. Knows
sessions and times. Does not know what a pass does.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

BATCHING_DELAY = (
    0.5  # of the last pass: how long a pass may wait, and how long a session is expected
)


class BatchingDelay:
    """Written on the event loop, read on the engine's thread."""

    def __init__(self) -> None:
        self._coming: dict[Hashable, float] = {}  # since when (time.monotonic)

    def expect(self, session: Hashable) -> None:
        """The session's verdict is here."""
        self._coming[session] = time.monotonic()

    def forget(self, session: Hashable) -> None:
        """It asks, or it ends."""
        self._coming.pop(session, None)

    def until(self, begun: float, pass_s: float) -> float:
        """When a wait that began at `begun` ends (time.monotonic); 0.0 if nobody is expected.

        Who doesn't come, because its client reads slowly, say, is waited for once and not again.
        """
        coming = tuple(self._coming.values())  # a copy in one go: the event loop changes it
        if not coming:
            return 0.0
        return min(begun, max(coming)) + BATCHING_DELAY * pass_s
