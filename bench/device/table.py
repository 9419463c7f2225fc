"""How the device bench prints what it found: lines, and tables with a column per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def print_row(row: Row) -> None:
    """One row, in one line."""
    print(" ".join(f"{key}={_cell(value)}" for key, value in row.items()), flush=True)


def cells(rows: Sequence[Row]) -> list[str]:
    """Lines of a table with one column per key of the first row."""
    if not rows:
        return []
    names = list(rows[0])
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    return ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]


def only(rows: Sequence[Row], *names: str) -> list[Row]:
    """The rows with those keys alone, in that order."""
    return [{name: row.get(name, "") for name in names} for row in rows]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "" if value is None else str(value)
