"""Bytes -> text as they come.

Knows characters that are split over chunks. Does not know tokens, stop strings, clients.
"""

from __future__ import annotations

import codecs


class StreamingText:
    """Pieces whose join is `data.decode("utf-8", "replace")`, whatever the chunking."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, data: bytes) -> str:
        """The text that is final now; an unfinished character is kept back."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What was kept back, at the very end: U+FFFD if the output ends inside a character."""
        return self._decoder.decode(b"", final=True)
