"""How the device bench prints what it found: one line per check, one small table per shape."""

from __future__ import annotations

from typing import Any


def table(measured: list[dict[str, Any]]) -> None:
    """One line per case of a shape."""
    first = measured[0]
    read = next((row["read_microseconds"] for row in measured if "reads" in row), None)
    print(f"{first['rows']} x {first['vocab']}: reading the logits once takes {read} us")
    for row in measured:
        if "note" in row:
            print(f"  {row['kernel']:<18} {row['note']}")
            continue
        beside = "" if row["times"] is None else f"  torch {row['baseline_microseconds']:>9.1f} us"
        print(f"  {row['kernel']:<18}{row['microseconds']:>9.1f} us {row['reads']:>6.2f} x{beside}")


def tell(row: dict[str, Any]) -> None:
    """One row, in one line."""
    print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
