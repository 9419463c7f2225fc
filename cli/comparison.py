"""The table that the demo ends with: the same request with drafts and without."""

from __future__ import annotations

from rich.table import Table

from client.client import Output


def comparison(drafted: Output, alone: Output) -> Table:
    """Speed and acceptance side by side; the ratio says how often the pair is faster."""
    with_drafts, without = drafted.statistics, alone.statistics
    table = Table()
    table.add_column("")
    for heading in ("with drafts", "target alone", "ratio"):
        table.add_column(heading, justify="right")
    table.add_row("tokens", str(with_drafts.output_tokens), str(without.output_tokens), "")
    table.add_row("rounds", str(with_drafts.rounds), str(without.rounds), "")
    table.add_row(
        "mean acceptance length",
        f"{with_drafts.mean_acceptance_length:.2f}",
        f"{without.mean_acceptance_length:.2f}",
        _ratio(with_drafts.mean_acceptance_length, without.mean_acceptance_length),
    )
    for position, share in enumerate(with_drafts.acceptance_by_position, start=1):
        table.add_row(f"draft token {position} accepted", f"{share:.0%}", "", "")
    table.add_row(
        "tokens/s, after the first",
        f"{with_drafts.tokens_per_s:.2f}",
        f"{without.tokens_per_s:.2f}",
        _ratio(with_drafts.tokens_per_s, without.tokens_per_s),
    )
    table.add_row(
        "time to first token",
        f"{with_drafts.time_to_first_token_s:.2f} s",
        f"{without.time_to_first_token_s:.2f} s",
        _ratio(with_drafts.time_to_first_token_s, without.time_to_first_token_s),
    )
    table.add_row(
        "time in all",
        f"{with_drafts.total_s:.2f} s",
        f"{without.total_s:.2f} s",
        _ratio(with_drafts.total_s, without.total_s),
    )
    return table


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}×" if base > 0 else ""
