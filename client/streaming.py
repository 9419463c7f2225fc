"""How streamed text looks: accepted drafts and the verifier's own tokens in different styles.

Knows rich, and that a pipe gets the text alone. Does not know where the text comes from.
"""

from __future__ import annotations

import sys

import grpc
from rich.console import Console
from rich.text import Text

from client.client import Statistics, TokenDelta
from common.sampling.acceptance_rule import AcceptanceRule
from common.types import Origin

STYLES: dict[Origin | None, str] = {Origin.DRAFT: "green", Origin.VERIFIER: "bold"}
LEGEND = Text.assemble(("accepted drafts", "green"), " · ", ("the verifier's own", "bold"))


# A model may write anything; what moves the cursor or rings the bell is for us to send. C0 and DEL
# have pictures, C1 has none.
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def shown(delta: TokenDelta) -> Text:
    """The delta's text in the style of its origin, control characters as pictures."""
    return Text(delta.text.translate(_CONTROLS), style=STYLES.get(delta.origin, ""))


class DeltaWriter:
    """Writes deltas to stdout as they come."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._ends_line = True

    def __call__(self, delta: TokenDelta) -> None:
        if not delta.text:
            return
        self._ends_line = delta.text.endswith("\n")
        if not self._console.is_terminal:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
            return
        self._console.print(shown(delta), end="", soft_wrap=True)

    def end(self) -> None:
        """Leave the cursor at the start of a line."""
        if not self._ends_line:
            sys.stdout.write("\n")
            sys.stdout.flush()


def one_line(statistics: Statistics) -> str:
    """The statistics of one stream, for a person."""
    reason = statistics.finish_reason.value if statistics.finish_reason else "unknown"
    if statistics.stop_string:
        reason = f"the stop string {statistics.stop_string!r}"
    parts = [
        f"{statistics.prompt_tokens} prompt tokens",
        f"{statistics.output_tokens} tokens",
        f"{statistics.tokens_per_s:.1f} tokens/s",
        f"first token after {statistics.time_to_first_token_s:.2f} s",
        f"mean acceptance length {statistics.mean_acceptance_length:.2f}",
        f"ended by {reason}",
    ]
    if statistics.rule is not None and statistics.rule is not AcceptanceRule.GREEDY:
        parts.append(f"rule {statistics.rule.label}")
    if not statistics.drafting:
        parts.append("without drafts")
    return " · ".join(parts)


def rpc_line(error: Exception) -> str:
    """A failed call in one line: "STATUS: message"."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return " ".join(str(error).split())
    return " ".join(f"{error.code().name}: {error.details()}".split())
