"""What the demo shows, as an SVG: the terminal as rich renders it, for README.

Knows rich and a fixed width, so that the same answer gives the same picture. Does not know how the
answer was made.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.text import Text

from client.results import TokenDelta
from client.streaming import LEGEND, shown

WIDTH = 100  # columns
COMMAND = "crossdraft demo"


def save(
    path: Path, title: str, deltas: Sequence[TokenDelta], below: Sequence[RenderableType]
) -> None:
    """Write the picture: the command, the pair, the answer's tokens by origin, then `below`."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        highlight=False,
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text.assemble(("$ ", "dim"), COMMAND))
    console.print(Rule(LEGEND.copy()))
    console.print(Text(title, style="dim"), "\n", sep="")
    console.print(Text.assemble(*map(shown, deltas)), "\n", sep="")
    for each in below:
        console.print(each)
    path.write_text(console.export_svg(title=COMMAND, unique_id="crossdraft"), encoding="utf-8")
