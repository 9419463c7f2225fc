"""How long a stage of the device bench may take, and what it left out because of that.

Knows clocks and names. Does not know what is measured. A stage asks before each part of its work;
nothing is interrupted, so a part should be small beside its stage.
"""

from __future__ import annotations

import time


class Budget:
    """Until a moment that is fixed when the stage begins."""

    def __init__(self, seconds: float) -> None:
        self._begin = self._last = time.monotonic()
        self._deadline = self._begin + seconds
        self._longest = 0.0
        self.left_out: list[str] = []

    @property
    def used(self) -> float:
        return time.monotonic() - self._begin

    @property
    def left(self) -> float:
        return self._deadline - time.monotonic()

    def allows(self, part: str, seconds: float | None = None) -> bool:
        """Whether `part` may begin; noted as left out if not.

        seconds: that it takes; None takes it to be half as long as the longest part so far.
        """
        now = time.monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        needed = self._longest / 2 if seconds is None else seconds
        if self.left >= needed:
            return True
        self.left_out.append(part)
        return False
